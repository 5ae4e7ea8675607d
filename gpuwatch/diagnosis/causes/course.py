"""The course of an engine's load over a log or a series of pages: running, waiting, pool, throughput."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes.view import Sample, number, sampled
from gpuwatch.diagnosis.explanation import logged

if TYPE_CHECKING:
    from gpuwatch.diagnosis.causes.view import Run, View
    from gpuwatch.diagnosis.finding import Evidence
    from gpuwatch.model import LogEvent

PRESSED = 0.7
"""Right after an eviction the pool reads 0.72 to 0.92 (vLLM 0.10 to 0.32)."""
FULL = 0.9
STATS = ("stats", "sgl_decode")
"""The patterns of statistics lines that hold running requests, queue, pool and throughput."""


@dataclass(frozen=True, slots=True)
class Point:
    """One statistics line. `pool` is 0 to 1, `prompt` and `generated` tokens per second; None where it does not say."""

    event: LogEvent
    running: float
    waiting: float | None
    swapped: float
    pool: float | None
    window_pool: float | None
    prompt: float | None
    generated: float | None
    hit: float | None

    @property
    def open(self) -> float:
        """Requests that are in the engine."""
        return self.running + (self.waiting or 0) + self.swapped


@dataclass(frozen=True, slots=True)
class Course:
    """The points of one engine (or data-parallel rank) in one run of its log, in order."""

    run: Run
    engine: str
    points: tuple[Point, ...]

    @property
    def sglang(self) -> bool:
        """Whether the lines are SGLang's."""
        return bool(self.points) and self.points[0].event.field("pattern").startswith("sgl_")

    def seconds(self, first: Point, last: Point) -> float:
        """Return the seconds between two points; 0 where the lines have no times."""
        return (last.event.time - first.event.time) / 1000 if first.event.time and last.event.time else 0.0


def courses(view: View) -> tuple[Course, ...]:
    """Return every course that the logs hold, worked out once for a view."""
    if view.courses is None:
        view.courses = _courses(view)
    return view.courses


def _courses(view: View) -> tuple[Course, ...]:
    found: dict[tuple[str, int, str], tuple[Run, list[Point]]] = {}
    for event in view.events("stats"):
        if event.field("pattern") not in STATS:
            continue
        run = view.run_of(event)
        key = (event.source, run.start, event.field("engine") or _rank(event))
        found.setdefault(key, (run, []))[1].append(_point(event))
    return tuple(Course(run, key[2], tuple(points)) for key, (run, points) in found.items())


def _rank(event: LogEvent) -> str:
    process = event.field("process")
    return process if "DP" in process else ""


def _point(event: LogEvent) -> Point:
    percent = number(event, "kv")
    usage = number(event, "ftu", "tu") if percent is None else percent / 100
    hit = number(event, "hit")
    return Point(
        event,
        number(event, "run") or 0.0,
        number(event, "wait", "q"),
        number(event, "swap") or 0.0,
        usage,
        number(event, "stu"),
        number(event, "pt"),
        number(event, "gt"),
        None if hit is None else hit / 100,
    )


@dataclass(frozen=True, slots=True)
class Pages:
    """Saved metrics pages in the order in which they were read: one value per page and series."""

    view: View

    def series(self, name: str) -> dict[tuple[tuple[str, str], ...], list[Sample]]:
        """Return the samples of ``gpuwatch_<name>`` by their labels."""
        found: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
        for sample in self.view.samples(name):
            found.setdefault(tuple(sorted(sample.labels.items())), []).append(sample)
        return found

    def last(self, name: str) -> tuple[Sample, ...]:
        """Return the newest sample of each series of that name."""
        return tuple(samples[-1] for samples in self.series(name).values())

    def total(self, name: str) -> list[float]:
        """Return the sum over all series of a counter, page by page, where all have the same number of pages."""
        every = list(self.series(name).values())
        if not every or len({len(samples) for samples in every}) != 1:
            return []
        return [sum(samples[at].value for samples in every) for at in range(len(every[0]))]

    def rise(self, name: str) -> float | None:
        """Return by how much a counter rose from the first page to the last; None without two pages."""
        values = self.total(name)
        if len(values) < 2:
            return None
        return sum(max(0.0, later - earlier) for earlier, later in pairwise(values))

    def evidence(self, name: str, text: str, unit: str = "") -> list[Evidence]:
        """Return the newest sample of a name as evidence."""
        newest = self.last(name)
        return [sampled(newest[0], text, unit)] if newest else []


def ends(points: tuple[Point, ...] | list[Point]) -> list[Evidence]:
    """Return the first and the last point as evidence."""
    return [logged(points[0].event), *([logged(points[-1].event)] if len(points) > 1 else [])]
