"""Weights that do not fit on a GPU, and weights that were all read and whose conversion found no room.

vLLM and SGLang convert what they have read into the layout of their kernels (``process_weights_after_loading``), with
copies that are there for a moment only.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import moves
from gpuwatch.diagnosis.causes.view import advise, ruled_out
from gpuwatch.diagnosis.explanation import logged, size

if TYPE_CHECKING:
    from gpuwatch.diagnosis.causes.oom import Case
    from gpuwatch.diagnosis.causes.view import Cause, Run
    from gpuwatch.diagnosis.finding import Advice, Evidence
    from gpuwatch.model import LogEvent

CONVERTS = "process_weights_after_loading"
SLEEP = "flag.enable-sleep-mode"
_ONLINE = ("fp8", "bitsandbytes", "torchao", "experts_int8")
"""Quantisations that engines can make themselves of a checkpoint in 16 bits."""

_METHOD = re.compile(r"/quantization/(?P<method>(?!base_|utils|kv_)\w+)(?:\.py\"|/)")


def no_room(case: Case) -> Cause:
    """Explain memory that ran out while weights were loaded, or right after they were."""
    run, loaded = case.run, _shards(case)
    converting = any(frame.field("step") == CONVERTS for frame in case.view.frames(case.event))
    if converting or (loaded is not None and not case.phase.sure):
        return _converting(case, loaded)
    return case.found(
        "weights_oom",
        f"The weights do not fit on {case.where}: {case.asked} could not be had while they were loaded.",
        0.85,
        [moves.more_cards(run, "spread the weights over more GPUs"), _fewer_bits(case)],
        ruled_out("the size of the KV pool: it does not exist yet while weights are loaded", case.event),
    )


def _shards(case: Case) -> LogEvent | None:
    """Return the line by which all parts of the checkpoint were read."""
    read = [
        event
        for event in case.view.events("shards_loaded")
        if case.run.holds(event) and event.line < case.event.line and event.source == case.event.source
    ]
    return read[-1] if read else None


def _converting(case: Case, loaded: LogEvent | None) -> Cause:
    run, short = case.run, case.oom.short
    if loaded is not None:
        begin = "All parts of the checkpoint were read"
        case = replace(case, phase=replace(case.phase, evidence=(*_told(case), logged(loaded))))
    else:
        begin = "The weights had been read"
    missing = f": {size(short)} are missing" if short else ""
    found = case.found(
        "weights_oom",
        f"{begin}, and what comes after that found no room on {case.where}{missing}. Engines convert weights into the "
        f"layout of their kernels then, with copies that are there for a moment: {case.asked} could not be had.",
        0.85,
        [*_without_sleep(run), moves.more_cards(run, "spread the weights over more GPUs"), _fewer_bits(case)],
        ruled_out("the size of the KV pool: it does not exist yet while weights are loaded", case.event),
    )
    return replace(found, title="The weights leave no room for their conversion")


def _told(case: Case) -> tuple[Evidence, ...]:
    """Return what tells the step; that the end of the loading was not told is no news where its last part was."""
    return case.phase.evidence if case.phase.sure else ()


def _without_sleep(run: Run) -> list[Advice]:
    if not run.yes(SLEEP):
        return []
    why = "start without sleep mode first: its allocator keeps blocks in a pool of its own, and the rest may then do"
    return [advise(why, "--enable-sleep-mode", "true", "(leave it out)")]


def _fewer_bits(case: Case) -> Advice:
    """Return the advice to load fewer bytes, by the quantisation that the engine, or its traceback, says it has."""
    said = case.run.text("quantization")
    files = (_METHOD.search(frame.text) for frame in case.view.frames(case.event))
    has = said if said not in ("", "None") else next((found["method"] for found in files if found is not None), "")
    if not has:
        return advise("or load a quantised checkpoint (8 or 4 bits)", "--quantization")
    if has in _ONLINE:
        text = f"one in 16 bits is read as it is, and {has} is made of it after that"
        return advise(f"or a checkpoint that is stored quantised: {text}")
    return advise(f"or a smaller model, or a checkpoint in fewer bits than this one has ({has})")
