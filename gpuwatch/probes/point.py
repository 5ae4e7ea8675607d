"""What one wave of requests measured, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from gpuwatch.probes.result import Value

Outcome: TypeAlias = Literal[
    "ok",
    "sequences",
    "queued",
    "apart",
    "unclear",
    "preempted",
    "cut",
    "ignored",
    "refused",
    "timeout",
    "limited",
    "login",
    "failed",
    "lost",
    "stopped",
]
"""What became of a wave of which not every request went well.

sequences: not all ran at the same time although the pool had room, and the page shows how many did; queued: the pool
had none; apart: not all ran at the same time, and nothing is known of the pool; unclear: neither did they, or it is
not certain, although all would fit by the server's figures, and nothing shows why; stopped: by the probe.
cut: fewer prompt tokens were counted than were sent; ignored: an answer without one token.
"""

BROKEN = frozenset({"queued", "apart", "preempted", "cut", "ignored", "refused", "timeout", "failed", "lost"})
DANGEROUS = frozenset({"failed", "lost"})
ENDING = frozenset({"stopped", "limited", "login"})
"""What says nothing about the length, and ends the probe: its own end, a rate limit that stays, a refused login."""


@dataclass(frozen=True, slots=True)
class Point:
    """What one wave measured. None: not measured or not told. Times in seconds, rates in tokens per second.

    `sent_tokens` is the length that was meant; `prompt_tokens` is what the server counts of it where all were read.
    `held_tokens` are prompt and generated tokens of the longest request, `counted_tokens` the least prompt tokens that
    the server counted of a request, `sent_bytes` the size of the largest body. `limited` is how often a rate limit made
    requests wait: such a wave has no rates, because the waiting is in its seconds. `ran_on`: the server ignores
    max_tokens. `buffered`: streams came in one piece, so that no time within them is known. `uncounted`: how many
    tokens came is not known, so there are no rates of decoding and output.
    """

    concurrency: int
    prompt_tokens: int
    outcome: Outcome
    detail: str = ""
    ttft: float | None = None
    ttft_most: float | None = None
    prefill_rate: float | None = None
    decode_rate: float | None = None
    output_rate: float | None = None
    kv_usage: float | None = None
    running: float | None = None
    preemptions: int | None = None
    held_tokens: int | None = None
    gpu_bytes: float | None = None
    gpu_size: float | None = None
    cached_tokens: int | None = None
    counted_tokens: int | None = None
    limited: int = 0
    uncounted: bool = False
    ran_on: bool = False
    buffered: bool = False
    sent_tokens: int = 0
    sent_bytes: int = 0

    @property
    def broken(self) -> bool:
        """Whether this load is beyond what the server carries."""
        return self.outcome in BROKEN

    @property
    def begun(self) -> bool:
        """Whether the server accepted the requests, whatever came of them."""
        return self.outcome in ("ok", "sequences", "queued", "apart", "unclear", "preempted", "timeout")

    def row(self, gpu_before: float | None) -> dict[str, Value]:
        """Return the point as a row of a result; `gpu_before` are the bytes of the fullest GPU before the probe."""
        step = None if self.gpu_bytes is None or gpu_before is None else self.gpu_bytes - gpu_before
        row: dict[str, Value] = {
            "concurrency": self.concurrency,
            "prompt_tokens": self.prompt_tokens,
            "counted_tokens": self.counted_tokens,
            "outcome": self.outcome,
            "ttft_s": self.ttft,
            "ttft_max_s": self.ttft_most,
            "prefill_tokens_per_s": self.prefill_rate,
            "decode_tokens_per_s": self.decode_rate,
            "output_tokens_per_s": self.output_rate,
            "kv_usage_ratio": self.kv_usage,
            "running": self.running,
            "preemptions": self.preemptions,
            "held_tokens": self.held_tokens,
            "gpu_peak_bytes": self.gpu_bytes,
            "gpu_step_bytes": step,
            "detail": self.detail,
        }
        return row
