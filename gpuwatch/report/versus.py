"""Runs held against a first one: figures with the uncertainty of their difference, and what the difference may mean."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from gpuwatch.report.figures import added_seconds, at_most, levels, merged
from gpuwatch.report.statistics import block_length, compare, estimate, holm
from gpuwatch.units import number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from gpuwatch.report.data import RunData, Window
    from gpuwatch.report.statistics import Comparison, Estimate

Columns: TypeAlias = "Callable[[Sequence[Window]], NDArray[np.float64] | None]"
Verdict: TypeAlias = Literal["better", "worse", "differs", "no difference shown", "too short to say", "n/a"]

_SIDES = ("better", "worse")
SURE = 0.05
"""A difference counts when its chance without any cause, raised for the number of figures, is below this."""
LOAD_DIFFERS = 0.1
"""Loads whose mean request length differs by more than this part are different loads."""
CONCURRENCY_DIFFERS = 0.15
"""Loads whose mean concurrency differs by more than this part are different loads."""
FEWEST_WITHOUT_SCATTER = 20
"""From so many independent blocks of windows on, windows that are all alike show that nothing scatters."""
FEWEST_OBSERVED = 20
"""A quantile of fewer observations than this in either run is not compared."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure that is compared. `better`: 1 when more is better, -1 when less is, 0 when neither.

    `columns` are what windows add to the sums, `statistic` makes the figure of the sums. `course` are two columns whose
    quotient follows the figure over time, from which its autocorrelation is taken; None: `columns` themselves.
    `bounded` says whether the figure lies in an engine's first bucket, so that no more than an upper bound is known.
    """

    name: str
    unit: str
    better: int
    columns: Columns
    statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    course: Columns | None = None
    bounded: Callable[[Sequence[Window]], bool] | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of both runs. `raised` is the p-value raised for the number of figures (Holm).

    A quantile above the highest bucket is infinite; two of them have no comparison. One that lies in the first bucket
    is that bucket's end, and `at_most` of its run is true; two of them have no comparison either, and of one the
    difference is the least that it may be.
    """

    name: str
    unit: str
    first: Estimate | None
    second: Estimate | None
    comparison: Comparison | None = None
    raised: float | None = None
    verdict: Verdict = "n/a"
    at_most: tuple[bool, bool] = (False, False)


@dataclass(frozen=True, slots=True)
class LevelRows:
    """The figures of both runs while equally many requests ran."""

    text: str
    seconds: tuple[float, float]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Versus:
    """A run against the first one. `apart`: the loads differ and have no concurrency in common, so none is better."""

    first: RunData
    second: RunData
    rows: tuple[Row, ...]
    levels: tuple[LevelRows, ...]
    load: tuple[Row, ...]
    cautions: tuple[str, ...]
    apart: bool = False


def versus(first: RunData, second: RunData) -> Versus:
    """Hold `second` against `first`."""
    ours, theirs = busy(first), busy(second)
    load = tuple(_row(measure, ours, theirs) for measure in LOAD)
    rows = [_row(measure, ours, theirs) for measure in MEASURES]
    other_loads = bool(_other_loads(load))
    if other_loads:
        rows = [_with_scatter(row) for row in rows]
    judged, at_level = _judged(rows), _by_level(ours, theirs)
    apart = other_loads and not at_level
    if apart:
        judged = tuple(replace(row, verdict="differs") if row.verdict in _SIDES else row for row in judged)
    return Versus(first, second, judged, at_level, load, _cautions(first, second, ours, theirs, load), apart)


def busy(run: RunData) -> tuple[Window, ...]:
    """Return the windows in which the engines of a run had work; those of several engines are added up."""
    known = [engine.windows for engine in run.engines if engine.windows]
    if not known:
        return ()
    known.sort(key=len, reverse=True)
    windows = list(known[0])
    for other in known[1:]:
        windows = _added(windows, other)
    return tuple(window for window in windows if window.busy and window.seconds > 0)


