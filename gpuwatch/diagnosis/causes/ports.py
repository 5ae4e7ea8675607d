"""Ports that an engine's own processes want beside the one on which its server listens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes.view import Cause, advise, number, ruled_out
from gpuwatch.diagnosis.explanation import Explanation, logged

if TYPE_CHECKING:
    from gpuwatch.diagnosis.causes.view import Run
    from gpuwatch.model import LogEvent


def meeting_point(event: LogEvent, run: Run, confidence: float) -> Cause:
    """Explain a port at which the ranks of a group meet, which is none that the server listens on."""
    taken = number(event, "at")
    shown = f"Port {taken:.0f}" if taken else "A port"
    free = int(taken) + 1 if taken else None
    current = int(taken) if taken else None
    vllm = advise("another base port for the ranks (torchrun: MASTER_PORT)", "VLLM_PORT", current, free)
    sglang = advise(
        "another port for the ranks; on several nodes the port of --dist-init-addr", "--nccl-port", current, free
    )
    named = run.text("engine")
    advice = [sglang] if run.sglang else [vllm] if named == "vllm" else [vllm, sglang]
    return Cause(
        "port_in_use",
        Explanation(
            f"{shown} is taken: the ranks of the group wanted to meet there (torch.distributed). It is not the port "
            "that the server listens on: another engine on this machine has it, or one of an earlier start.",
            confidence,
            (logged(event), ruled_out("the server's own --port: torch's store of the group was to listen", event)),
            (
                *advice,
                advise(f"who holds it: ss -ltnp 'sport = :{taken:.0f}'" if taken else "who holds it: ss -ltnp"),
            ),
        ),
        event.time,
    )


def queue(event: LogEvent, run: Run, confidence: float) -> Cause:
    """Explain a port at which processes of the engine exchange messages over ZeroMQ."""
    taken = number(event, "end")
    shown = f"Port {taken:.0f}" if taken else "A port"
    vllm = advise(
        "another base port for vLLM's processes; with data parallelism --data-parallel-rpc-port, with NIXL "
        "VLLM_NIXL_SIDE_CHANNEL_PORT",
        "VLLM_PORT",
    )
    sglang = advise(
        "another port there: SGLang counts those of its processes from it, or from --port where it is not set",
        "--dist-init-addr",
    )
    named = run.text("engine")
    return Cause(
        "port_in_use",
        Explanation(
            f"{shown} is taken: processes of the engine wanted to exchange messages there (ZeroMQ). Another engine on "
            "this machine has it, or what is left of an earlier start.",
            confidence,
            (logged(event), ruled_out("the server's own --port: a message queue was to listen", event)),
            (
                advise(
                    f"who holds it: ss -ltnp 'sport = :{taken:.0f}'; end it where it is left over"
                    if taken
                    else "who holds it: ss -ltnp; end it where it is left over"
                ),
                *([sglang] if run.sglang else [vllm] if named == "vllm" else [vllm, sglang]),
            ),
        ),
        event.time,
    )
