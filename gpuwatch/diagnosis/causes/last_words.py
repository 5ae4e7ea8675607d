"""The last error of a log that no cause explains: it is quoted, never left out."""

from __future__ import annotations

import math
import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import blamed, moments, requests
from gpuwatch.diagnosis.causes.view import FRAMES_BEFORE, Cause, group
from gpuwatch.diagnosis.explanation import Explanation, logged
from gpuwatch.diagnosis.finding import Advice, NotEnough
from gpuwatch.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import View
    from gpuwatch.model import LogEvent

ERRORS = ("exception", "cuda_error", "graph_capture_failed")
"""Events that quote an error in its own words."""
_BUILD = re.compile(r"CalledProcessError|ninja|[Cc]ompil|Inductor|subprocess")
UNKNOWN_CONFIDENCE = 0.5
"""That the engine ended is certain; what is quoted need not be what led to it."""
TAIL = 40
"""Lines from the last error to the end of a log that ends with it: what is printed while a server is put away."""
_ALIGNED = re.compile(r"with size (?P<size>\d+)\b.*? but only (?P<left>\d+) bytes available in AlignedAllocator")
WORKSPACE = 384 * MIB
"""FlashInfer's workspace in SGLang 0.3 to 0.5.23; vLLM 0.11.1 and newer have 394 MiB."""
STEP = 128 * MIB
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
    (
        r"busy or unavailable",
        (
            "another process has the card and it is in exclusive mode, or it has to be reset: nvidia-smi -q -d COMPUTE "
            "names the mode (nvidia-smi -c 0 shares it), nvidia-smi who is on it"
        ),
    ),
    (
        r"No space left on device|os error 28",
        "a disk is full, or /dev/shm: df -h of the folder that is named, df -i, and df -h /tmp ~/.cache /dev/shm",
    ),
    (
        r"can't start new thread|Resource temporarily unavailable",
        "no more threads are allowed: ulimit -u, the container's pids limit (docker --pids-limit), and OMP_NUM_THREADS",
    ),
    (
        r"HTTPError: 429|Too Many Requests",
        "the hub refuses more requests for now: wait, give a token (HF_TOKEN), or name a folder that is there already",
    ),
    (
        r"There is no module or parameter named|KeyError: '[\w.]+\.(?:weight|bias|scales|qweight|qzeros)\w*'",
        (
            "the checkpoint has a weight that the model does not have in this version: a newer version, or a "
            "quantisation that config.json does not name"
        ),
    ),
    (
        r"NIXL_ERR|nixl\w*Error",
        (
            "NIXL could not set the transfer of KV cache up. Which of its transports failed, the lines of UCX above "
            "say (UCX_LOG_LEVEL=info; UCX_NET_DEVICES names the card, UCX_TLS the transports)"
        ),
    ),
    (
        r"TP rank \d+ could finish the model loading, but there are other ranks",
        (
            "this rank had loaded; the reason is in the log lines of the other ranks (an error, a kill: dmesg of their "
            "node), or their weights come slower (another disk or node, a cold page cache: load from a local disk). "
            "The wait is fixed in SGLang (300 s, later 480 s): --dist-timeout does not lengthen it"
        ),
    ),
    (
        r"CUBLAS_STATUS_(?:INTERNAL_ERROR|NOT_INITIALIZED) when calling `cublasCreate",
        (
            "cuBLAS could not make its handle: mostly no memory is left on the card for it and its workspace "
            "(nvidia-smi at that moment; leave it more: a lower --gpu-memory-utilization or --mem-fraction-static), "
            "else an earlier error of a kernel or a driver that does not fit the CUDA libraries"
        ),
    ),
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
    (
        r"undefined symbol",
        (
            "a compiled part was built against another version of torch than the one installed: install the two "
            "together (the torch that this version of the engine asks for; pip check), in a fresh environment"
        ),
    ),
    (
        r"Errno 99\b|Cannot assign requested address",
        (
            "the address that the server was told to listen on (--host), or that its processes meet at, is none of "
            "this machine or container: 0.0.0.0 takes all of them, ip addr lists them"
        ),
    ),
    (
        r"OutOfResources: out of resource: shared memory",
        (
            "a Triton kernel wants more shared memory in bytes than a multiprocessor of this card has: kernels of "
            "quantised weights and attention are tuned for larger cards. Another kernel (--attention-backend, "
            "--quantization), a checkpoint in another quantisation, or a newer version; no memory setting helps"
        ),
    ),
    (r"^LLVM ERROR", "the compiler of a Triton kernel gave up: another backend, or a newer Triton, may do"),
)


