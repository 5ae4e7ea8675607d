"""Limits that the engine worked out at its start: the longest request, the size of the pool, graphs, images."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import moves
from gpuwatch.diagnosis.causes.view import Cause, advise, from_fact, number, ruled_out
from gpuwatch.diagnosis.explanation import Explanation, count, logged, size, told
from gpuwatch.units import GIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import Run, View
    from gpuwatch.diagnosis.finding import Advice

HALVED = 2
"""By this factor 8 bits make a pool of 16 bits hold more tokens."""
REACHED = 4
"""A larger share of the card does not make a pool more than so many times as large, where its size is not known."""
TINY_POOL = 8
"""A pool of less than 1/8 of the longest accepted request was not meant to be so small."""


SAID = {
    "kv.blocks": "the pool has {} blocks",
    "kv.tokens": "the pool has {} tokens",
    "kv.blocks_override": "the pool was limited to {} blocks",
    "memory_fraction": "the engine may take {} of the card",
}
IDLE = 4 * GIB
"""As much free memory beside the pool is not needed for activations."""


def too_long(view: View) -> Iterator[Cause]:
    """Judge a start that was refused because one request of full length does not fit into the pool."""
    for event in view.events("max_model_len_exceeds_kv")[:1]:
        run = view.run_of(event)
        asked = number(event, "mml") or run.number("max_model_len")
        fits = number(event, "fit", "cap") or _fitting(number(event, "need"), number(event, "have"), asked)
        need, have = number(event, "need"), number(event, "have")
        more = (need - have) * GIB if need is not None and have is not None else _bytes_short(run, asked, fits)
        evidence = [logged(event)]
        for key in ("kv.blocks", "kv.tokens", "kv.blocks_override", "memory_fraction"):
            evidence += from_fact(run, key, SAID[key], before=event.line)
        length = f"{count(asked)} tokens" if asked else "full length"
        room = f"; at most {count(fits)} do" if fits else ""
        cause = f"The engine did not start: one request of {length} does not fit into the KV cache{room}."
        if need is not None and have is not None and need > 0:
            cause += f" It needs {need:g} GiB, and {have:g} GiB are there."
        override = run.fact("kv.blocks_override", event.line)
        advice: list[Advice] = []
        if override is not None and isinstance(run.number("kv.blocks_profiled"), float):
            profiled = run.number("kv.blocks_profiled") or 0
            if profiled > float(override.value):
                advice.append(
                    advise(
                        f"lift the limit on the pool: profiling found room for {count(profiled)} blocks",
                        "--num-gpu-blocks-override",
                        override.value,
                        int(profiled),
                    )
                )
        advice += moves.shorter(
            run, fits, f"accept no more than fits: {count(fits)} tokens" if fits else "accept shorter requests", asked
        )
        ratio = asked / fits if asked and fits else 1
        if not view.events("torch_oom") and (more or ratio <= REACHED):
            advice += moves.higher_fraction(run, more, None, "or give the KV cache more memory")
        advice += _beyond(run, need / have if need and have else asked / fits if asked and fits else None)
        evidence.append(ruled_out("weights that do not fit: they were loaded, the pool was sized after them", event))
        yield Cause("max_model_len_exceeds_kv", Explanation(cause, 0.97, tuple(evidence), tuple(advice)), event.time)


def _beyond(run: Run, ratio: float | None) -> list[Advice]:
    """Return the ways to hold more tokens in the same memory, where a request needs `ratio` times the pool."""
    if ratio is not None and ratio > HALVED:
        text = f"or spread it over more GPUs: 8 bits only halve a need that is {ratio:.1f} times the pool"
        return [moves.more_cards(run, text)]
    return [
        advise(
            "or store it in 8 bits, which halves it",
            "--kv-cache-dtype",
            run.text("kv.dtype") or None,
            "fp8_e4m3" if run.sglang else "fp8",
        )
    ]


def _fitting(need: float | None, have: float | None, asked: float | None) -> float | None:
    """Return the tokens that fit where the line gives memory only; KV memory grows in proportion to the tokens."""
    if not need or have is None or asked is None:
        return None
    return math.floor(asked * have / need / 16) * 16 or None


def _bytes_short(run: Run, asked: float | None, fits: float | None) -> float:
    pool = moves.pool_bytes(run)
    if pool is None or not asked or not fits:
        return 0.0
    return pool * (asked - fits) / fits


def undersized(view: View) -> Iterator[Cause]:
    """Judge a pool that is far smaller than the longest request and than the memory that is free."""
    for run in view.runs:
        fact = run.fact("kv.tokens")
        pool, longest = run.number("kv.tokens"), run.number("max_model_len")
        idle = run.number("avail.at_end_bytes") or run.number("avail.after_pool_bytes")
        if fact is None or pool is None:
            continue
        refused = [event for event in view.events("prompt_too_long") if run.holds(event)]
        limited = [event for event in refused if (number(event, "limit", "limit2") or 0) <= pool]
        small = longest is not None and pool * TINY_POOL < longest
        wasted = idle is not None and idle > IDLE and longest is not None and pool < longest
        if not ((small and (limited or run.sglang)) or wasted or (limited and longest is None and run.sglang)):
            continue
        evidence = [told(fact, f"the KV pool holds {count(pool)} tokens", "tokens")]
        evidence += from_fact(run, "max_model_len", "requests of up to {} tokens are accepted", "tokens")
        if idle is not None:
            key = "avail.at_end_bytes" if run.number("avail.at_end_bytes") else "avail.after_pool_bytes"
            evidence += from_fact(run, key, f"{size(idle)} of GPU memory are free after the start", "bytes")
        evidence += [logged(event) for event in limited[:2]]
        if limited:
            limit = number(limited[0], "limit", "limit2")
            evidence.append(
                ruled_out(f"the model's context: the limit of {count(limit or 0)} tokens is the pool's", limited[0])
            )
        cap = run.fact("flag.max-total-tokens")
        if cap is not None:
            advice = [advise("remove the cap on the pool", "--max-total-tokens", cap.value, "(none)")]
        else:
            advice = _enlarged(run)
        yield Cause(
            "kv_pool_undersized",
            Explanation(
                f"The KV pool holds {count(pool)} tokens"
                + (f", far less than one request of {count(longest)}" if longest else "")
                + ": prompts are refused although the model takes them"
                + (f" and {size(idle)} are free." if idle is not None else "."),
                0.85 if limited else 0.7,
                tuple(evidence),
                tuple(advice),
            ),
            fact.time or 0,
        )
        return


def _enlarged(run: Run) -> list[Advice]:
    """Return how to get a larger pool. SGLang takes --max-total-tokens as an upper bound only: its share decides."""
    restart = advise(
        "restart: a pool that was measured while loading still held memory comes out too small; newer builds clean up "
        "first"
    )
    if not run.sglang:
        return [restart, advise("or set the pool by hand", "--kv-cache-memory-bytes")]
    return [*moves.larger_share(run, "give weights and pool more of the card"), restart]


def graph_budget(view: View) -> Iterator[Cause]:
    """Tell of a pool that shrank with an upgrade, because graphs are taken out of the engine's share since then."""
    for run in view.runs:
        same, fraction = run.number("memory_fraction.same_pool"), run.number("memory_fraction")
        estimate, pool = run.number("graph.estimated_bytes"), run.number("kv.bytes")
        fact = run.fact("memory_fraction.same_pool") or run.fact("memory_fraction.without_graphs")
        if fact is None:
            continue
        plain = run.number("memory_fraction.without_graphs")
        evidence = [told(fact, f"{fraction or 0:g} of the card gives the pool that {plain or 0:g} gave before 0.21")]
        if estimate is not None:
            evidence += from_fact(
                run, "graph.estimated_bytes", f"CUDA graphs are estimated at {size(estimate)}", "bytes"
            )
        if pool is not None:
            evidence += from_fact(run, "kv.bytes", f"{size(pool)} are left for the KV cache", "bytes")
        yield Cause(
            "cudagraph_memory",
            Explanation(
                "Since vLLM 0.21 the estimate for CUDA graphs is taken out of the engine's share: the same fraction "
                "gives a smaller KV pool than before the upgrade.",
                0.8,
                tuple(evidence),
                (advise("to have the pool of before", "--gpu-memory-utilization", fraction, same),),
            ),
            fact.time or 0,
            severity="info",
        )
        return


