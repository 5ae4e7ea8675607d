"""Numbers and text the way Go's fmt package and Prometheus' template functions write them."""

from __future__ import annotations

import math
import re

from gpuwatch.promql.gotime import Named, moment

_VERB = re.compile(r"%(?P<flags>[-+# 0]*)(?P<width>\d+)?(?:\.(?P<precision>\d+)?)?(?P<verb>.)?", re.DOTALL)
_WORD_START = re.compile(r"(?<![A-Za-z0-9_])[a-z]")
_EXPONENT_FROM = 6
_LARGE = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
_SMALL = ("", "m", "u", "n", "p", "f", "a", "z", "y")
_BINARY = ("", "ki", "Mi", "Gi", "Ti", "Pi", "Ei", "Zi", "Yi")


def general(value: float, precision: int | None = None) -> str:
    """Return ``%g``, or ``%.4g`` with a precision of 4; without one the shortest text that reads back equal."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if precision is not None:
        return f"{value:.{precision}g}"
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    from decimal import Decimal  # noqa: PLC0415  # a healthy machine formats nothing

    _, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    power = len(digits) - 1 + exponent
    if -4 <= power < _EXPONENT_FROM:
        return f"{Decimal(repr(value)).normalize():f}"
    mantissa = "".join(map(str, digits))
    point = "." if len(mantissa) > 1 else ""
    sign = "-" if value < 0 else ""
    return f"{sign}{mantissa[0]}{point}{mantissa[1:]}e{'-' if power < 0 else '+'}{abs(power):02d}"


def show(value: object) -> str:
    """Return a value as ``%v`` prints it."""
    if value is None:
        return "<no value>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return general(value)
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{show(value[key])}' for key in sorted(value))}]"
    return str(value)


def sprintf(template: str, args: list[object]) -> str:
    """Return what Go's ``fmt.Sprintf`` gives, its marks for wrong arguments included."""
    rest = iter(args)
    missing = object()

    def one(found: re.Match[str]) -> str:
        verb = found["verb"]
        if verb == "%":
            return "%"
        if verb is None:
            return "%!(NOVERB)"
        value = next(rest, missing)
        if value is missing:
            return f"%!{verb}(MISSING)"
        return _padded(_formatted(found, value), found, value)

    text = _VERB.sub(one, template)
    extra = [f"{_type(value)}={show(value)}" for value in rest]
    return text + (f"%!(EXTRA {', '.join(extra)})" if extra else "")


def _formatted(found: re.Match[str], value: object) -> str:
    verb = found["verb"]
    precision = int(found["precision"] or 0) if "." in found[0] else None
    text: str | None = None
    if value is None:
        return "<nil>" if verb == "v" else f"%!{verb}(<nil>)"
    if verb == "v":
        text = show(value)
    elif isinstance(value, bool):
        text = show(value) if verb == "t" else None
    elif isinstance(value, float):
        text = _float(value, verb, precision)
    elif isinstance(value, Named) and verb in "sq":
        text = _string(str(value), verb)
    elif isinstance(value, int):
        text = chr(value) if verb == "c" else f"{int(value):{verb}}" if verb in "dxXob" else None
    elif isinstance(value, str):
        text = _string(value if precision is None else value[:precision], verb)
    if text is None:
        return f"%!{verb}({_type(value)}={show(value)})"
    return _signed(text, found["flags"]) if isinstance(value, (int, float)) else text


def _float(value: float, verb: str, precision: int | None) -> str | None:
    if verb in "gG" or not math.isfinite(value):
        return general(value, precision) if verb in "feEgG" else None
    return f"{value:.{6 if precision is None else precision}{verb}}" if verb in "feE" else None


def _string(text: str, verb: str) -> str | None:
    if verb == "q":
        return _quoted(text)
    if verb in "xX":
        return text.encode().hex().upper() if verb == "X" else text.encode().hex()
    return text if verb == "s" else None


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


def _signed(text: str, flags: str) -> str:
    if text.startswith(("-", "+")):
        return text
    return ("+" if "+" in flags else " " if " " in flags else "") + text


def _padded(text: str, found: re.Match[str], value: object) -> str:
    width = int(found["width"] or 0)
    if "-" in found["flags"]:
        return text.ljust(width)
    if "0" in found["flags"] and isinstance(value, (int, float)) and math.isfinite(value):
        return text.zfill(width)
    return text.rjust(width)


def _type(value: object) -> str:
    return {bool: "bool", int: "int", float: "float64", str: "string"}.get(type(value), "value")


def humanize(value: float) -> str:
    """Return four significant digits with an SI prefix."""
    if value == 0 or not math.isfinite(value):
        return general(value, 4)
    prefix = ""
    if abs(value) >= 1:
        for prefix in _LARGE:
            if abs(value) < 1000 or prefix == _LARGE[-1]:
                break
            value /= 1000
    else:
        for prefix in _SMALL:
            if abs(value) >= 1 or prefix == _SMALL[-1]:
                break
            value *= 1000
    return general(value, 4) + prefix


def humanize1024(value: float) -> str:
    """Return four significant digits with a binary prefix such as ``Mi``."""
    if abs(value) <= 1 or not math.isfinite(value):
        return general(value, 4)
    prefix = ""
    for prefix in _BINARY:
        if abs(value) < 1024 or prefix == _BINARY[-1]:
            break
        value /= 1024
    return general(value, 4) + prefix


def humanize_percentage(value: float) -> str:
    """Return a ratio in per cent."""
    return general(value * 100, 4) + "%"


def humanize_duration(value: float) -> str:
    """Return seconds as days, hours, minutes and seconds, or with an SI prefix below one second."""
    if not math.isfinite(value):
        return general(value, 4)
    if value == 0:
        return general(value, 4) + "s"
    if abs(value) < 1:
        prefix = ""
        for prefix in _SMALL:
            if abs(value) >= 1 or prefix == _SMALL[-1]:
                break
            value *= 1000
        return f"{general(value, 4)}{prefix}s"
    return ("-" if value < 0 else "") + _clock(abs(value))


def _clock(seconds: float) -> str:
    """Return at least one second; fractions are shown below a minute only."""
    minutes, whole = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if not minutes and not hours and not days:
        return general(seconds, 4) + "s"
    parts = [f"{days}d"] if days else []
    parts += [f"{hours}h"] if days or hours else []
    return " ".join([*parts, f"{minutes}m", f"{whole}s"])


def humanize_timestamp(value: float) -> str:
    """Return seconds since the epoch as Go prints a time in UTC.

    Raises:
        ValueError: It does not fit into 64 bits of nanoseconds.
    """
    at = moment(value)
    return general(value, 4) if at is None else str(at)


def title(text: str) -> str:
    """Return `text` with the first letter of each word in upper case."""
    return _WORD_START.sub(lambda found: found[0].upper(), text)
