"""Ranks of one group with unequal memory, and what makes the difference."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes.clocks import HEAT, SUPPLY
from gpuwatch.diagnosis.causes.view import Cause, advise, from_fact, sampled
from gpuwatch.diagnosis.explanation import Explanation, size, told
from gpuwatch.diagnosis.finding import Evidence
from gpuwatch.units import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import Run, Sample, View

# Meaning and what to do, from NVIDIA's "Xid errors" guide; the codes that name failing hardware or a lost device.

CONTEXT = 3 * GIB // 2
"""Processes with less than this on a card hold a context there, not a model."""


WORKING = 0.5
"""A card that is busy for less is not at work, and its clock says nothing."""
MEMBERS = 2
SLOWER = 0.85
ODD = 512 * MIB
"""Ranks of one group differ by less for harmless reasons."""
ODD_SHARE = 0.05


def imbalance(view: View) -> Iterator[Cause]:
    """Judge ranks with unequal memory, and name what makes the difference."""
    contexts = _extra_contexts(view)
    if contexts is not None:
        yield contexts
        return
    for run in view.runs:
        found = _tight_rank(view, run)
        if found is not None:
            yield found
            return
    yield from _cards_differ(view)


def _tight_rank(view: View, run: Run) -> Cause | None:
    """Return the finding of a rank that has clearly less for its KV cache than the others."""
    facts = {key: fact for key, fact in run.ranks("kv.bytes").items() if not isinstance(fact.value, (str, bool))}
    if len(facts) < 2:
        return None
    sizes = {rank: float(fact.value) for rank, fact in facts.items()}
    usual = statistics.median(sizes.values())
    rank = min(sizes, key=lambda each: sizes[each])
    if usual - sizes[rank] < max(ODD, ODD_SHARE * usual):
        return None
    loaded = [fact for fact in run.ranks("weights.bytes").values() if not isinstance(fact.value, (str, bool))]
    even = len({fact.value for fact in loaded}) == 1
    text = f"rank {rank} has {size(sizes[rank])} for its KV cache, the others {size(usual)}"
    evidence = [told(facts[rank], text, "bytes"), *_card_memory(view)]
    why = " Something else on its card takes it, or its share of the model is larger."
    if even:
        evidence.append(
            told(loaded[0], "Ruled out: weights that are sharded unevenly: every rank loaded the same", "bytes")
        )
    if even and rank.endswith("0"):
        why = " The weights are equal: the first rank's extra contexts, workspaces and NCCL buffers take it."
    fraction = run.number("memory_fraction")
    lower = None if fraction is None else round(fraction - 0.02, 2)
    return Cause(
        "tp_imbalance",
        Explanation(
            f"{rank} has {size(usual - sizes[rank])} less for its KV cache than the others, and the tightest rank "
            f"sets the pool of all.{why}",
            0.85,
            tuple(evidence),
            (
                advise("keep other clients off that card, and let each process see its own GPU only"),
                advise(
                    "a slightly smaller share gives the tight rank air", "--gpu-memory-utilization", fraction, lower
                ),
            ),
        ),
        facts[rank].time or 0,
    )


def _card_memory(view: View) -> list[Evidence]:
    used = {each.labels.get("gpu", ""): each for each in view.samples("gpu_memory_used_bytes")}
    if len(used) < 2:
        return []
    usual = statistics.median(each.value for each in used.values())
    odd = max(used.values(), key=lambda each: each.value)
    if odd.value - usual < ODD:
        return []
    text = f"GPU {odd.labels.get('gpu')} has {size(odd.value)} in use, {size(odd.value - usual)} more than the others"
    return [sampled(odd, text, "bytes")]


def _cards_differ(view: View) -> Iterator[Cause]:
    run = view.last
    used = {each.labels.get("gpu", ""): each for each in view.samples("gpu_memory_used_bytes") if each.value > GIB}
    found = _card_memory(view)
    if not found or len(used) < 2 or run.tp != len(used):
        return
    yield Cause(
        "tp_imbalance",
        Explanation(
            found[0].text[0].upper() + found[0].text[1:] + ", and the tightest card sets the KV pool of all.",
            0.7,
            tuple(found),
            (advise("see what else is on that card: nvidia-smi lists its processes"),),
        ),
    )


def _extra_contexts(view: View) -> Cause | None:
    """Return the finding where every worker has a context on every card, beside its own."""
    places: dict[str, dict[str, float]] = {}
    for each in view.samples("gpu_process_memory_bytes"):
        places.setdefault(each.labels.get("pid", ""), {})[each.labels.get("gpu", "")] = each.value
    spread = {pid: cards for pid, cards in places.items() if len(cards) > 1}
    if len(spread) < 2:
        return None
    extra = [value for cards in spread.values() for value in sorted(cards.values())[:-1]]
    if not extra or max(extra) > CONTEXT:
        return None
    cards = sorted({gpu for found in spread.values() for gpu in found})
    run = view.last
    samples = view.samples("gpu_process_memory_bytes")
    first = [each for each in samples if each.labels.get("gpu") == cards[-1]][:4]
    names = {each.labels.get("process", "") for each in samples}
    per_card = sum(extra) / len(cards)
    return Cause(
        "tp_imbalance",
        Explanation(
            f"Every worker holds a CUDA context on every card: {len(spread)} processes are on each of {len(cards)} "
            f"GPUs, and {size(per_card)} per GPU go to contexts of others. The peer-to-peer test of the custom "
            "all-reduce opens them.",
            0.85,
            (
                *(
                    sampled(
                        each,
                        f"GPU {each.labels.get('gpu')}: pid {each.labels.get('pid')} holds {size(each.value)}",
                        "bytes",
                    )
                    for each in first
                ),
                *from_fact(run, "version", "engine version {}"),
                Evidence(
                    "Ruled out: left-overs of an earlier run: each process holds a model on one card "
                    f"({', '.join(sorted(names)[:2])})",
                    samples[0].path,
                    None,
                    samples[0].name,
                ),
            ),
            (
                advise("use a version that tests in a process of its own and remembers the result (vLLM 0.4.1 on)"),
                advise("or do without the custom all-reduce", "--disable-custom-all-reduce", None, "(set)"),
            ),
        ),
    )


def slow_rank(view: View) -> Iterator[Cause]:
    """Judge a card of a group whose clock is below that of the others while all of them work."""
    clocks: dict[str, list[Sample]] = {}
    busy = {(each.path, each.time, each.labels.get("gpu", "")): each.value for each in view.samples("gpu_busy_ratio")}
    for each in view.samples("gpu_sm_clock_hertz"):
        if busy.get((each.path, each.time, each.labels.get("gpu", "")), 0.0) >= WORKING:
            clocks.setdefault(each.labels.get("gpu", ""), []).append(each)
    if len(clocks) < MEMBERS:
        return
    typical = {gpu: statistics.median(each.value for each in samples) for gpu, samples in clocks.items()}
    slowest = min(typical, key=lambda gpu: typical[gpu])
    others = statistics.median(value for gpu, value in typical.items() if gpu != slowest)
    if typical[slowest] >= SLOWER * others:
        return
    reasons = [
        each
        for each in view.samples("gpu_clocks_event_active", gpu=slowest)
        if each.value == 1 and each.labels.get("reason") != "idle"
    ]
    slowed = {
        each.labels.get("gpu", "")
        for each in view.samples("gpu_clocks_event_active")
        if each.value == 1 and each.labels.get("reason") in (*HEAT, SUPPLY)
    }
    # Cards that the hardware slows down as well are no measure for one of them.
    if slowed >= set(clocks):
        return
    why = sorted({each.labels.get("reason", "") for each in reasons})
    shown = clocks[slowest][-1]
    evidence = [
        sampled(
            shown,
            f"GPU {slowest} runs at {typical[slowest] / 1e6:.0f} MHz, the others at {others / 1e6:.0f} MHz",
            "hertz",
        ),
        *(sampled(each, f"the driver's reason: {each.labels.get('reason')}") for each in reasons[:1]),
    ]
    yield Cause(
        "tp_straggler",
        Explanation(
            f"GPU {slowest} is slower than the rest of its group: {typical[slowest] / others:.0%} of their clock "
            "while all work" + (f" ({', '.join(why)})." if why else ".") + " Every step waits for it.",
            0.85 if why else 0.7,
            tuple(evidence),
            (
                advise(
                    "look at its temperature, power limit and supply: nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER"
                ),
                advise("or leave this card out of the group", "CUDA_VISIBLE_DEVICES"),
            ),
        ),
        shown.time,
    )
