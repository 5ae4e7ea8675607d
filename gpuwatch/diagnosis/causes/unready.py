"""CUDA that cannot be used: a driver that does not start, code and compilers that do not go with the card."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes.view import Cause, advise, group, ruled_out
from gpuwatch.diagnosis.explanation import Explanation, logged

if TYPE_CHECKING:
    from gpuwatch.diagnosis.finding import Advice
    from gpuwatch.model import LogEvent

LACKS = ("lacks", "lacks2", "lacks3")
"""Groups of `engines.unmet_log` that name what is missing."""
NO_CUDA = "CUDA cannot be started on this machine"


@dataclass(frozen=True, slots=True)
class _Kind:
    """Why CUDA cannot be used, told by words of what is missing. `of_code`: of what was built, not of the driver."""

    words: tuple[str, ...]
    cause: str
    advice: tuple[Advice, ...]
    of_code: bool = False
    title: str = NO_CUDA
    sure: float = 0.93


_KINDS = (
    _Kind(
        ("PTX",),
        "A kernel was built with a newer CUDA than this driver can take (error 222): its code in PTX has to be "
        "compiled by the driver, which is older.",
        (
            advise("update the driver on the host; in a container the host's driver counts"),
            advise("or install builds of the engine, FlashInfer and Triton for the CUDA that nvidia-smi names"),
        ),
        of_code=True,
        title="",
    ),
    _Kind(
        ("libcuda",),
        "There is no libcuda.so.1: the NVIDIA driver is not installed here, or was not given to the container.",
        (
            advise("give the container the GPUs, with the NVIDIA container toolkit on the host", "--gpus", None, "all"),
            advise("is it there at all: ldconfig -p | grep libcuda; nvidia-smi on the host and in the container"),
        ),
    ),
    _Kind(
        ("Torch",),
        "The torch that is installed was built without CUDA; mostly another package replaced the engine's.",
        (advise("install the engine anew in a fresh environment, with the torch that it asks for: pip check"),),
        title="",
    ),
    _Kind(
        ("invalid value for --gpu-architecture", "is not defined for option"),
        "The CUDA compiler that is used at start does not know this card's architecture{arch}.",
        (advise("a newer CUDA toolkit (CUDA_HOME) and Triton, or an image of the engine for this card"),),
        of_code=True,
        title="",
    ),
    _Kind(
        ("device kernel",),
        "A kernel's code cannot be loaded: it is for another card or driver, or a file of it is damaged.",
        (
            advise(
                "delete the caches of compiled kernels, where they came from another machine: ~/.triton/cache, "
                "~/.cache/vllm, ~/.cache/flashinfer, ~/.nv/ComputeCache"
            ),
            advise("else a build for this card's architecture and the CUDA that nvidia-smi names"),
        ),
        of_code=True,
        title="",
    ),
    _Kind(
        ("initialization", "unknown"),
        "The CUDA driver could not be started. The line does not say why.",
        (
            advise("does nvidia-smi answer, as this user and in the same container: dmesg -T | grep -i nvrm"),
            advise("are the devices there: ls -l /dev/nvidia*, /dev/nvidia-uvm among them (modprobe nvidia-uvm)"),
            advise("is libcuda.so.1 that of the driver: ldconfig -p | grep libcuda against nvidia-smi's version"),
        ),
        sure=0.8,
    ),
)
_NOT_READY = _Kind(
    (),
    "CUDA is not ready on this machine (error 802). On machines with NVSwitch (HGX, DGX) it waits for the fabric "
    "manager, which does not run, is of another version than the driver, or is not done; else for a GPU in "
    "confidential mode that was not set ready.",
    (
        advise(
            "on the host: systemctl status nvidia-fabricmanager; install the package of the driver's very version, "
            "enable and start it"
        ),
        advise("then nvidia-smi -q | grep -A2 Fabric has to say Completed; reset the GPUs or reboot where not"),
    ),
)


def no_cuda(event: LogEvent) -> Cause:
    """Explain a driver, a compiler or a build with which nothing runs on the GPU."""
    lacks = group(event, *LACKS)
    kind = next((kind for kind in _KINDS if any(word in lacks for word in kind.words)), _NOT_READY)
    arch = event.field("arch")
    why = "the error is about code, not about memory" if kind.of_code else "nothing can be loaded before CUDA works"
    evidence = (logged(event), ruled_out(f"the model and its memory: {why}", event))
    cause = kind.cause.format(arch=arch and f" ({arch})")
    return Cause("driver_too_old", Explanation(cause, kind.sure, evidence, kind.advice), event.time, title=kind.title)
