"""Cards that run below their speed: throttled clocks and degraded PCIe links."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.context import GPU_SCOPE
from gpuwatch.diagnosis.diagnosis import Diagnosis
from gpuwatch.diagnosis.explanation import Explanation, Unknown, Verdict, count, excluded, measured, percent
from gpuwatch.diagnosis.finding import Advice
from gpuwatch.diagnosis.group import LINK_BYTES

if TYPE_CHECKING:
    from gpuwatch.diagnosis.context import Subject
    from gpuwatch.diagnosis.finding import Evidence

REASONS = {
    "power": "its power limit",
    "thermal": "heat",
    "sw_thermal": "heat (the driver slows it down)",
    "hw_thermal": "heat (the card slows itself down)",
    "power_brake": "the power supply, which asks it to slow down",
    "board_limit": "a limit of its board",
    "reliability": "its voltage reliability limit",
    "hw_slowdown": "heat or the power supply (hardware slowdown)",
    "sw_power_cap": "its power limit",
}
"""Why clocks are lowered, in words, by the label ``reason``."""
WORTH_TELLING = 0.05
"""Share of a minute from which a second reason is told."""
POWER = frozenset({"power", "sw_power_cap"})
SUPPLY = frozenset({"power_brake", "board_limit"})
SELDOM = 0.7
"""A reason that hardly ever lowered the clocks is believed by this factor less than one that always did."""
STEP = 10.0
"""Watts to which a proposed power limit is rounded down."""
LOWERED = 0.95
"""A limit below this share of the default was set by somebody."""


def throttling(subject: Subject) -> Verdict:
    """Explain clocks that are lowered while the card works."""
    clock = subject.over("avg_over_time", "gpu_sm_clock_hertz", "1m", GPU_SCOPE)
    highest = subject.now("gpu_sm_clock_max_hertz", GPU_SCOPE)
    shares = _shares(subject)
    power = subject.alert == "GpuwatchPowerThrottling"
    reasons = [(share, reason) for reason, share in shares.items() if (reason in POWER) == power and reason in REASONS]
    if clock is None or not highest or not reasons:
        return Unknown("SM clock, highest SM clock, and the time or the reasons of lowered clocks")
    share, reason = max(reasons)
    gpu, lost = subject.labels.get("gpu", ""), 1 - clock / highest
    evidence = [
        measured(f"clocks were lowered by {REASONS[reason]} for {percent(share)} of the last minute",
                 "gpu_throttle_seconds_total", share, "ratio"),
        measured(f"SM clock {clock / 1e6:,.0f} MHz of {highest / 1e6:,.0f} MHz", "gpu_sm_clock_hertz", clock, "hertz"),
        *_busy(subject), *_heat(subject),
    ]  # fmt: skip
    evidence += _other_reason(shares, power=power)
    cause = f"GPU {gpu} runs {percent(lost)} below its highest clock because of {REASONS[reason]}."
    weight = SELDOM + (1 - SELDOM) * share
    if power:
        more, advice = _power(subject, gpu)
        return Explanation(cause, weight * (0.9 if advice[0].proposed else 0.7), (*evidence, *more), advice)
    if reason in SUPPLY:
        return Explanation(cause, weight * 0.9, tuple(evidence), (
            Advice("check power cables, power supply and its redundancy; the chassis may cap all cards at once"),
        ))  # fmt: skip
    return Explanation(cause, weight * 0.9, tuple(evidence), (
        Advice(f"improve the cooling of GPU {gpu}: air flow, fans, filters, neighbours, room temperature"),
        _steadier(subject, gpu),
    ))  # fmt: skip


def _steadier(subject: Subject, gpu: str) -> Advice:
    """Return the power limit at which a card that is too hot keeps its clocks: what it draws while they are lowered."""
    limit = subject.now("gpu_power_limit_watts", GPU_SCOPE)
    draw = subject.over("avg_over_time", "gpu_power_watts", "1m", GPU_SCOPE)
    known = limit is not None and draw is not None and STEP <= draw < limit
    proposed = f"{math.floor(draw / STEP) * STEP:.0f}" if known and draw is not None else None
    return Advice(
        "until then a lower power limit gives steadier speed than throttling"
        + (": what it draws now on average" if proposed else ""),
        f"nvidia-smi -i {gpu} -pl",
        f"{limit:.0f}" if limit is not None else None,
        proposed,
    )


def _shares(subject: Subject) -> dict[str, float]:
    """Return the share of the last minute by reason: from the counters, or else from the reasons that were active."""
    for expr in (
        f"rate({subject.select('gpu_throttle_seconds_total', GPU_SCOPE)}[1m])",
        f"avg_over_time({subject.select('gpu_clocks_event_active', GPU_SCOPE)}[1m])",
    ):
        found = subject.context.samples(expr)
        if found:
            return {dict(labels).get("reason", ""): min(1.0, share) for labels, share in found}
    return {}


def _other_reason(shares: dict[str, float], *, power: bool) -> list[Evidence]:
    """Return what else lowered the clocks: heat or the supply beside the power limit, or the other way round."""
    others = [(share, reason) for reason, share in shares.items() if (reason in POWER) != power and reason in REASONS]
    share, reason = max(others, default=(0.0, ""))
    if share < WORTH_TELLING:
        return []
    text = f"clocks were also lowered by {REASONS[reason]}, for {percent(share)} of it"
    return [measured(text, "gpu_throttle_seconds_total", share, "ratio")]


def _busy(subject: Subject) -> list[Evidence]:
    busy = subject.over("avg_over_time", "gpu_busy_ratio", "1m", GPU_SCOPE)
    return (
        []
        if busy is None
        else [
            measured(
                f"it was busy for {percent(busy)} of what was watched of the last minute",
                "gpu_busy_ratio",
                busy,
                "ratio",
            )
        ]
    )


def _heat(subject: Subject) -> list[Evidence]:
    found = []
    for name, what in (("gpu_temperature_celsius", "GPU"), ("gpu_memory_temperature_celsius", "memory")):
        degrees = subject.now(name, GPU_SCOPE)
        if degrees is not None:
            found.append(measured(f"{what} temperature {degrees:.0f} °C", name, degrees, "celsius"))
    return found


def _power(subject: Subject, gpu: str) -> tuple[list[Evidence], tuple[Advice, ...]]:
    """Return what is known of the power limit, and the limit to set where it was lowered."""
    limit = subject.now("gpu_power_limit_watts", GPU_SCOPE)
    default = subject.now("gpu_power_limit_default_watts", GPU_SCOPE)
    draw = subject.over("avg_over_time", "gpu_power_watts", "1m", GPU_SCOPE)
    evidence = []
    if draw is not None and limit:
        text = f"it draws {draw:.0f} W of a limit of {limit:.0f} W"
        evidence.append(measured(text, "gpu_power_watts", draw, "watts"))
    if limit and default and limit < LOWERED * default:
        text = f"the limit was lowered from its default of {default:.0f} W"
        evidence.append(measured(text, "gpu_power_limit_watts", limit, "watts"))
        flag = f"nvidia-smi -i {gpu} -pl"
        return evidence, (
            Advice("set the limit back, if supply and cooling allow it", flag, f"{limit:.0f}", f"{default:.0f}"),
        )
    if limit and default:
        evidence.append(
            excluded(
                f"a lowered limit: the default is {default:.0f} W", "gpu_power_limit_default_watts", default, "watts"
            )
        )
    return evidence, (
        Advice("at its default limit this is what the card can do with this load; larger batches do not raise it"),
        Advice("see nvidia-smi -q -d POWER for the highest limit, and CLOCK for locked clocks"),
    )


def link(subject: Subject) -> Verdict:
    """Explain a PCIe link that is narrower or slower than card and slot allow."""
    width, most = (subject.now(name, GPU_SCOPE) for name in ("gpu_pcie_link_width", "gpu_pcie_link_width_max"))
    generation = subject.now("gpu_pcie_link_generation", GPU_SCOPE)
    highest = subject.now("gpu_pcie_link_generation_max", GPU_SCOPE)
    if width is None or most is None or generation is None or highest is None:
        return Unknown("width and generation of the PCIe link, now and at most")
    gpu = subject.labels.get("gpu", "")
    speed, possible = (lanes * 2**speed * LINK_BYTES for lanes, speed in ((width, generation), (most, highest)))
    evidence = [
        measured(f"{width:.0f} of {most:.0f} lanes", "gpu_pcie_link_width", width, "lanes"),
        measured(f"generation {generation:.0f} of {highest:.0f}", "gpu_pcie_link_generation", generation),
        *_busy(subject),
    ]
    replays = subject.over("increase", "gpu_pcie_replays_total", "10m", GPU_SCOPE)
    if replays:
        text = f"{count(replays)} packets had to be sent again in 10 minutes: the link is disturbed"
        evidence.append(measured(text, "gpu_pcie_replays_total", replays))
    what = " and ".join(
        word for word, low in (("fewer lanes", width < most), ("a lower generation", generation < highest)) if low
    )
    if not what:
        return Unknown("a PCIe link below what card and slot have; it has recovered")
    return Explanation(
        f"The PCIe link of GPU {gpu} runs under load with {what} than card and slot have: "
        f"{speed / 1e9:.1f} of {possible / 1e9:.1f} GB/s each way.",
        0.85,
        tuple(evidence),
        (
            Advice(f"reseat GPU {gpu}, riser and cables; lspci -vv shows LnkSta and LnkCap of each bridge above it"),
            Advice("check the slot's lanes and generation in the BIOS (bifurcation, forced speed)"),
        ),
    )  # fmt: skip


DIAGNOSES = (
    Diagnosis("throttling", "warning", "A GPU lowers its clock while it works", throttling, GPU_SCOPE),
    Diagnosis("pcie_degraded", "warning", "A PCIe link is below what it should be", link, GPU_SCOPE),
)
"""The findings of this family."""
