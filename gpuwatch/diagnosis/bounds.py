"""How far advice goes: the largest and smallest values that are proposed, live and after the event."""

from __future__ import annotations

HIGHEST_FRACTION = 0.97
"""No larger share of GPU memory is proposed: the CUDA context and the driver need the rest."""
SMALLEST_CHUNK = 512
"""No smaller token budget of a step is proposed: decode steps would be cut as well, and the GPU is wasted on less."""
CONSERVATIVE = 1.3
"""Raised value of SGLang's --schedule-conservativeness; its documentation suggests it where requests are retracted."""
