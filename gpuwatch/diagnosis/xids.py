"""Xid errors of a GPU, and faults that its own counters tell: what the card, its log lines and its twins say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis.context import GPU_SCOPE
from gpuwatch.diagnosis.diagnosis import Diagnosis
from gpuwatch.diagnosis.explanation import Explanation, Unknown, Verdict, count, logged, measured
from gpuwatch.diagnosis.finding import Advice
from gpuwatch.diagnosis.xid_table import (
    DETAILS,
    MEMORY,
    REPLACE,
    RESET,
    is_hardware,
    is_repair,
    is_stopped,
    meaning_of,
    repair_of,
    xid_of,
)
from gpuwatch.sources.nvml.xids import pci_address

if TYPE_CHECKING:
    from gpuwatch.diagnosis.context import Subject
    from gpuwatch.diagnosis.finding import Evidence

WINDOW = "10m"
"""The finding is kept for 5 minutes after an Xid of the last 5 minutes."""

FAILURES = ("engine_down", "engine_stalled", "nccl_hang", "worker_died")
"""Findings about an engine that a fault of its GPU can bring about."""
ACTIONS = {
    1: "a reset of the GPU",
    2: "a reboot of the node",
    3: "a drain of peer-to-peer traffic",
    4: "a drain, then a reset",
}
"""NVML's recovery action (field 230)."""


def seen_xids(subject: Subject, window: str = WINDOW) -> list[tuple[str, float]]:
    """Return (code, times) of the Xids of this GPU within `window`: hardware before others, causes before details."""
    expr = f"increase({subject.select('gpu_xid_errors_total', GPU_SCOPE)}[{window}]) > 0"
    found = [(dict(labels).get("xid", ""), times) for labels, times in subject.context.samples(expr)]
    return sorted(found, key=_order)


def _order(item: tuple[str, float]) -> tuple[bool, bool, int, str]:
    code = item[0]
    return not is_hardware(code), code.isdigit() and int(code) in DETAILS, len(code), code


def hardware(subject: Subject) -> Verdict:
    """Explain an Xid of the card, or a fault that its own counters tell."""
    gpu = subject.labels.get("gpu", "")
    codes = [(code, times) for code, times in seen_xids(subject) if is_hardware(code)]
    counters, advice = _counters(subject)
    repairs = [(code, times) for code, times in seen_xids(subject) if is_repair(code)]
    told = [*codes, *repairs]
    evidence = [*_xid_evidence(told), *counters, *_lines(subject, {code for code, _ in told})]
    if not codes and not counters:
        return Unknown("an Xid of the card, an uncorrected ECC error, or a recovery action that the driver asks for")
    if codes:
        main = codes[0][0]
        known = xid_of(main)
        advice = [*known.advice, *advice] if known is not None else advice
        what = "needs a reset" if is_stopped(main) else "has a hardware fault"
        cause = f"GPU {gpu} {what}: Xid {main}, {meaning_of(main)}."
    else:
        cause = f"GPU {gpu} has a hardware fault: {counters[0].text}."
    failing = _failing(subject)
    if failing:
        cause += f" What hangs or fails on {', '.join(failing)} follows from it."
    unique = list(dict.fromkeys(advice))
    return Explanation(cause, 0.95 if codes else 0.85, tuple(evidence), tuple(map(Advice, unique)))


def software(subject: Subject) -> Verdict:
    """Explain an Xid that a program caused, one of a repair, or one whose number is not in the table."""
    gpu, code = subject.labels.get("gpu", ""), subject.labels.get("xid", "")
    codes = [(each, times) for each, times in seen_xids(subject) if not is_hardware(each)]
    if not codes:
        return Unknown("an Xid of the last 10 minutes")
    main = code if any(code == each for each, _ in codes) else codes[0][0]
    evidence = [*_xid_evidence(codes), *_lines(subject, {each for each, _ in codes})]
    twins = _others_with(subject, main)
    if twins:
        text = f"the same Xid came from {count(len(twins))} other GPUs: one failing card is not the reason"
        evidence.append(measured(text, "gpu_xid_errors_total", float(len(twins))))
    known = xid_of(main)
    if known is None:
        cause = (
            f"GPU {gpu} reported Xid {main}, which is not in the table of gpuwatch; whose fault it is cannot be told."
        )
        link = "look the number up in NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors)"
        return Explanation(cause, 0.3, tuple(evidence), (Advice(link),))
    if known.kind == "follows":
        cause = (
            f"Xid {main} on GPU {gpu}: {known.meaning}. It follows from something else; the Xid before it tells more."
        )
    elif is_repair(main):
        cause = repair_of(f"GPU {gpu}", [int(main)])
    else:
        cause = f"Software on GPU {gpu} failed: Xid {main}, {known.meaning}. It is no memory error of the card."
    return Explanation(cause, 0.8 if twins else 0.7, tuple(evidence), tuple(map(Advice, known.advice)))


