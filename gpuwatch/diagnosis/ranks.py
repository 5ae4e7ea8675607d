"""Ranks of one tensor-parallel engine against each other: uneven memory, a slow rank, and PCIe between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis.context import GPU_SCOPE, SERVER_SCOPE
from gpuwatch.diagnosis.diagnosis import Diagnosis
from gpuwatch.diagnosis.explanation import (
    GIB,
    MIB,
    Explanation,
    Unknown,
    Verdict,
    count,
    excluded,
    measured,
    percent,
    size,
)
from gpuwatch.diagnosis.finding import Advice
from gpuwatch.diagnosis.group import LINK_SPEED, Rank, odd_ranks, ranks_of, throttled

if TYPE_CHECKING:
    from gpuwatch.diagnosis.context import Subject
    from gpuwatch.diagnosis.finding import Evidence

EXPLAINS = 0.6
"""A part of the memory explains a difference when it makes up at least this share of it."""
CONTEXT = (100 * MIB, 2.6 * GIB)
"""What one more process of the engine on a GPU holds: a bare CUDA context, or one with communication buffers.

Public reports of extra contexts on the first rank: 0.1 to 0.6 GiB bare, up to 2.6 GiB with NCCL's buffers.
"""
UNEVEN = "(layers, heads or experts that do not divide evenly, an encoder or a draft model on one rank)"
THROTTLED = 0.1
"""Share of time with lowered clocks above which it explains a low clock."""


def imbalance(subject: Subject) -> Verdict:
    """Explain memory that differs between the ranks of one engine."""
    ranks = [rank for rank in ranks_of(subject) if rank.used is not None]
    if len(ranks) < 2:
        return Unknown("used memory of at least two GPUs of the engine")
    least, most = min(ranks, key=_used), max(ranks, key=_used)
    spread = _used(most) - _used(least)
    evidence = [
        measured(f"GPU {rank.gpu} uses {size(_used(rank))}", "gpu_memory_used_bytes", _used(rank), "bytes")
        for rank in ranks
    ]
    cause, extra, advice, confidence = _why_uneven(most, least, spread)
    apart = [odd.evidence() for odd in odd_ranks(ranks) if odd.figure.series != "gpu_memory_used_bytes"]
    return Explanation(cause, confidence, (*evidence, *extra, *apart), advice)


def _used(rank: Rank) -> float:
    return rank.used or 0.0


def _why_uneven(most: Rank, least: Rank, spread: float) -> tuple[str, list[Evidence], tuple[Advice, ...], float]:
    head = f"GPU {most.gpu} holds {size(spread)} more than GPU {least.gpu}"
    other, engine = _difference(most.other, least.other), _difference(most.engine, least.engine)
    hidden = _difference(most.unattributed, least.unattributed)
    if other is not None and other >= EXPLAINS * spread:
        evidence = [
            measured(f"processes of no known engine: {size(other)} more", "gpu_memory_other_bytes", other, "bytes")
        ]
        return (
            f"{head}: another process uses {size(other)} of it.",
            evidence,
            (Advice(f"move or stop the other process on GPU {most.gpu} (nvidia-smi lists it)"),),
            0.9,
        )
    if engine is not None and engine >= EXPLAINS * spread:
        return _own_memory(head, most, least, engine, other)
    if hidden is not None and hidden >= EXPLAINS * spread:
        text = f"memory that no visible process owns: {size(hidden)} more"
        evidence = [measured(text, "gpu_memory_unattributed_bytes", hidden, "bytes")]
        return (
            f"{head}, and no visible process owns it: one in another container, or one that died and left it.",
            evidence,
            (Advice("look from the host (outside the container) which processes nvidia-smi lists"),),
            0.7,
        )
    return (
        f"{head}. Whose it is cannot be told: the memory per process is not known here.",
        [],
        (Advice("compare the processes that nvidia-smi lists on both GPUs, from the host"),),
        0.5,
    )


def _own_memory(
    head: str, most: Rank, least: Rank, engine: float, other: float | None
) -> tuple[str, list[Evidence], tuple[Advice, ...], float]:
    """Say what of the engine's own the fuller rank holds: more processes, or more in the same ones."""
    evidence = [
        measured(f"the engine's own processes: {size(engine)} more", "gpu_memory_engine_bytes", engine, "bytes")
    ]
    if other is not None:
        evidence.append(excluded("other processes: they do not differ", "gpu_memory_other_bytes", other, "bytes"))
    more = _difference(most.processes, least.processes)
    if more is None:
        cause = f"{head}, and it is the engine's own: contexts of other ranks, communication buffers, or extra work."
        see = Advice(f"see whether GPU {most.gpu} lists more processes of the engine than the others (nvidia-smi)")
        flag = Advice("if it does, the self-test of the custom all-reduce opened them", "--disable-custom-all-reduce")
        return cause, evidence, (see, flag), 0.75
    listed = (
        f"GPU {most.gpu} lists {count(most.processes or 0)} processes, GPU {least.gpu} {count(least.processes or 0)}"
    )
    if more > 0 and CONTEXT[0] <= engine / more <= CONTEXT[1]:
        evidence.append(measured(listed, "gpu_processes", most.processes or 0.0))
        return (
            f"{head}: {count(more)} more processes of the engine have a context there, {size(engine / more)} each.",
            evidence,
            (
                Advice(
                    "in older versions the self-test of the custom all-reduce opens them", "--disable-custom-all-reduce"
                ),
                Advice("make each process see its own GPU only (CUDA_VISIBLE_DEVICES), and keep clients off that GPU"),
            ),
            0.85,
        )
    evidence.append(excluded(f"more processes: {listed}", "gpu_processes", more))
    return (
        f"{head}, in as many processes: that rank holds more of the model or of its buffers {UNEVEN}.",
        evidence,
        (
            Advice("choose a number of ranks that divides heads, layers and experts", "--tensor-parallel-size"),
            Advice("size the pool for the fullest card; the others keep the difference free"),
        ),
        0.6,
    )


