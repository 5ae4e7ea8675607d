"""The last error of a log that no cause explains: it is quoted, never left out."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import moments
from gpuwatch.diagnosis.causes.view import FRAMES_BEFORE, group
from gpuwatch.diagnosis.finding import NotEnough

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import View
    from gpuwatch.model import LogEvent

ERRORS = ("exception", "cuda_error", "graph_capture_failed")
"""Events that quote an error in its own words."""
_BUILD = re.compile(r"CalledProcessError|ninja|[Cc]ompil|Inductor|subprocess")
TAIL = 40
"""Lines from the last error to the end of a log that ends with it: what is printed while a server is put away."""
_GOES_ON = ("stats", "prefix_cache_reset", "retraction")
_CANCELLED = ("CancelledError", "KeyboardInterrupt", "SystemExit", "ClientDisconnect")

# What the words of an error say although they name no cause that has a name here.
_HINTS = (
    (
        r"invalid device ordinal",
        "the process sees fewer GPUs than there are ranks: nvidia-smi -L in the same container, CUDA_VISIBLE_DEVICES",
    ),
    (r"[Cc]onnection (?:closed|reset) by peer", "another rank ended before this one: the log of that rank says why"),
    (
        r"Model architectures? \[.*(?:not supported|failed to be inspected)|does not recognize this architecture",
        "this version does not know the model: a newer one of the engine or of Transformers may",
    ),
    (r"AlignedAllocator", "FlashInfer's workspace is too small for the batch (SGLANG_FLASHINFER_WORKSPACE_SIZE)"),
    (r"dispatch head_dim", "the attention backend has no kernel for this size of a head: choose another one"),
    (
        r"nvcc",
        (
            "kernels are compiled at start (FlashInfer, DeepGEMM), and the CUDA toolkit is missing: install the one of "
            "torch's CUDA version and set CUDA_HOME, use an image that has it (-devel), or do without what is compiled "
            "(vLLM's FlashInfer sampler: VLLM_USE_FLASHINFER_SAMPLER=0)"
        ),
    ),
    (
        r"cannot find -lcuda\b",
        (
            "Triton links against the driver's libcuda.so, and only libcuda.so.1 is there, or none: ldconfig -p | grep "
            "libcuda; give its folder in TRITON_LIBCUDA_PATH and LIBRARY_PATH, or link libcuda.so to libcuda.so.1"
        ),
    ),
    (r"cannot find -l", "a library is missing with which kernels are built at start: install its -dev package"),
    (
        r"Python\.h|Failed to find C compiler",
        "Triton compiles at start: install gcc and the headers of this Python (python3-dev)",
    ),
    (r"^LLVM ERROR", "the compiler of a Triton kernel gave up: another backend, or a newer Triton, may do"),
)


def words(event: LogEvent) -> str:
    """Return an error in its own words, where it stands, and what these words say."""
    said = ": ".join(filter(None, (group(event, "type", "type2", "type3", "type4"), _said(event))))
    hint = next((hint for regex, hint in _HINTS if re.search(regex, said or event.text)), "")
    return f"{said or event.text} [{PurePath(event.source).name}:{event.line}]" + (f"; {hint}" if hint else "")


def _cause_above(view: View, event: LogEvent) -> LogEvent:
    """Return the line about a missing compiler or library that made a build fail, else the error itself."""
    if not _BUILD.search(f"{_said(event)} {event.text}"):
        return event
    near = [
        each
        for each in view.events("build_failed")
        if each.source == event.source and 0 <= event.line - each.line <= FRAMES_BEFORE
    ]
    return near[-1] if near else event


def _shared_buffers(view: View, event: LogEvent) -> str:
    """Return what an error says whose traceback passes through the sharing of custom all-reduce's buffers."""
    near = [
        each
        for each in view.events("allreduce_buffers")
        if each.source == event.source and 0 <= event.line - each.line <= FRAMES_BEFORE
    ]
    if not near:
        return ""
    return (
        "; the custom all-reduce could not share its buffers among the ranks: --disable-custom-all-reduce does without "
        "it; memory of expandable_segments (PYTORCH_CUDA_ALLOC_CONF) cannot be shared so"
    )


def _said(event: LogEvent) -> str:
    if event.event == "graph_capture_failed":
        return f"Capture cuda graph failed: {event.field('e')}"
    if event.event == "cuda_error":
        return f"CUDA error: {event.field('what').strip()}"
    return group(event, "text", "text2", "text3", "text4", "msg", "code")


def unexplained(view: View) -> Iterator[NotEnough]:
    """Quote the error with which an engine ended or a log ends, for an incident in which nothing critical was found."""
    ended = [
        event
        for event in view.events("engine_dead", "engine_start_failed", "worker_stopped")
        if moments.asked(view, event) is None
    ]
    raised = _raised(view, ended[0]) if ended else None
    last = [raised] if raised is not None else list(_last(view))
    for error in last:
        event = _cause_above(view, error)
        said = words(event) + _shared_buffers(view, error)
        known = "; " in said.partition("]")[2]
        yield NotEnough(
            "worker_died",
            f"why the engine ended: {'' if known else 'its own error is none that is known here: '}{said}",
        )
    if ended and not last:
        yield NotEnough(
            "worker_died",
            "why the engine ended: the lines above this one, or dmesg, kubectl describe and nvidia-smi of that moment",
        )


def _raised(view: View, end: LogEvent) -> LogEvent | None:
    """Return the error with which an engine ended: the last one near its end, of its own process if known."""
    run = view.run_of(end)
    near = [
        each
        for each in view.events(*ERRORS)
        if run.holds(each) and abs(each.line - end.line) <= FRAMES_BEFORE and moments.together(each, end) is not False
    ]
    own = [each for each in near if each.field("process") == end.field("process")]
    told = [each for each in near if each.event != "exception"]
    return next(reversed(own or told or near), None)


def _last(view: View) -> Iterator[LogEvent]:
    """Return the error with which each log of an engine ends."""
    for given in view.incident.inputs:
        if given.kind != "engine_log":
            continue
        errors = [event for event in view.events(*ERRORS) if event.source == given.path and not _cancelled(event)]
        if not errors:
            continue
        last = max(errors, key=lambda event: event.line)
        later = any(event.source == given.path and event.line > last.line for event in view.events(*_GOES_ON))
        started = any(
            fact.source == given.path and fact.key in ("ready", "started") and (fact.line or 0) > last.line
            for fact in view.incident.facts
        )
        if not (later or started or given.lines - last.line > TAIL or moments.asked(view, last) is not None):
            yield last


def _cancelled(event: LogEvent) -> bool:
    return event.field("type").endswith(_CANCELLED)
