"""Batches of a made-up engine and GPU, second by second, for tests of the pipeline."""

from __future__ import annotations

from gpuwatch.model import Batch, Fact, LogEvent, Reason, series

HOST = "node"
SERVER = "127.0.0.1:8000"
START = 1_700_000_000_000
ENGINE = {"host": HOST, "server": SERVER, "engine_kind": "vllm", "model_name": "tiny", "dp_rank": "0"}
SERVER_LABELS = {"host": HOST, "server": SERVER, "engine_kind": "vllm"}

KEYS = (
    series("gpuwatch_engine_kv_cache_usage_ratio", **ENGINE),
    series("gpuwatch_engine_requests_running", **ENGINE),
    series("gpuwatch_engine_requests_waiting", **ENGINE),
    series("gpuwatch_engine_requests_finished_total", reason="length", **ENGINE),
    series("gpuwatch_engine_preemptions_total", **ENGINE),
    series("gpuwatch_engine_prompt_tokens_total", **ENGINE),
    series("gpuwatch_engine_generation_tokens_total", **ENGINE),
    series("gpuwatch_engine_kv_cache_tokens", **ENGINE),
    series("gpuwatch_engine_kv_block_size_tokens", **ENGINE),
    series("gpuwatch_engine_kv_cache_blocks", **ENGINE),
    series("gpuwatch_engine_num_gpu_blocks_override", **ENGINE),
    series("gpuwatch_engine_info", version="0.32.0", **SERVER_LABELS),
)

# Read off a real vLLM 0.32 server: 16 requests of 600 + 1,500 tokens on a pool of 5,120, one page a second.
# seconds: usage, running, waiting, finished, preemptions, prompt tokens, generated tokens
STORM = [
    (0.00, 0, 0, 0, 0, 0, 0),
    (0.92, 6, 10, 0, 0, 4200, 814),
    (0.82, 4, 12, 0, 0, 4200, 1835),
    (0.92, 4, 12, 0, 0, 4200, 2699),
    (0.44, 1, 14, 1, 0, 4200, 5122),
    (0.44, 1, 14, 1, 0, 4200, 5122),
    (0.44, 1, 14, 1, 0, 4200, 5122),
    (0.33, 1, 13, 2, 1, 4200, 5124),
    (0.33, 1, 12, 3, 4, 4200, 6504),
]
POOL = (5120.0, 128.0, 40.0, 40.0)


def page(second: int, row: tuple[float, ...]) -> Batch:
    """The engine's batch `second` seconds after the start."""
    return Batch(f"engine:{SERVER}", START + 1000 * second, KEYS, (*map(float, row), *POOL, 1.0))


def down(second: int) -> Batch:
    """The engine does not answer."""
    return Batch(
        f"engine:{SERVER}", START + 1000 * second, up=False, reason=Reason.UNREACHABLE, detail="connection refused"
    )


def storm() -> list[tuple[int, list[Batch]]]:
    """Ticks of ten quiet seconds and a storm."""
    rows = [STORM[0]] * 10 + STORM
    return [(START + 1000 * second, [page(second, row)]) for second, row in enumerate(rows)]


LAUNCH = Batch(
    f"launch:{SERVER}",
    START,
    facts=(
        Fact("max_num_seqs", 16, "command line of process 7", server=SERVER),
        Fact("flag.max-num-seqs", 16, "command line of process 7", server=SERVER),
        Fact("kv.blocks_profiled", 4096, "vllm.log", 31, server=SERVER),
        Fact("kv.blocks_override", 40, "vllm.log", 31, server=SERVER),
    ),
)

OOM = LogEvent("torch_oom", "CUDA out of memory", "vllm.log", 77, START, SERVER, ())
