"""GPUs that are gone, a driver that does not answer, and ranks of one engine that hold different memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.context import GPU_SCOPE, HOST_SCOPE, SERVER_SCOPE
from gpuwatch.diagnosis.diagnosis import Diagnosis
from gpuwatch.diagnosis.explanation import Explanation, Unknown, Verdict, excluded, logged, measured, size
from gpuwatch.diagnosis.finding import Advice

if TYPE_CHECKING:
    from gpuwatch.diagnosis.context import Subject
    from gpuwatch.diagnosis.finding import Evidence

EXPLAINS = 0.6
"""A part of the memory explains a difference when it makes up at least this share of it."""
HARDWARE_XIDS = {48: "double-bit ECC error", 74: "NVLink error", 79: "fallen off the bus", 95: "uncontained ECC error"}
"""Xids after which a card is lost (NVIDIA, Xid errors)."""


def lost(subject: Subject) -> Verdict:
    """Explain a GPU that the driver no longer reaches or no longer lists."""
    uuid = subject.labels.get("uuid", "")
    gpu = subject.labels.get("gpu", "")
    if subject.now("gpu_state", GPU_SCOPE, state="lost") != 1.0:
        return Unknown(f"a GPU in the state lost; {f'GPU {gpu}' if gpu else 'this one'} is not")
    evidence = [measured(f"NVML cannot reach GPU {gpu} any more: its state is lost", "gpu_state", 1.0)]
    codes = []
    for labels, seen in subject.context.samples(
        f"increase({subject.select('gpu_xid_errors_total', GPU_SCOPE)}[10m]) > 0"
    ):
        code = dict(labels).get("xid", "")
        meaning = HARDWARE_XIDS.get(int(code), "") if code.isdigit() else ""
        codes.append(code)
        text = f"Xid {code}{f' ({meaning})' if meaning else ''} was reported in the last 10 minutes"
        evidence.append(measured(text, "gpu_xid_errors_total", seen))
    evidence += [logged(event) for event in subject.events("gpu_lost", "xid", "ecc_error", seconds=900)[-2:]]
    used = _servers_on(subject)
    if used:
        text = f"it was used by {', '.join(used)}"
        evidence.append(measured(text, "gpu_engine", float(len(used))))
    cause = f"GPU {gpu}{known_uuid(uuid)} has dropped off: no call reaches it"
    cause += f"; Xid {', '.join(codes)} came with it." if codes else "."
    return Explanation(
        cause,
        0.97,
        tuple(evidence),
        (
            Advice("stop what uses it, then reset the card (nvidia-smi --gpu-reset -i INDEX) or reboot the machine"),
            Advice("if it comes back: check power cables, riser and cooling, and read dmesg for the Xid before it"),
        ),
    )


def known_uuid(uuid: str) -> str:
    """Return the UUID in brackets, nothing where it has never been read."""
    return f" ({uuid})" if uuid and not uuid.startswith("index:") else ""


def driver_hangs(subject: Subject) -> Verdict:
    """Explain driver calls that do not return."""
    uuid = subject.labels.get("uuid", "")
    late = (
        subject.now("gpu_unresponsive_seconds", GPU_SCOPE)
        if uuid
        else subject.now("host_nvml_unresponsive_seconds", HOST_SCOPE)
    )
    if late is None:
        return Unknown("the time since the driver last answered")
    what = f"GPU {subject.labels.get('gpu', '')}" if uuid else "any GPU"
    name = "gpu_unresponsive_seconds" if uuid else "host_nvml_unresponsive_seconds"
    evidence: list[Evidence] = [measured(f"no answer about {what} for {late:.0f} s", name, late, "seconds")]
    if uuid:
        states = subject.select("gpu_state", ("host",), state="ok")
        fine = [labels for labels, value in subject.context.samples(states) if value == 1]
        if fine:
            evidence.append(measured(f"{len(fine)} other GPUs answer", "gpu_state", float(len(fine))))
            cause = (
                f"A driver call about {what} hangs while the other GPUs answer: this card or its link is in trouble."
            )
        else:
            cause = f"A driver call about {what} hangs."
    else:
        cause = "NVML hangs as a whole: no call to the driver returns."
    evidence += [logged(event) for event in subject.events("xid", "gpu_lost", seconds=900)[-2:]]
    return Explanation(
        cause,
        0.9,
        tuple(evidence),
        (
            Advice("look for an Xid or 'GSP' in dmesg; programs in state D (ps -eo pid,stat,comm) hang in the driver"),
            Advice("if it does not end by itself: drain the machine, reset the card or reboot"),
        ),
    )


@dataclass(frozen=True, slots=True)
class Rank:
    """One GPU of an engine: display index, used bytes, and the parts of it that are known."""

    gpu: str
    uuid: str
    used: float
    engine: float | None
    other: float | None
    unattributed: float | None


def tp_imbalance(subject: Subject) -> Verdict:
    """Explain memory that differs between the ranks of one engine."""
    ranks = _ranks(subject)
    if len(ranks) < 2:
        return Unknown("used memory of at least two GPUs of the engine")
    least, most = min(ranks, key=lambda rank: rank.used), max(ranks, key=lambda rank: rank.used)
    spread = most.used - least.used
    evidence = [
        measured(f"GPU {rank.gpu} uses {size(rank.used)}", "gpu_memory_used_bytes", rank.used, "bytes")
        for rank in ranks
    ]
    cause, extra, advice, confidence = _why_uneven(most, least, spread)
    return Explanation(cause, confidence, (*evidence, *extra), advice)


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
        text = f"the engine's own processes: {size(engine)} more"
        evidence = [measured(text, "gpu_memory_engine_bytes", engine, "bytes")]
        if other is not None:
            evidence.append(excluded("other processes: they do not differ", "gpu_memory_other_bytes", other, "bytes"))
        return (
            f"{head}, and it is the engine's own: contexts of other ranks, communication buffers, or extra work.",
            evidence,
            (
                Advice(f"see whether GPU {most.gpu} lists more processes of the engine than the others (nvidia-smi)"),
                Advice("if it does, the self-test of the custom all-reduce opened them", "--disable-custom-all-reduce"),
            ),
            0.75,
        )
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


def _difference(most: float | None, least: float | None) -> float | None:
    return most - least if most is not None and least is not None else None


def _ranks(subject: Subject) -> list[Rank]:
    ranks = []
    for labels, _ in subject.context.samples(subject.select("gpu_engine", SERVER_SCOPE)):
        gpu = subject.context.about({**dict(labels), "server": subject.server})
        used = gpu.now("gpu_memory_used_bytes", GPU_SCOPE)
        if used is None:
            continue
        ranks.append(
            Rank(
                gpu.labels.get("gpu", ""),
                gpu.labels.get("uuid", ""),
                used,
                gpu.now("gpu_memory_engine_bytes", (*GPU_SCOPE, "server")),
                gpu.now("gpu_memory_other_bytes", GPU_SCOPE),
                gpu.now("gpu_memory_unattributed_bytes", GPU_SCOPE),
            )
        )
    return sorted(ranks, key=lambda rank: (len(rank.gpu), rank.gpu))


def _servers_on(subject: Subject) -> list[str]:
    expr = f"max_over_time({subject.select('gpu_engine', GPU_SCOPE)}[10m])"
    return sorted({dict(labels).get("server", "") for labels, _ in subject.context.samples(expr)} - {""})


DIAGNOSES = (
    Diagnosis(
        "tp_imbalance",
        "warning",
        "Memory differs between the ranks of one engine",
        tp_imbalance,
        SERVER_SCOPE,
    ),
    Diagnosis("gpu_lost", "critical", "A GPU is gone", lost, GPU_SCOPE),
    Diagnosis(
        "driver_unresponsive",
        "critical",
        "The NVIDIA driver does not answer",
        driver_hangs,
        GPU_SCOPE,
    ),
)
"""The findings of this family."""
