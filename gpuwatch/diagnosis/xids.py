"""Xid errors: what the numbers mean, whose fault they are, and what to do.

Source: NVIDIA, Xid Errors and its catalogue (docs.nvidia.com/deploy/xid-errors).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from gpuwatch.diagnosis.context import GPU_SCOPE
from gpuwatch.diagnosis.diagnosis import Diagnosis
from gpuwatch.diagnosis.explanation import Explanation, Unknown, Verdict, count, logged, measured
from gpuwatch.diagnosis.finding import Advice
from gpuwatch.sources.nvml.xids import pci_address

if TYPE_CHECKING:
    from gpuwatch.diagnosis.context import Subject
    from gpuwatch.diagnosis.finding import Evidence

Kind: TypeAlias = Literal["hardware", "program", "follows"]

WINDOW = "10m"
"""The finding is kept for 5 minutes after an Xid of the last 5 minutes."""

RESET = "drain the card and reset it: stop what uses it, then nvidia-smi --gpu-reset -i INDEX, or reboot"
REPLACE = "if the same card reports it again after that, have it replaced; do not tune the engine"
LINK = "check the card's seat, riser, power cables and power supply; it is often load that brings it about"
BRIDGE = (
    "see nvidia-smi nvlink -s and nvidia-smi nvlink -e; reseat bridges, check the fabric manager, reset the node's GPUs"
)
FIRMWARE = "update driver and firmware; after a GSP time-out the card answers only after a reset or a reboot"
PROGRAM = "find the program that ran there (dmesg prints its pid); update engine and driver, try without new flags"
REPEATS = "suspect the card only if this PCI address alone repeats it across programs and driver versions"


@dataclass(frozen=True, slots=True)
class Xid:
    """One number of the catalogue."""

    meaning: str
    kind: Kind
    advice: tuple[str, ...]


_MEMORY = (RESET, REPLACE)
_BUS = (LINK, RESET)
_NVLINK = (BRIDGE, REPLACE)
_GSP = (FIRMWARE, RESET)
_SOFT = (PROGRAM, REPEATS)

TABLE: dict[int, Xid] = {
    8: Xid("GPU stopped processing", "program", _SOFT),
    13: Xid("graphics engine exception: a kernel read or wrote out of bounds, or was illegal", "program", _SOFT),
    31: Xid("GPU memory page fault: a kernel touched an address that is not mapped", "program", _SOFT),
    32: Xid("invalid or corrupted push buffer", "program", _SOFT),
    38: Xid("driver firmware error", "hardware", _GSP),
    43: Xid("the GPU stopped a program's work", "program", _SOFT),
    45: Xid("a program's work was removed early: it ended, or an earlier error ended it", "follows", _SOFT),
    48: Xid("double-bit ECC error: memory contents are lost", "hardware", _MEMORY),
    56: Xid("display engine error", "hardware", _MEMORY),
    57: Xid("error while programming the video memory interface", "hardware", _MEMORY),
    58: Xid("unstable video memory interface", "hardware", _MEMORY),
    61: Xid("internal microcontroller breakpoint", "hardware", _GSP),
    62: Xid("internal microcontroller halt", "hardware", _GSP),
    63: Xid("a row of memory was marked for remapping, or a page retired", "hardware", _MEMORY),
    64: Xid("a row could not be remapped, or a page not retired", "hardware", _MEMORY),
    68: Xid("video decoder exception", "program", _SOFT),
    69: Xid("graphics engine class error", "program", _SOFT),
    74: Xid("NVLink error", "hardware", _NVLINK),
    79: Xid("the GPU has fallen off the bus", "hardware", _BUS),
    92: Xid("high rate of single-bit ECC errors", "hardware", _MEMORY),
    94: Xid("contained ECC error: the program that used the memory is lost", "hardware", _MEMORY),
    95: Xid("uncontained ECC error: results of all programs on the card are in doubt", "hardware", _MEMORY),
    109: Xid("context switch time-out", "program", _SOFT),
    110: Xid("security fault", "hardware", _GSP),
    119: Xid("the GPU's own processor (GSP) does not answer the driver", "hardware", _GSP),
    120: Xid("error of the GPU's own processor (GSP)", "hardware", _GSP),
    121: Xid("error of the chip-to-chip link", "hardware", _NVLINK),
    136: Xid("NVLink training error", "hardware", _NVLINK),
    137: Xid("NVLink fault that another GPU or program caused", "program", _SOFT),
    140: Xid("unrecovered ECC error", "hardware", _MEMORY),
    143: Xid("the GPU could not be initialised", "hardware", _GSP),
    144: Xid("NVLink error (SAW)", "hardware", _NVLINK),
    145: Xid("NVLink error (RLW)", "hardware", _NVLINK),
    146: Xid("NVLink error (TLW)", "hardware", _NVLINK),
    147: Xid("NVLink error (TREX)", "hardware", _NVLINK),
    148: Xid("NVLink error (NVLPW)", "hardware", _NVLINK),
    149: Xid("NVLink error (NETIR)", "hardware", _NVLINK),
    150: Xid("NVLink error (MSE)", "hardware", _NVLINK),
    154: Xid("the driver now asks for a recovery action", "hardware", (RESET,)),
    155: Xid("NVLink error", "hardware", _NVLINK),
    156: Xid("a part of the card was retired", "hardware", _MEMORY),
    157: Xid("a part of the card could not be retired", "hardware", _MEMORY),
    158: Xid("fatal time-out of the GPU", "hardware", _BUS),
    160: Xid("a memory channel was retired", "hardware", _MEMORY),
    161: Xid("a memory channel could not be retired", "hardware", _MEMORY),
    171: Xid("details of an ECC error in DRAM", "hardware", _MEMORY),
    172: Xid("details of an ECC error in SRAM", "hardware", _MEMORY),
}
"""What is known by number."""

DETAILS = frozenset({"63", "154", "171", "172"})
"""Xids that tell more about another one, or what came of it."""

ACTIONS = {
    1: "a reset of the GPU",
    2: "a reboot of the node",
    3: "a drain of peer-to-peer traffic",
    4: "a drain, then a reset",
}
"""NVML's recovery action (field 230)."""


