"""The GPUs of one engine beside each other: every figure of every rank, and which rank stands apart in which of them.

A rank is compared with the median of the other ranks, which neither one odd card nor the rank itself can move.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gpuwatch.diagnosis.context import GPU_SCOPE, SERVER_SCOPE
from gpuwatch.diagnosis.explanation import measured, percent, size
from gpuwatch.units import GIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.diagnosis.context import Subject
    from gpuwatch.diagnosis.finding import Evidence

LINK_BYTES = 123.077e6
"""Bytes per second of one PCIe lane, by two to the power of the generation: 0.985 GB/s for generation 3."""
LINK_SPEED = "gpu_pcie_link_width * 123.077e6 * 2 ^ gpuwatch_gpu_pcie_link_generation"
"""What a link's speed is worked out of, in PromQL behind ``gpuwatch_``."""
WINDOW = "1m"
"""Figures that move from second to second are means of this window."""
FOREIGN = 1.0 * GIB
"""Memory of no known engine from which on a program may compute there; desktops and monitors hold some 100 MiB."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One GPU of an engine: display index, card, and what is known of it; None where it is not.

    Bytes, ratios, hertz, watts, degrees Celsius. `default` is the power limit that the card has after a reset. `link`
    is the speed of the PCIe link, bytes per second each way.
    `neighbours` are the other known engines on the GPU and their bytes there, the largest first.
    """

    gpu: str
    uuid: str
    card: str
    total: float | None = None
    used: float | None = None
    engine: float | None = None
    other: float | None = None
    unattributed: float | None = None
    processes: float | None = None
    busy: float | None = None
    clock: float | None = None
    power: float | None = None
    limit: float | None = None
    default: float | None = None
    temperature: float | None = None
    throttled: float | None = None
    link: float | None = None
    neighbours: tuple[tuple[str, float], ...] = ()


def ranks_of(subject: Subject) -> list[Rank]:
    """Return the GPUs that the engine of `subject` uses, in the order of their indexes."""
    ranks = []
    for labels, _ in subject.context.samples(subject.select("gpu_engine", SERVER_SCOPE)):
        ranks.append(_rank(subject.context.about({**dict(labels), "server": subject.server})))
    return sorted(ranks, key=lambda rank: (len(rank.gpu), rank.gpu))


def _rank(gpu: Subject) -> Rank:
    info = gpu.context.samples(gpu.select("gpu_info", GPU_SCOPE))
    width = gpu.now("gpu_pcie_link_width", GPU_SCOPE)
    generation = gpu.now("gpu_pcie_link_generation", GPU_SCOPE)
    return Rank(
        gpu.labels.get("gpu", ""),
        gpu.labels.get("uuid", ""),
        dict(info[0][0]).get("name", "") if info else "",
        total=gpu.now("gpu_memory_total_bytes", GPU_SCOPE),
        used=gpu.now("gpu_memory_used_bytes", GPU_SCOPE),
        engine=gpu.now("gpu_memory_engine_bytes", (*GPU_SCOPE, "server")),
        other=gpu.now("gpu_memory_other_bytes", GPU_SCOPE),
        unattributed=gpu.now("gpu_memory_unattributed_bytes", GPU_SCOPE),
        processes=gpu.now("gpu_processes", GPU_SCOPE),
        busy=gpu.over("avg_over_time", "gpu_busy_ratio", WINDOW, GPU_SCOPE),
        clock=gpu.over("avg_over_time", "gpu_sm_clock_hertz", WINDOW, GPU_SCOPE),
        power=gpu.over("avg_over_time", "gpu_power_watts", WINDOW, GPU_SCOPE),
        limit=gpu.now("gpu_power_limit_watts", GPU_SCOPE),
        default=gpu.now("gpu_power_limit_default_watts", GPU_SCOPE),
        temperature=gpu.now("gpu_temperature_celsius", GPU_SCOPE),
        throttled=throttled(gpu)[1],
        link=None if width is None or generation is None else width * LINK_BYTES * 2**generation,
        neighbours=_neighbours(gpu),
    )


def _neighbours(gpu: Subject) -> tuple[tuple[str, float], ...]:
    held = {
        dict(labels).get("server", ""): used
        for labels, used in gpu.context.samples(gpu.select("gpu_memory_engine_bytes", GPU_SCOPE))
    }
    others = [(server, used) for server, used in held.items() if server not in ("", gpu.server) and used > 0]
    return tuple(sorted(others, key=lambda item: (-item[1], item[0])))


def sharing(subject: Subject, ranks: Sequence[Rank]) -> list[tuple[Rank, str]]:
    """Return (rank, server) of other engines on the engine's GPUs, without those that had no request for a minute."""
    found = []
    for rank in ranks:
        gpu = subject.context.about({**subject.labels, "uuid": rank.uuid})
        samples = gpu.context.samples(gpu.select("gpu_engine", GPU_SCOPE))
        placed = {dict(labels).get("server", "") for labels, _ in samples} - {"", subject.server}
        found += [(rank, server) for server in sorted(placed) if not _idle(subject, server)]
    return found


