"""What the exit code of a container or a worker says where nothing else tells why it ended."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import moments
from gpuwatch.diagnosis.causes.view import Cause, advise, number
from gpuwatch.diagnosis.explanation import Explanation, logged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import View
    from gpuwatch.model import LogEvent

ERRORS = (
    "torch_oom",
    "cuda_oom_other",
    "no_kv_blocks",
    "max_model_len_exceeds_kv",
    "free_memory_below_budget",
    "warmup_oom",
    "memory_profile_drift",
    "nccl_error",
    "nccl_timeout",
    "cuda_error",
    "ecc_error",
    "port_in_use",
    "model_not_found",
    "uva_unavailable",
    "dtype_unsupported",
    "driver_too_old",
    "gpu_unsupported",
    "rope_beyond_native",
    "load_oom",
    "nccl_shm_failed",
    "rendezvous_timeout",
)
"""Events that say why a start failed or an engine ended."""
CRASHES = {132: "SIGILL", 134: "SIGABRT", 135: "SIGBUS", 136: "SIGFPE", 139: "SIGSEGV"}
"""Exit codes of a process that a signal of its own making ended, as shells, Docker and Kubernetes report it."""
_MEANING = {
    "SIGILL": "an instruction that this processor does not have, or code that gave up",
    "SIGABRT": "native code that stopped itself, such as a failed check of a library",
    "SIGBUS": "memory that has nothing behind it: mostly a /dev/shm that is full or small",
    "SIGFPE": "a division by zero or another forbidden operation in native code",
    "SIGSEGV": "native code that touched memory which is not its own",
}
_OWN = re.compile(r"vllm|sglang|\bworker\b|\bengine\b", re.IGNORECASE)


def crashed(view: View) -> Iterator[Cause]:
    """Judge a container or worker of an engine whose exit code is that of a crash, where no line says more."""
    if moments.ends(view) or view.events(*ERRORS):
        return
    for event in view.events("container_exit"):
        code = number(event, "code")
        name = CRASHES.get(int(code)) if code is not None else None
        if code is None or name is None or not _of_engine(view, event):
            continue
        yield Cause(
            "worker_died",
            Explanation(
                f"A process ended by {name} ({code:.0f} is 128 + {code - 128:.0f}): {_MEANING[name]}.",
                0.6,
                (logged(event),),
                (
                    advise("its last lines before this one: kubectl logs --previous, docker logs"),
                    advise("the kernel's word on it: dmesg -T | grep -i -E 'xid|segfault|trap'"),
                    advise("the Python lines at which it crashes: run it with", "PYTHONFAULTHANDLER", None, "1"),
                ),
            ),
            event.time,
        )
        return


def _of_engine(view: View, event: LogEvent) -> bool:
    """Whether an exit code is that of an engine: by its line, or by the container whose state it is."""
    if event.field("engine"):
        return event.field("engine") == "yes"
    states = any(given.kind == "kubernetes" and given.path == event.source for given in view.incident.inputs)
    return states or _OWN.search(event.text) is not None