def _difference(most: float | None, least: float | None) -> float | None:
    return most - least if most is not None and least is not None else None


def straggler(subject: Subject) -> Verdict:
    """Explain a rank that is slower than the others: which one, by how much, and why."""
    ranks = ranks_of(subject)
    slow = next((rank for rank in ranks if rank.uuid == subject.labels.get("uuid")), None)
    if slow is None or len(ranks) < 2:
        return Unknown("clocks and links of at least two GPUs of the engine")
    odds = odd_ranks(ranks)
    evidence = [odd.evidence() for odd in odds if odd.rank is slow]
    if subject.alert == "GpuwatchTpLinkUneven":
        return _slow_link(slow, ranks, evidence)
    others = [rank.clock for rank in ranks if rank is not slow and rank.clock]
    if slow.clock is None or not others:
        return Unknown("SM clocks of at least two GPUs of the engine")
    lost = 1 - slow.clock / max(others)
    if not any(item.name == "gpuwatch_gpu_sm_clock_hertz" for item in evidence):
        text = f"GPU {slow.gpu} runs at {slow.clock / 1e6:,.0f} MHz, the fastest rank at {max(others) / 1e6:,.0f} MHz"
        evidence.insert(0, measured(text, "gpu_sm_clock_hertz", slow.clock, "hertz"))
    reason, why, advice, confidence = _why_slow(subject, slow, ranks)
    evidence += why
    head = f"GPU {slow.gpu} has a clock {percent(lost)} below the fastest rank's, and all ranks wait for it"
    return Explanation(f"{head}: {reason}.", confidence, tuple(evidence), advice)


def _slow_link(slow: Rank, ranks: list[Rank], evidence: list[Evidence]) -> Verdict:
    links = [rank.link for rank in ranks if rank.link]
    if slow.link is None or len(links) < 2:
        return Unknown("PCIe width and generation of at least two GPUs of the engine")
    factor = max(links) / slow.link
    if not evidence:
        evidence = [
            measured(
                f"the PCIe link of GPU {slow.gpu} carries {slow.link / 1e9:.1f} GB/s", LINK_SPEED, slow.link, "bytes/s"
            )
        ]
    return Explanation(
        f"The PCIe link of GPU {slow.gpu} is {factor:.0f} times slower than the fastest of this engine, "
        "and without NVLink all exchange between the ranks waits for it.",
        0.8,
        tuple(evidence),
        (
            Advice(f"reseat GPU {slow.gpu} and its riser, or move it to a slot with as many lanes as the others have"),
            Advice("or leave that GPU out", "CUDA_VISIBLE_DEVICES"),
        ),
    )