def image_tokens(view: View) -> Iterator[Cause]:
    """Tell of multimodal inputs that may be larger than what was profiled."""
    for event in view.events("mm_profile_short")[:1]:
        run = view.run_of(event)
        worst, profiled = number(event, "worst"), number(event, "len")
        need = (
            f"The largest inputs take {count(worst)} tokens, more" if worst else "The largest inputs take more tokens"
        )
        yield Cause(
            "mm_profiling_memory",
            Explanation(
                f"{need} than the {count(profiled or 0)} of the profile: the engine assumes the processor's largest "
                "image, so that some inputs fail while running, and the profile is large all the same.",
                0.85,
                (
                    logged(event),
                    *from_fact(run, "flag.limit-mm-per-prompt", "limits per prompt: {}"),
                    ruled_out(
                        "the KV pool: the warning is about the step that is profiled before the pool is sized", event
                    ),
                ),
                (
                    advise(
                        'cap the size of one image in the engine, not in the client: {"max_pixels": …}',
                        "--mm-processor-kwargs",
                    ),
                    *moves.fewer_images(run, "and accept fewer per prompt"),
                    advise(
                        "or profile longer steps",
                        "--max-num-batched-tokens",
                        run.number("max_num_batched_tokens"),
                        int(worst) if worst else None,
                    ),
                ),
            ),
            event.time,
            severity="warning",
        )
