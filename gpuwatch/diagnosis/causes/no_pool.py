"""A start that found no memory for the KV pool: a share that is too small, weights that are too large, or others."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.bounds import HIGHEST_FRACTION
from gpuwatch.diagnosis.causes import moves, neighbours, sglang_draft
from gpuwatch.diagnosis.causes.view import Cause, advise, from_fact, number, ruled_out, sampled
from gpuwatch.diagnosis.explanation import Explanation, logged, size, told
from gpuwatch.diagnosis.finding import Evidence, NotEnough
from gpuwatch.units import GIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import Run, Sample, View
    from gpuwatch.diagnosis.finding import Advice
    from gpuwatch.model import LogEvent

SEVERAL = re.compile(r"(?:gpu-memory-utilization|mem-fraction-static)[= ]+(\d*\.?\d+)")
OTHERS = 4 * GIB
"""What one engine holds outside torch (CUDA context, NCCL, libraries) is less than this."""
OTHERS_SHARE = 0.1
"""From this share of the card on, what is held outside torch is other processes'."""
VIABLE = 0.02
"""So much more than what the weights alone need makes a first pool of SGLang."""


def no_blocks(view: View) -> Iterator[Cause | NotEnough]:
    """Judge a start that found no memory for the KV pool."""
    for event in view.events("no_kv_blocks")[:1]:
        run = view.run_of(event)
        parts = _budget_parts(run)
        if several := _several_engines(view, run):
            yield _together(event, several)
        elif (others := _held_by_others(run)) is not None:
            yield _beside_others(view, event, others)
        else:
            yield _too_small(view, event, parts)
            if not parts:
                yield NotEnough(
                    "startup_gpu_shared",
                    "nvidia-smi from before the start, or the log's memory profile: another process on the card looks "
                    "the same as a share that is too small",
                )
    for event in view.events("sglang_no_memory")[:1]:
        yield sglang_draft.crowded_out(view, event) or _sglang_full(view, event)


def _too_small(view: View, event: LogEvent, parts: list[Evidence]) -> Cause:
    """Explain an engine's share of the card that weights, activations and graphs fill."""
    run = view.run_of(event)
    current, overrun = run.number("memory_fraction"), _overrun(run)
    evidence = [logged(event), *_said(run), *parts]
    evidence += from_fact(run, "graph.estimated_bytes", "{} were set aside for CUDA graphs", "bytes")
    card = _card(view)
    used = _used(view)
    idle = card is not None and used is not None and used.value < OTHERS_SHARE * card.value
    if card is not None and used is not None:
        gpu = used.labels.get("gpu")
        whole = next((each for each in view.samples("gpu_memory_total_bytes") if each.labels.get("gpu") == gpu), card)
        evidence.append(sampled(used, f"nvidia-smi: {size(used.value)} of {size(whole.value)} are in use", "bytes"))
    free = "" if idle else ", if it is free"
    total = None if card is None else card.value
    if not overrun:
        advice = moves.next_share(run, f"give the engine more of the card{free}")
    elif total or run.number("gpu.total_bytes") or run.number("budget.bytes") is not None:
        why = "give the engine more of the card" if idle or run.number("budget.bytes") else f"more of the card{free}"
        advice = moves.higher_fraction(run, overrun + GIB, total, why)
    else:
        advice = moves.share_for(run, overrun, "give the engine more of the card, if it is free")
    share = f"{current:g} of the card" if current is not None else "the engine's share of the card"
    took = f" They take {size(overrun)} more than it." if overrun else ""
    return Cause(
        "no_kv_blocks",
        Explanation(
            f"Nothing is left for the KV cache: weights, activations and graphs fill {share}.{took}",
            0.9 if parts else 0.7,
            tuple(evidence),
            tuple(_ordered(run, advice)),
        ),
        event.time,
    )


def _ordered(run: Run, share: list[Advice]) -> list[Advice]:
    """Return the changes: a larger share first where the card has it, else more cards."""
    spread = "spread the weights over more GPUs, or load fewer bits per weight"
    if share and not share[0].flag:
        return [moves.more_cards(run, spread), *share, *moves.smaller_chunk(run)]
    return [*share, *moves.smaller_chunk(run), moves.more_cards(run, "or " + spread)]


def _card(view: View) -> Sample | None:
    """Return the memory of the smallest card that nvidia-smi shows."""
    cards = view.samples("gpu_memory_total_bytes")
    return min(cards, key=lambda card: card.value) if cards else None


def _used(view: View) -> Sample | None:
    """Return what is in use on the fullest card that nvidia-smi shows."""
    used = view.samples("gpu_memory_used_bytes")
    return max(used, key=lambda sample: sample.value) if used else None


def _said(run: Run) -> list[Evidence]:
    """Return the engine's own figure of the pool, where it is none."""
    short = run.number("kv.short_bytes")
    return [] if short is None else from_fact(run, "kv.short_bytes", f"left for the pool: -{short / GIB:.2f} GiB")


def _held_by_others(run: Run) -> float | None:
    """Return what other processes hold, from memory outside torch that no engine has; None where it is its own."""
    total = run.number("gpu.total_bytes")
    outside = run.number("gpu.used_at_start_bytes") or run.number("nontorch.bytes")
    if outside is None or total is None or outside < max(OTHERS, OTHERS_SHARE * total):
        return None
    return outside


