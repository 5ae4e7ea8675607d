"""What a figure was before it changed: the ten minutes that end before an alert became active, or what is kept of them.

A window that ends a minute ago runs into the change itself once the alert is some minutes old, and then makes the
change look smaller than it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.context import ENGINE_SCOPE

if TYPE_CHECKING:
    from gpuwatch.diagnosis.context import Subject

LONGEST = 600
"""Seconds of a baseline."""
FARTHEST = 300
"""Seconds by which its end may lie back: what is older than both together is not kept."""
STEP = 15
"""Its end moves in steps of so many seconds."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A stretch of time before a change.

    Args:
        window: the range selector and offset in PromQL, to stand behind a selector.
        words: how long it really is, such as ``the 4 minutes before``.
    """

    window: str
    words: str


def baseline(subject: Subject, name: str, recent: int) -> Baseline:
    """Return the stretch before a change in ``gpuwatch_<name>`` that is seen in its last `recent` seconds."""
    age = 0.0 if subject.since is None else max(0.0, (subject.context.time - subject.since) / 1000)
    ends = min(recent + STEP * math.ceil(age / STEP), max(recent, FARTHEST))
    covered = _covered(subject, name, ends)
    if covered is None and ends > recent:
        ends = recent
        covered = _covered(subject, name, ends)
    # A rate divides by the whole window, so a window that begins before the first sample makes it too small.
    seconds = LONGEST if covered is None else max(STEP, math.ceil(covered))
    return Baseline(f"[{seconds}s] offset {ends}s", f"the {_length(seconds)} before")


def _covered(subject: Subject, name: str, ends: int) -> float | None:
    """Return the seconds from the first sample in the stretch to its end; None where there is none."""
    first = subject.ask(f"min_over_time(timestamp({subject.select(name)})[{LONGEST}s:{STEP}s] offset {ends}s)")
    return None if first is None else min(float(LONGEST), subject.context.time / 1000 - ends - first)


def really_seen(subject: Subject, name: str, seconds: int, scope: tuple[str, ...] = ENGINE_SCOPE) -> str:
    """Return in words how much of the last `seconds` seconds ``gpuwatch_<name>`` was seen, such as ``36 seconds``.

    A count over ten minutes of an engine that has been watched for one is a count of that one.
    """
    step = max(1, seconds // 120)
    first = subject.ask(f"min(min_over_time(timestamp({subject.select(name, scope)})[{seconds}s:{step}s]))")
    covered = seconds if first is None else subject.context.time / 1000 - first
    return _length(seconds if covered >= seconds - 2 * step else max(1, round(covered)))


def _length(seconds: int) -> str:
    return f"{seconds} seconds" if seconds < 90 else f"{seconds / 60:.0f} minutes"