def _why_slow(subject: Subject, slow: Rank, ranks: list[Rank]) -> tuple[str, list[Evidence], tuple[Advice, ...], float]:
    """Say why a rank's clock is low; the nearest look-alikes first."""
    gpu = subject.context.about({**subject.labels, "uuid": slow.uuid})
    reason, share = throttled(gpu)
    others = [rank for rank in ranks if rank is not slow]
    limits = [rank.limit for rank in others if rank.limit]
    if slow.limit and limits and slow.limit < 0.95 * min(limits):
        text = f"power limit of GPU {slow.gpu}: {slow.limit:.0f} W, of the others at least {min(limits):.0f} W"
        flag = Advice(
            "give it the limit of the others",
            f"nvidia-smi -i {slow.gpu} -pl",
            f"{slow.limit:.0f}",
            f"{min(limits):.0f}",
        )
        return "its power limit is lower", [measured(text, "gpu_power_limit_watts", slow.limit, "watts")], (flag,), 0.9
    if share is not None and share > THROTTLED:
        text = f"its clocks were lowered for {percent(share)} of the last minute (reason {reason})"
        evidence = [measured(text, "gpu_throttle_seconds_total", share, "ratio")]
        words = {"power": "its power limit holds it back", "power_brake": "the power supply asks it to slow down"}
        cool = (Advice(f"compare cooling and power of GPU {slow.gpu} with the others: fan, air flow, paste, cables"),)
        return words.get(reason, f"it is throttled ({reason})"), evidence, cool, 0.9
    cards = {rank.card for rank in others if rank.card}
    if slow.card and cards and slow.card not in cards:
        text = f"GPU {slow.gpu} is a {slow.card}, the others are {', '.join(sorted(cards))}"
        swap = (Advice("use cards of one model for one tensor-parallel group, or split the model by pipeline stages"),)
        return "it is another model of card", [measured(text, "gpu_info", 1.0)], swap, 0.85
    note = "the driver reports no throttling" if share is not None else "the driver does not tell its throttling"
    evidence = (
        [excluded(f"throttling: {percent(share)}", "gpu_throttle_seconds_total", share, "ratio")]
        if share is not None
        else []
    )
    look = Advice(
        f"nvidia-smi -q -d CLOCK,PERFORMANCE,POWER -i {slow.gpu}: locked clocks (-lgc), a lower application clock"
    )
    return f"why is not visible; {note}", evidence, (look,), 0.6


def pcie_slow(subject: Subject) -> Verdict:
    """Explain ranks that are held back by PCIe."""
    ranks = ranks_of(subject)
    shares = _link_shares(subject, ranks)
    if not shares:
        return Unknown("bytes that cross the PCIe links of the engine's GPUs, with their width and generation")
    evidence = [
        measured(f"the PCIe link of GPU {rank.gpu} is {percent(share)} full ({rate / 1e9:.1f} GB/s)",
                 "gpu_pcie_transmit_bytes_total", rate, "bytes/s")
        for rank, share, rate in shares
    ]  # fmt: skip
    linked = subject.context.samples(subject.select("gpu_nvlink_transmit_bytes_total", ("host",)))
    if linked:
        evidence.append(excluded("NVLink: nothing crosses it", "gpu_nvlink_transmit_bytes_total", 0.0, "bytes/s"))
    off = subject.fact("custom_allreduce")
    note = (
        " The engine said that its custom all-reduce is off, as it is without NVLink." if off and not off.value else ""
    )
    tp = len(ranks)
    smaller = 1 if tp == 2 else 2
    replicas = (
        f"run {tp // smaller} replicas on {smaller} of the GPUs each, where the model fits: less crosses the links"
    )
    advice = [
        Advice(replicas, "--tensor-parallel-size", str(tp), str(smaller)),
        Advice("or split the model by layers, which exchanges far less", "--pipeline-parallel-size", "1", str(tp)),
        Advice("or use GPUs with NVLink; check that no link is narrower than its slot"),
    ]
    return Explanation(
        f"{tp} GPUs exchange every layer's results over PCIe, and the links are the limit, not the GPUs.{note}",
        0.75,
        tuple(evidence),
        tuple(advice),
    )


def _link_shares(subject: Subject, ranks: list[Rank]) -> list[tuple[Rank, float, float]]:
    """Return (rank, share of the link in use, bytes per second) for ranks whose traffic is known."""
    found = []
    for rank in ranks:
        gpu = subject.context.about({**subject.labels, "uuid": rank.uuid})
        rate = gpu.over("rate", "gpu_pcie_transmit_bytes_total", "1m", GPU_SCOPE)
        if rate is not None and rank.link:
            found.append((rank, rate / rank.link, rate))
    return found


DIAGNOSES = (
    Diagnosis("tp_imbalance", "warning", "Memory differs between the ranks of one engine", imbalance, SERVER_SCOPE),
    Diagnosis("tp_straggler", "warning", "One rank of an engine is slower than the others", straggler, SERVER_SCOPE),
    Diagnosis("tp_pcie_slow", "warning", "PCIe between the GPUs limits the engine", pcie_slow, SERVER_SCOPE),
)
"""The findings of this family."""
