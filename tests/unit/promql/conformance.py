"""The conformance cases of cases/*.txt, read into objects.

``eval`` holds under the rules of Prometheus 3 and 2, ``eval3`` and ``eval2`` under one of them, ``added2`` under those
of 2 when a group is added up in the order of its series; ``fail`` names a part of the message; ``ordered`` also fixes
the order; ``range`` takes start, end and step.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from gpuwatch.alerts.notation import parse_metric, parse_values

FILES = sorted(Path(__file__).with_name("cases").glob("*.txt"))
HEAD = re.compile(r"(eval[23]?|added2|fail|ordered) (\S+) (.+)|range (\S+) (\S+) (\S+) (.+)")
SERIES = re.compile(r"([^{\s]*(?:\{.*\})?)\s+(.*)")
UNITS = {"ms": 1, "s": 1000, "m": 60_000}


@dataclass
class Case:
    """One expression; `load` is the step in milliseconds and (metric, values) in the notation of rule tests."""

    where: str
    word: str
    times: tuple[int, ...]
    expr: str
    step: int
    series: list[tuple[str, str]]
    lines: list[str] = field(default_factory=list)

    @property
    def expected(self):
        """(labels, values) of each expected series."""
        return [(parse_metric(metric), parse_values(values)) for metric, values in map(split, self.lines)]

    @property
    def semantics(self):
        """The versions whose rules the case is about."""
        return (self.word[-1],) if self.word in ("eval2", "eval3", "added2") else ("3", "2")


def split(line):
    """Return the metric and the values of a line."""
    return SERIES.fullmatch(line).groups()


def milliseconds(text):
    number, unit = re.fullmatch(r"([\d.]+)(ms|s|m)", text).groups()
    return round(float(number) * UNITS[unit])


def _read(path):
    step, series, case, loading = 0, [], None, False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("    "):
            if loading:
                series.append(split(line.strip()))
            else:
                case.lines.append(line.strip())
            continue
        if case is not None:
            yield case
        case, loading = None, line.startswith("load ")
        if loading:
            step, series = milliseconds(line.removeprefix("load ")), []
            continue
        head = HEAD.fullmatch(line)
        assert head, f"{path.name}:{number}: {line}"
        times = (head[2],) if head[1] else head.group(4, 5, 6)
        where = f"{path.stem}:{number}"
        case = Case(where, head[1] or "range", tuple(map(milliseconds, times)), head[3] or head[7], step, series)
    yield case


CASES = [case for path in FILES for case in _read(path)]
