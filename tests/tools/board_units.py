"""Values with their unit as Grafana writes them, for the pictures of dashboards."""

from __future__ import annotations

import math


def scaled(value: float, base: float, names: tuple[str, ...]) -> str:
    step = 0
    while abs(value) >= base and step < len(names) - 1:
        value, step = value / base, step + 1
    return f"{value:.3g}" + names[step] if abs(value) < 1000 else f"{value:.0f}" + names[step]


def seconds(value: float) -> str:
    if 0 < abs(value) < 1:
        return f"{1000 * value:.3g} ms"
    return f"{value:.3g} s" if value < 120 else f"{value / 60:.3g} min"


BINARY = tuple(f" {prefix}B" for prefix in ("", "Ki", "Mi", "Gi", "Ti", "Pi"))
WRITERS = {
    "bytes": lambda value: scaled(value, 1024, BINARY),
    "binBps": lambda value: scaled(value, 1024, BINARY) + "/s",
    "percentunit": lambda value: f"{100 * value:.3g}%",
    "s": seconds,
    "hertz": lambda value: scaled(value, 1000, (" Hz", " kHz", " MHz", " GHz")),
    "watt": lambda value: scaled(value, 1000, (" W", " kW", " MW")),
    "celsius": lambda value: f"{value:.3g} °C",
    "reqps": lambda value: f"{value:.3g} req/s",
    "short": lambda value: scaled(value, 1000, ("", " K", " Mil", " Bil")),
}


def show(value: float, unit: str) -> str:
    """Return `value` as text; `unit` is one of Grafana's ids."""
    kind, _, own = unit.partition(":")
    if math.isnan(value):
        return "NaN"
    if kind == "si":
        return scaled(value, 1000, tuple(f" {prefix}{own}" for prefix in ("", "k", "M", "G")))
    if kind == "suffix":
        return f"{value:.3g} {own}"
    return WRITERS.get(unit, "{:g}".format)(value)
