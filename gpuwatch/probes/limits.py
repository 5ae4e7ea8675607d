"""What a server's own figures say about its limits, before anything is tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

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


@dataclass(frozen=True, slots=True)
class PoolSetting:
    """What decides on the size of the pool. None: not known, or not set.

    Attributes:
        override: Blocks that --num-gpu-blocks-override forces.
        profiled: Blocks that memory profiling found room for.
        fixed_bytes: Bytes per GPU that --kv-cache-memory-bytes gives.
        pool_bytes: Bytes of the pool per GPU.
        fraction: vLLM --gpu-memory-utilization, SGLang --mem-fraction-static.
        free: Bytes that are free on the fullest GPU while the engine runs.
        total: Bytes of each GPU.
    """

    override: int | None = None
    profiled: int | None = None
    fixed_bytes: float | None = None
    pool_bytes: float | None = None
    fraction: float | None = None
    free: float | None = None
    total: float | None = None


def read_setting(
    reading: Reading | None, told: Mapping[str, float], gpus: Mapping[str, tuple[float, float]]
) -> PoolSetting:
    """Return what decides on the size of the pool, from the page, else from facts of the engine.

    Args:
        reading: The metrics page.
        told: Numbers of the engine's command line and log, by the name of the fact.
        gpus: Used and total bytes of each GPU. Of unequal ones it is not known which the engine is on.
    """
    override = reading.least("num_gpu_blocks_override") if reading is not None else None
    override = override or told.get("kv.blocks_override")
    profiled = told.get("kv.blocks_profiled")
    fraction = reading.least("config_memory_fraction_ratio") if reading is not None else None
    sizes = {total for _, total in gpus.values()}
    return PoolSetting(
        int(override) if override else None,
        int(profiled) if profiled else None,
        told.get("flag.kv-cache-memory-bytes"),
        told.get("kv.bytes"),
        fraction if fraction is not None else told.get("memory_fraction"),
        min(total - used for used, total in gpus.values()) if len(sizes) == 1 else None,
        sizes.pop() if len(sizes) == 1 else None,
    )


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
