"""Drivers, GPUs and builds that do not belong together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import unmet
from gpuwatch.diagnosis.causes.view import Cause, advise, group, ruled_out
from gpuwatch.diagnosis.explanation import Explanation, logged, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import View
    from gpuwatch.diagnosis.finding import Advice, Evidence
    from gpuwatch.model import LogEvent


def _unfit(*, forward: bool) -> tuple[str, list[Advice]]:
    """Explain errors 804 (`forward`) and 803 of CUDA: its user-mode library does not go with the host's driver."""
    cause = (
        "CUDA's user-mode library is of another version than the host's driver (error 803): two versions of libcuda "
        "lie in the process's path, or the driver was upgraded without a reboot."
    )
    if forward:
        cause = (
            "The host's driver is older than the CUDA version of this image, and the image's compatibility library "
            "does not work on this card (error 804): CUDA allows that on data-centre cards only."
        )
    return cause, [
        advise("update the driver on the host to what the image's CUDA needs, and reboot"),
        advise(
            "or take the image's own libcuda out of the way: remove .../cuda/compat from LD_LIBRARY_PATH (ldconfig -p "
            "| grep libcuda.so names the one in use)"
        ),
        advise("or use an image for an older CUDA"),
    ]


def _not_the_model(view: View, event: LogEvent) -> Evidence:
    """Return what rules out the model and its memory: by what the run had loaded, or by what the error is about."""
    run = view.run_of(event)
    loaded = run.number("weights.bytes", event.line) if run.source == event.source else None
    if loaded:
        return ruled_out(f"the model and its memory: its weights ({size(loaded)}) lay on the GPU already", event)
    if event.event == "gpu_unsupported":
        return ruled_out("the model and its memory: the error is about code that is missing, not about memory", event)
    return ruled_out("the model and its memory: nothing can be loaded before CUDA works", event)


def driver(view: View) -> Iterator[Cause]:
    """Judge a driver that is too old, a GPU that the build has no code for, and a machine without a GPU."""
    events = view.events("driver_too_old", "gpu_unsupported", "no_gpu")
    for event in [each for each in events if not unmet.explained_here(each)][:1]:
        found = group(event, "v")
        if event.event == "driver_too_old":
            forward, mixed = event.field("forward"), event.field("mixed")
            cuda = f" (it knows CUDA {int(found) // 1000}.{int(found) % 1000 // 10})" if found.isdigit() else ""
            cause = f"The NVIDIA driver is older than the CUDA version that this build of torch needs{cuda}."
            advice = [
                advise("update the driver on the host; in a container the host's driver counts"),
                advise("or install a build for an older CUDA"),
            ]
            if forward or mixed:
                cause, advice = _unfit(forward=bool(forward))
        elif event.event == "gpu_unsupported":
            cause = (
                "This build has no code for the GPU's compute capability: the card is newer or older than it was "
                "built for."
            )
            advice = [advise("use a build for this card's CUDA architecture")]
        elif event.field("ray"):
            cause = (
                "Ray knows of no GPU on the node on which the engine was started: the node has none, or ray start saw "
                "none there."
            )
            advice = [
                advise("what Ray sees of each node: ray status; nvidia-smi on this one, in the same container"),
                advise("start Ray on this node with its GPUs named", "ray start --num-gpus"),
                advise("or start the engine on a node that has a GPU"),
            ]
        else:
            cause = "The engine found no GPU: no driver, no device in the container, or CUDA_VISIBLE_DEVICES hides it."
            advice = [
                advise(
                    "nvidia-smi in the same container tells which; give the container the GPUs", "--gpus", None, "all"
                )
            ]
        yield Cause(
            "driver_too_old",
            Explanation(
                cause,
                0.93,
                (logged(event), _not_the_model(view, event)),
                tuple(advice),
            ),
            event.time,
        )
