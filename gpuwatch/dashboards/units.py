"""Units of the catalogue as Grafana calls them, and values with them as a person reads them."""

from __future__ import annotations

_GRAFANA = {
    "bytes": "bytes",
    "bytes/s": "binBps",
    "ratio": "percentunit",
    "seconds": "s",
    "watts": "watt",
    "hertz": "hertz",
    "celsius": "celsius",
    "tokens": "short",
    "tokens/s": "si:tok/s",
    "per second": "suffix:/s",
    "count": "short",
    "cores": "suffix:cores",
    "none": "none",
}
"""Grafana's ``bytes`` counts in powers of 1024 (GiB), ``binBps`` too."""

REQUESTS = "reqps"
EVENTS = "suffix:/s"


def grafana_unit(unit: str) -> str:
    """Return Grafana's id of a unit of the catalogue."""
    return _GRAFANA[unit]


def shown(value: float, unit: str) -> str:
    """Return a threshold in words, such as ``85 %``."""
    if unit == "percentunit":
        return f"{100 * value:.4g} %"
    names = {
        "s": " s",
        "celsius": " °C",
        "watt": " W",
        "reqps": " per second",
        "ops": " per second",
        EVENTS: " per second",
    }
    return f"{value:.3g}{names.get(unit, '')}"
