"""The plan: every byte on each card, a verdict, what fits at most, and the fewest cards."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from gpuwatch.ledger.budget import GIB, SGLANG_TABLES_BYTES, pool_bytes
from gpuwatch.ledger.kv import whole_bytes_per_token
from gpuwatch.ledger.need import GROWTH, Engine
from gpuwatch.ledger.pool import longest_context, pool_of
from gpuwatch.ledger.starts import most_sharing, obstacles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.ledger.budget import Deployment

Verdict: TypeAlias = Literal["fits", "tight", "unknown", "does_not_fit"]

PARTS = ("weights", "kv_cache", "activations", "graphs", "context", "communication")
ERRORS = {"weights": 0.01, "kv_cache": 0.02, "activations": 0.35, "graphs": 0.6, "context": 0.5, "communication": 0.5}
"""Relative error of each part, from the figures in `docs/ledger.md`."""
MOST_GPUS = 64
SYSTEM_BYTES = 8 * GIB
"""What the operating system and other programs need of a memory that they share with the GPU."""


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU: bytes by part (all engines on it together), their sum, and its memory."""

    gpu: int
    components: dict[str, float]
    capacity: float

    @property
    def total(self) -> float:
        """Bytes of all parts."""
        return sum(self.components.values())


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one engine's pool holds: its bytes on one card, tokens, longest single request, requests of full length."""

    engine: Engine
    bytes_per_token: float
    pool_bytes: float
    tokens: int
    max_context: int
    max_concurrency: float


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole plan. `error_band` is the relative uncertainty of a card's total."""

    verdict: Verdict
    cards: tuple[Card, ...]
    capacities: tuple[Capacity, ...]
    fewest_gpus: int | None
    error_band: float
    notes: tuple[str, ...]


def card_of(engines: Sequence[Engine], gpu: int = 0) -> Card:
    """Return the fullest card when `engines` share it."""
    parts = dict.fromkeys(PARTS, 0.0)
    for engine in engines:
        taken = engine.residents
        parts["weights"] += taken.weights
        parts["kv_cache"] += engine.kv_bytes
        parts["activations"] += taken.activations
        parts["graphs"] += taken.graphs
        parts["context"] += taken.context
        parts["communication"] += taken.communication
    return Card(gpu, parts, engines[0].deployment.capacity)


def verdict_of(engines: Sequence[Engine]) -> Verdict:
    """Judge whether `engines` fit on their cards together.

    It does not fit when the engine will not start with its ranks, or when the parts are more than the card. It is tight
    when they would be with a KV cache of `GROWTH` times the size and what unpacking a 4-bit cache takes, within the
    part of the card that the engine may use. It is unknown where a config lacks a field that is needed, or a model has
    parts that are not computed, and the others are less than the card.
    """
    if any(obstacles(engine.model, engine.deployment) for engine in engines):
        return "does_not_fit"
    card = card_of(engines)
    if card.total > card.capacity:
        return "does_not_fit"
    if any(not engine.model.complete for engine in engines):
        return "unknown"
    peak = card.total + (GROWTH - 1) * card.components["kv_cache"] + sum(e.unpacked_bytes for e in engines)
    usable = card.capacity * max(engine.deployment.fraction for engine in engines)
    return "fits" if peak <= usable else "tight"


def capacity_of(engine: Engine, others: float = 0.0) -> Capacity:
    """Return what the engine's pool holds when `others` bytes of its card are taken by other engines."""
    deployment = engine.deployment
    available = pool_bytes(engine.model, deployment, engine.residents) - others - engine.uncounted
    pool = pool_of(engine.model, deployment, available)
    per_token = whole_bytes_per_token(engine.model, deployment.kv_dtype)
    longest = longest_context(engine.model, deployment, max(0.0, available))
    return Capacity(engine, per_token, max(0.0, available), pool.tokens, longest, pool.concurrency)


def fraction_needed(engine: Engine, others: Sequence[Engine] = ()) -> float:
    """Return the reserve fraction that holds the engine and the requests asked for, rounded up to hundredths.

    vLLM's is of all memory, and from 0.9.1 on without the CUDA context. SGLang's is of what was free before the
    weights, hence of what `others`, started earlier, leave.
    """
    deployment, taken = engine.deployment, engine.residents
    if deployment.engine == "sglang":
        free = deployment.capacity - taken.context - sum(card_of([other]).total for other in others)
        need = taken.weights + taken.communication + engine.kv_bytes + SGLANG_TABLES_BYTES
        share = need / free if free > 0 else 1.0
    else:
        counted = taken.total - (taken.context if deployment.version >= (0, 9, 1) else 0.0)
        if deployment.version and deployment.version < (0, 20):
            counted -= taken.graphs
        share = (counted + engine.kv_bytes) / deployment.capacity
    return math.ceil(100 * share) / 100


def make_plan(engines: Sequence[Engine]) -> Plan:
    """Plan `engines` that share the same cards.

    Raises:
        ValueError: a model has no layer that keeps anything, or there is no engine.
    """
    if not engines:
        raise ValueError("no model to plan")
    card = card_of(engines)
    ranks = max(engine.deployment.ranks for engine in engines)
    whole = [_others(engines, engine) for engine in engines]
    capacities = tuple(capacity_of(engine, others) for engine, others in zip(engines, whole, strict=True))
    verdict = verdict_of(engines)
    notes = [note for engine in engines for note in obstacles(engine.model, engine.deployment)]
    notes += [note for engine in engines for note in notes_of(engine)]
    if verdict not in ("does_not_fit", "unknown") and len(engines) == 1:
        notes += _start_notes(capacities[0])
    return Plan(
        verdict=verdict,
        cards=tuple(replace(card, gpu=gpu) for gpu in range(ranks)),
        capacities=capacities,
        fewest_gpus=fewest_gpus(engines),
        error_band=error_band(card),
        notes=tuple(dict.fromkeys(notes)),
    )


