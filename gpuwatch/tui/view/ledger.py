"""Where the memory of one GPU is: what engines state about themselves, what NVML counts, and what nobody explains."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.context import Facts
from gpuwatch.ledger.predict import USED, engine_of, measured, model_of
from gpuwatch.ledger.whatif import concurrency, on_these_cards

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpuwatch.ledger.whatif import Row
    from gpuwatch.snapshot import Snapshot
    from gpuwatch.tui.view.engines import Engine
    from gpuwatch.tui.view.gpus import Gpu


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of memory: its glyph and colour tone in a bar, its short name, and what it means."""

    glyph: str
    tone: str
    label: str
    meaning: str


KINDS: Mapping[str, Kind] = {
    "weights": Kind("█", "bar.weights", "weights", "model weights, as the engine printed them"),
    "kv_used": Kind("▓", "bar.kv_used", "KV used", "KV pool times its usage"),
    "kv_free": Kind("░", "bar.kv_free", "KV free", "rest of the KV pool: allocated, and free for tokens"),
    "kv_pool": Kind("▚", "bar.kv_used", "KV pool", "KV pool; how much of it is used on this GPU is not known"),
    "work": Kind("▒", "bar.work", "activations+graphs", "profiled activation peak and CUDA graphs"),
    "rest": Kind("c", "bar.rest", "context+comms", "the engine's own memory beyond what it states"),
    "engine": Kind("e", "bar.rest", "engine", "memory of an engine that does not state what is in it"),
    "other": Kind("o", "bar.other", "other processes", "visible processes that belong to no known engine"),
    "unexplained": Kind("?", "bar.unexplained", "unexplained", "used memory that nothing above accounts for"),
    "reserved": Kind("r", "bar.rest", "driver", "what the driver keeps for itself"),
}
"""Every kind of used memory as `ledger.reconcile` divides it, in the order of the bar; what is left is free."""

FREE = Kind("·", "dim", "free", "neither used nor reserved")


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of a GPU's memory: a key of `KINDS` and bytes."""

    kind: str
    bytes: float


def parts_of(amounts: Mapping[str, float]) -> tuple[Part, ...]:
    """Return the pieces of the used and reserved memory that are not empty, in the order of `KINDS`."""
    return tuple(Part(kind, amounts[kind]) for kind in KINDS if amounts.get(kind, 0.0) > 0)


@dataclass(frozen=True, slots=True)
class Compared:
    """One part of a GPU's memory in bytes, as it was measured, stated by its engines, and predicted; None: unknown."""

    kind: str
    measured: float | None
    stated: float | None
    predicted: float | None

    @property
    def differs(self) -> float | None:
        """How much more is there than was predicted."""
        if self.measured is None or self.predicted is None:
            return None
        return self.measured - self.predicted


_POOL = ("kv_used", "kv_free", "kv_pool")
_STATED = {
    "weights": ("weights",),
    "kv_pool": ("kv_cache_bytes",),
    "work": ("graph_bytes", "activation_peak"),
}


def compared(gpu: Gpu, engines: Sequence[Engine]) -> dict[str, Compared]:
    """Return prediction, statement and measurement side by side, by kind; the KV pool as a whole.

    A part of a GPU with several engines is only compared where it is known of all of them. What an engine holds without
    stating what it is stands beside the sum of what was predicted and is in no other part.
    """
    parts = {part.kind: part.bytes for part in gpu.parts}
    here = [engine for engine in engines if any(engine.key == (host, server) for host, server, _ in gpu.engines)]
    found = {}
    for kind in ("weights", "kv_pool", "work", "rest"):
        seen = [parts[name] for name in (_POOL if kind == "kv_pool" else (kind,)) if name in parts]
        row = Compared(
            kind,
            measured=sum(seen) if seen else None,
            stated=_sum(_stated(engine, kind) for engine in here) if here else None,
            predicted=_sum(engine.predicted.get(kind) for engine in here) if here else None,
        )
        if row.stated is not None or row.predicted is not None:
            found[kind] = row
    unsplit = [row.predicted for row in found.values() if row.measured is None]
    if "engine" in parts and unsplit and None not in unsplit:
        found["engine"] = Compared("engine", parts["engine"], None, _sum(unsplit))
    return found


def _stated(engine: Engine, kind: str) -> float | None:
    """Return what an engine states of one kind: at least one of its parts, which may be all there is."""
    said = [value for query in _STATED.get(kind, ()) if (value := engine.get(query)) is not None]
    return sum(said) if said else None


def _sum(amounts: Iterable[float | None]) -> float | None:
    known = list(amounts)
    return None if None in known else sum(filter(None, known))


@dataclass(frozen=True, slots=True)
class Live:
    """What changes would buy a running engine: rows for requests of `context` tokens, or why there are none."""

    context: int = 0
    now: float = 0.0
    rows: tuple[Row, ...] = ()
    lacks: str = ""


def what_if(snapshot: Snapshot, engine: Engine, gpus: Sequence[Gpu]) -> Live:
    """Return the what-if rows of one engine, from its launch facts, the pool that it stated, and its cards."""
    cards = [gpu for gpu in gpus if any(engine.key == (host, server) for host, server, _ in gpu.engines)]
    totals = [total for gpu in cards if (total := gpu.get("gpu_memory_total")) is not None]
    told = Facts(snapshot.facts).of(engine.server)
    facts = {"version": engine.version, **{key: told[key].value for key in USED if key in told}}
    lacks = [
        words
        for words, known in (
            ("the model's config.json", model_of(facts) is not None),
            ("its version", bool(facts["version"])),
            ("the size of its GPUs", bool(totals)),
            ("its launch flags", bool(engine.predicted)),
        )
        if not known
    ]
    if lacks:
        return Live(lacks=" and ".join(lacks[:2]))
    blackwell = all(gpu.info.get("architecture", "").lower() == "blackwell" for gpu in cards)
    return _live(engine.kind, tuple(facts.items()), min(totals), engine.get("kv_cache_bytes"), blackwell)


@lru_cache(maxsize=16)
def _live(
    kind: str,
    facts: tuple[tuple[str, str | float | int | bool], ...],
    capacity: float,
    pool: float | None,
    blackwell: bool,
) -> Live:
    engine = engine_of(kind, dict(facts), capacity)
    if engine is None:
        return Live(lacks="a version that is known")
    try:
        engine = engine if pool is None else measured(engine, pool)
        context = max(engine.deployment.context, engine.model.context or 0)
        return Live(context, concurrency(engine, context), on_these_cards(engine, context, four_bit_kv=blackwell))
    except ValueError as error:
        return Live(lacks=str(error))
