"""Ranks that wait for each other in a collective operation that never ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes.collectives import CUSTOM, CUSTOM_RANKS, FIRST_OPERATIONS, OWN_KERNEL, unreachable
from gpuwatch.diagnosis.context import GPU_SCOPE, LOG_SCOPE, SERVER_SCOPE
from gpuwatch.diagnosis.diagnosis import Diagnosis
from gpuwatch.diagnosis.explanation import Explanation, Unknown, Verdict, count, logged, measured, percent
from gpuwatch.diagnosis.finding import Advice
from gpuwatch.diagnosis.group import Rank, ranks_of, sharing, strangers
from gpuwatch.diagnosis.xid_table import TABLE, is_hardware, meaning_of
from gpuwatch.diagnosis.xids import seen_xids

if TYPE_CHECKING:
    from gpuwatch.diagnosis.context import Subject
    from gpuwatch.diagnosis.finding import Evidence
    from gpuwatch.model import LogEvent

WAITS = 0.95
"""A GPU that is busy for more than this waits in a kernel, or computes."""
ABSENT = 0.2
"""A GPU that is busy for less than this has not come to the collective."""
STILL = 30.0
"""Seconds without a change of its page from which on an engine stands still, as the rule has it."""
STANDS = "GpuwatchNcclHang"
"""The rule about GPUs that are busy at little power while the page does not change; the others are about log lines."""
NEVER_MET = "GpuwatchGroupNotFormed"

START_ADVICE = (
    Advice("start with peer-to-peer copies off", "NCCL_P2P_DISABLE", None, "1"),
    Advice("if that helps, disable IOMMU and ACS for the GPUs, or leave peer-to-peer off"),
    Advice("run NCCL's own test (all_reduce_perf) on these GPUs before the engine"),
)  # fmt: skip
RUN_ADVICE = (
    Advice("look for an Xid at that time: dmesg -T | grep -i xid"),
    Advice("save the stacks of all ranks before the restart (py-spy dump --pid PID): one of them is elsewhere"),
)
MEET_ADVICE = (
    Advice("start the engine on every node, with the same head address and one rank each, and its port open"),
    Advice("several network cards: name the one that reaches the other node", "GLOO_SOCKET_IFNAME"),
)


def nccl_hang(subject: Subject) -> Verdict:
    """Explain ranks that wait for each other."""
    ranks = ranks_of(subject)
    timeouts = subject.events("nccl_timeout", seconds=900)
    apart = subject.events("rendezvous_timeout", seconds=900)
    if apart and not timeouts:
        return unreachable(apart).explanation
    numbers = [int(event.field("seq")) for event in timeouts if event.field("seq").isdigit()]
    evidence: list[Evidence] = [logged(event) for event in timeouts[-2:]]
    frozen = _longest(subject)
    if frozen is not None and not timeouts:
        text = f"no value on the page has changed for {frozen:.0f} s although requests are open"
        evidence.append(measured(text, "engine_page_frozen_seconds", frozen, "seconds"))
    evidence += [_reading(rank) for rank in ranks if rank.busy is not None]
    if subject.alert != STANDS and not timeouts:
        minutes, told = (5, "rendezvous_timeout") if subject.alert == NEVER_MET else (10, "nccl_timeout")
        if subject.over("max_over_time", "log_events_total", f"{minutes}m", LOG_SCOPE, event=told):
            text = f"lines of the engine's log that say so in {minutes} minutes: {count(max(1.0, subject.value))}"
            evidence.insert(0, measured(text, "log_events_total", subject.value))
    if not evidence:
        return Unknown("the time-out line in the engine's log, or how busy its GPUs are")
    broken = _broken_gpu(subject, ranks)
    if broken:
        gpu, code = broken
        text = f"GPU {gpu} reported Xid {code} ({meaning_of(code)}) in the last 10 minutes"
        evidence.insert(0, measured(text, "gpu_xid_errors_total", 1.0))
        cause = f"A collective waits for GPU {gpu}, which has a hardware fault (Xid {code})."
        return Explanation(cause, 0.9, tuple(evidence), tuple(map(Advice, TABLE[int(code)].advice)))
    missing = [rank for rank in ranks if rank.busy is not None and rank.busy < ABSENT]
    waiting = [rank for rank in ranks if rank.busy is not None and rank.busy > WAITS]
    evidence += [logged(event) for event in subject.events("shm_broadcast_stall", "rpc_timeout", seconds=900)[-1:]]
    where = _where(missing, waiting)
    if numbers:
        return _numbered(numbers, _operation(timeouts), where, tuple(evidence), _run_advice(subject, ranks))
    if subject.alert == STANDS:
        return _stands(subject, ranks, where, evidence)
    return _unnumbered(subject.alert, where, tuple(evidence), _run_advice(subject, ranks))


def _run_advice(subject: Subject, ranks: list[Rank]) -> tuple[Advice, ...]:
    """Return what to do about a group that worked before; vLLM's own all-reduce is named where it may have run."""
    nodes = subject.number("flag.nnodes") or 1
    off = subject.flags().get("disable-custom-all-reduce") is True or subject.fact("custom_allreduce") is not None
    if subject.sglang or off or nodes > 1 or len(ranks) > CUSTOM_RANKS:
        return RUN_ADVICE
    return (*RUN_ADVICE, Advice(OWN_KERNEL, CUSTOM, None, "(set)"))


