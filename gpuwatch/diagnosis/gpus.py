"""GPUs that are gone, and a driver that does not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis.context import GPU_SCOPE, HOST_SCOPE
from gpuwatch.diagnosis.diagnosis import Diagnosis
from gpuwatch.diagnosis.explanation import Explanation, Unknown, Verdict, logged, measured
from gpuwatch.diagnosis.finding import Advice
from gpuwatch.diagnosis.xid_table import meaning_of
from gpuwatch.diagnosis.xids import seen_xids

if TYPE_CHECKING:
    from gpuwatch.diagnosis.context import Subject
    from gpuwatch.diagnosis.finding import Evidence


def lost(subject: Subject) -> Verdict:
    """Explain a GPU that the driver no longer reaches or no longer lists."""
    uuid = subject.labels.get("uuid", "")
    gpu = subject.labels.get("gpu", "")
    if subject.now("gpu_state", GPU_SCOPE, state="lost") != 1.0:
        return Unknown(f"a GPU in the state lost; {f'GPU {gpu}' if gpu else 'this one'} is not")
    evidence = [measured(f"NVML cannot reach GPU {gpu} any more: its state is lost", "gpu_state", 1.0)]
    codes = []
    for code, seen in seen_xids(subject):
        meaning = meaning_of(code)
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
            others = "1 other GPU answers" if len(fine) == 1 else f"{len(fine)} other GPUs answer"
            evidence.append(measured(others, "gpu_state", float(len(fine))))
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


def _servers_on(subject: Subject) -> list[str]:
    expr = f"max_over_time({subject.select('gpu_engine', GPU_SCOPE)}[10m])"
    return sorted({dict(labels).get("server", "") for labels, _ in subject.context.samples(expr)} - {""})


DIAGNOSES = (
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