def _idle(subject: Subject, server: str) -> bool:
    other = subject.context.about({**subject.labels, "server": server})
    figures = ("engine_requests_running", "engine_requests_waiting")
    return all(other.total("max_over_time", name, WINDOW, SERVER_SCOPE) == 0 for name in figures)


def strangers(ranks: Sequence[Rank]) -> list[Evidence]:
    """Return what programs of no known engine hold on the engine's GPUs, where it is enough to compute with.

    Where the engine's own memory is not known, as with workers under another parent, such a program may be its worker.
    """
    found = []
    for rank in ranks:
        for held, series, whose in (
            (rank.other, "gpu_memory_other_bytes", "processes of no known engine use"),
            (rank.unattributed, "gpu_memory_unattributed_bytes", "no visible process owns"),
        ):
            if rank.engine is not None and held is not None and held >= FOREIGN:
                found.append(measured(f"{whose} {size(held)} of GPU {rank.gpu}", series, held, "bytes"))
    return found


def throttled(gpu: Subject) -> tuple[str, float | None]:
    """Return (reason, share of the last minute) of what lowered the clocks most; None where nothing tells."""
    shares = {
        dict(labels).get("reason", ""): share
        for labels, share in gpu.context.samples(
            f"rate({gpu.select('gpu_throttle_seconds_total', GPU_SCOPE)}[{WINDOW}])"
        )
    }
    if not shares:
        return "", None
    reason = max(shares, key=lambda name: (shares[name], name))
    return reason, shares[reason]


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing to compare. A difference is worth telling above `least`, or above the share `share` of the others."""

    name: str
    series: str
    unit: str
    value: Callable[[Rank], float | None]
    show: Show
    least: float = 0.0
    share: float = 0.0
    worse: int = 1


Show: TypeAlias = Callable[[float], str]

FIGURES = (
    Figure("used memory", "gpu_memory_used_bytes", "bytes", lambda rank: rank.used, size, share=0.03),
    Figure("busy", "gpu_busy_ratio", "ratio", lambda rank: rank.busy, percent, least=0.2, worse=-1),
    Figure(
        "SM clock", "gpu_sm_clock_hertz", "hertz", lambda rank: rank.clock, lambda hertz: f"{hertz / 1e6:,.0f} MHz",
        share=0.08, worse=-1,
    ),
    Figure(
        "power", "gpu_power_watts", "watts", lambda rank: rank.power, lambda watts: f"{watts:.0f} W",
        share=0.25, worse=-1,
    ),
    Figure(
        "temperature", "gpu_temperature_celsius", "celsius", lambda rank: rank.temperature,
        lambda degrees: f"{degrees:.0f} °C", least=12.0,
    ),
    Figure(
        "time with lowered clocks", "gpu_throttle_seconds_total", "ratio", lambda rank: rank.throttled, percent,
        least=0.1,
    ),
    Figure(
        "PCIe link", LINK_SPEED, "bytes/s", lambda rank: rank.link, lambda link: f"{link / 1e9:.1f} GB/s",
        share=0.3, worse=-1,
    ),
)  # fmt: skip
"""What is compared. The differences are those that two healthy cards of one model hardly show under the same work."""


@dataclass(frozen=True, slots=True)
class Odd:
    """One rank that stands apart: its value of a figure, and the median of the others."""

    figure: Figure
    rank: Rank
    value: float
    others: float

    def evidence(self) -> Evidence:
        """Return it as evidence."""
        show = self.figure.show
        text = f"GPU {self.rank.gpu}: {self.figure.name} {show(self.value)}, the others {show(self.others)}"
        return measured(text, self.figure.series, self.value, self.figure.unit)


def odd_ranks(ranks: Sequence[Rank]) -> list[Odd]:
    """Return for each figure the rank that stands apart most, where one does.

    Of two ranks each stands apart from the other; named is the worse one: the slower, hotter or fuller.
    """
    found = (_odd(figure, ranks) for figure in FIGURES)
    return [odd for odd in found if odd is not None]


def _odd(figure: Figure, ranks: Sequence[Rank]) -> Odd | None:
    known = [(rank, value) for rank in ranks if (value := figure.value(rank)) is not None]
    if len(known) < 2:
        return None
    odds = []
    for at, (rank, value) in enumerate(known):
        others = median([other for place, (_, other) in enumerate(known) if place != at])
        odds.append(Odd(figure, rank, value, others))
    most = max(odds, key=lambda odd: (abs(odd.value - odd.others), figure.worse * (odd.value - odd.others)))
    apart = abs(most.value - most.others)
    return most if apart > max(figure.least, figure.share * abs(most.others)) else None


def median(values: Sequence[float]) -> float:
    """Return the middle value; without the module `statistics`, which takes more memory than all of this."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