def _beside_others(view: View, event: LogEvent, others: float) -> Cause:
    """Explain an engine that is charged with what other processes hold on its card, as vLLM V0 counts it."""
    run = view.run_of(event)
    total, overrun = run.number("gpu.total_bytes") or 0.0, _overrun(run)
    at_start = run.number("gpu.used_at_start_bytes") is not None
    tenants = neighbours.listed(view)
    weights = run.number("weights.bytes")
    seen = "in use before it took any" if at_start else "held outside torch, far more than an engine's own contexts"
    evidence = [logged(event), *_said(run), *_budget_parts(run), *neighbours.evidence(tenants)]
    evidence += from_fact(run, "gpu.used_at_start_bytes", "in use before the engine took any: {}", "bytes")
    if weights is not None:
        evidence += [ruled_out(f"the model's size: its weights take {size(weights)}", event, weights, "bytes")]
    return Cause(
        "startup_gpu_shared",
        Explanation(
            f"Other processes hold the card: {size(others)} of {size(total)} were {seen}{neighbours.naming(tenants)}. "
            "The engine counts that memory into its own share, and nothing is left for the KV cache"
            + (f": {size(overrun)} are missing." if overrun else "."),
            0.9 if at_start else 0.8,
            tuple(evidence),
            (
                advise("stop the process that holds the memory, or use another card; nvidia-smi lists it"),
                *moves.higher_fraction(
                    run, overrun + GIB if overrun else 0, total, "or count it into the share of this engine"
                ),
            ),
        ),
        event.time,
    )


def _together(event: LogEvent, several: list[Evidence]) -> Cause:
    return Cause(
        "startup_gpu_shared",
        Explanation(
            "Several engines share this card. One that starts while another one loads is charged with the other's "
            "memory: its pool comes out too small or negative although both shares together fit.",
            0.7,
            (
                logged(event),
                *several,
                ruled_out("a share that is too small by itself: the shares add up to less than the card", event),
            ),
            (
                advise("start them one after the other: wait until /health of the first answers"),
                advise("or give each pool a fixed size, which needs no measurement", "--kv-cache-memory-bytes"),
            ),
        ),
        event.time,
    )


def _several_engines(view: View, run: Run) -> list[Evidence]:
    """Return what shows that several engines are meant for one card: several shares that together fit on it."""
    found = []
    shares: list[float] = []
    command = run.fact("command")
    if command is not None:
        shares = [float(value) for value in SEVERAL.findall(str(command.value))]
        found = [
            Evidence(
                f"memory shares of {', '.join(map(str, shares))} are given", command.source, command.line, "command"
            )
        ]
    else:
        facts = {other.text("memory_fraction"): other.fact("memory_fraction") for other in view.runs}
        known = [fact for fact in facts.values() if fact is not None and not isinstance(fact.value, str)]
        servers = {other.text("server.url") or other.text("flag.port") for other in view.runs} - {""}
        if len(servers) > 1:
            shares = [float(fact.value) for fact in known]
            found = [told(fact, f"a share of {fact.value}") for fact in known]
    distinct = len(shares) > 1 and 0 < sum(shares) <= 1
    return found if distinct else []


def _budget_parts(run: Run) -> list[Evidence]:
    found = []
    for key, what in (
        ("budget.bytes", "the engine may use"),
        ("weights.bytes", "weights take"),
        ("activation.bytes", "the activation peak takes"),
        ("nontorch.bytes", "memory outside torch takes"),
    ):
        value = run.number(key)
        if value is not None:
            found += from_fact(run, key, f"{what} {size(value)}", "bytes")
    return found


def _overrun(run: Run) -> float:
    """Return by how much weights, activations and graphs exceed the budget, or 0 where that is not known."""
    if (short := run.number("kv.short_bytes")) is not None:
        return short
    budget = run.number("budget.bytes")
    parts = [
        run.number(key) for key in ("weights.bytes", "activation.bytes", "nontorch.bytes", "graph.estimated_bytes")
    ]
    known = [part for part in parts if part is not None]
    if budget is None or run.number("weights.bytes") is None:
        return 0.0
    return max(0.0, sum(known) - budget)


def _free_at_start(run: Run) -> float | None:
    """Return what was free before the weights: as printed, or what was left together with what they took."""
    if (begun := sglang_draft.first_load(run)) is not None:
        return float(begun.value)
    after, weights = run.number("avail.after_weights_bytes"), run.number("weights.bytes")
    return None if after is None or weights is None else after + weights


def _sglang_full(view: View, event: LogEvent) -> Cause:
    run = view.run_of(event)
    fraction, need = number(event, "f"), number(event, "need")
    current = fraction if fraction is not None else run.number("memory_fraction")
    before, after = _free_at_start(run), run.number("avail.after_weights_bytes")
    if need is None and before and after is not None and 0 < after < before:
        # The least fraction with room beside the weights, as newer versions print it.
        need = round(1 - after / before, 3)
    proposed = math.ceil(round((need + VIABLE) * 100, 6)) / 100 if need is not None else None
    if proposed is not None and proposed > HIGHEST_FRACTION:
        proposed = None
    evidence = [logged(event)]
    if (begun := sglang_draft.first_load(run)) is not None:
        evidence.append(told(begun, f"free before the weights: {size(float(begun.value))}", "bytes"))
    else:
        evidence += from_fact(run, "weights.bytes", "the weights take {}", "bytes")
    evidence += from_fact(run, "avail.after_weights_bytes", "free after the weights: {}", "bytes")
    what = f" at {current:g}" if current is not None else ""
    return Cause(
        "no_kv_blocks",
        Explanation(
            f"The weights leave nothing for the KV pool{what}: the fraction covers weights and pool together"
            + (f", and the weights alone need {need:g}." if need is not None else "."),
            0.92,
            tuple(evidence),
            (
                advise(
                    "raise the fraction, so that a pool fits beside the weights",
                    "--mem-fraction-static",
                    current,
                    proposed,
                ),
                moves.more_cards(run, "or spread the weights over more GPUs"),
            ),
        ),
        event.time,
    )
