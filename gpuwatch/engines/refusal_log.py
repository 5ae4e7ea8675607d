"""What an engine says of a model, an adapter or a machine with which it does not start, or does not go on.

Sources: vLLM 0.2.7 to 0.33, SGLang 0.2.15 to 0.5.23, Transformers, safetensors, LLVM and the C++ run time. All are notes:
they say why a start failed or an engine ended beside other lines of a log, and are no cause by themselves.
"""

from __future__ import annotations

from gpuwatch.engines.log_pattern import Maker, Pattern
from gpuwatch.engines.stack_log import RAISED

_ANY = Maker("")
_VLLM = Maker("vllm")
_SGLANG = Maker("sglang")

PATTERNS: tuple[Pattern, ...] = (
    _ANY.note(
        "custom_code",
        "start_refused",
        "Transformers 4.2-",
        ("contains custom code which must be executed", "trust_remote_code=True"),
        r"(?P<repo>\S+) contains custom code which must be executed"
        r"|(?:pass the argument|set the option|by passing) `?(?P<trust>trust_remote_code)=True",
    ),
    _VLLM.note(
        "lora_rank",
        "start_refused",
        "0.3-",
        ("is greater than max_lora_rank",),
        r"LoRA rank (?P<rank>\d+) is greater than max_lora_rank (?P<most>\d+)",
    ),
    _ANY.note(
        "damaged_weights",
        "start_refused",
        "safetensors, torch",
        ("SafetensorError: ", "PytorchStreamReader failed"),
        r"SafetensorError: (?:Error while deserializing header: )?(?P<damage>\w.*)"
        r"|PytorchStreamReader failed (?P<damage2>\w.*)",
    ),
    _ANY.note(
        "quantised_blocks",
        "start_refused",
        "vLLM 0.7-, SGLang 0.4.1-",
        ("is not divisible by weight quantization",),
        r"Weight (?P<side>\w+) = (?P<part>\d+) is not divisible by weight quantization block_[nk] = (?P<block>\d+)",
    ),
    _ANY.note(
        "build_tool",
        "build_failed",
        "shells, ld, gcc",
        (
            "nvcc: not found",
            "nvcc: No such file",
            "cannot find -l",
            "Python.h: No such file",
            "Failed to find C compiler",
        ),
        r"(?P<tool>nvcc): (?:not found|No such file)|ld: cannot find -l(?P<library>[\w.+-]+)"
        r"|(?P<header>Python\.h): No such file|Failed to find (?P<compiler>C compiler)",
    ),
    _ANY.note(
        "allreduce_buffers",
        "allreduce_buffers",
        "vLLM 0.3-, SGLang 0.4.4-",
        ("in register_graph_buffers",),
        r"^\s*File \"[^\"]*\", line \d+, in register_graph_buffers$",
    ),
    _SGLANG.note(
        "pd_transfer",
        "kv_transfer_failed",
        "0.4.6-",
        ("KVTransferError(",),
        r"(?P<side>Decode|Prefill) transfer failed .*KVTransferError\(bootstrap_room=\d+\): (?P<why>.*)",
    ),
    _ANY.note(
        "many_files",
        "files_exhausted",
        "Linux",
        ("Too many open files", "out of system resource"),
        r"\[Errno 24\] Too many open files|socket\.accept\(\) out of system resource",
    ),
    _VLLM.note(
        "placement_wait",
        "placement_waits",
        "0.4-",
        ("Waiting for creating a placement group", "Cannot provide a placement group"),
        r"Waiting for creating a placement group of specs for (?P<s>\d+) seconds\. specs=(?P<specs>\[.*?\])\. Check"
        r"|Cannot provide a placement group of (?:placement_group_specs=|specs=)?(?P<specs2>\[.*?\]) within (?P<s2>\d+) seconds",
    ),
    _SGLANG.note(
        "sgl_health",
        "health_unanswered",
        "0.3-",
        ("Health check failed. Server couldn't get",),
        r"Health check failed\. Server couldn't get a response from detokenizer for last (?P<s>\d+) seconds\."
        r"(?: tic start time: (?P<asked>\d\d:\d\d:\d\d)\. last_heartbeat time: (?P<beat>\d\d:\d\d:\d\d))?",
    ),
    _SGLANG.note("sgl_pyspy", "stack_dump", "0.4-", ("Pyspy dump for PID",), r"^Pyspy dump for PID (?P<pid>\d+)"),
    _ANY.note(
        "barrier",
        "rank_missed",
        "torch 1.8-",
        (" monitoredBarrier",),
        r"Rank (?P<by>\d+) successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
        r"rank (?P<zero>\d+)|Ranks? (?P<late>\d+(?:, \d+)*) failed to pass monitoredBarrier",
    ),
    _SGLANG.note("sgl_exit_code", "exit_code", "0.4-", ("Exit code: ",), r"^Exit code: (?P<code>-?\d+)$"),
    _ANY.note(
        "triton_resources",
        RAISED,
        "Triton 2.1-",
        ("OutOfResources: ",),
        r"(?P<type>\bOutOfResources): (?P<text>out of resource: .*)$",
    ),
    # The exception that follows is told to the client, and the server goes on.
    _ANY.note(
        "request_failed",
        "request_failed",
        "uvicorn, vLLM 0.4-, SGLang 0.3-",
        (
            "Exception in ASGI application",
            "Error in preprocessing prompt",
            "Error in applying chat template",
            "/serving_",
            "/serving.py",
        ),
        r"Exception in ASGI application|Error in (?:preprocessing prompt|applying chat template)"
        r"|^\s*File \"[^\"]*/entrypoints/[^\"]*\bserving(?:_\w+)?\.py\", line \d+",
    ),
    _ANY.note(
        "fatal",
        RAISED,
        "pydantic, LLVM, C++, Python",
        ("Value error, ", "LLVM ERROR: ", "terminate called", "Fatal Python error: "),
        r"^\s*(?P<type>Value error), (?P<text>\S.*)$|^(?P<type2>LLVM ERROR): (?P<text2>\S.*)$"
        r"|^(?P<type3>terminate called) (?P<text3>\S.*)$|^(?P<type4>Fatal Python error): (?P<text4>(?!Aborted)\S.*)$",
    ),
)
"""Refusals, and last words that are no exception of Python."""