def _start_notes(found: Capacity) -> list[str]:
    """Say what is needed where the card holds a request and the engine's share of it does not."""
    engine = found.engine
    if found.max_concurrency >= 1:
        return []
    flag = "--mem-fraction-static" if engine.deployment.engine == "sglang" else "--gpu-memory-utilization"
    needed, given = fraction_needed(engine), engine.deployment.fraction
    words = f"with {flag} {given:g} the pool holds less than one request of {engine.deployment.context:,} tokens"
    if given < needed < 1:
        return [f"{words}, so the engine will not start: it needs {needed:.2f}"]
    return [f"{words}, so the engine will not start: no fraction is enough with all that the engine sets aside"]


def _others(engines: Sequence[Engine], engine: Engine) -> float:
    """Return the bytes that the other engines take of the same card."""
    return sum(card_of([other]).total for other in engines if other is not engine)


def error_band(card: Card) -> float:
    """Return the relative uncertainty of a card's total: the parts' errors, taken as independent."""
    spread = math.sqrt(sum((card.components[part] * ERRORS[part]) ** 2 for part in PARTS))
    return spread / card.total if card.total else 0.0


def fewest_gpus(engines: Sequence[Engine]) -> int | None:
    """Return the fewest cards, 1, 2, 4 …, on which the engines fit, or fit tightly, with tensor parallelism.

    None where there are none up to `MOST_GPUS`, and where a config lacks what it takes to know.
    """
    most = 1 if any(engine.deployment.mig for engine in engines) else MOST_GPUS
    count = 1
    while count <= most:
        tried = [at_tp(engine, count) for engine in engines]
        if all(possible_tp(engine) for engine in tried) and verdict_of(tried) in ("fits", "tight"):
            return count
        count *= 2
    return None


def at_tp(engine: Engine, tp: int) -> Engine:
    """Return the engine over `tp` ranks, without pipeline stages."""
    tried = engine.with_deployment(tp=tp, pp=1, pcp=1)
    dcp = engine.deployment.dcp
    shared = dcp if tp % dcp == 0 and dcp <= most_sharing(engine.model, tried.deployment) else 1
    return tried.with_deployment(dcp=shared)


def possible_tp(engine: Engine) -> bool:
    """Return whether the engine starts with its ranks."""
    return not obstacles(engine.model, engine.deployment)


def notes_of(engine: Engine) -> list[str]:
    """Return what a person should know about a plan, a sentence each."""
    model, deployment = engine.model, engine.deployment
    notes = list(model.notes)
    heads = model.kv_heads
    if model.attention and model.attention[0].kind != "mla" and 0 < heads < deployment.attention_tp:
        copied = (
            f"{heads} KV heads on {deployment.attention_tp} ranks: heads are copied, so KV per card stops shrinking"
        )
        notes.append(f"{copied} beyond {heads}{_sharing_hint(engine)}")
    native = model.native_context
    if native and deployment.context > native and not model.rope_scaling:
        notes.append(
            f"{deployment.context:,} tokens are beyond the {native:,} the model was trained for, and its config has no "
            "rope scaling: answers degrade without an error"
        )
    if deployment.kv_dtype.startswith("fp8"):
        notes.append("FP8 KV loses exact digit strings first; check with calibrated scales before relying on it")
    if deployment.kv_dtype in ("int4", "nvfp4", "fp4"):
        notes.append(
            "4-bit KV needs scales beside the elements and a working copy during prefill where no kernel reads it"
        )
    notes += _memory_notes(deployment)
    if model.quantisation is not None and not model.quantisation.known:
        notes.append(f"the quantisation {model.quantisation.method!r} is not known: weights are counted as 16-bit")
    if not model.tower_known:
        notes.append("a vision or audio tower is in the config without its sizes: its weights are not counted")
    if model.uncounted:
        notes.append(f"not counted: {', '.join(model.uncounted)}; the sums are lower bounds")
    if model.missing:
        notes.append(f"missing in the config: {', '.join(model.missing)}; what needs them is not computed")
    return notes


def _sharing_hint(engine: Engine) -> str:
    """Return the advice to share contexts between copies; empty where vLLM takes no more than there is."""
    deployment = engine.deployment
    most = most_sharing(engine.model, deployment)
    if deployment.engine != "vllm" or most <= deployment.dcp or deployment.dp_attention > 1:
        return ""
    return f"; --decode-context-parallel-size {most} would use the copies"


def _memory_notes(deployment: Deployment) -> list[str]:
    """Return what is special about the memory: a part of a card, one pool with the host, or parts in host memory."""
    notes = []
    if deployment.mig:
        notes.append("MIG slices have no peer-to-peer: each is a replica of its own, and its memory is not shared")
    if deployment.unified:
        flag = "--mem-fraction-static" if deployment.engine == "sglang" else "--gpu-memory-utilization"
        most = math.floor(100 * (1 - SYSTEM_BYTES / deployment.capacity)) / 100
        words = (
            f"unified memory: the system and every program take theirs from the same {deployment.capacity / GIB:.0f}"
        )
        notes.append(f"{words} GiB; keep {SYSTEM_BYTES / GIB:.0f} GiB for them ({flag} {max(0.0, most):.2f} at most)")
    if deployment.host_weights:
        words = f"{deployment.host_weights / GIB:.1f} GiB of weights of each rank stay in host memory"
        notes.append(f"{words}: every step reads them over PCIe, which costs most of the speed")
    if deployment.host_cache:
        notes.append(
            f"{deployment.host_cache / GIB:.1f} GiB of host memory keep KV blocks for later requests: more prefix "
            "hits, not more requests at once"
        )
    return notes