def _numbered(
    numbers: list[int], operation: str, where: str, evidence: tuple[Evidence, ...], run_advice: tuple[Advice, ...]
) -> Explanation:
    """Explain a hang by the numbers of the collectives that did not end."""
    if min(numbers) <= FIRST_OPERATIONS:
        which = f"The collective number {min(numbers)} of the group never ended{where}"
        cause = f"{which}: peer-to-peer between the GPUs does not work."
        return Explanation(cause, 0.85, evidence, START_ADVICE)
    which = f"The collective number {count(max(numbers))}{operation} did not end{where}"
    cause = f"{which}: the group worked before, so this is a stall while running, not the network at start."
    return Explanation(cause, 0.8, evidence, run_advice)


def _stands(subject: Subject, ranks: list[Rank], where: str, evidence: list[Evidence]) -> Explanation:
    """Explain GPUs that are busy at little power while nothing moves.

    Where another program, or another engine that stands still, is on every GPU that is busy, it may be what keeps them
    busy.
    """
    advice = _run_advice(subject, ranks)
    cause = f"The ranks wait for each other in a collective{where}"
    missing = any(rank.busy is not None and rank.busy < ABSENT for rank in ranks)
    busy = [rank for rank in ranks if _now_busy(subject, rank)] or ranks
    beside = sharing(subject, busy)
    shared = {rank.uuid for rank, _ in beside}
    foreign = [*_still(subject, beside), *strangers(busy)]
    if foreign and all(rank.uuid in shared or strangers([rank]) for rank in busy):
        cause += (
            ", or the engine stands still and another program keeps its GPUs busy: load and power do not tell which."
        )
        look = Advice("see whose process computes on these GPUs: nvidia-smi pmon -s u")
        return Explanation(cause, 0.5, (*evidence, *foreign), (look, *advice))
    cause += ": GPUs are busy at little power, nothing moves."
    return Explanation(cause, 0.75 if missing else 0.65, tuple(evidence), advice)


def _still(subject: Subject, beside: list[tuple[Rank, str]]) -> list[Evidence]:
    """Return which engines `beside` this one stand still as it does."""
    found = []
    for rank, server in beside:
        seconds = _longest(subject.context.about({**subject.labels, "server": server}))
        if seconds is not None and seconds > STILL:
            text = (
                f"the engine {server}, on GPU {rank.gpu} too, has not changed a value of its page for {seconds:.0f} s"
            )
            found.append(measured(text, "engine_page_frozen_seconds", seconds, "seconds"))
    return found


def _now_busy(subject: Subject, rank: Rank) -> bool:
    busy = subject.context.about({**subject.labels, "uuid": rank.uuid}).now("gpu_busy_ratio", GPU_SCOPE)
    return busy is not None and busy > WAITS


def _unnumbered(alert: str, where: str, evidence: tuple[Evidence, ...], run_advice: tuple[Advice, ...]) -> Explanation:
    """Explain a hang of which no line tells a number, by what the rule saw."""
    if alert == NEVER_MET:
        cause = "The ranks never met: the group was not formed in time. The log line that says where is not known here."
        return Explanation(cause, 0.6, evidence, MEET_ADVICE)
    cause = f"A collective of the ranks did not end in time{where}. Which one it was is not known here."
    return Explanation(cause, 0.6, evidence, run_advice)


def _longest(subject: Subject) -> float | None:
    frozen = subject.context.samples(subject.select("engine_page_frozen_seconds", SERVER_SCOPE))
    return max((value for _, value in frozen), default=None)


def _reading(rank: Rank) -> Evidence:
    power = f" at {rank.power:.0f} W" if rank.power is not None else ""
    limit = f" of {rank.limit:.0f} W" if power and rank.limit else ""
    return measured(
        f"GPU {rank.gpu} is busy for {percent(rank.busy or 0.0)}{power}{limit}",
        "gpu_busy_ratio",
        rank.busy or 0.0,
        "ratio",
    )


def _where(missing: list[Rank], waiting: list[Rank]) -> str:
    """Say which ranks wait for which, where some are idle."""
    if not missing or not waiting:
        return ""
    idle, busy = (", ".join(rank.gpu for rank in ranks) for ranks in (missing, waiting))
    return f" (GPU {busy} waits, GPU {idle} has not come)"


def _operation(timeouts: tuple[LogEvent, ...]) -> str:
    names = {event.field("op") for event in timeouts} - {""}
    return f" ({', '.join(sorted(names))})" if names else ""


def _broken_gpu(subject: Subject, ranks: list[Rank]) -> tuple[str, str] | None:
    """Return (GPU, code) of a rank whose card reported a hardware fault."""
    for rank in ranks:
        gpu = subject.context.about({**subject.labels, "uuid": rank.uuid})
        for code, _ in seen_xids(gpu):
            if is_hardware(code):
                return rank.gpu, code
    return None


DIAGNOSES = (Diagnosis("nccl_hang", "critical", "The ranks of an engine wait for each other", nccl_hang, SERVER_SCOPE),)
"""The findings of this family."""
