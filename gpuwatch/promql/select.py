"""From selectors to samples of the store: instant vectors and windows of samples."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gpuwatch.promql.labels import EMPTY, Floats, Joiner, Many, Mask, Picker
from gpuwatch.promql.values import PromQLError, Vector
from gpuwatch.store import HOLE_BITS, STALE_BITS, RegexError, Rows, may_have_nan
from gpuwatch.store.store import LOOKBACK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from gpuwatch.promql.nodes import Selector, Subquery
    from gpuwatch.promql.nodes import Window as WindowNode
    from gpuwatch.store import Store


@dataclass(frozen=True, slots=True)
class Scope:
    """What an evaluation works on, and by which rules.

    With `left_open` (Prometheus 3) a window of 1m at t reaches from just after t - 1m to t; without it (Prometheus 2)
    its left edge belongs to it. `default_step` is the step of a subquery without one, in milliseconds.
    """

    store: Store
    left_open: bool = True
    default_step: int = 60_000


class Source:
    """The rows that a selector means, looked up again only when series of that name changed."""

    __slots__ = ("_generation", "_matchers", "_name", "_name_generation", "_rows", "_store")

    def __init__(self, store: Store, selector: Selector) -> None:
        self._matchers = selector.matchers
        self._store = store
        self._name = selector.name
        self._generation = self._name_generation = -1
        self._rows: tuple[Rows, ...] = ()

    def rows(self) -> tuple[Rows, ...]:
        """Return the present selection; the label tuples are the same objects while the series are the same."""
        store = self._store
        if store.generation != self._generation:
            self._generation = store.generation
            generation = store.name_generation(self._name)
            if generation != self._name_generation:
                self._name_generation = generation
                self._rows = self._select()
        return self._rows

    def generation(self) -> int:
        """Return what changes whenever the series of the selection do."""
        self.rows()
        return self._name_generation

    def _select(self) -> tuple[Rows, ...]:
        try:
            found = self._store.select(self._matchers)
        except RegexError as error:
            raise PromQLError(str(error)) from None
        known = {old.labels: old.labels for old in self._rows}
        return tuple(Rows(new.block, new.index, known.get(new.labels, new.labels)) for new in found)


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """Something that gives a number at a time (milliseconds), and the selections that it depends on."""

    at: Callable[[int], float]
    sources: tuple[Source, ...] = ()


class VectorOp:
    """Something that gives an instant vector; remembers its last answer until the store is written to.

    Most series do not change from one tick to the next. An answer that comes out as the last one did is the same
    object (`settled`), and an operator whose operands are the same objects need not work them out (`unchanged`).
    """

    __slots__ = ("_operands", "_read", "_sources", "_store", "_time", "_value", "_version")

    def __init__(self, scope: Scope, sources: tuple[Source, ...]) -> None:
        self._store = scope.store
        self._sources = sources
        self._time: int | None = None
        self._version = -1
        self._value: Vector = EMPTY
        self._operands: tuple[object, ...] = ()
        self._read: tuple[object, ...] = ()

    @property
    def sources(self) -> tuple[Source, ...]:
        """The selections that the answer depends on."""
        return self._sources

    def at(self, time: int) -> Vector:
        """Return the vector at `time` (milliseconds)."""
        version = self._store.version
        if time == self._time and version == self._version:
            return self._value
        self._time = None  # an evaluation that fails leaves nothing to remember
        self._read = ()
        value = self.compute(time)
        self._time, self._version, self._value, self._operands = time, version, value, self._read
        return value

    def compute(self, time: int) -> Vector:
        """Work the vector out."""
        raise NotImplementedError

    def unchanged(self, *operands: object) -> bool:
        """Say whether the last answer came from these very objects; for answers that depend on nothing else."""
        self._read = operands
        return len(operands) == len(self._operands) and all(map(operator.is_, operands, self._operands))

    def settled(self, vector: Vector) -> Vector:
        """Return the last answer where `vector` has the same series and the same values, bit by bit."""
        last = self._value
        if vector.labels is last.labels and vector.values.tobytes() == last.values.tobytes():
            return last
        return vector


class _Moved:
    """The time that is read for an evaluation time, in milliseconds: ``@`` and ``offset`` are applied."""

    __slots__ = ("_at", "_offset")

    def __init__(self, node: Selector | Subquery) -> None:
        assert not isinstance(node.at, str), "start() and end() are bound before an expression is compiled"
        self._at = node.at
        self._offset = node.offset

    def __call__(self, time: int) -> int:
        return (time if self._at is None else self._at) - self._offset


class SelectorOp(VectorOp):
    """An instant selector: the newest sample of each series within the lookback, unless the series ended."""

    __slots__ = ("_joiner", "_moved", "_open", "_picker", "_source")

    def __init__(self, scope: Scope, source: Source, node: Selector) -> None:
        super().__init__(scope, (source,))
        self._moved = _Moved(node)
        self._open = scope.left_open
        self._source = source
        self._picker = Picker()
        self._joiner = Joiner()

    def compute(self, time: int) -> Vector:
        """Read the newest column of each block."""
        return self.settled(self._joiner([vector for vector, _ in self.parts(time)]))

    def parts(self, time: int) -> Iterator[tuple[Vector, int]]:
        """Yield the vector of each block with the time of its samples in milliseconds."""
        time = self._moved(time)
        oldest = time - LOOKBACK + self._open
        for rows in self._source.rows():
            block = rows.block
            stop = block.before(time)
            if stop == block.start or block.times[stop - 1] < oldest:
                continue
            values = block.data[rows.index, stop - 1]
            if may_have_nan(values):
                bits = values.view(np.uint64)
                keep = (bits != STALE_BITS) & (bits != HOLE_BITS)
                vector = self._picker.vector(rows.labels, values, keep)
                if not vector.labels:
                    continue
            else:
                vector = Vector(rows.labels, values)
            if vector.values.base is not None:
                vector = Vector(vector.labels, vector.values.copy())
            yield vector, int(block.times[stop - 1])


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples of some series in a window: `data` is (series, times), every series has at least one sample.

    `ok` says which cells are samples; None: all. `start` and `end` are the edges of the window; all times are in
    milliseconds.
    """

    labels: Many
    times: NDArray[np.int64]
    data: Floats
    ok: Mask | None
    start: int
    end: int


