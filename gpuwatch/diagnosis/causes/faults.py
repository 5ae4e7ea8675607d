"""Kernels that faulted: what CUDA reports of it, with the end that it brought about and the state of the cards."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import moments
from gpuwatch.diagnosis.causes.hardware import unread_cards
from gpuwatch.diagnosis.causes.view import FRAMES_BEFORE, Cause, advise, group
from gpuwatch.diagnosis.explanation import Explanation, logged
from gpuwatch.diagnosis.finding import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import View
    from gpuwatch.diagnosis.finding import Advice
    from gpuwatch.model import LogEvent

_FAULTS = ("illegal", "misaligned", "launch failure", "device-side assert", "access fault")
_DEATHS = ("engine_dead", "worker_dead", "process_crashed")
_INDEX = re.compile(r"srcIndex|out of bounds|index_size|\bindex\b.*<|t >= 0 && t < n_classes")
_NOT_A_NUMBER = re.compile(r"\b(?:inf|nan)\b|probability", re.IGNORECASE)
TITLE = "A kernel on the GPU faulted"


def faults(view: View) -> tuple[LogEvent, ...]:
    """Return the errors of CUDA that are about a kernel that faulted."""
    return tuple(event for event in view.events("cuda_error") if any(word in group(event, "what") for word in _FAULTS))


def deaths(view: View, fault: LogEvent) -> tuple[LogEvent, ...]:
    """Return the ends of an engine that go with a fault: of the same run, or of its time in another file."""
    run = view.run_of(fault)
    return tuple(
        end
        for end in view.events(*_DEATHS)
        if moments.together(fault, end) is not False
        and (view.run_of(end) is run if end.source == fault.source else moments.together(fault, end))
    )


def cuda_faults(view: View) -> Iterator[Cause]:
    """Judge illegal accesses that CUDA reported, where the kernel log is not there to say more."""
    found = faults(view)
    if not found or view.events("xid"):
        return
    event = found[0]
    ended = deaths(view, event)
    cards = unread_cards(view)
    stopped = _condition(view, event)
    if stopped is not None and not cards:
        yield _asserted(view, event, stopped, ended)
        return
    what = group(event, "what").strip()
    named = next((each for each in found if each.field("fn") and view.run_of(each) is view.run_of(event)), None)
    cause = f"A kernel faulted: {what}{_place(event)}."
    if named is not None:
        cause += f" It was reported in {named.field('fn')}, which need not be the kernel at fault."
    shown = [event, *([named] if named is not None and named is not event else [])]
    evidence = [logged(each) for each in (*shown, *ended[:1])]
    if cards:
        names = ", ".join(dict.fromkeys(f"GPU {gpu}" for _, gpu in cards))
        cause += f" nvidia-smi cannot read {names}: a card that failed ends kernels so, too."
        evidence.append(Evidence(f"Not ruled out: the card: the driver reads errors of {names}"))
    elif "by GPU node" in what:
        cause += " Usually a bug of a kernel, seldom the card: amdgpu's lines in the kernel log tell."
    else:
        cause += (
            " Usually a bug of a kernel, seldom the card: the driver's Xid tells (13 or 31: software; 48, 63, 94, 95: "
            "memory)."
        )
    yield Cause(
        "xid_software",
        Explanation(
            cause,
            0.4 if cards else 0.6,
            tuple(evidence),
            _which(view, event, what),
        ),
        event.time,
        severity="critical" if ended else None,
        title=TITLE,
    )


def _place(event: LogEvent) -> str:
    """Return where a GPU of AMD says that it was, and why, as far as it says."""
    address, why = event.field("address"), event.field("why").strip()
    return (f" at {address}" if address else "") + (f" ({why})" if why and why != "Unknown" else "")


def _which(view: View, event: LogEvent, what: str) -> tuple[Advice, ...]:
    """Return how to find out which kernel it was, and whether the card has a part in it."""
    if "by GPU node" in what:
        return (
            advise("look at the kernel log of that moment: dmesg -T | grep -i amdgpu"),
            advise("run once with AMD_SERIALIZE_KERNEL=3 and HIP_LAUNCH_BLOCKING=1; the trace then names the kernel"),
        )
    told = (
        advise("look for the Xid of that moment: dmesg -T | grep -i xid"),
        advise("run once with CUDA_LAUNCH_BLOCKING=1; the trace then names the kernel"),
    )
    run = view.run_of(event)
    if "flashinfer" not in event.text.lower():
        return told
    current = run.text("flag.attention-backend") or "flashinfer"
    return (*told, advise("or another attention backend, to tell whether it is FlashInfer", "--attention-backend",
                          current, "triton" if run.sglang else "FLASH_ATTN"))  # fmt: skip


def _condition(view: View, event: LogEvent) -> LogEvent | None:
    """Return the line in which a kernel said which of its own conditions did not hold, shortly before an error."""
    if "device-side assert" not in group(event, "what"):
        return None
    near = (
        each
        for each in view.events("device_assert")
        if each.source == event.source and abs(event.line - each.line) <= FRAMES_BEFORE
    )
    return next(near, None)


def _asserted(view: View, event: LogEvent, stopped: LogEvent, ended: tuple[LogEvent, ...]) -> Cause:
    """Explain a kernel that stopped at a condition of its own: its words say what the data was like."""
    run = view.run_of(event)
    said = stopped.field("what")
    over = not any(run.holds(each) and each.line > event.line for each in view.events("stats"))
    if _INDEX.search(said):
        cause = (
            f"A kernel was given an index beyond the end of a table ({said}): a token id that the model's vocabulary "
            "does not have, or a position beyond its positions. It is the data or a bug, hardly ever the card."
        )
        advice = [
            advise(
                "do tokenizer and checkpoint belong together? The largest id of the tokenizer, with added tokens and "
                "those of LoRA adapters, must be below vocab_size of config.json"
            ),
            advise(
                "no longer than the positions of the model (max_position_embeddings)",
                "--context-length" if run.sglang else "--max-model-len",
                run.text("max_model_len") or None,
            ),
            advise("which request does it: run once with CUDA_LAUNCH_BLOCKING=1; the trace then names the kernel"),
        ]
    elif _NOT_A_NUMBER.search(said):
        cause = (
            f"The sampler was given probabilities that are no numbers ({said}): the logits were inf or NaN. Mostly "
            "float16 where the model needs the range of bfloat16, a damaged checkpoint or a bug of a kernel."
        )
        advice = [
            advise(
                "a type with more range", "--dtype", run.text("flag.dtype") or run.text("dtype") or None, "bfloat16"
            ),
            advise("or another attention backend, or the checkpoint without quantisation, to tell which it is"),
        ]
    else:
        cause = (
            f"A kernel stopped at a condition of its own that does not hold ({said}): the data or a bug, hardly ever "
            "the card."
        )
        advice = [advise("run once with CUDA_LAUNCH_BLOCKING=1; the trace then names the kernel")]
    return Cause(
        "xid_software",
        Explanation(
            cause + " Nothing works on the GPU after it in that process: it has to be started anew.",
            0.8,
            (
                logged(stopped),
                logged(event),
                *(logged(end) for end in ended[:1]),
            ),
            tuple(advice),
        ),
        stopped.time or event.time,
        severity="critical" if ended or over else None,
        title=TITLE,
    )
