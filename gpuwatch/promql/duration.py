"""Durations as Prometheus writes them in its files: ``1m30s``."""

from __future__ import annotations

import re

_DURATION = re.compile(r"(?:(\d+)y)?(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?", re.ASCII)
_UNITS_MS = (31_536_000_000, 604_800_000, 86_400_000, 3_600_000, 60_000, 1_000, 1)
_UNIT_NAMES = ("y", "w", "d", "h", "m", "s", "ms")
_LARGEST_MS = (2**63 - 1) // 1_000_000


def parse_duration(text: str) -> int:
    """Return a Prometheus duration such as ``1m30s`` in milliseconds.

    Follows ``model.ParseDuration`` of prometheus/common: units from large to small, each at most once, ``0``
    without a unit, at most 2**63 nanoseconds.

    Raises:
        ValueError: `text` is not a duration.
    """
    if text == "0":
        return 0
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise ValueError(
            f"{text!r} is not a duration; allowed are whole numbers with the units y, w, d, h, m, s, ms "
            "from large to small, such as 30s or 1m30s"
        )
    total = sum(int(number) * unit for number, unit in zip(match.groups(), _UNITS_MS, strict=True) if number)
    if total > _LARGEST_MS:
        raise ValueError(f"the duration {text!r} is out of range")
    return total


def format_duration(milliseconds: int) -> str:
    """Return milliseconds as Prometheus writes durations: ``1m30s``, ``0s``, ``90d`` rather than ``12w6d``."""
    if milliseconds == 0:
        return "0s"
    parts = []
    for name, unit in zip(_UNIT_NAMES, _UNITS_MS, strict=True):
        if name in ("y", "w") and milliseconds % unit:
            continue
        count, milliseconds = divmod(milliseconds, unit)
        if count:
            parts.append(f"{count}{name}")
    return "".join(parts)
