"""What a server's own figures say about its limits, before anything is tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuwatch.probes.meter import Reading


@dataclass(frozen=True, slots=True)
class Pool:
    """The KV pool of one data-parallel rank, the smallest one.

    Attributes:
        tokens: Tokens that it holds, as the engine prints them.
        block: Tokens in a block (SGLang: page).
        blocks: Blocks that requests can use: vLLM keeps one back, the null block.
        ranks: Data-parallel ranks, each with such a pool.
    """

    tokens: int
    block: int
    blocks: int
    ranks: int = 1

    @property
    def usable(self) -> int:
        """Tokens of one request that fits alone."""
        return self.blocks * self.block

    def each(self, requests: int) -> int:
        """Return the most tokens of each of `requests` requests that are all to be in the pools at the same time."""
        side_by_side = -(-max(1, requests) // self.ranks)
        return self.blocks // side_by_side * self.block

    def demand(self, tokens: int) -> int:
        """Return the tokens of pool that a request of `tokens` tokens occupies: whole blocks."""
        return -(-tokens // self.block) * self.block


def read_pool(reading: Reading | None, engine: str) -> Pool | None:
    """Return the KV pool that the metrics page states, or None where it does not.

    Of a model with several kinds of attention the page states the pool as if all layers kept everything.
    """
    tokens = reading.least("kv_cache_tokens") if reading is not None else None
    if reading is None or tokens is None or tokens < 1:
        return None
    block = max(1, int(reading.most("kv_block_size_tokens") or 1))
    blocks = int(tokens) // block - (1 if engine == "vllm" else 0)
    return Pool(int(tokens), block, max(0, blocks), reading.ranks())
