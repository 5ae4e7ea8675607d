"""From the series of an engine's page to ours: a plan compiled once per page layout, applied to each scrape.

The plan is a list of row numbers, factors and a few formulas. Applying it costs two numpy reductions.

Page series that become one of ours are folded:

* several tensor-, pipeline- or expert-parallel ranks (SGLang with --enable-metrics-for-all-schedulers) and several
  API-server processes (`pid`) report the same scheduler: gauges take the maximum, counters the lowest rank;
* labels that split a count (streaming or not, source of cached tokens, phase) are added up;
* data-parallel ranks are different engines and are never folded. Neither are replicas that one page reports together
  (Ray Serve, routers): where a label that gpuwatch does not know tells several schedulers apart, its value becomes
  part of `dp_rank`, as ``VALUE/RANK``.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gpuwatch.engines.catalog import PRIORITY, SAMPLES
from gpuwatch.model import NAME, name_of, series

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from gpuwatch.engines.catalog import Engine
    from gpuwatch.engines.metric import EngineMetric
    from gpuwatch.model import Labels

MAX_SERIES = 15_000
"""Series of one page that are kept. A rank of vLLM has about 440, of which 60 are not buckets of histograms."""

MOST_SHARE = 1.1
"""A ratio beyond it is none: another unit, or a damaged page. What exceeds 1 by less is two gauges read apart."""

_PARALLEL = ("tp_rank", "pp_rank", "moe_ep_rank")
_FOLDED = frozenset(
    (NAME, "model_name", "le", "pid", "priority", "is_streaming", "cache_source", "phase", "mode", "stage", *_PARALLEL)
)
_REPLICA_FIRST = ("ReplicaId", "server", "pod", "instance", "engine_type")


@dataclass(frozen=True, slots=True)
class Formula:
    """A value that is computed at each scrape from others; `function` returns None or NaN for "absent", or raises."""

    slot: int
    inputs: tuple[int, ...]
    function: Callable[..., float | None]


@dataclass(slots=True)
class Plan:
    """How one page layout becomes one batch. `keys` are all series that it can give, `counters` those that only grow.

    `dropped` counts series left out because of `MAX_SERIES`.
    """

    keys: tuple[Labels, ...]
    counters: frozenset[Labels]
    dropped: int
    _maximum: NDArray[np.intp]
    _maximum_starts: NDArray[np.intp]
    _total: NDArray[np.intp]
    _total_starts: NDArray[np.intp]
    _factor: NDArray[np.float64]
    _offset: NDArray[np.float64]
    _template: NDArray[np.float64]
    _formulas: tuple[Formula, ...]
    _export: NDArray[np.intp]
    _most: NDArray[np.float64]
    _subsets: dict[bytes, tuple[Labels, ...]] = field(default_factory=dict)

    def apply(self, values: NDArray[np.float64]) -> tuple[tuple[Labels, ...], NDArray[np.float64]]:
        """Return our series and their values for the `values` of a page.

        A negative, infinite or NaN reading is absent (vLLM V0 reports a hit rate of -1 where caching is off), and so is
        a ratio that is none. The series are the same object as long as the same ones are present.
        """
        out = self._template.copy()
        gauges, folded = len(self._maximum_starts), len(self._factor)
        with np.errstate(all="ignore"):  # a page may hold any number; what overflows is absent
            if gauges:
                out[:gauges] = np.fmax.reduceat(values[self._maximum], self._maximum_starts)
            if folded > gauges:
                out[gauges:folded] = np.add.reduceat(values[self._total], self._total_starts)
            out[:folded] = out[:folded] * self._factor + self._offset
            out[out > self._most] = np.nan  # before anything is computed from it
        for formula in self._formulas:
            out[formula.slot] = _computed(formula.function, [float(out[slot]) for slot in formula.inputs])
        shown = out[self._export]
        good = np.isfinite(shown) & (shown >= 0) & (shown <= self._most[self._export])
        if good.all():
            return self.keys, shown
        mask = good.tobytes()
        keys = self._subsets.get(mask)
        if keys is None:
            keys = tuple(key for key, keep in zip(self.keys, good.tolist(), strict=True) if keep)
            if len(self._subsets) >= 16:  # readings that come and go in ever new patterns
                self._subsets.clear()
            self._subsets[mask] = keys
        return keys, shown[good]


@dataclass(slots=True)
class _Series:
    """One of our series while the plan is built: the row it comes from and the page rows folded into it."""

    row: EngineMetric
    family: Labels
    sources: list[tuple[tuple[int, ...], int]]


class PlanBuilder:
    """Collects what a page gives, lets derived values be added, and makes the plan.

    Args:
        engine: The engine that the page belongs to.
        page: The series of the page, in page order.
        host: Our label `host`.
        server: Our label `server`, ``host:port``.
    """

    def __init__(self, engine: Engine, page: Sequence[Labels], host: str, server: str) -> None:
        self.engine = engine
        self.base = {"host": host, "server": server, "engine_kind": engine.kind}
        self._page = [dict(labels) for labels in page]
        self._short = [engine.strip(labels[NAME]) for labels in self._page]
        self.names = engine.families({labels[NAME] for labels in self._page})
        self._replica = _replica_labels(self._running_rows(), engine.rank_label)
        self._folded = self._collect()
        self._tail: dict[Labels, tuple[tuple[Labels, ...], Callable[..., float | None] | float]] = {}

    def page_rows(self, name: str) -> Iterable[dict[str, str]]:
        """Yield the labels of the page's series called `name` (without prefix)."""
        return (labels for labels, short in zip(self._page, self._short, strict=True) if short == name)

    def pids(self) -> frozenset[str]:
        """Return the processes that the page keeps apart by a label `pid`, among the series that are used."""
        used = SAMPLES[self.engine.kind]
        pairs = zip(self._page, self._short, strict=True)
        return frozenset(labels["pid"] for labels, short in pairs if labels.get("pid") and short in used)

    def has_label(self, label: str) -> bool:
        """Return whether any of the engine's series on the page has `label`."""
        return any(label in labels for labels, short in zip(self._page, self._short, strict=True) if short is not None)

    def engine_labels(self, labels: dict[str, str]) -> dict[str, str]:
        """Return our labels of the engine (model and rank) that a page series with `labels` belongs to."""
        parts = [labels[label] for label in self._replica if labels.get(label)]
        parts += [labels[self.engine.rank_label]] if labels.get(self.engine.rank_label) else []
        found = self.base | {"model_name": labels.get("model_name", ""), "dp_rank": "/".join(parts)}
        return {key: value for key, value in found.items() if value}

    def replica(self, labels: dict[str, str]) -> tuple[str, ...]:
        """Return the values that tell the replicas on this page apart; the same for all ranks of one replica."""
        return tuple(labels.get(label, "") for label in self._replica)

    def engines(self) -> list[dict[str, str]]:
        """Return our labels of each scheduler on the page."""
        unique = {tuple(sorted(self.engine_labels(labels).items())): None for labels in self._running_rows()}
        return [dict(labels) for labels in unique]

    def has(self, target: str, of: dict[str, str]) -> bool:
        """Return whether the series `target` of the engine with labels `of` exists so far."""
        key = series(target, **of)
        return key in self._folded or key in self._tail

    def constant(self, target: str, of: dict[str, str], value: float | None, **extra: str) -> None:
        """Add a series that does not change between scrapes, unless it exists or `value` is None or no float."""
        key = series(target, **of, **extra)
        if value is not None and key not in self._folded and key not in self._tail:
            with contextlib.suppress(OverflowError):
                self._tail[key] = ((), float(value))

    def formula(
        self,
        target: str,
        of: dict[str, str],
        inputs: Sequence[str],
        function: Callable[..., float | None],
        **extra: str,
    ) -> bool:
        """Compute `target` from other series of the same engine; return False where an input is missing.

        It takes the place of a series that the page gives under the same name.
        """
        if not all(self.has(name, of) for name in inputs):
            return False
        key = series(target, **of, **extra)
        self._folded.pop(key, None)
        self._tail[key] = (tuple(series(name, **of) for name in inputs), function)
        return True

    def targets(self) -> frozenset[str]:
        """Return the names (histograms: of the family) of all series so far, inputs of formulas left out."""
        names = {entry.row.target for entry in self._folded.values()} | {dict(key)[NAME] for key in self._tail}
        return frozenset(name for name in names if not name.startswith("~"))

    def build(self) -> Plan:
        """Return the plan."""
        maxima = {key: entry for key, entry in self._folded.items() if not _adds_up(entry.row)}
        totals = {key: entry for key, entry in self._folded.items() if _adds_up(entry.row)}
        order = [*maxima, *totals, *self._tail]
        slot = {key: place for place, key in enumerate(order)}
        maximum, maximum_starts = _flatten([[index for _, index in entry.sources] for entry in maxima.values()])
        total, total_starts = _flatten([_lowest_rank(entry.sources) for entry in totals.values()])
        rows = [entry.row for entry in (*maxima.values(), *totals.values())]
        template = np.full(len(order), np.nan)
        formulas = []
        for key, (inputs, function) in self._tail.items():
            if callable(function):
                formulas.append(Formula(slot[key], tuple(slot[name] for name in inputs), function))
            else:
                template[slot[key]] = function
        shown = [key for key in order if not dict(key)[NAME].startswith("~")]
        kept = shown if len(shown) <= MAX_SERIES else _first_engines(shown, MAX_SERIES)
        return Plan(
            keys=tuple(kept),
            counters=frozenset(key for key in kept if key in totals and totals[key].row.kind != "gauge"),
            dropped=len(shown) - len(kept),
            _maximum=maximum,
            _maximum_starts=maximum_starts,
            _total=total,
            _total_starts=total_starts,
            _factor=np.array([row.factor for row in rows], np.float64),
            _offset=np.array([row.offset for row in rows], np.float64),
            _template=template,
            _formulas=tuple(formulas),
            _export=np.array([slot[key] for key in kept], np.intp),
            _most=np.array([MOST_SHARE if name_of(key).endswith("_ratio") else np.inf for key in order]),
        )

    def _running_rows(self) -> list[dict[str, str]]:
        return list(self.page_rows(self.engine.running))

    def _collect(self) -> dict[Labels, _Series]:
        """Assign each page series to the rows of the table that use it, and let the best alias of each series win."""
        index = SAMPLES[self.engine.kind]
        used = {
            id(row)
            for row in self.engine.table
            if not row.unless & self.names and not (row.unless_label and self.has_label(row.unless_label))
        }
        candidates: dict[Labels, dict[int, _Series]] = {}
        best: dict[Labels, int] = {}
        for place, (labels, short) in enumerate(zip(self._page, self._short, strict=True)):
            for row, suffix in index.get(short or "", ()):
                if id(row) not in used or not all(condition.holds(labels) for condition in row.where):
                    continue
                family, key = self._target(row, suffix, labels)
                priority = PRIORITY[id(row)]
                entry = candidates.setdefault(key, {}).setdefault(priority, _Series(row, family, []))
                entry.sources.append((tuple(_integer(labels.get(rank)) for rank in _PARALLEL), place))
                best[family] = min(priority, best.get(family, priority))
        winners = {key: by.get(best[next(iter(by.values())).family]) for key, by in candidates.items()}
        return {key: entry for key, entry in winners.items() if entry is not None}

    def _target(self, row: EngineMetric, suffix: str, labels: dict[str, str]) -> tuple[Labels, Labels]:
        """Return our series for a page series, and the family that its aliases compete for (all but the bucket)."""
        of = self.base if row.per_server else self.engine_labels(labels)
        extra = dict(row.const) | {ours: labels.get(theirs, "") for theirs, ours in row.rename}
        family = series(row.target, **of, **extra)
        if not suffix:
            return family, family
        bucket = {"le": labels.get("le", "")} if suffix == "_bucket" else {}
        return family, series(row.target + suffix, **of, **extra, **bucket)


