"""What one diagnosis returns, and the few ways in which numbers are written in its sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gpuwatch.diagnosis.finding import Evidence
from gpuwatch.units import GIB, MIB

if TYPE_CHECKING:
    from gpuwatch.diagnosis.finding import Advice
    from gpuwatch.model import Fact, LogEvent


@dataclass(frozen=True, slots=True)
class Explanation:
    """The cause in one or two sentences, how sure it is (0 to 1), what supports it, and what to change."""

    cause: str
    confidence: float
    evidence: tuple[Evidence, ...]
    advice: tuple[Advice, ...] = ()


@dataclass(frozen=True, slots=True)
class Unknown:
    """The diagnosis cannot be made; `missing` says what it would need."""

    missing: str


Verdict: TypeAlias = Explanation | Unknown


def measured(text: str, name: str, value: float, unit: str = "") -> Evidence:
    """Return a number as evidence; `name` is a series without ``gpuwatch_``, `text` says it with its window."""
    return Evidence(text=text, source="metrics", name="gpuwatch_" + name, value=value, unit=unit)


def told(fact: Fact, text: str, unit: str = "") -> Evidence:
    """Return a fact as evidence, with the file and line it was read from."""
    value = fact.value if isinstance(fact.value, str) else float(fact.value)
    return Evidence(text=text, source=fact.source, line=fact.line, name=fact.key, value=value, unit=unit)


def logged(event: LogEvent) -> Evidence:
    """Return a log line as evidence."""
    return Evidence(text=event.text, source=event.source, line=event.line, name=event.event)


def excluded(text: str, name: str, value: float, unit: str = "") -> Evidence:
    """Return what was looked at and ruled out, with the number that rules it out."""
    return measured("Ruled out: " + text, name, value, unit)


def count(value: float) -> str:
    """Return a count with thousands separators, such as ``33,600``."""
    return f"{value:,.0f}"


def rate(value: float) -> str:
    """Return a figure per second with two digits, or all before the point: ``0.052``, ``4.5``, ``120``, ``1,200``."""
    if abs(value) >= 10:
        return f"{value:,.0f}"
    return f"{value:.2g}" if abs(value) >= 1e-4 or value == 0 else f"{value:.6f}"  # without an exponent


def size(value: float) -> str:
    """Return bytes in binary units, such as ``4.5 GiB`` or ``300 MiB``."""
    if abs(value) >= GIB:
        return f"{value / GIB:.1f} GiB"
    return f"{value / MIB:.0f} MiB"


def percent(ratio: float) -> str:
    """Return a ratio of 0 to 1 as a percentage, such as ``97 %``."""
    return f"{ratio * 100:.0f} %" if ratio >= 0.1 or ratio == 0 else f"{ratio * 100:.1f} %"  # below 10 % a digit more