def value_of(row: Row, which: int) -> float | None:
    """Return the figure of the first (0) or second (1) run."""
    known = (row.first, row.second)[which]
    return None if known is None else known.value


def _added(windows: Sequence[Window], others: Sequence[Window]) -> list[Window]:
    """Add to each window what another engine did at the same time."""
    place = 0
    found = []
    for window in windows:
        same = []
        while place < len(others) and (others[place].start + others[place].end) / 2 < window.end:
            if (others[place].start + others[place].end) / 2 >= window.start:
                same.append(others[place])
            place += 1
        if not same:
            found.append(window)
            continue
        both = merged([window, *same])
        more = merged(same)
        assert both is not None
        assert more is not None
        running, waiting = _sum(window.running, more.running), _sum(window.waiting, more.waiting)
        found.append(replace(both, start=window.start, end=window.end, running=running, waiting=waiting))
    return found


def _sum(first: float | None, second: float | None) -> float | None:
    return first if second is None else second if first is None else first + second


def _row(measure: Measure, ours: Sequence[Window], theirs: Sequence[Window]) -> Row:
    first, second = _estimate(measure, ours), _estimate(measure, theirs)
    bounded = (False, False) if measure.bounded is None else (measure.bounded(ours), measure.bounded(theirs))
    row = Row(measure.name, measure.unit, first, second, at_most=bounded)
    if first is None or second is None or (math.isinf(first.value) and math.isinf(second.value)):
        return row
    if (bounded[0] and second.value <= first.value) or (bounded[1] and first.value <= second.value):
        return row
    return replace(row, comparison=compare(first, second))


def _estimate(measure: Measure, windows: Sequence[Window]) -> Estimate | None:
    columns = measure.columns(windows) if windows else None
    if columns is None:
        return None
    pairs = measure.course(windows) if measure.course is not None else columns
    course = columns[:, 0] if pairs is None else _ratio(pairs)
    known = course[np.isfinite(course)]
    course = np.where(np.isfinite(course), course, known.mean() if len(known) else 0.0)
    return estimate(columns, measure.statistic, block_length(course.tolist()))


