"""The memory ledger as series: each GPU's memory by what it is for, and how much of it grew since its engines served.

A pure state machine without I/O like the other derived series: the pipeline feeds it the batches of each tick, the
settings of the engines among them. Engines state their parts in their log or on their page (`engines.facts`), NVML
counts what is used and who holds it; `ledger.reconcile` divides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from gpuwatch.ledger.reconcile import Card, Statement, divide, missing_on
from gpuwatch.model import NAME, Batch, Labels, series

if TYPE_CHECKING:
    from collections.abc import Sequence

Engine: TypeAlias = tuple[str, str]
"""(host, server)"""

TARGET = "ledger"
SETTLED_MS = 60_000
"""How long engines have to have served before growth is counted: kernels are compiled and buffers filled until then."""
FLICKER_MS = 10_000
"""How long other engines have to be on a GPU before they count: a slow look at processes may miss one for a tick."""

_CARD = {
    "gpuwatch_gpu_memory_used_bytes": "used",
    "gpuwatch_gpu_memory_reserved_bytes": "reserved",
    "gpuwatch_gpu_memory_free_bytes": "free",
    "gpuwatch_gpu_memory_other_bytes": "other",
}
_STATED = {
    "gpuwatch_engine_config_weights_bytes": "weights",
    "gpuwatch_engine_config_kv_cache_bytes": "kv_pool",
    "gpuwatch_engine_config_activation_peak_bytes": "activations",
    "gpuwatch_engine_config_graph_bytes": "graphs",
}
_USAGE = "gpuwatch_engine_kv_cache_usage_ratio"
_ENGINE = "gpuwatch_gpu_engine"
_HELD = "gpuwatch_gpu_memory_engine_bytes"
_TOTAL = "gpuwatch_gpu_memory_total_bytes"
_BYTES = "gpuwatch_ledger_bytes"
_GROWTH = "gpuwatch_ledger_growth_bytes"
_MISSING = "gpuwatch_ledger_missing_bytes"
_SILENT = Statement()


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the rows of one batch are; valid as long as the batch's `keys` is the same object."""

    keys: tuple[Labels, ...]
    cards: dict[Labels, dict[str, int]] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    engines: dict[str, list[tuple[Engine, int]]] = field(default_factory=dict)
    held: dict[tuple[str, Engine], int] = field(default_factory=dict)
    stated: dict[Engine, dict[str, int]] = field(default_factory=dict)
    usage: dict[Engine, list[int]] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether the batch has nothing that the ledger needs."""
        return not (self.cards or self.engines or self.held or self.stated or self.usage)


def _layout(keys: tuple[Labels, ...]) -> _Layout:
    found = _Layout(keys)
    for row, labels in enumerate(keys):
        pairs = dict(labels)
        name, uuid, server = (
            pairs.get(NAME, ""),
            pairs.get("uuid", ""),
            (pairs.get("host", ""), pairs.get("server", "")),
        )
        if name in _CARD:
            gpu = tuple((key, value) for key, value in labels if key != NAME)
            found.cards.setdefault(gpu, {})[_CARD[name]] = row
        elif name == _TOTAL:
            found.totals[uuid] = row
        elif name == _ENGINE:
            found.engines.setdefault(uuid, []).append((server, row))
        elif name == _HELD:
            found.held[uuid, server] = row
        elif name in _STATED:
            found.stated.setdefault(server, {})[_STATED[name]] = row
        elif name == _USAGE:
            found.usage.setdefault(server, []).append(row)
    return found


@dataclass(slots=True)
class _Growth:
    """What one GPU held, foreign processes left out, a minute after its engines began to serve; None until then.

    `engines` are those that are polled, `others` those that are not. `changed`: since when others are seen.
    """

    engines: frozenset[Engine] = frozenset()
    others: frozenset[Engine] = frozenset()
    since: int | None = None
    baseline: float | None = None
    changed: int | None = None

    def begin(self, engines: frozenset[Engine], others: frozenset[Engine]) -> None:
        """Begin anew, with these engines."""
        self.engines, self.others = engines, others
        self.since = self.baseline = self.changed = None


class Ledger:
    """Turns the batches of each tick into ``gpuwatch_ledger_bytes``, ``…_growth_bytes`` and ``…_missing_bytes``."""

    def __init__(self) -> None:
        self._layouts: dict[str, _Layout] = {}
        self._values: dict[str, Sequence[float]] = {}
        self._grown: dict[Labels, _Growth] = {}
        self._restarted: set[str] = set()
        self._answered: set[str] = set()
        self._polled: set[str] = set()
        self._keys: tuple[Labels, ...] = ()
        self._names: dict[tuple[Labels, str, str], Labels] = {}

    def update(self, time: int, batches: Sequence[Batch]) -> Batch:
        """Take the batches of one tick and return the ledger's series at `time` (milliseconds since the epoch)."""
        self._restarted.clear()
        for batch in batches:
            self._take(batch)
        statements = self._statements()
        rows = [
            row
            for target, seen in self._values.items()
            for gpu in self._layouts[target].cards
            for row in self._rows(time, self._layouts[target], seen, gpu, statements)
        ]
        keys = tuple(labels for labels, _ in rows)
        self._keys = self._keys if keys == self._keys else keys
        return Batch(TARGET, time, self._keys, [value for _, value in rows])

    def forget(self, target: str) -> None:
        """Drop what is known of a target that is not polled any more."""
        self._values.pop(target, None)
        layout = self._layouts.pop(target, None)
        for gpu in layout.cards if layout is not None else ():
            self._grown.pop(gpu, None)
        self._answered.discard(target)
        self._polled.discard(target)

    def lose(self, target: str) -> None:
        """Leave out what a target said last: it has been silent for too long."""
        self._values.pop(target, None)

    def capacities(self) -> dict[Engine, float]:
        """Return the memory of the smallest GPU of each engine, in bytes, where it is known."""
        found: dict[Engine, float] = {}
        for target, values in self._values.items():
            layout = self._layouts[target]
            for uuid, row in layout.totals.items():
                for engine, at in layout.engines.get(uuid, ()):
                    if values[at] > 0:
                        found[engine] = min(found.get(engine, float("inf")), values[row])
        return found

    def _take(self, batch: Batch) -> None:
        self._restarted.update(fact.server for fact in batch.facts if fact.key == "engine_restarted")
        if batch.target.startswith("engine:"):
            self._polled.add(batch.target)
            (self._answered.add if batch.up else self._answered.discard)(batch.target)
        if not batch.up:
            self._values.pop(batch.target, None)
            return
        layout = self._layouts.get(batch.target)
        if layout is None or layout.keys is not batch.keys:
            layout = self._layouts[batch.target] = _layout(batch.keys)
        if layout.empty:
            self._values.pop(batch.target, None)
        else:
            self._values[batch.target] = batch.values

    def _statements(self) -> dict[Engine, Statement]:
        stated: dict[Engine, dict[str, float]] = {}
        usage: dict[Engine, list[float]] = {}
        for target, values in self._values.items():
            layout = self._layouts[target]
            for engine, rows in layout.stated.items():
                stated.setdefault(engine, {}).update({part: float(values[row]) for part, row in rows.items()})
            for engine, ranks in layout.usage.items():
                usage.setdefault(engine, []).extend(float(values[row]) for row in ranks)
        return {
            engine: Statement(**parts, kv_usage=usage[engine][0] if len(usage.get(engine, ())) == 1 else None)
            for engine, parts in stated.items()
        }

    def _rows(
        self, time: int, layout: _Layout, seen: Sequence[float], gpu: Labels, statements: dict[Engine, Statement]
    ) -> list[tuple[Labels, float]]:
        """Return the series of one GPU."""
        uuid = dict(gpu)["uuid"]
        card = Card(**{"used": None, **{part: float(seen[row]) for part, row in layout.cards[gpu].items()}})
        serving = frozenset(engine for engine, row in layout.engines.get(uuid, ()) if seen[row] > 0)
        held = {engine: float(seen[row]) for (of, engine), row in layout.held.items() if of == uuid}
        engines = [(statements.get(engine, _SILENT), held.get(engine)) for engine in sorted(serving | set(held))]
        rows = [(self._name(gpu, _BYTES, component), amount) for component, amount in divide(card, engines).items()]
        alone = {_GROWTH: self._growth(time, gpu, card, serving, held), _MISSING: missing_on(card, engines)}
        return [*rows, *((self._name(gpu, name), value) for name, value in alone.items() if value is not None)]

    def _growth(
        self, time: int, gpu: Labels, card: Card, serving: frozenset[Engine], held: dict[Engine, float]
    ) -> float | None:
        """Return how much more than a minute after its engines began to serve the GPU holds now.

        Weights, pool and graphs do not change while an engine serves. Foreign processes are left out, and so is what
        engines hold that nobody polls: whether they serve is not known. What grows is the rest or what nothing
        explains. One failed poll is no restart, a new process or other engines are.
        """
        grown = self._grown.setdefault(gpu, _Growth())
        engines = frozenset(engine for engine in serving if f"engine:{engine[1]}" in self._polled)
        others = serving - engines
        if {server for _, server in engines} & self._restarted:
            grown.begin(engines, others)
        elif (engines, others) == (grown.engines, grown.others):
            grown.changed = None
        elif grown.since is None or time - (grown.changed or time) >= FLICKER_MS:
            grown.begin(engines, others)
        else:
            grown.changed = grown.changed or time
            return None
        if not engines or card.used is None or any(engine not in held for engine in others):
            return None
        if grown.since is None and all(f"engine:{server}" in self._answered for _, server in engines):
            grown.since = time
        if grown.since is None or time - grown.since < SETTLED_MS:
            return None
        own = card.used - (card.other or 0.0) - sum(held[engine] for engine in others)
        if grown.baseline is None:
            grown.baseline = own
        return own - grown.baseline

    def _name(self, gpu: Labels, name: str, component: str = "") -> Labels:
        found = self._names.get((gpu, name, component))
        if found is None:
            found = self._names[gpu, name, component] = series(name, **dict(gpu), component=component)
        return found
