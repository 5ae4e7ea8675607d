"""One run as plain data: what the reports and comparisons are made of. Times are in milliseconds since the epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatch.diagnosis.finding import Finding, NotEnough

FindingKey: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]

HISTOGRAMS = ("ttft", "itl", "e2e", "queue", "prompt_length", "generation_length")
"""The histograms that a window holds, where the engine has them; latencies in seconds, lengths in tokens."""

COUNTERS = ("prompt_tokens", "generation_tokens", "finished", "preemptions", "prefix_queries", "prefix_hits")
"""The counters that a window holds, where the engine has them."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A gauge over time; where nothing was seen there is no point."""

    times: tuple[int, ...] = ()
    values: tuple[float, ...] = ()

    @property
    def highest(self) -> float | None:
        """The highest value, None where there is none."""
        return max(self.values, default=None)


@dataclass(frozen=True, slots=True)
class Histogram:
    """How much a Prometheus histogram grew: `counts` are cumulative, one per upper bound, the last bound is +Inf."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    total: float = 0.0
    """The sum of the observed values."""

    @property
    def count(self) -> float:
        """The number of observations."""
        return self.counts[-1] if self.counts else 0.0


@dataclass(frozen=True, slots=True)
class Window:
    """What one engine did in a stretch of time, between its samples at `start` and `end`.

    `running`, `waiting` and `kv_usage` (0-1) are means over the samples; None: the engine did not say. `counted` are
    the increases of `COUNTERS`, `histograms` those of `HISTOGRAMS`; what the engine does not have is missing.
    """

    start: int
    end: int
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    counted: Mapping[str, float] = field(default_factory=dict)
    histograms: Mapping[str, Histogram] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The length of the window in seconds."""
        return (self.end - self.start) / 1000

    @property
    def busy(self) -> bool:
        """Whether the engine had anything to do."""
        return bool(self.running or self.waiting) or self.counted.get("generation_tokens", 0) > 0


@dataclass(frozen=True, slots=True)
class Setting:
    """A flag, fact or version with where it was read."""

    name: str
    value: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class EngineStart:
    """One of several starts of an engine: when it began to show, from when to when it answered, and its flags.

    `served` None: it never answered.
    """

    begun: int
    served: tuple[int, int] | None = None
    flags: tuple[Setting, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineRun:
    """One engine, or one data-parallel rank of it.

    `tensor_parallel` are its ranks, `limit` the most requests in a batch; None: unknown.
    """

    server: str
    rank: str
    kind: str
    model: str
    version: str
    tensor_parallel: int | None = None
    limit: int | None = None
    settings: tuple[Setting, ...] = ()
    figures: tuple[Setting, ...] = ()
    windows: tuple[Window, ...] = ()
    curves: Mapping[str, Curve] = field(default_factory=dict)
    """``running``, ``waiting``, ``kv_usage`` (0-1) as they were sampled, thinned to their extremes."""
    starts: tuple[EngineStart, ...] = ()
    """The starts of the engine, where it was started more than once; settings and figures are those of the last."""

    @property
    def title(self) -> str:
        """How the engine is called in headings."""
        rank = f" rank {self.rank}" if self.rank not in ("", "0") else ""
        return f"{self.server}{rank}"


@dataclass(frozen=True, slots=True)
class GpuRun:
    """One GPU. Memory in bytes; `peak` is the highest use that was seen, at 10 Hz where the samples have it.

    `at_peak` and `at_end` divide the memory by what it is for, in the order of the memory ledger. `busy_mean` (0-1) is
    the mean of all samples; the curves are thinned to their extremes.
    """

    index: str
    uuid: str
    name: str
    driver: str = ""
    total: float | None = None
    used: Curve = field(default_factory=Curve)
    peak: float | None = None
    peak_time: int = 0
    at_peak: tuple[tuple[str, float], ...] = ()
    at_end: tuple[tuple[str, float], ...] = ()
    busy: Curve = field(default_factory=Curve)
    power: Curve = field(default_factory=Curve)
    busy_mean: float | None = None


@dataclass(frozen=True, slots=True)
class RunData:
    """A recording as the report needs it. `cut` says why it ends early; `problems` are rules that failed and holes.

    `unsampled` are the seconds between the first and the last tick in which nothing was recorded.
    """

    name: str
    host: str
    started: int
    ended: int
    interval: float
    ticks: int
    program: str
    note: str = ""
    cut: str = ""
    engines: tuple[EngineRun, ...] = ()
    gpus: tuple[GpuRun, ...] = ()
    findings: tuple[Finding, ...] = ()
    episodes: Mapping[FindingKey, tuple[tuple[int, int | None], ...]] = field(default_factory=dict)
    """When each finding, by its key, was there: from and until, which is None where it was there at the end."""
    not_enough: tuple[NotEnough, ...] = ()
    """What could not be judged at any time."""
    silent: tuple[Setting, ...] = ()
    """Sources that did not answer at the end or never: (source, reason and detail)."""
    problems: tuple[str, ...] = ()
    unsampled: float = 0.0
    not_at_end: tuple[NotEnough, ...] = ()
    """What was judged before, and could not be at the end any more."""

    @property
    def seconds(self) -> float:
        """The time from the first to the last tick in seconds."""
        return (self.ended - self.started) / 1000

    @property
    def sampled_seconds(self) -> float:
        """The seconds of the run that are known, without its holes."""
        return self.seconds - self.unsampled

    def times_of(self, finding: Finding) -> tuple[tuple[int, int | None], ...]:
        """Return when a finding was there."""
        until = finding.until if finding.state == "resolved" else None
        return self.episodes.get(finding.key) or ((finding.since, until),)