def _judged(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return rows with verdicts; the more figures are looked at, the more it takes."""
    tested = [row for row in rows if row.comparison is not None and row.comparison.p is not None]
    raised = dict(
        zip(
            (row.name for row in tested),
            holm([row.comparison.p or 0.0 for row in tested if row.comparison is not None]),
            strict=True,
        )
    )
    return tuple(replace(row, raised=raised.get(row.name), verdict=_verdict(row, raised.get(row.name))) for row in rows)


def _verdict(row: Row, raised: float | None) -> Verdict:
    if row.comparison is None:
        return "n/a"
    if math.isinf(row.comparison.difference):
        known = [each.error for each in (row.first, row.second) if each is not None]
        raised = None if None in known else 0.0
    if raised is None:
        return "too short to say"
    if raised >= SURE:
        return "no difference shown"
    better = next((measure.better for measure in (*MEASURES, *LOAD) if measure.name == row.name), 0)
    if not better:
        return "differs"
    return "better" if row.comparison.difference * better > 0 else "worse"


def _by_level(ours: Sequence[Window], theirs: Sequence[Window]) -> tuple[LevelRows, ...]:
    mine = {(level.low, level.high): level for level in levels(ours)}
    found = []
    for level in levels(theirs):
        same = mine.get((level.low, level.high))
        if same is not None:
            rows = [_row(measure, same.windows, level.windows) for measure in MEASURES if measure.name in AT_LEVEL]
            found.append(LevelRows(level.text, (same.seconds, level.seconds), _judged(rows)))
    return tuple(found)


def _other_loads(load: Sequence[Row]) -> list[tuple[str, float, float]]:
    """Return what of the load differs, with the values of both runs."""
    found = []
    by_name = {row.name: row for row in load}
    for name, limit in (
        ("mean prompt length", LOAD_DIFFERS),
        ("mean output length", LOAD_DIFFERS),
        ("requests running", CONCURRENCY_DIFFERS),
    ):
        one, other = (value_of(by_name[name], which) for which in (0, 1))
        if one and other and abs(other / one - 1) > limit:
            found.append((name, one, other))
    return found


def _with_scatter(row: Row) -> Row:
    """Return a row without the interval of a few windows that are all alike: it says that the loads were steady.

    Where both figures are equal it stays: no difference is shown, whatever the loads.
    """
    known = row.comparison
    if known is None or row.first is None or row.second is None or known.low is None or known.low != known.high:
        return row
    if known.difference == 0 or min(row.first.freedom, row.second.freedom) >= FEWEST_WITHOUT_SCATTER:
        return row
    return replace(row, comparison=replace(known, low=None, high=None, p=None))


def _same_recording(first: RunData, second: RunData) -> bool:
    """Return whether both runs are one: the same machine, the same milliseconds, the same ticks."""
    about = [(run.host, run.started, run.ended, run.ticks, run.engines) for run in (first, second)]
    return about[0] == about[1]


def _cautions(
    first: RunData, second: RunData, ours: Sequence[Window], theirs: Sequence[Window], load: Sequence[Row]
) -> tuple[str, ...]:
    if not ours or not theirs:
        return ("In at least one run no engine had work: there is nothing to compare.",)
    found = [
        f"The loads differ: {name} {number(one)} against {number(other)}. A difference of the figures may be that of "
        "the loads; compare at equal concurrency, or repeat with the same load."
        for name, one, other in _other_loads(load)
    ]
    if _same_recording(first, second):
        found.append("Both are the same recording: it is compared with itself.")
    by_name = {row.name: row for row in load}
    waiting = [value_of(by_name["requests waiting"], which) for which in (0, 1)]
    if all(value is not None and value < 0.5 for value in waiting):
        found.append(
            "Hardly a request waited in either run: if they were sent at a fixed rate, throughput is that rate and "
            "says nothing about the engine; latency does."
        )
    short = [added_seconds(windows) for windows in (ours, theirs)]
    if min(short) < 60:
        found.append(
            f"{min(short):.0f} s of work is short: a minute or more of each run lets smaller differences show."
        )
    return tuple(found)


def _per_second(counter: str) -> Columns:
    def columns(windows: Sequence[Window]) -> NDArray[np.float64] | None:
        known = [window for window in windows if counter in window.counted]
        return np.array([[window.counted[counter], window.seconds] for window in known]) if known else None

    return columns


def _share(part: str, whole: str) -> Columns:
    def columns(windows: Sequence[Window]) -> NDArray[np.float64] | None:
        known = [window for window in windows if part in window.counted and whole in window.counted]
        return np.array([[window.counted[part], window.counted[whole]] for window in known]) if known else None

    return columns


def _level_mean(name: str) -> Columns:
    def columns(windows: Sequence[Window]) -> NDArray[np.float64] | None:
        known = [window for window in windows if getattr(window, name) is not None]
        rows = [[getattr(window, name) * window.seconds, window.seconds] for window in known]
        return np.array(rows, dtype=np.float64) if rows else None

    return columns


def _mean_of(name: str) -> Columns:
    def columns(windows: Sequence[Window]) -> NDArray[np.float64] | None:
        known = [window.histograms[name] for window in windows if name in window.histograms]
        return np.array([[histogram.total, histogram.count] for histogram in known]) if known else None

    return columns


def _bounded(name: str, share: float) -> Callable[[Sequence[Window]], bool]:
    def bounded(windows: Sequence[Window]) -> bool:
        whole = merged([window for window in windows if name in window.histograms])
        return whole is not None and at_most(share, whole.histograms[name]) is not None

    return bounded


def _quantile(name: str, share: float) -> tuple[Columns, Callable[[NDArray[np.float64]], NDArray[np.float64]]]:
    """Return columns and statistic of a quantile: the sums are cumulative counts, and the bounds travel in front.

    The first columns hold, in each window, the bounds divided by the number of windows: their sums are the bounds
    themselves whatever is drawn, as a draw has as many windows as the run. A quantile in the first bucket is its end.
    """

    def columns(windows: Sequence[Window]) -> NDArray[np.float64] | None:
        known = [window.histograms[name] for window in windows if name in window.histograms]
        if not known or sum(histogram.count for histogram in known) < FEWEST_OBSERVED:
            return None
        bounds = known[-1].bounds
        same = [histogram for histogram in known if histogram.bounds == bounds]
        finite = [bound / len(same) for bound in bounds[:-1]]
        return np.array([[*finite, *histogram.counts] for histogram in same])

    def statistic(sums: NDArray[np.float64]) -> NDArray[np.float64]:
        size = (sums.shape[1] - 1) // 2
        bounds = np.concatenate([np.zeros((len(sums), 1)), sums[:, :size]], axis=1)
        counts = np.concatenate([np.zeros((len(sums), 1)), sums[:, size:]], axis=1)
        wanted = share * counts[:, -1:]
        place = np.argmax((counts[:, 1:] >= wanted) & (counts[:, 1:] > counts[:, :-1]), axis=1)
        rows = np.arange(len(sums))
        inside = place < size
        end = np.minimum(place, size - 1)
        low, high = bounds[rows, end], bounds[rows, end + 1]
        before, after = counts[rows, place], counts[rows, place + 1]
        with np.errstate(all="ignore"):
            value = low + (high - low) * (wanted[:, 0] - before) / (after - before)
        value = np.where(place == 0, high, value)
        return np.where(counts[:, -1] > 0, np.where(inside, value, np.inf), np.nan)

    return columns, statistic


def _ratio(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(all="ignore"):
        return np.where(sums[:, 1] > 0, sums[:, 0] / sums[:, 1], np.nan)


def _latency(kind: str, text: str) -> list[Measure]:
    mean = Measure(f"{text} mean", "seconds", -1, _mean_of(kind), _ratio)
    shares = (50, 95)
    of = (
        Measure(
            f"{text} p{share}",
            "seconds",
            -1,
            *_quantile(kind, share / 100),
            _mean_of(kind),
            _bounded(kind, share / 100),
        )
        for share in shares
    )
    return [mean, *of]


MEASURES: tuple[Measure, ...] = (
    Measure("generated tokens", "tokens/s", 1, _per_second("generation_tokens"), _ratio),
    Measure("prompt tokens", "tokens/s", 1, _per_second("prompt_tokens"), _ratio),
    Measure("requests finished", "per second", 1, _per_second("finished"), _ratio),
    *_latency("ttft", "time to first token"),
    *_latency("itl", "time between tokens"),
    *_latency("e2e", "arrival to last token"),
    *_latency("queue", "time in the queue")[::2],
    Measure("preemptions", "per second", -1, _per_second("preemptions"), _ratio),
    Measure("prefix cache hits", "ratio", 1, _share("prefix_hits", "prefix_queries"), _ratio),
)
AT_LEVEL = ("generated tokens", "time between tokens p50", "time between tokens p95", "time to first token p95")

LOAD: tuple[Measure, ...] = (
    Measure("requests running", "none", 0, _level_mean("running"), _ratio),
    Measure("requests waiting", "none", 0, _level_mean("waiting"), _ratio),
    Measure("mean prompt length", "tokens", 0, _mean_of("prompt_length"), _ratio),
    Measure("mean output length", "tokens", 0, _mean_of("generation_length"), _ratio),
    Measure("KV pool in use", "ratio", 0, _level_mean("kv_usage"), _ratio),
)