def words(event: LogEvent) -> str:
    """Return an error in its own words, where it stands, and what these words say."""
    said, hint = _quoted(event)
    return f"{said} [{PurePath(event.source).name}:{event.line}]" + (f"; {hint}" if hint else "")


def _quoted(event: LogEvent) -> tuple[str, str]:
    """Return an error in its own words, and what these words say."""
    said = ": ".join(filter(None, (group(event, "type", "type2", "type3", "type4"), _said(event))))
    said += f", raised at: {event.field('above')}" if event.field("above") else ""
    hint = _workspace(said) or next((hint for regex, hint in _HINTS if re.search(regex, said or event.text)), "")
    return said or event.text, hint


def _workspace(said: str) -> str:
    """Return how large FlashInfer's workspace has to be at least, where an error says what was left of it."""
    found = _ALIGNED.search(said)
    if found is None:
        return ""
    short = int(found["size"]) - int(found["left"])
    least = math.ceil((WORKSPACE + short) / STEP) * STEP
    return (
        f"FlashInfer's workspace is too small for the batch by {short / MIB:.0f} MiB. Unless it was set, it has "
        f"{WORKSPACE // MIB} MiB: SGLANG_FLASHINFER_WORKSPACE_SIZE={least} ({least // MIB} MiB; in vLLM "
        "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE), or fewer tokens in a step"
    )


def _transport(view: View, event: LogEvent) -> str:
    """Return what UCX said shortly before an error of a transfer."""
    if re.search(r"NIXL|nixl|UCX|Mooncake", f"{event.field('type')} {_said(event)}") is None:
        return ""
    near = [
        each
        for each in view.events("transport_error")
        if each.source == event.source and 0 <= event.line - each.line <= FRAMES_BEFORE
    ]
    return "".join(f". UCX: {each.field('why')} [{PurePath(each.source).name}:{each.line}]" for each in near[-1:])


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
    if event.event == "nccl_error":
        return f"NCCL error: {group(event, 'msg', 'code')}"
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
        missed = blamed.others(view, error)
        said = words(event) + _shared_buffers(view, error) + _transport(view, error)
        said += f"; {missed}" if missed else ""
        known = "; " in said.partition("]")[2]
        yield NotEnough(
            "worker_died",
            f"why the engine ended: {'' if known else 'its own error is none that is known here: '}{said}",
        )
    if ended and not last:
        yield NotEnough(
            "worker_died",
            "why the engine ended: "
            + (
                blamed.others(view, ended[0])
                or "the lines above this one, or dmesg, kubectl describe and nvidia-smi of that moment"
            ),
        )


def unknown_end(view: View, end: LogEvent) -> Cause:
    """Explain an end of an engine for which no cause is known here: with its own error where one is known.

    The text of an exception may hold a prompt and is not kept of a log that is followed; its file holds it still.
    """
    error = _raised(view, end)
    what = "The engine did not start" if end.event == "engine_start_failed" else "The engine ended"
    evidence = [logged(end)]
    advice = []
    if error is None:
        cause = f"{what}. Why is not known here: the lines around this one of its log name none of the known causes."
    else:
        quoted, hint = _quoted(_cause_above(view, error))
        cause = f"{what} with an error that is none of the causes known here: {quoted}."
        cause += _shared_buffers(view, error) + _transport(view, error)
        evidence.append(logged(error))
        advice += [Advice(hint)] if hint else []
    named = end.source.startswith("/")
    text = "read the error in the log lines by this one" + (
        f": gpuwatch diagnose {end.source} quotes it" if named else ""
    )
    advice += [
        Advice(text),
        Advice("dmesg, kubectl describe and nvidia-smi of that moment may say more"),
    ]
    return Cause("worker_died", Explanation(cause, UNKNOWN_CONFIDENCE, tuple(evidence), tuple(advice)), end.time)


def _raised(view: View, end: LogEvent) -> LogEvent | None:
    """Return the error with which an engine ended: the last one near its end, of its own process if known."""
    run = view.run_of(end)
    near = [
        each
        for each in view.events(*ERRORS, "nccl_error")
        if run.holds(each)
        and abs(each.line - end.line) <= FRAMES_BEFORE
        and moments.together(each, end) is not False
        and not requests.refused(each)
    ]
    own = [each for each in near if each.field("process") == end.field("process")]
    told = [each for each in near if each.event != "exception"]
    return next(reversed(own or told or near), None)


def _last(view: View) -> Iterator[LogEvent]:
    """Return the error with which each log of an engine ends."""
    for given in view.incident.inputs:
        if given.kind != "engine_log":
            continue
        errors = [
            event
            for event in view.events(*ERRORS)
            if event.source == given.path and not _cancelled(event) and not requests.only(view, event)
        ]
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
