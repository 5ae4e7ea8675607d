"""Engine versions as tuples, and ranges of them as they are written in the metric tables."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

Version: TypeAlias = tuple[int, int, int]

_VERSION = re.compile(r"^\s*v?(\d+)\.(\d+)(?:\.(\d+))?")
_OLDEST = (0, 2, 0)


def parse_version(text: str) -> Version | None:
    """Return (major, minor, patch) of an engine's version string, or None where it does not say.

    Suffixes (``rc1``, ``.post2``, ``+cpu``, ``.dev12+g1a2b``) are left out. Builds from a checkout without tags call
    themselves ``0.1.dev…``; versions below 0.2, which is older than either engine's first metric, therefore say nothing.
    """
    found = _VERSION.match(text)
    if found is None:
        return None
    version = (int(found[1]), int(found[2]), int(found[3] or 0))
    return version if version >= _OLDEST else None


def show_version(version: Version) -> str:
    """Return ``0.32.0`` for (0, 32, 0)."""
    return ".".join(map(str, version))


@dataclass(frozen=True, slots=True)
class Span:
    """The versions from `low` to `high`, both included; `high` None means: to the newest that is known."""

    low: Version
    high: Version | None = None

    def __contains__(self, version: object) -> bool:
        return isinstance(version, tuple) and self.low <= version and (self.high is None or version <= self.high)

    def __str__(self) -> str:
        return f"{show_version(self.low)} to {show_version(self.high)}" if self.high else f"{show_version(self.low)} on"


def parse_span(text: str) -> Span:
    """Read ``0.9.2-0.10.2`` or ``0.16-`` (still there). Raises ValueError on anything else."""
    low, dash, high = text.partition("-")
    first, last = parse_version(low), parse_version(high) if high else None
    if first is None or not dash or (high and last is None):
        raise ValueError(f"{text!r} is not a version range")
    return Span(first, last)
