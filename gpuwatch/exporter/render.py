"""Pages in Prometheus' text format 0.0.4 and in OpenMetrics 1.0, byte for byte as prometheus_client writes them.

Sources: ``exposition_formats.md`` of Prometheus' documentation, the OpenMetrics specification, and
``prometheus_client.generate_latest`` for what both leave open (the way numbers are written).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from gpuwatch.exporter.families import Arrangement, unit_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpuwatch.exporter.families import Row
    from gpuwatch.series import Metric
    from gpuwatch.store import Column

Format: TypeAlias = Literal["text", "openmetrics"]

CONTENT_TYPES: dict[Format, str] = {
    "text": "text/plain; version=0.0.4; charset=utf-8",
    "openmetrics": "application/openmetrics-text; version=1.0.0; charset=utf-8",
}


def number(value: float) -> str:
    """Return a value as Go would print a label such as ``le``: shortest digits, an exponent from 1e6 on."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    text = repr(value)
    dot = text.find(".")
    if value > 0 and dot > 6:
        mantissa = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.")
        return f"{mantissa}e+{dot - 1:02d}"
    return text


class Renderer:
    """Writes pages of one format. What precedes a value is kept between pages, and so is a line that stays the same."""

    def __init__(self, form: Format = "text") -> None:
        self._form: Format = form
        self._arrangement = Arrangement()
        self._version = -1
        self._prefixes: list[str] = []
        self._lines: list[str] = []
        self._values: NDArray[np.float64] = np.empty(0)

    def page(self, columns: Sequence[Column]) -> bytes:
        """Return the page of the newest values in `columns`."""
        values = self._arrangement.values(columns)
        if self._version != self._arrangement.version:
            self._version = self._arrangement.version
            self._prefixes = _prefixes(self._arrangement.rows, self._form)
            changed = range(len(values))
            self._lines = [""] * len(values)
        else:
            changed = np.flatnonzero(values.view(np.uint64) != self._values.view(np.uint64)).tolist()
        self._values = values
        numbers = values.tolist()
        for place in changed:
            self._lines[place] = f"{self._prefixes[place]}{number(numbers[place])}\n"
        end = "# EOF\n" if self._form == "openmetrics" else ""
        return ("".join(self._lines) + end).encode()


def _prefixes(rows: Sequence[Row], form: Format) -> list[str]:
    """Return what precedes each value; the head of a family goes with its first series."""
    prefixes = []
    metric = None
    for row in rows:
        labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in row.labels)
        head = "" if row.metric is metric else _head(row.metric, form)
        metric = row.metric
        prefixes.append(f"{head}{row.name}{{{labels}}} " if labels else f"{head}{row.name} ")
    return prefixes


def _head(metric: Metric, form: Format) -> str:
    if form == "text":
        text = metric.help.replace("\\", r"\\").replace("\n", r"\n")
        return f"# HELP {metric.name} {text}\n# TYPE {metric.name} {metric.kind}\n"
    name = metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
    unit = unit_of(metric)
    head = f"# HELP {name} {_escaped(metric.help)}\n# TYPE {name} {metric.kind}\n"
    return head + (f"# UNIT {name} {unit}\n" if unit else "")


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
