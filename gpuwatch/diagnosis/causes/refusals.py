"""Models, adapters and files that an engine refuses, and what a start waits for."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes.view import Cause, advise, group, number
from gpuwatch.diagnosis.explanation import Explanation, count, logged
from gpuwatch.diagnosis.finding import NotEnough

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import View
    from gpuwatch.model import LogEvent

LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes for ``--max-lora-rank``."""
_GPU_SPEC = re.compile(r"'GPU': (\d+(?:\.\d+)?)")


def refused(view: View) -> Iterator[Cause]:
    """Judge a model, an adapter or files that an engine refuses in words of its own."""
    events = view.events("start_refused")
    for event in events:
        if event.field("rank"):
            yield _adapter(view, event)
            break
    for event in events:
        damage = group(event, "damage", "damage2")
        if damage:
            yield _damaged(view, event, damage)
            break
    for event in events:
        if event.field("block"):
            yield _blocks(view, event)
            break
    for event in events:
        if event.field("repo") or event.field("trust"):
            yield _custom_code(view, event)
            break


def _custom_code(view: View, event: LogEvent) -> Cause:
    run = view.run_of(event)
    name = event.field("repo") or run.text("model") or run.text("flag.model") or "the model"
    return Cause(
        "flag_unknown",
        Explanation(
            f"The engine did not start: {name} comes with code of its own, and the engine was not told to run it.",
            0.93,
            (logged(event),),
            (
                advise("read the .py files in the model's folder first; where you trust them", "--trust-remote-code"),
                advise("or use a version of the engine that has this model built in"),
            ),
        ),
        event.time,
    )


def _blocks(view: View, event: LogEvent) -> Cause:
    """Explain a weight whose part on one rank is no whole number of blocks of its quantisation."""
    part, block = int(number(event, "part") or 0), int(number(event, "block") or 1)
    ranks = view.run_of(event).told_tp or 0
    whole = part * ranks
    fits = next((each for each in range(ranks, 0, -1) if ranks % each == 0 and whole % (each * block) == 0), None)
    return Cause(
        "flag_unknown",
        Explanation(
            f"The engine did not start: {count(part)} rows or columns of a weight on each rank are no whole number of "
            f"blocks of {block}, in which the checkpoint is quantised"
            + (f"; {ranks} ranks are too many for it." if ranks else ": there are too many ranks for it."),
            0.95,
            (logged(event),),
            (
                advise(
                    f"{count(whole // fits)} on each rank are whole blocks; use the other GPUs as pipeline stages or "
                    "replicas"
                    if fits
                    else "fewer ranks, so that each has whole blocks; the other GPUs as pipeline stages or replicas",
                    "--tp-size" if view.run_of(event).sglang else "--tensor-parallel-size",
                    ranks or None,
                    fits,
                ),
                advise("or a checkpoint that is not quantised in blocks"),
            ),
        ),
        event.time,
        title="A launch flag has a value that this model cannot take",
    )


def transfers(view: View) -> Iterator[NotEnough]:
    """Say what would tell why KV cache did not come from a prefill instance to the decode one."""
    events = view.events("kv_transfer_failed")
    told = [event for event in events if "another rank" not in event.field("why")] or list(events)
    for event in told[:1]:
        side, other = ("prefill", "decode") if event.field("side") == "Prefill" else ("decode", "prefill")
        yield NotEnough(
            "engine_down",
            f"whether the {other} instance is up: requests fail because KV cache did not go over "
            f"({event.field('why').rstrip('.')}, [{PurePath(event.source).name}:{event.line}]). The log of the {other} "
            f"instance of that moment says whether it died; where it lives, the network between the two (RDMA devices, "
            f"--disaggregation-ib-device, the port of --disaggregation-bootstrap-port as the {side} instance sees it)",
        )


def _adapter(view: View, event: LogEvent) -> Cause:
    rank, most = int(number(event, "rank") or 0), int(number(event, "most") or 0)
    ready = view.run_of(event).fact("ready")
    serving = ready is not None and (ready.line or 0) < event.line
    fitting = next((each for each in LORA_RANKS if each >= rank), None)
    return Cause(
        "flag_unknown",
        Explanation(
            f"A LoRA adapter of rank {rank} was refused: the engine was told to take ranks up to {most}"
            + (". The server goes on without it." if serving else ", and did not start."),
            0.95,
            (logged(event),),
            (
                advise(
                    "room for the adapter's rank; the buffers of all adapters grow with it",
                    "--max-lora-rank",
                    most,
                    fitting,
                ),
            ),
        ),
        event.time,
        severity="warning" if serving else None,
    )


def _damaged(view: View, event: LogEvent, damage: str) -> Cause:
    run = view.run_of(event)
    name = run.text("model") or run.text("flag.model") or "the model"
    pointer = damage.startswith(("HeaderTooLarge", "InvalidHeader"))
    return Cause(
        "model_not_found",
        Explanation(
            f"A file of {name}'s weights cannot be read ({damage.rstrip('.')}): "
            + (
                "it begins with something else than weights, such as a pointer of Git LFS or a page of HTML."
                if pointer
                else "it ends too early, as after a download that broke off or a disk that was full."
            ),
            0.85,
            (logged(event),),
            (
                advise("compare the sizes of the files with those on the hub: ls -lL, df -h of the cache"),
                advise("delete the file and fetch it again: hf download --force-download"),
            ),
        ),
        event.time,
    )


def exhausted(view: View) -> Iterator[NotEnough]:
    """Say what a process that has no file descriptor left would need to be judged."""
    for event in view.events("files_exhausted")[:1]:
        yield NotEnough(
            "engine_down",
            "whether requests are refused: a process has no file descriptor left (Too many open files, "
            f"[{event.source}:{event.line}]); ls /proc/PID/fd | wc -l against ulimit -n tells; raise it "
            "(ulimit -n 65536, LimitNOFILE, docker --ulimit nofile), or find who leaves connections open",
        )


def unplaced(view: View) -> Iterator[NotEnough]:
    """Say what would tell why a start waits for GPUs of a Ray cluster."""
    events = view.events("placement_waits")
    if not events:
        return
    event = events[-1]
    ready = view.run_of(event).fact("ready")
    if ready is not None and (ready.line or 0) > event.line:
        return
    waited, wanted = number(event, "s", "s2"), sum(map(float, _GPU_SPEC.findall(group(event, "specs", "specs2"))))
    gpus = f"{count(wanted)} GPUs" if wanted else "GPUs"
    yield NotEnough(
        "gpu_lost",
        f"the start waits for {gpus} of the Ray cluster, {count(waited or 0)} s so far: ray status tells whether so "
        "many are free, and whether the node's address there is the VLLM_HOST_IP that this node was told",
    )