def _xid_evidence(codes: list[tuple[str, float]]) -> list[Evidence]:
    found = []
    for code, times in codes:
        often = "once" if round(times) <= 1 else f"{count(times)} times"
        text = f"Xid {code} ({meaning_of(code) or 'unknown number'}), {often} in 10 minutes"
        found.append(measured(text, "gpu_xid_errors_total", times))
    return found


def _lines(subject: Subject, codes: set[str]) -> list[Evidence]:
    """Return the newest line of each code that a log has about this GPU."""
    own = _address(subject)
    newest = {
        event.field("code"): event
        for event in subject.events("xid", seconds=600)
        if event.field("code") in codes and (not own or pci_address(event.field("pci")) == own)
    }
    return [logged(event) for event in newest.values()]


def _address(subject: Subject) -> str:
    """Return the PCI address of the GPU; the empty string where it is not known."""
    found = subject.context.samples(subject.select("gpu_info", GPU_SCOPE))
    return pci_address(dict(found[0][0]).get("pci_bus_id", "")) if found else ""


def _counters(subject: Subject) -> tuple[list[Evidence], list[str]]:
    """Return what the card's own counters say, and what that asks for."""
    evidence: list[Evidence] = []
    advice: list[str] = []
    errors = subject.over("increase", "gpu_ecc_errors_total", WINDOW, GPU_SCOPE, type="uncorrected")
    if errors:
        text = f"{count(max(1.0, errors))} uncorrected ECC errors in 10 minutes"
        evidence.append(measured(text, "gpu_ecc_errors_total", errors))
        advice += MEMORY
    if subject.now("gpu_row_remap_failed", GPU_SCOPE) == 1:
        evidence.append(measured("a row of memory could not be remapped: no spare is left", "gpu_row_remap_failed", 1))
        advice += [REPLACE]
    action = subject.now("gpu_recovery_action", GPU_SCOPE)
    if action:
        wanted = ACTIONS.get(int(action), f"recovery action {action:.0f}")
        evidence.append(measured(f"the driver asks for {wanted}", "gpu_recovery_action", action))
        advice += [RESET]
    if subject.now("gpu_row_remap_pending", GPU_SCOPE) == 1:
        evidence.append(measured("a row remap waits for a reset of the card", "gpu_row_remap_pending", 1))
    return evidence, advice


def _failing(subject: Subject) -> list[str]:
    """Return the engines that used this GPU lately and now hang or are gone."""
    used = f"max_over_time({subject.select('gpu_engine', GPU_SCOPE)}[{WINDOW}])"
    alerts = f'ALERTS{{alertstate="firing",diagnosis=~"{"|".join(FAILURES)}"}}'
    found = subject.context.samples(f"{used} and on (host, server) {alerts}")
    return sorted({dict(labels).get("server", "") for labels, _ in found} - {""})


def _others_with(subject: Subject, code: str) -> list[str]:
    """Return the other GPUs of the host that reported the same Xid."""
    expr = f"increase({subject.select('gpu_xid_errors_total', ('host',), xid=code)}[{WINDOW}]) > 0"
    seen = {dict(labels).get("uuid", "") for labels, _ in subject.context.samples(expr)}
    return sorted(seen - {subject.labels.get("uuid", "")})


DIAGNOSES = (
    Diagnosis("xid_hardware", "critical", "A GPU has a hardware fault", hardware, GPU_SCOPE),
    Diagnosis(
        "xid_software",
        "warning",
        "The driver reported an error on a GPU",
        software,
        GPU_SCOPE,
    ),
)
"""The findings of this family."""
