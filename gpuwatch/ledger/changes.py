"""What can be changed of a deployment, one thing at a time, with what it costs, as the engine's version takes it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuwatch.engines.flag_versions import flag_problems
from gpuwatch.ledger.fraction import SYSTEM_BYTES, fraction_flag, highest_fraction, takes_from_the_system
from gpuwatch.ledger.kv import element_bytes
from gpuwatch.ledger.need import Engine, with_weights
from gpuwatch.ledger.plan import fraction_needed
from gpuwatch.ledger.ranks import fewer_ranks, own_pool, pool_flags, possible_tp, retuned
from gpuwatch.ledger.starts import cut_width, most_sharing, obstacles
from gpuwatch.ledger.steps import refusals
from gpuwatch.units import GIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuwatch.ledger.budget import Deployment

FRACTION_STEP = 0.03
RECENT_TOKENS = 4096
"""Tokens that stay in 16 bits in the mixed-precision row."""
WINDOW_TOKENS = 4096
LEAST_CHUNK = 1024
SCALED_TOGETHER = 128
"""Weights that share a scale in most quantised checkpoints."""

FREE, SPEED, QUALITY, HARDWARE = range(4)
"""What a change costs, cheapest first."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change in words, what it costs in words, the class of the cost, and the changed engine.

    `available` is False for what neither engine offers today, and for another model. `recent` tokens of each request
    take twice the bytes that the engine's KV type gives. `sets` are the launch flags that it gives, without dashes:
    what the engine's version refuses is no change.
    """

    change: str
    costs: str
    weight: int
    engine: Engine
    available: bool = True
    recent: int = 0
    sets: tuple[tuple[str, str | float], ...] = ()


def changes_of(engine: Engine) -> Iterator[Change]:
    """Yield every change that is possible, and that the engine's version takes."""
    every = itertools.chain(_settings(engine), _kv_types(engine), _weight_types(engine), _shapes(engine))
    taken = (change for change in every if _taken(engine.deployment, dict(change.sets)))
    refused = len(refusals(engine.model, engine.deployment))
    return (one for one in taken if len(refusals(one.engine.model, one.engine.deployment)) <= refused)


def _taken(deployment: Deployment, flags: Mapping[str, str | float]) -> bool:
    """Return whether nothing is wrong with launch flags by the tables that commands are checked with."""
    return not flag_problems(deployment.engine, deployment.version_text, flags)