def _first_engines(keys: Sequence[Labels], limit: int) -> list[Labels]:
    """Return at most `limit` of `keys`, in their order: whole parts of the first models and ranks.

    What belongs to the server comes first, then everything but the buckets of histograms, model by model and rank by
    rank, then the buckets in the same order. Only where the very first part is over the limit is it cut.
    """
    plain: dict[tuple[str, str], list[Labels]] = {("", ""): []}
    buckets: dict[tuple[str, str], list[Labels]] = {}
    for key in keys:
        pairs = dict(key)
        part = buckets if "le" in pairs else plain
        part.setdefault((pairs.get("model_name", ""), pairs.get("dp_rank", "")), []).append(key)
    chosen: set[Labels] = set()
    for parts in (plain, buckets):
        for series_of_one in parts.values():
            left = limit - len(chosen)
            if len(series_of_one) > left and chosen:
                break
            chosen.update(series_of_one[:left])
    return [key for key in keys if key in chosen]


def _computed(function: Callable[..., float | None], inputs: Sequence[float]) -> float:
    """Return what a formula makes of its inputs, NaN where one is no reading or the formula cannot use them."""
    if not all(math.isfinite(value) and value >= 0 for value in inputs):
        return math.nan
    try:
        value = function(*inputs)
        return math.nan if value is None else float(value)
    except (ArithmeticError, ValueError, TypeError, LookupError):
        return math.nan


def _adds_up(row: EngineMetric) -> bool:
    return row.total or row.kind != "gauge"


def _lowest_rank(sources: list[tuple[tuple[int, ...], int]]) -> list[int]:
    lowest = min(ranks for ranks, _ in sources)
    return [index for ranks, index in sources if ranks == lowest]


def _flatten(groups: list[list[int]]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    starts = np.cumsum([0, *map(len, groups)])[:-1]
    return np.array([index for group in groups for index in group], np.intp), np.array(starts, np.intp)


def _integer(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def _replica_labels(rows: Sequence[dict[str, str]], rank_label: str) -> tuple[str, ...]:
    """Return the labels, unknown to gpuwatch, that tell the schedulers on a page apart; the fewest that do."""
    names = {name for labels in rows for name in labels} - _FOLDED - {rank_label}
    preferred = [name for name in _REPLICA_FIRST if name in names]
    chosen: list[str] = []
    groups = 1
    for name in (*preferred, *sorted(names.difference(preferred))):
        told_apart = len({tuple(labels.get(label, "") for label in (*chosen, name)) for labels in rows})
        if told_apart > groups:
            chosen.append(name)
            groups = told_apart
    return tuple(chosen)
