"""Memory of a card that fails, by what CUDA met, by the counters of its errors and by rows that were replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes.view import Cause, advise, number, ruled_out, sampled
from gpuwatch.diagnosis.explanation import Explanation, logged
from gpuwatch.diagnosis.xids import ACTIONS

if TYPE_CHECKING:
    from gpuwatch.diagnosis.causes.view import Sample, View
    from gpuwatch.diagnosis.finding import Evidence
    from gpuwatch.model import LogEvent


def failing(view: View) -> Cause:
    """Explain memory that fails, or that waits for a reset which completes its repair."""
    if _at_leisure(view):
        return _waits(view)
    events = view.events("ecc_error")
    rows = failing_rows(view)
    told = dict.fromkeys(each.text for each in rows if each.line is None)
    asked = not events and bool(rows) and all(each.name == "gpuwatch_gpu_recovery_action" for each in rows)
    cause = (
        "GPU memory fails: CUDA met an uncorrectable ECC error."
        if events
        else f"A card stopped working as it should: {'; '.join(told)}."
        if asked
        else f"GPU memory fails: {'; '.join(told)}."
        if told
        else "GPU memory fails: rows of it had to be replaced, or could not be."
    )
    others = view.events("rpc_timeout", "nccl_timeout", "engine_dead")
    evidence = [*(logged(event) for event in events[:1]), *rows, *(logged(event) for event in others[:1])]
    if events:
        evidence.append(
            ruled_out("memory that ran out: the error is about the content of memory, not its amount", events[0])
        )
    return Cause(
        "xid_hardware",
        Explanation(
            cause,
            0.92 if events else 0.8,
            tuple(evidence),
            (
                advise("look at ECC and Remapped Rows in nvidia-smi -q, and for Xid 48, 63, 94 or 95 in dmesg"),
                advise("reset the GPU or reboot, so that the rows are remapped; replace the card if it comes back"),
            ),
        ),
        events[0].time if events else 0,
        labels=() if events else _one_card(view),
    )


def _waits(view: View) -> Cause:
    """Explain a card that goes on working: a repair waits for its reset, or it counts errors of unknown age."""
    rows = failing_rows(view)
    pending = any(each.value == 1 for each in view.samples("gpu_row_remap_pending"))
    told = "; ".join(dict.fromkeys(each.text for each in rows))
    reset = advise("reset the card when its work allows (nvidia-smi --gpu-reset -i INDEX), which completes the repair")
    look = advise(
        "see when: ECC Errors (Volatile: since the driver began) and Remapped Rows in nvidia-smi -q, and dmesg"
    )
    return Cause(
        "xid_hardware",
        Explanation(
            f"The card goes on working: {told}." if pending else f"{told[:1].upper()}{told[1:]}. When is not told.",
            0.85 if pending else 0.6,
            tuple(rows),
            (*((reset,) if pending else ()), look),
        ),
        severity="warning" if pending else "info",
        labels=_one_card(view),
        apart=True,
        title="A GPU's memory waits for a reset that repairs it" if pending else "A GPU counts memory errors",
    )


def failing_rows(view: View) -> list[Evidence]:
    """Return rows of memory that were remapped while somebody looked, or could not be, and errors that were counted."""
    found = [logged(event) for event in _replaced(view)]
    failed = [each for each in view.samples("gpu_row_remap_failed") if each.value == 1]
    pending = [each for each in view.samples("gpu_row_remap_pending") if each.value == 1]
    uncorrected = [each for each in _uncorrected(view) if each.value > 0]
    found += [sampled(each, f"a row of {_card(view, each)} could not be remapped") for each in failed]
    found += [
        sampled(each, f"the driver asks for {ACTIONS[int(each.value)]}: {_card(view, each)}") for each in _asked(view)
    ]
    found += [sampled(each, f"a remapped row of {_card(view, each)} waits for a reset") for each in pending]
    found += [
        sampled(
            each,
            f"{_card(view, each)} counts {each.value:.0f} uncorrected ECC error{'s' if each.value > 1 else ''}"
            + (", of its whole life" if _lifelong(each) and not _rises(view, each) else ""),
        )
        for each in uncorrected
    ]
    return found[:3]


def _replaced(view: View) -> list[LogEvent]:
    """Return what somebody wrote down of rows that were replaced while they looked, or could not be."""
    return [
        event
        for event in view.events("rows_remapped")
        if (number(event, "now") or 0) > (number(event, "before") or 0) or event.field("failed").lower() == "yes"
    ]


def _asked(view: View) -> list[Sample]:
    """Return the recoveries that the driver asks for, as nvidia-smi -q prints them."""
    return [each for each in view.samples("gpu_recovery_action") if each.value in ACTIONS]


def _uncorrected(view: View) -> list[Sample]:
    """Return the counts of uncorrected errors, of one series the last."""
    last: dict[tuple[str, str], Sample] = {}
    for each in view.samples("gpu_ecc_errors_total", type="uncorrected"):
        last[each.path, str(sorted(each.labels.items()))] = each
    return list(last.values())


def _lifelong(sample: Sample) -> bool:
    """Whether a count is that of the whole life of a card, as dmon prints it: what it tells may long be over."""
    return sample.labels.get("since") == "ever"


def _rises(view: View, sample: Sample) -> bool:
    """Whether a count rose while somebody looked."""
    every = view.samples(sample.name.removeprefix("gpuwatch_"), **sample.labels)
    values = [each.value for each in every if each.path == sample.path]
    return max(values) > min(values)


def _at_leisure(view: View) -> bool:
    """Whether nothing tells of memory that fails now: a repair waits for a reset, or errors are of unknown age."""
    told = bool(view.events("ecc_error") or _replaced(view))
    failed = any(each.value == 1 for each in view.samples("gpu_row_remap_failed"))
    now = any(each.value > 0 and (not _lifelong(each) or _rises(view, each)) for each in _uncorrected(view))
    return not (told or failed or now or _asked(view))


def _one_card(view: View) -> tuple[tuple[str, str], ...]:
    """Return the label of the card whose counters tell of failing memory, where it is a single one."""
    names = ("gpu_row_remap_failed", "gpu_row_remap_pending", "gpu_recovery_action")
    samples = [each for name in names for each in view.samples(name)]
    samples += view.samples("gpu_ecc_errors_total", type="uncorrected")
    cards = {each.labels.get("gpu", "") for each in samples if each.value > 0}
    return (("gpu", cards.pop()),) if len(cards) == 1 else ()


def _card(view: View, sample: Sample) -> str:
    """Return the card of a sample by its number, and by its address where it is known."""
    gpu, instance = sample.labels.get("gpu", ""), sample.labels.get("gi", "")
    named = (each for each in view.samples("gpu_info", gpu=gpu) if each.path == sample.path)
    address = next((bus for each in named if (bus := each.labels.get("pci_bus_id", ""))), "")
    return (f"MIG instance {instance} of " if instance else "") + f"GPU {gpu}" + (f" ({address})" if address else "")