class MatrixOp(Protocol):
    """Something that gives windows of samples."""

    @property
    def sources(self) -> tuple[Source, ...]:
        """The selections that the answer depends on."""
        ...

    @property
    def range(self) -> int:
        """The width of the window in milliseconds."""
        ...

    def at(self, time: int) -> list[Samples]:
        """Return the samples of the window that ends at `time`, one part per time axis."""
        ...


class WindowOp:
    """A range selector on the store."""

    def __init__(self, scope: Scope, source: Source, node: WindowNode) -> None:
        self.sources = (source,)
        self.range = node.range
        self._open = scope.left_open
        self._source = source
        self._moved = _Moved(node.selector)
        self._picker = Picker()

    def at(self, time: int) -> list[Samples]:
        """Cut the window out of each block."""
        end = self._moved(time)
        start = end - self.range
        edge = start if self._open else start - 1
        found = []
        for rows in self._source.rows():
            block = rows.block
            first, stop = block.before(edge), block.before(end)
            if first == stop:
                continue
            data = block.data[rows.index, first:stop]
            samples = _samples(self._picker, rows.labels, block.times[first:stop], data, (start, end))
            if samples is not None:
                found.append(samples)
        return found


class SubqueryOp:
    """An expression evaluated at steps that are multiples of the step since the epoch.

    Steps are shared between evaluations. An answer is kept for as long as no sample at or before its step can have
    changed: for good where every block had gone past the step, else while the block has not been written to. `ahead`
    says that the expression may look into the future of a step; then nothing is kept.
    """

    def __init__(self, scope: Scope, inner: VectorOp, node: Subquery, *, ahead: bool) -> None:
        self.sources = inner.sources
        self.range = node.range
        self._inner = inner
        self._open = scope.left_open
        self._moved = _Moved(node)
        self._step = node.step or scope.default_step
        self._ahead = ahead
        self._picker = Picker()
        self._generations: list[int] = []
        self._kept: dict[int, tuple[Vector, tuple[int, ...] | None]] = {}

    def at(self, time: int) -> list[Samples]:
        """Evaluate the inner expression at each step of the window."""
        end = self._moved(time)
        start = end - self.range
        first = start // self._step * self._step
        if first < start or (self._open and first == start):
            first += self._step
        times = range(first, end + 1, self._step)
        vectors = [self._inner.at(step) for step in times] if self._ahead else self._shared(times)
        if not any(vectors):
            return []
        labels, data = _stack(vectors)
        samples = _samples(self._picker, labels, np.array(times, dtype=np.int64), data, (start, end))
        return [] if samples is None else [samples]

    def _shared(self, times: Sequence[int]) -> list[Vector]:
        generations = [source.generation() for source in self.sources]
        if generations != self._generations or len(self._kept) > 4 * len(times):
            self._generations = generations
            self._kept.clear()
        blocks = [rows.block for source in self.sources for rows in source.rows()]
        versions = tuple(block.version for block in blocks)
        settled = min([block.newest or 0 for block in blocks], default=0) - 1
        vectors = []
        for step in times:
            kept = self._kept.get(step)
            if kept is None or kept[1] not in (None, versions):
                kept = self._kept[step] = self._inner.at(step), None if step <= settled else versions
            vectors.append(kept[0])
        return vectors


def _stack(vectors: list[Vector]) -> tuple[Many, Floats]:
    """Return all series of `vectors` and their values, with holes where a vector lacks a series."""
    labels = vectors[0].labels
    if all(vector.labels is labels for vector in vectors):
        return labels, np.stack([vector.values for vector in vectors], axis=1)
    rows: dict[tuple[tuple[str, str], ...], int] = {}
    for vector in vectors:
        for key in vector.labels:
            rows.setdefault(key, len(rows))
    data = np.full((len(rows), len(vectors)), HOLE_BITS).view(np.float64)
    for column, vector in enumerate(vectors):
        if len(vector):
            data[[rows[key] for key in vector.labels], column] = vector.values
    return tuple(rows), data


def _samples(
    picker: Picker, labels: Many, times: NDArray[np.int64], data: Floats, edges: tuple[int, int]
) -> Samples | None:
    """Return the samples in `data`; None when there are none."""
    if not may_have_nan(data):
        return Samples(labels, times, data, None, *edges)
    bits = np.ascontiguousarray(data).view(np.uint64)
    ok = (bits != STALE_BITS) & (bits != HOLE_BITS)
    any_ok = ok.any(axis=1)
    if not any_ok.any():
        return None
    if not any_ok.all():
        labels, data, ok = picker.labels(labels, any_ok), data[any_ok], ok[any_ok]
    return Samples(labels, times, data, None if ok.all() else ok, *edges)