def _settings(engine: Engine) -> Iterator[Change]:
    deployment = engine.deployment
    sglang = deployment.engine == "sglang"
    flag, highest = fraction_flag(deployment.engine), highest_fraction(deployment)
    fraction = min(highest, round(deployment.fraction + FRACTION_STEP, 2))
    if fraction < (needed := fraction_needed(engine)) <= highest:
        fraction = needed
    if fraction > deployment.fraction and not deployment.pool_asked:
        left = (1 - fraction) * deployment.capacity / GIB
        yield Change(
            f"--{flag} {deployment.fraction:g} → {fraction:g}",
            f"{left:.1f} GiB of the card stay for everything the engine did not count",
            SPEED,
            engine.with_deployment(fraction=fraction, fraction_told=True),
            sets=((flag, fraction),),
        )
    if takes_from_the_system(deployment):
        yield Change(
            f"--{flag} {deployment.fraction:g} → {highest:g}",
            f"leaves {SYSTEM_BYTES / GIB:.0f} GiB of the unified memory to the system and all programs",
            FREE,
            engine.with_deployment(fraction=highest, fraction_told=True),
            sets=((flag, highest),),
        )
    if deployment.pool_asked:
        yield Change(
            f"without {' and '.join(pool_flags(deployment))}",
            "nothing: the pool is what the card has left",
            FREE,
            own_pool(engine),
        )
    if deployment.chunk >= 2 * LEAST_CHUNK:
        flag = "--chunked-prefill-size" if sglang else "--max-num-batched-tokens"
        yield Change(
            f"{flag} {deployment.chunk} → {deployment.chunk // 2}",
            "prefill in smaller steps: a later first token under load",
            SPEED,
            retuned(engine.with_deployment(chunk=deployment.chunk // 2), engine),
        )
    if deployment.sequences > 16:  # below that a batch is small already
        flag = "--max-running-requests" if sglang else "--max-num-seqs"
        yield Change(
            f"{flag} {deployment.sequences} → {deployment.sequences // 4}",
            "fewer requests at a time; the sampler's peak shrinks with it",
            SPEED,
            engine.with_deployment(sequences=deployment.sequences // 4),
        )


def _kv_types(engine: Engine) -> Iterator[Change]:
    deployment = engine.deployment
    if element_bytes(deployment.kv_dtype, engine.model.dtype) >= 2:  # 16 bits
        names = ("fp8_e4m3", "fp8_e5m2") if deployment.engine == "sglang" else ("fp8",)
        eight = next((name for name in names if _taken(deployment, {"kv-cache-dtype": name})), names[0])
        yield Change(
            f"--kv-cache-dtype {deployment.kv_dtype} → {eight}",
            "exact digit strings suffer first; calibrated scales are needed",
            QUALITY,
            engine.with_deployment(kv_dtype=eight),
            sets=(("kv-cache-dtype", eight),),
        )
        yield Change(
            f"KV of the last {RECENT_TOKENS:,} tokens in 16 bits, older in FP8",
            "neither vLLM nor SGLang offers it today; digits in the far past suffer",
            QUALITY,
            engine.with_deployment(kv_dtype=eight),
            available=False,
            recent=RECENT_TOKENS,
        )
    latent = any(group.kind == "mla" for group in engine.model.attention)  # vLLM refuses it beside MLA
    wide = element_bytes(deployment.kv_dtype, engine.model.dtype) >= 1
    if wide and deployment.engine == "vllm" and not latent:
        yield Change(
            f"--kv-cache-dtype {deployment.kv_dtype} → nvfp4",
            "4-bit KV: needs a data-centre Blackwell (SM100), and recall of details falls",
            QUALITY,
            engine.with_deployment(kv_dtype="nvfp4"),
            sets=(("kv-cache-dtype", "nvfp4"),),
        )


def _weight_types(engine: Engine) -> Iterator[Change]:
    model = engine.model
    bits = 16.0 if model.quantisation is None else model.quantisation.bits
    plain = replace(engine, weights_bytes=None)
    if not engine.weights_known or (engine.weights_bytes is not None and engine.parameters is None):
        return  # quantised already, or only the bytes are known: another type cannot be computed
    if bits > 8:  # bits
        yield Change(
            "weights in FP8 or INT8",
            "needs a quantised checkpoint; small loss of quality" + _blocks(engine, experts=True),
            QUALITY,
            replace(plain, model=with_weights(model, "fp8")),
        )
    if bits > 4:  # bits
        yield Change(
            "weights in INT4 (AWQ, GPTQ)",
            "needs a quantised checkpoint; test on your own tasks, long reasoning suffers first"
            + _blocks(engine, experts=False),
            QUALITY,
            replace(plain, model=with_weights(model, "int4")),
        )


def _blocks(engine: Engine, *, experts: bool) -> str:
    """Return what a checkpoint with a scale for 128 weights would have to be like; empty where the ranks fit it."""
    width = cut_width(engine.model, engine.deployment, SCALED_TOGETHER, experts=experts)
    if not width:
        return ""
    words = f"{width:,} over {engine.deployment.tp} ranks cuts groups of {SCALED_TOGETHER}"
    return f"; {words}, so one with such scales does not start"


def _startable(engine: Engine) -> Iterator[Change]:
    """Yield the most ranks, of those that there are, with which the engine starts."""
    before = engine.deployment
    for tried in itertools.islice(fewer_ranks(engine), 1):
        after = tried.deployment
        words = [f"tensor parallel {before.tp} → {after.tp}"] if after.tp != before.tp else []
        words += [f"pipeline parallel {before.pp} → {after.pp}"] if after.pp != before.pp else []
        words += [f"--decode-context-parallel-size {before.dcp} → {after.dcp}"] if after.dcp != before.dcp else []
        yield Change(", ".join(words), "nothing: it does not start otherwise", FREE, tried)


def _shapes(engine: Engine) -> Iterator[Change]:
    deployment, model = engine.deployment, engine.model
    if obstacles(model, deployment):
        yield from _startable(engine)
        if deployment.engine == "vllm" and model.experts is not None and not deployment.expert_parallel:
            whole = engine.with_deployment(expert_parallel=True)
            words, costs = "--enable-expert-parallel", "ranks with busier experts are waited for"
            yield Change(words, costs, SPEED, whole, sets=(("enable-expert-parallel", True),))
    double = retuned(engine.with_deployment(tp=deployment.tp * 2), engine)
    if possible_tp(double):
        kind = "links slower than NVLink cost speed" if deployment.tp == 1 else "more communication in every step"
        words = f"tensor parallel {deployment.tp} → {deployment.tp * 2}"
        yield Change(words, f"twice the cards; {kind}", HARDWARE, double)
    copies = most_sharing(model, deployment) if deployment.dp_attention == 1 else 1
    if deployment.engine == "vllm" and copies > deployment.dcp:
        yield Change(
            f"--decode-context-parallel-size {deployment.dcp} → {copies}",
            "uses the copied KV heads; more communication in decode",
            SPEED,
            engine.with_deployment(dcp=copies),
            sets=(("decode-context-parallel-size", copies),),
        )
    full = [group for group in model.layers if group.kind == "full"]
    if len(full) == len(model.layers) == 1 and full[0].count >= 4:  # a quarter of them stay
        group = full[0]
        kept = replace(group, count=-(-group.count // 4))
        windowed = replace(group, kind="sliding", count=group.count - kept.count, window=WINDOW_TOKENS)
        yield Change(
            f"a variant with a window of {WINDOW_TOKENS:,} tokens in three of four layers",
            "another model: what lies far back is seen by a quarter of the layers",
            QUALITY,
            replace(engine, model=replace(model, layers=(kept, windowed))),
            available=False,
        )
