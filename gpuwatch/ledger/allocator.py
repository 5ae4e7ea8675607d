"""What PyTorch's caching allocator makes of tensors: bytes that count as allocated, and bytes taken from the card.

Source: ``c10/cuda/CUDACachingAllocator.cpp`` of PyTorch, with its constants; ROCm and the Ascend plugin use the same.
vLLM prints what is allocated after loading; SGLang prints what the card lost, which is what the allocator reserved.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable

UNIT = 512
"""Bytes that every request is rounded up to."""
SMALL = MIB
"""Larger requests come from the pool of large blocks; a large block is only cut where more than this is left of it."""
SMALL_SEGMENT, SEGMENT = 2 * MIB, 20 * MIB
"""Segments for small requests, and for those up to `PACKED`, which share one."""
PACKED = 10 * MIB
ROUNDING = 2 * MIB
"""Segments of larger requests are multiples of it."""


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of tensors: what was asked for, what counts as allocated, and what was taken from the card."""

    asked: int
    allocated: int
    reserved: int


def held(sizes: Iterable[float]) -> Held:
    """Return what tensors of `sizes` bytes hold when they are made one after the other and kept."""
    free: dict[bool, list[int]] = {True: [], False: []}
    asked = allocated = reserved = 0
    for size in sizes:
        asked += round(size)
        wanted = max(1, -(-round(size) // UNIT)) * UNIT
        small = wanted <= SMALL
        blocks = free[small]
        at = bisect_left(blocks, wanted)
        if at < len(blocks):
            block = blocks.pop(at)
        else:
            block = _segment(wanted)
            reserved += block
        left = block - wanted
        if left >= UNIT if small else left > SMALL:
            insort(blocks, left)
            block = wanted
        allocated += block
    return Held(asked, allocated, reserved)


def _segment(wanted: int) -> int:
    """Return the bytes that are taken from the card for a request that no free block holds."""
    if wanted <= SMALL:
        return SMALL_SEGMENT
    return SEGMENT if wanted < PACKED else -(-wanted // ROUNDING) * ROUNDING