def meaning_of(code: str) -> str:
    """Return what an Xid means in a few words; the empty string for an unknown number."""
    known = TABLE.get(int(code)) if code.isdigit() else None
    return known.meaning if known is not None else ""


def seen_xids(subject: Subject, window: str = WINDOW) -> list[tuple[str, float]]:
    """Return (code, times) of the Xids of this GPU within `window`: hardware before others, causes before details."""
    expr = f"increase({subject.select('gpu_xid_errors_total', GPU_SCOPE)}[{window}]) > 0"
    found = [(dict(labels).get("xid", ""), times) for labels, times in subject.context.samples(expr)]
    return sorted(found, key=lambda item: (_kind(item[0]) != "hardware", item[0] in DETAILS, len(item[0]), item[0]))


def _kind(code: str) -> Kind | None:
    known = TABLE.get(int(code)) if code.isdigit() else None
    return known.kind if known is not None else None


def hardware(subject: Subject) -> Verdict:
    """Explain an Xid of the card, or a fault that its own counters tell."""
    gpu = subject.labels.get("gpu", "")
    codes = [(code, times) for code, times in seen_xids(subject) if _kind(code) == "hardware"]
    counters, advice = _counters(subject)
    evidence = [*_xid_evidence(codes), *counters, *_lines(subject, {code for code, _ in codes})]
    if not codes and not counters:
        return Unknown("an Xid of the card, an uncorrected ECC error, or a recovery action that the driver asks for")
    if codes:
        main = codes[0][0]
        advice = [*TABLE[int(main)].advice, *advice] if main.isdigit() and int(main) in TABLE else advice
        cause = f"GPU {gpu} has a hardware fault: Xid {main}, {meaning_of(main) or 'not in the table'}."
    else:
        cause = f"GPU {gpu} has a hardware fault: {counters[0].text}."
    using = _engines(subject)
    if using:
        cause += f" What hangs or fails on {', '.join(using)} follows from it."
    unique = list(dict.fromkeys(advice))
    return Explanation(cause, 0.95 if codes else 0.85, tuple(evidence), tuple(map(Advice, unique)))


def software(subject: Subject) -> Verdict:
    """Explain an Xid that a program caused, or one whose number is not in the table."""
    gpu, code = subject.labels.get("gpu", ""), subject.labels.get("xid", "")
    codes = [(each, times) for each, times in seen_xids(subject) if _kind(each) != "hardware"]
    if not codes:
        return Unknown("an Xid of the last 10 minutes")
    main = code if any(code == each for each, _ in codes) else codes[0][0]
    evidence = [*_xid_evidence(codes), *_lines(subject, {each for each, _ in codes})]
    twins = _others_with(subject, main)
    if twins:
        text = f"the same Xid came from {count(len(twins))} other GPUs: one failing card is not the reason"
        evidence.append(measured(text, "gpu_xid_errors_total", float(len(twins))))
    known = TABLE.get(int(main)) if main.isdigit() else None
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
        advice += _MEMORY
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


def _engines(subject: Subject) -> list[str]:
    expr = f"max_over_time({subject.select('gpu_engine', GPU_SCOPE)}[{WINDOW}])"
    return sorted({dict(labels).get("server", "") for labels, _ in subject.context.samples(expr)} - {""})


def _others_with(subject: Subject, code: str) -> list[str]:
    """Return the other GPUs of the host that reported the same Xid."""
    expr = f"increase({subject.select('gpu_xid_errors_total', ('host',), xid=code)}[{WINDOW}]) > 0"
    seen = {dict(labels).get("uuid", "") for labels, _ in subject.context.samples(expr)}
    return sorted(seen - {subject.labels.get("uuid", "")})


DIAGNOSES = (
    Diagnosis("xid_hardware", "critical", "A GPU has a hardware fault", hardware, GPU_SCOPE),
    Diagnosis("xid_software", "warning", "A program failed on a GPU", software, GPU_SCOPE),
)
"""The findings of this family."""
