"""Ranks of one tensor-parallel engine against each other: uneven memory, a slow rank, and PCIe between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis.context import GPU_SCOPE, SERVER_SCOPE
from gpuwatch.diagnosis.diagnosis import Diagnosis
from gpuwatch.diagnosis.explanation import Explanation, Unknown, Verdict, count, excluded, measured, percent, size
from gpuwatch.diagnosis.finding import Advice
from gpuwatch.diagnosis.group import LINK_SPEED, Rank, median, odd_ranks, ranks_of, sharing, strangers, throttled
from gpuwatch.units import GIB, MIB

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
SLOW_CLOCK, SLOW_LINK = 0.88, 0.6
"""Below these shares of the fastest rank's clock or link a rank is slow, as the rules have it."""
FEWEST = 2
"""Ranks that exchange anything, and replicas that are worth the name."""
THROTTLED = 0.1
"""Share of time with lowered clocks above which it explains a low clock."""
LOWER = 0.95
"""A power limit below this share of another one is lower; cards of one model have the same default."""


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
    beside = sum(used for _, used in most.neighbours) - sum(used for _, used in least.neighbours)
    if beside + max(0.0, other or 0.0) >= EXPLAINS * spread and beside > (other or 0.0):
        return _neighbour_memory(head, most, least, other)
    if other is not None and max(0.0, beside) + other >= EXPLAINS * spread:
        evidence = [
            measured(f"processes of no known engine: {size(other)} more", "gpu_memory_other_bytes", other, "bytes"),
            *_neighbour_evidence(most, least),
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
    return _no_single_part(head, most, least, {"engine": engine, "other": other, "unattributed": hidden})


def _neighbour_memory(
    head: str, most: Rank, least: Rank, other: float | None
) -> tuple[str, list[Evidence], tuple[Advice, ...], float]:
    """Name the other engines on the fuller rank."""
    evidence = _neighbour_evidence(most, least)
    if other is not None and other > 0:
        text = f"processes of no known engine: {size(other)} more"
        evidence.append(measured(text, "gpu_memory_other_bytes", other, "bytes"))
    elif other is not None:
        evidence.append(excluded("processes of no known engine", "gpu_memory_other_bytes", other, "bytes"))
    named = " and ".join(f"the engine {server}, which uses {size(used)}" for server, used in most.neighbours)
    servers = ", ".join(server for server, _ in most.neighbours)
    return (
        f"{head}: on it is also {named} of it.",
        evidence,
        (
            Advice(f"move {servers} to a GPU of its own, or spread it over all GPUs of this engine alike"),
            Advice("or size the pool for the fullest card; the others keep the difference free"),
        ),
        0.9,
    )


def _neighbour_evidence(most: Rank, least: Rank) -> list[Evidence]:
    return [
        measured(f"the engine {server} uses {size(used)} of GPU {rank.gpu}", "gpu_memory_engine_bytes", used, "bytes")
        for rank in (most, least)
        for server, used in rank.neighbours
    ]


def _no_single_part(
    head: str, most: Rank, least: Rank, parts: dict[str, float | None]
) -> tuple[str, list[Evidence], tuple[Advice, ...], float]:
    """Say what is known of a difference that no single part makes up: whose it is, in pieces, or not at all."""
    names = {
        "engine": "the engine's own processes",
        "other": "processes of no known engine",
        "unattributed": "memory that no visible process owns",
    }
    evidence = [
        measured(f"{names[part]}: {size(abs(more))} {'more' if more >= 0 else 'less'}", f"gpu_memory_{part}_bytes",
                 more, "bytes")
        for part, more in parts.items()
        if more is not None
    ]  # fmt: skip
    known = parts["engine"] is not None or parts["other"] is not None
    why = (
        "No single part makes up most of it."
        if known
        else "Whose it is cannot be told: the memory per process is not known here."
    )
    look = Advice("compare the processes that nvidia-smi lists on both GPUs, from the host")
    return f"{head}. {why}", [*_neighbour_evidence(most, least), *evidence], (look,), 0.5


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
    """Explain ranks that are slower than the others: which ones, by how much, and why."""
    ranks = ranks_of(subject)
    named = next((rank for rank in ranks if rank.uuid == subject.labels.get("uuid")), None)
    if named is None or len(ranks) < 2:
        return Unknown("clocks and links of at least two GPUs of the engine")
    if subject.alert == "GpuwatchTpLinkUneven":
        return _slow_links(named, ranks)
    fastest = max((rank.clock for rank in ranks if rank is not named and rank.clock), default=None)
    if named.clock is None or fastest is None:
        return Unknown("SM clocks of at least two GPUs of the engine")
    slow = [rank for rank in ranks if rank is named or (rank.clock and rank.clock < SLOW_CLOCK * fastest)]
    healthy = [rank for rank in ranks if rank not in slow]
    usual = median([rank.clock for rank in healthy if rank.clock])
    evidence = [
        measured(
            f"GPU {rank.gpu}: SM clock {(rank.clock or 0.0) / 1e6:,.0f} MHz, the others {usual / 1e6:,.0f} MHz",
            "gpu_sm_clock_hertz",
            rank.clock or 0.0,
            "hertz",
        )
        for rank in slow
    ]
    evidence += [odd.evidence() for odd in odd_ranks(ranks) if odd.rank in slow and odd.figure.name != "SM clock"]
    reasons: dict[str, list[Rank]] = {}
    advice: dict[Advice, None] = {}
    sure = 1.0
    for rank in slow:
        reason, why, change, confidence = _why_slow(subject, rank, healthy)
        reasons.setdefault(reason, []).append(rank)
        evidence += why
        advice |= dict.fromkeys(change)
        sure = min(sure, confidence)
    lost = sorted({percent(1 - (rank.clock or 0.0) / fastest) for rank in slow})
    below = f"{' to '.join((lost[0], lost[-1])) if len(lost) > 1 else lost[0]} below the fastest rank's"
    has = "has a clock" if len(slow) == 1 else "have clocks"
    told = "; ".join(f"{_gpus(found)}: {reason}" if len(reasons) > 1 else reason for reason, found in reasons.items())
    cause = f"{_gpus(slow)} {has} {below}, and all ranks wait for {'it' if len(slow) == 1 else 'them'}: {told}."
    return Explanation(cause, sure, tuple(evidence), tuple(advice))


def _gpus(ranks: list[Rank]) -> str:
    """Return the GPUs by name, such as ``GPU 2`` or ``GPUs 0, 1 and 3``."""
    if len(ranks) == 1:
        return f"GPU {ranks[0].gpu}"
    return f"GPUs {', '.join(rank.gpu for rank in ranks[:-1])} and {ranks[-1].gpu}"


def _slow_links(named: Rank, ranks: list[Rank]) -> Verdict:
    links = [rank.link for rank in ranks if rank.link]
    if named.link is None or len(links) < 2 or named.link >= max(links):
        return Unknown("PCIe width and generation of at least two GPUs of the engine")
    fastest = max(links)
    slow = [rank for rank in ranks if rank is named or (rank.link and rank.link < SLOW_LINK * fastest)]
    usual = median([rank.link for rank in ranks if rank.link and rank not in slow])
    evidence = [
        measured(
            f"GPU {rank.gpu}: PCIe link {(rank.link or 0.0) / 1e9:.1f} GB/s, the others {usual / 1e9:.1f} GB/s",
            LINK_SPEED,
            rank.link or 0.0,
            "bytes/s",
        )
        for rank in slow
    ]
    evidence += [odd.evidence() for odd in odd_ranks(ranks) if odd.rank in slow and odd.figure.name != "PCIe link"]
    factor = fastest / min(rank.link for rank in slow if rank.link)
    one = len(slow) == 1
    what = f"The PCIe link of {_gpus(slow)} is" if one else f"The PCIe links of {_gpus(slow)} are up to"
    return Explanation(
        f"{what} {factor:.0f} times slower than the fastest of this engine, "
        f"and without NVLink all exchange between the ranks waits for {'it' if one else 'them'}.",
        0.8,
        tuple(evidence),
        (
            Advice(f"reseat {_gpus(slow)} and the riser, or use a slot with as many lanes as the others have"),
            Advice(f"or leave {'that GPU' if one else 'those GPUs'} out", "CUDA_VISIBLE_DEVICES"),
        ),
    )


def _why_slow(
    subject: Subject, slow: Rank, others: list[Rank]
) -> tuple[str, list[Evidence], tuple[Advice, ...], float]:
    """Say why a rank's clock is low, beside `others` that are not slow; the nearest look-alikes first."""
    gpu = subject.context.about({**subject.labels, "uuid": slow.uuid})
    reason, share = throttled(gpu)
    other_card = _other_model(slow, others)
    throttles = share is not None and share > THROTTLED
    by_power = share is None or (throttles and reason == "power")
    limit = _low_limit(slow, others, other_card) if by_power or not (throttles or other_card) else None
    if limit is not None:
        return limit
    if share is not None and throttles and not (other_card and reason == "power"):
        text = f"its clocks were lowered for {percent(share)} of the last minute (reason {reason})"
        evidence = [measured(text, "gpu_throttle_seconds_total", share, "ratio")]
        words = {"power": "its power limit holds it back", "power_brake": "the power supply asks it to slow down"}
        cool = (Advice(f"compare cooling and power of GPU {slow.gpu} with the others: fan, air flow, paste, cables"),)
        return words.get(reason, f"it is throttled ({reason})"), evidence, cool, 0.9
    if other_card:
        swap = (Advice("use cards of one model for one tensor-parallel group, or split the model by pipeline stages"),)
        return "it is another model of card", [other_card], swap, 0.85
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


def _other_model(slow: Rank, others: list[Rank]) -> Evidence | None:
    """Return what says that a rank is another model of card than all the others: its name, or its default limit."""
    cards = {rank.card for rank in others if rank.card}
    if slow.card and cards and slow.card not in cards:
        text = f"GPU {slow.gpu} is a {slow.card}, the others are {', '.join(sorted(cards))}"
        return measured(text, "gpu_info", 1.0)
    defaults = [rank.default for rank in others if rank.default]
    if slow.default and defaults and slow.default < LOWER * min(defaults):
        text = f"default power limit of GPU {slow.gpu}: {slow.default:.0f} W, of the others {min(defaults):.0f} W"
        return measured(text, "gpu_power_limit_default_watts", slow.default, "watts")
    return None


def _low_limit(
    slow: Rank, others: list[Rank], other_card: Evidence | None
) -> tuple[str, list[Evidence], tuple[Advice, ...], float] | None:
    """Return the answer to a rank whose power limit is lower than it can be; None where it is not.

    Beside cards of its model it can be that of the others; beside other models only its own default is known.
    """
    wanted = slow.default if other_card else min((rank.limit for rank in others if rank.limit), default=None)
    if not slow.limit or not wanted or slow.limit >= LOWER * wanted:
        return None
    where = "its default is" if other_card else "of the others at least"
    than = "its default" if other_card else "the limit of the others"
    text = f"power limit of GPU {slow.gpu}: {slow.limit:.0f} W, {where} {wanted:.0f} W"
    flag = Advice(f"give it {than}", f"nvidia-smi -i {slow.gpu} -pl", f"{slow.limit:.0f}", f"{wanted:.0f}")
    evidence = [measured(text, "gpu_power_limit_watts", slow.limit, "watts"), *([other_card] if other_card else [])]
    return "its power limit is lower", evidence, (flag,), 0.75 if other_card else 0.9


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
    tp, advice = _fewer_ranks(subject, len(ranks))
    what = "exchange every layer's results" if tp != 1 else "hand their results on"
    cause = f"{len(ranks)} GPUs {what} over PCIe, and wait while the bytes cross.{note}"
    shared = sharing(subject, ranks)
    foreign = [measured(f"the engine {server} uses GPU {rank.gpu} too", "gpu_engine", 1.0) for rank, server in shared]
    foreign += strangers(ranks)
    if foreign:
        cause += " Or it is the traffic of another program on these GPUs: whose bytes cross a link is not known."
        advice.insert(0, Advice("see whether the links stay full while only this engine uses its GPUs"))
    faster = Advice("or use GPUs with NVLink; check that no link is narrower than its slot")
    return Explanation(cause, 0.5 if foreign else 0.75, (*evidence, *foreign), (*advice, faster))


def _fewer_ranks(subject: Subject, gpus: int) -> tuple[int, list[Advice]]:
    """Return the tensor-parallel ranks of each group, and what lets fewer of them exchange results.

    Without the engine's own figure every GPU of a pipeline stage is taken for a tensor-parallel rank.
    """
    stages = max(1, int(subject.config("pipeline_parallel_size", "pp") or 1))
    copies = max(1, int(subject.config("data_parallel_size", "dp") or 1))
    told = subject.config("tensor_parallel_size", "tp")
    tp = int(told) if told else max(1, gpus // (stages * copies))
    if tp < FEWEST:
        return tp, []
    smaller = 1 if tp == FEWEST else 2
    replicas, each = tp // smaller, smaller * stages
    advice = []
    if replicas >= FEWEST:
        text = f"run {replicas} replicas on {each} of the GPUs each, where the model fits: less crosses the links"
        advice.append(Advice(text, "--tensor-parallel-size", str(tp), str(smaller)))
    text = "split the model by layers alone (with --tensor-parallel-size 1), which exchanges far less"
    text = f"or {text}" if advice else text
    advice.append(Advice(text, "--pipeline-parallel-size", str(stages), str(stages * tp)))
    return tp, advice


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
