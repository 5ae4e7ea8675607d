"""Two real preemption storms, read off saved `/metrics` pages of vLLM's CPU build.

40 blocks of 128 tokens, 16 requests of 600 prompt and 1,500 output tokens sent at once. One row is one page, `at`
seconds after the requests were sent.
"""

from __future__ import annotations

from typing import NamedTuple

from gpuwatch.model import Batch, label, name_of, series

IDENTITY = {"host": "h", "server": "127.0.0.1:8000", "engine_kind": "vllm", "model_name": "tiny"}


class Page(NamedTuple):
    at: int
    running: int
    waiting: int
    used_blocks: int
    preemptions: int
    finished: int
    prompt_tokens: int
    generation_tokens: int
    first_tokens: int


VLLM_0_10_2 = (
    Page(0, 0, 0, 0, 0, 0, 0, 0, 0),
    Page(3, 7, 9, 35, 0, 0, 4200, 51, 7),
    Page(6, 6, 10, 36, 0, 0, 4200, 325, 7),
    Page(12, 6, 10, 36, 0, 0, 4200, 769, 7),
    Page(18, 6, 10, 39, 0, 0, 4200, 1057, 7),
    Page(24, 5, 11, 35, 0, 0, 4200, 1407, 7),
    Page(30, 4, 12, 32, 0, 0, 4200, 1717, 7),
    Page(36, 4, 12, 32, 0, 0, 4200, 1813, 7),
)
VLLM_0_31_0 = (
    Page(0, 0, 0, 0, 0, 0, 0, 0, 0),
    Page(3, 0, 0, 0, 0, 0, 0, 0, 0),
    Page(6, 5, 11, 22, 0, 0, 2400, 5, 4),
    Page(12, 3, 13, 30, 0, 0, 4200, 2908, 7),
    Page(18, 2, 14, 28, 0, 0, 4200, 4482, 7),
    Page(24, 3, 13, 35, 4, 2, 4200, 5871, 7),
    Page(30, 3, 13, 35, 7, 3, 4200, 7178, 7),
    Page(36, 3, 13, 36, 9, 4, 4800, 8691, 8),
)
USABLE_BLOCKS = 39

NAMES = (
    "requests_running",
    "requests_waiting",
    "kv_cache_usage_ratio",
    "preemptions_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "time_to_first_token_seconds_count",
    "kv_cache_tokens",
    "kv_cache_blocks",
    "kv_block_size_tokens",
)
REASONS = ("stop", "length", "abort")


def keys(identity=IDENTITY, names=NAMES, reasons=REASONS):
    """The series of one page; the same call gives equal, not identical, tuples."""
    return (
        *(series("gpuwatch_engine_" + name, **identity) for name in names),
        *(series("gpuwatch_engine_requests_finished_total", **identity, reason=reason) for reason in reasons),
    )


def values(page: Page) -> list[float]:
    return [
        page.running,
        page.waiting,
        page.used_blocks / USABLE_BLOCKS,
        page.preemptions,
        page.prompt_tokens,
        page.generation_tokens,
        page.first_tokens,
        5120,
        40,
        128,
        0,
        page.finished,
        0,
    ]


KEYS = keys()
START = 1_700_000_000_000


def batch(page: Page, start: int = START, target: str = "engine:127.0.0.1:8000") -> Batch:
    return Batch(target, start + page.at * 1000, KEYS, values(page))


def read(out: Batch, name: str, **want: str) -> float | None:
    found = [
        value
        for key, value in zip(out.keys, out.values, strict=True)
        if name_of(key) == name and all(label(key, k) == v for k, v in want.items())
    ]
    assert len(found) <= 1
    return found[0] if found else None
