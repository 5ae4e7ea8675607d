"""The memory that a larger KV pool may take, and the flag that decides on the pool's size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.context import GPU_SCOPE, SERVER_SCOPE
from gpuwatch.diagnosis.explanation import size
from gpuwatch.units import MIB

if TYPE_CHECKING:
    from gpuwatch.diagnosis.context import Subject

BYTES_FLAG = "--kv-cache-memory-bytes"
"""Of vLLM: it fixes the pool of each GPU, and --gpu-memory-utilization has no effect beside it."""
WIDE_TYPES = frozenset({"auto", "bfloat16", "bf16", "float16", "fp16", "half", "float32", "float"})
"""Types of a KV cache that 8 bits would halve; ``auto`` is mostly the model's own type."""


@dataclass(frozen=True, slots=True)
class Room:
    """Free and total bytes of the GPU that has the least to give each of the `engines` that use it."""

    free: float
    total: float
    engines: int

    def share(self, kept: float = 0.0) -> float:
        """Return the bytes that one engine may take when the share `kept` of the card stays free."""
        return max(0.0, self.free - kept * self.total) / self.engines

    @property
    def words(self) -> str:
        """Say what is free, and for how many engines."""
        return f"{size(self.free)} are free" + (f" for {self.engines} engines" if self.engines > 1 else "")


def room_of(subject: Subject, window: str) -> Room | None:
    """Return the least room on a GPU of the engine at the peaks of the last `window`; None where it is not known.

    Every engine on a card may need more: each is offered its part of what is free, not all of it.
    """
    found: list[Room] = []
    for labels, _ in subject.context.samples(subject.select("gpu_engine", SERVER_SCOPE)):
        gpu = subject.context.about(dict(labels))
        free = gpu.over("min_over_time", "gpu_memory_free_bytes", window, GPU_SCOPE)
        total = gpu.now("gpu_memory_total_bytes", GPU_SCOPE)
        if free is None or not total:
            return None
        placed = gpu.context.samples(gpu.select("gpu_engine", GPU_SCOPE))
        engines = {dict(row).get("server", "") for row, _ in placed}
        found.append(Room(free, total, max(1, len(engines))))
    return min(found, key=Room.share, default=None)


def fixed_pool(subject: Subject) -> float | None:
    """Return the bytes per GPU that --kv-cache-memory-bytes gives the pool; None where it is not used."""
    return None if subject.sglang else subject.number("flag." + BYTES_FLAG.removeprefix("--")) or None


def whole_mib(value: float, *, up: bool = False) -> str:
    """Return bytes as a flag takes them, rounded down, or `up`, to whole MiB."""
    return str((math.ceil if up else math.floor)(value / MIB) * MIB)


def memory_flag(subject: Subject) -> tuple[str, str | None]:
    """Return the flag that decides on the size of the pool, and its present value."""
    fixed = fixed_pool(subject)
    if fixed is not None:
        return BYTES_FLAG, f"{fixed:.0f}"
    name = "mem-fraction-static" if subject.sglang else "gpu-memory-utilization"
    current = subject.config("memory_fraction_ratio", "memory_fraction")
    if current is not None:
        return "--" + name, f"{current:g}"
    fact = subject.fact("flag." + name)
    return "--" + name, str(fact.value) if fact is not None else None


def cache_type(subject: Subject) -> str | None:
    """Return the type of the KV cache; None where nothing names one: ``auto`` is a wish."""
    infos = subject.context.samples(subject.select("engine_cache_config_info", SERVER_SCOPE))
    named = [dict(labels).get("cache_dtype", "") for labels, _ in infos]
    facts = (subject.fact("kv.dtype"), subject.fact("flag.kv-cache-dtype"))
    named += [str(fact.value) for fact in facts if fact is not None]
    return next((kind for kind in named if kind not in ("", "auto")), None)


def quantised(subject: Subject) -> bool:
    """Return whether the KV cache is known to be stored in 8 bits or fewer."""
    kind = cache_type(subject)
    return kind is not None and kind.lower().removeprefix("torch.") not in WIDE_TYPES
