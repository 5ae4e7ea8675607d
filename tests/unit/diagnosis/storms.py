"""Three real preemption storms, read off saved `/metrics` pages of vLLM's CPU build.

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
# The whole of a storm of vLLM 0.32.0, about one page a second, until the engine is idle again.
VLLM_0_32_0 = (
    Page(0, 0, 0, 0, 0, 0, 0, 0, 0),
    Page(1, 6, 10, 37, 0, 0, 4200, 1054, 7),
    Page(3, 4, 12, 36, 0, 0, 4200, 2527, 7),
    Page(4, 3, 13, 30, 0, 0, 4200, 2983, 7),
    Page(5, 3, 13, 33, 0, 0, 4200, 3322, 7),
    Page(6, 3, 13, 36, 0, 0, 4200, 3745, 7),
    Page(7, 3, 13, 39, 0, 0, 4200, 4240, 7),
    Page(8, 2, 14, 30, 0, 0, 4200, 4532, 7),
    Page(9, 2, 14, 32, 0, 0, 4200, 4822, 7),
    Page(10, 1, 13, 13, 1, 2, 4200, 5124, 7),
    Page(11, 3, 11, 35, 4, 2, 4200, 5700, 7),
    Page(12, 3, 11, 38, 4, 2, 4200, 6225, 7),
    Page(13, 4, 9, 38, 7, 3, 4200, 6636, 7),
    Page(14, 3, 10, 35, 7, 3, 4200, 7241, 7),
    Page(15, 2, 11, 30, 7, 3, 4200, 7933, 7),
    Page(16, 2, 11, 31, 7, 3, 4200, 8039, 7),
    Page(17, 4, 8, 39, 9, 4, 4800, 8361, 8),
    Page(18, 3, 9, 39, 9, 4, 4800, 9090, 8),
    Page(19, 4, 7, 37, 10, 5, 6000, 9730, 10),
    Page(20, 1, 9, 13, 10, 6, 6000, 10823, 10),
    Page(21, 3, 7, 33, 13, 6, 6000, 11398, 10),
    Page(22, 3, 7, 36, 13, 6, 6000, 11659, 10),
    Page(23, 3, 7, 39, 13, 6, 6000, 12319, 10),
    Page(24, 3, 6, 38, 15, 7, 6600, 13401, 11),
    Page(25, 1, 7, 13, 15, 8, 6600, 13745, 11),
    Page(26, 3, 5, 34, 17, 8, 7800, 14683, 13),
    Page(27, 4, 3, 36, 20, 9, 7800, 15436, 13),
    Page(28, 3, 4, 37, 20, 9, 7800, 16484, 13),
    Page(29, 4, 2, 38, 22, 10, 8400, 17298, 14),
    Page(32, 3, 2, 37, 24, 11, 9000, 19388, 15),
    Page(33, 4, 0, 35, 26, 12, 9600, 19790, 16),
    Page(34, 3, 1, 33, 26, 12, 9600, 20410, 16),
    Page(35, 3, 1, 36, 26, 12, 9600, 20833, 16),
    Page(36, 1, 2, 13, 26, 13, 9600, 21361, 16),
    Page(37, 3, 0, 35, 28, 13, 9600, 22018, 16),
    Page(38, 2, 0, 24, 29, 14, 9600, 22734, 16),
    Page(40, 1, 0, 15, 29, 15, 9600, 23704, 16),
    Page(41, 1, 0, 15, 29, 15, 9600, 23761, 16),
    Page(42, 0, 0, 0, 29, 16, 9600, 24000, 16),
    Page(43, 0, 0, 0, 29, 16, 9600, 24000, 16),
    Page(44, 0, 0, 0, 29, 16, 9600, 24000, 16),
    Page(45, 0, 0, 0, 29, 16, 9600, 24000, 16),
    Page(46, 0, 0, 0, 29, 16, 9600, 24000, 16),
    Page(47, 0, 0, 0, 29, 16, 9600, 24000, 16),
    Page(48, 0, 0, 0, 29, 16, 9600, 24000, 16),
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
