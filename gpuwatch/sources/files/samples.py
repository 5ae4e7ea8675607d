"""Samples that were read from one file: bounded in number, with the extremes of every series kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from gpuwatch.model import series

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatch.engines.log_pattern import Value
    from gpuwatch.model import Labels

Sample: TypeAlias = "tuple[Labels, float, int]"
"""Labels, value, milliseconds since the epoch (0: unknown)."""

_MOST = 2000


class Samples:
    """Collects samples; of a series with very many, the first, the last and the extremes of each stretch are kept."""

    def __init__(self) -> None:
        self._courses: dict[Labels, list[tuple[float, int]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._courses.values()))

    def add(self, name: str, value: float, time: int, /, **labels: str) -> None:
        """Add one sample of ``gpuwatch_<name>``."""
        self.add_series(series("gpuwatch_" + name, **labels), value, time)

    def add_series(self, labels: Labels, value: float, time: int) -> None:
        """Add one sample."""
        course = self._courses.setdefault(labels, [])
        course.append((value, time))
        if len(course) >= 2 * _MOST:
            self._courses[labels] = _thinned(course)

    def all(self) -> list[Sample]:
        """Return the samples, series by series, each in the order in which it was read."""
        return [(labels, value, time) for labels, course in self._courses.items() for value, time in course]


def _thinned(course: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Return half of a course: the lowest and the highest of each four, in their order."""
    kept = [course[0]]
    for at in range(1, len(course) - 1, 4):
        four = course[at : at + 4]
        low, high = four.index(min(four)), four.index(max(four))
        kept += [four[place] for place in sorted({low, high})]
    return [*kept, course[-1]]


@dataclass(slots=True)
class Found:
    """What the readers of one file find beside the lines of a log.

    `facts` are (key, value, line, time); `kinds` the kinds of text that were met, in the order of the file.
    """

    samples: Samples = field(default_factory=Samples)
    facts: list[tuple[str, Value, int, int]] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    config: Mapping[str, object] | None = None

    def tell(self, key: str, value: Value, line: int, time: int = 0) -> None:
        """Enter a fact."""
        self.facts.append((key, value, line, time))

    def is_kind(self, kind: str) -> None:
        """Note a kind of text."""
        if kind not in self.kinds:
            self.kinds.append(kind)

    def absent(self, name: str, gpu: str, words: str, line: int, time: int = 0) -> None:
        """Note that ``gpuwatch_<name>`` of a GPU had no value, with the words that stood there."""
        self.tell(f"absent.gpuwatch_{name}.{gpu}" if gpu else f"absent.gpuwatch_{name}", words, line, time)
