"""How much of a card's memory an engine may be told to take."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuwatch.engines.flag_versions import risky_above
from gpuwatch.units import GIB

if TYPE_CHECKING:
    from gpuwatch.ledger.budget import Deployment

SYSTEM_BYTES = 8 * GIB
"""What is kept of unified memory for the system and all programs."""


def fraction_flag(engine: str) -> str:
    """Return the flag, without dashes, that says an engine's part of the memory."""
    return "mem-fraction-static" if engine == "sglang" else "gpu-memory-utilization"


def highest_fraction(deployment: Deployment) -> float:
    """Return the largest part of the memory that leaves room for what the engine does not count."""
    risky = risky_above(deployment.engine, fraction_flag(deployment.engine))
    if not deployment.unified:
        return risky
    return max(0.0, min(risky, math.floor(100 * (1 - SYSTEM_BYTES / deployment.capacity)) / 100))


def takes_from_the_system(deployment: Deployment) -> bool:
    """Return whether an engine's part of unified memory leaves the system less than it is assumed to need.

    vLLM refuses to start where less is free than its part (``request_memory`` in ``v1/worker/utils.py``).
    """
    return deployment.unified and not deployment.pool_asked and deployment.fraction > highest_fraction(deployment)
