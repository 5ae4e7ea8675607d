"""Figures as a person reads them: one function per unit. An absent value is ``n/a``, never 0."""

from __future__ import annotations

import math
import time

NONE = "n/a"

KIB = 1024
MIB = 1024**2
GIB = 1024**3
TIB = 1024**4


def known(value: float | None) -> bool:
    """Return whether there is a value to show: not absent and not NaN (a quantile of no observations)."""
    return value is not None and not math.isnan(value)


def gib(value: float | None) -> str:
    """Return bytes in GiB without the unit: ``74.1``."""
    if value is None or math.isnan(value):
        return NONE
    return f"{value / GIB:,.1f}"


def size(value: float | None) -> str:
    """Return bytes with the binary unit that suits them: ``512 MiB``, ``74.1 GiB``."""
    if value is None or math.isnan(value):
        return NONE
    amount = abs(value)
    if amount >= TIB:
        return f"{value / TIB:,.1f} TiB"
    if amount >= GIB:
        return f"{value / GIB:,.1f} GiB"
    if amount >= MIB:
        return f"{value / MIB:,.0f} MiB"
    if amount >= KIB:
        return f"{value / KIB:,.0f} KiB"
    return f"{value:,.0f} B"


def count(value: float | None) -> str:
    """Return a whole number with thousands separators."""
    if value is None or math.isnan(value):
        return NONE
    return f"{value:,.0f}" if math.isfinite(value) else "∞"


def percent(value: float | None) -> str:
    """Return a ratio as a percentage; what is neither none nor all never reads ``0 %`` or ``100 %``."""
    if value is None or math.isnan(value):
        return NONE
    if 0 < value < 0.005:
        return "<1 %"
    if 0.995 <= value < 1:
        return ">99 %"
    return f"{value * 100:.0f} %" if math.isfinite(value) else "∞"


def number(value: float | None) -> str:
    """Return a number in about three digits: ``0.42``, ``1.5``, ``5``, ``155``, ``1,234``."""
    if value is None or math.isnan(value):
        return NONE
    amount = abs(value)
    if math.isinf(value) or float(value).is_integer() or amount >= 9.95:
        return count(value)
    if amount < 0.005:
        return "<0.01"
    return f"{value:.2f}" if amount < 0.995 else f"{value:.1f}"


def seconds(value: float | None) -> str:
    """Return a duration: ``0.4 ms``, ``212 ms``, ``1.2 s``, ``41 s``, ``1 min 20 s``, ``2 h 5 min``, ``3 d 2 h``."""
    if value is None or not math.isfinite(value):
        return count(value)
    for below, scale, unit, digits in ((0.00095, 1e3, "ms", 1), (0.9995, 1e3, "ms", 0), (9.95, 1, "s", 1)):
        if 0 < value < below:
            return f"{value * scale:.{digits}f} {unit}"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    big, small, names = next(
        (big, small, names)
        for below, big, small, names in (
            (3600, 60, 1, ("min", "s")),
            (86400, 3600, 60, ("h", "min")),
            (math.inf, 86400, 3600, ("d", "h")),
        )
        if whole < below
    )
    rest = whole % big // small
    return f"{whole // big} {names[0]}" + (f" {rest} {names[1]}" if rest else "")


def age(value: float | None) -> str:
    """Return how old something is, in whole seconds and larger: ``12 s``."""
    if value is None or math.isnan(value):
        return NONE
    whole = float(round(max(0.0, value)))
    return f"{whole:.0f} s" if whole < 60 else seconds(whole)


def megahertz(value: float | None) -> str:
    """Return hertz as ``1,755 MHz``."""
    return NONE if value is None or math.isnan(value) else f"{value / 1e6:,.0f} MHz"


def watts(value: float | None) -> str:
    """Return a power as ``612 W``."""
    return NONE if value is None or math.isnan(value) else f"{value:,.0f} W"


def celsius(value: float | None) -> str:
    """Return a temperature as ``64 °C``."""
    return NONE if value is None or math.isnan(value) else f"{value:.0f} °C"


def clock(milliseconds: int) -> str:
    """Return the local time of day of an instant in milliseconds since the epoch: ``12:41:07``."""
    return time.strftime("%H:%M:%S", time.localtime(milliseconds / 1000))


def clock_short(milliseconds: int) -> str:
    """Return the local time of day without seconds: ``12:41``."""
    return time.strftime("%H:%M", time.localtime(milliseconds / 1000))


def with_unit(value: float | str | None, unit: str) -> str:
    """Return a value in the unit that a query or a piece of evidence names.

    Units: bytes, bytes/s, ratio, seconds, tokens, tokens/s, per second, hertz, watts, celsius, cores, count, none.
    """
    if value is None:
        return NONE
    if isinstance(value, str):
        return value
    plain = {
        "bytes": size,
        "ratio": percent,
        "seconds": seconds,
        "hertz": megahertz,
        "watts": watts,
        "celsius": celsius,
    }
    if unit in plain:
        return plain[unit](value)
    if unit == "bytes/s":
        return f"{size(value)}/s"
    if unit == "per second":
        return f"{number(value)}/s"
    unit = unit.replace("tokens/s", "tok/s")
    exact = count(value) if float(value).is_integer() else number(value)
    return exact if unit in ("", "none", "count") else f"{exact} {unit}"
