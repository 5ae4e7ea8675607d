"""Clocks that are held back, by heat or by a power limit, as nvidia-smi shows it of a card that works."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes.view import Cause, advise, sampled
from gpuwatch.diagnosis.explanation import Explanation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import Sample, View
    from gpuwatch.diagnosis.finding import Evidence

HEAT = frozenset({"thermal", "sw_thermal", "hw_thermal"})
"""Reasons for lowered clocks that mean heat."""
SUPPLY = "power_brake"
"""The reason for lowered clocks with which the supply or the chassis asks a card to slow down."""
WORKING = 0.5
BUSY = 0.9
LOWERED = 0.95
"""A limit below this share of the default was lowered by somebody."""
SLOW_LOWERED, SLOW_DEFAULT = 0.8, 0.6
"""The share of the highest clock below which a card under a lowered, or under its default, power limit is slow."""
HELD = 0.9
"""A card is held back by its power limit all the time where it is so for this share of it."""


def slowed(view: View) -> Iterator[Cause]:
    """Judge cards that the hardware slows down while they work: by heat, by the supply, or one card by each."""
    found = [*heat(view), *supply(view)]
    if len(found) < 2:
        yield from found
        return
    told = [each.explanation for each in found]
    yield Cause(
        "throttling",
        Explanation(
            " ".join(each.cause for each in told),
            min(each.confidence for each in told),
            (*(each.evidence[0] for each in told), *(item for each in told for item in each.evidence[1:])),
            tuple(advice for each in told for advice in each.advice),
        ),
        found[0].since,
    )


def heat(view: View) -> Iterator[Cause]:
    """Judge a card whose clocks are held back by heat while it works."""
    samples = [each for each in view.samples("gpu_clocks_event_active") if each.labels.get("reason") in HEAT]
    active = [each for each in samples if each.value == 1]
    if not active:
        return
    gpu = active[0].labels.get("gpu", "")
    taken = {(each.path, each.time) for each in view.samples("gpu_busy_ratio", gpu=gpu)}
    times = {(each.path, each.time) for each in active if each.labels.get("gpu", "") == gpu}
    if not _works(view, gpu) or len(times) < max(1.0, len(taken) / 2):
        return
    hottest = max(view.samples("gpu_temperature_celsius", gpu=gpu), key=lambda each: each.value, default=None)
    warm = [sampled(hottest, f"up to {hottest.value:.0f} °C", "celsius")] if hottest is not None else []
    yield Cause(
        "throttling",
        Explanation(
            f"GPU {gpu} lowers its clocks because it is hot, while it works.",
            0.85,
            (sampled(active[0], f"the driver's reason: {active[0].labels.get('reason')}"), *warm, *_clock(view, gpu)),
            (
                advise("look at fans, air flow and dust; another card or rack neighbour may blow into it"),
                advise("a lower power limit keeps the clocks steady until then", "nvidia-smi -pl"),
            ),
        ),
        active[0].time,
    )


def supply(view: View) -> Iterator[Cause]:
    """Judge cards that work while the supply or the chassis asks them to slow down (HW power brake)."""
    held: dict[str, list[Sample]] = {}
    for each in view.samples("gpu_clocks_event_active", reason=SUPPLY):
        if each.value == 1:
            held.setdefault(each.labels.get("gpu", ""), []).append(each)
    cards = []
    for gpu, samples in held.items():
        taken = {(each.path, each.time) for each in view.samples("gpu_busy_ratio", gpu=gpu)}
        times = {(each.path, each.time) for each in samples}
        if _works(view, gpu) and len(times) >= max(1.0, len(taken) / 2):
            cards.append(gpu)
    if not cards:
        return
    first = held[cards[0]][0]
    named = f"GPU {cards[0]} lowers its" if len(cards) == 1 else f"GPUs {', '.join(cards)} lower their"
    cool = max(view.samples("gpu_temperature_celsius", gpu=cards[0]), key=lambda each: each.value, default=None)
    evidence = [sampled(first, "the driver's reason: HW power brake"), *_clock(view, cards[0])]
    hot = any(each.value == 1 for name in HEAT for each in view.samples("gpu_clocks_event_active", reason=name))
    if cool is not None and not hot:
        evidence.append(sampled(cool, f"Ruled out: heat: {cool.value:.0f} °C, and no reason of heat", "celsius"))
    yield Cause(
        "throttling",
        Explanation(
            f"{named} clock because the power supply, or the chassis, asks for it (HW power brake)"
            + (", while it works." if len(cards) == 1 else ", while they work."),
            0.86,
            tuple(evidence),
            (
                advise(
                    "check power cables, power supplies and their redundancy; the chassis may cap all cards at once: "
                    "see the event log of the server's management (BMC)"
                ),
            ),
        ),
        first.time,
        labels=(("gpu", cards[0]),) if len(cards) == 1 else (),
    )


def _works(view: View, gpu: str) -> bool:
    """Whether a card is busy; where that is not printed, whether it is not idle, or draws much of what it may."""
    busy = view.samples("gpu_busy_ratio", gpu=gpu)
    if busy:
        return any(each.value >= WORKING for each in busy)
    if any(each.value == 0 for each in view.samples("gpu_clocks_event_active", gpu=gpu, reason="idle")):
        return True
    limit = min((each.value for each in view.samples("gpu_power_limit_watts", gpu=gpu)), default=0.0)
    return any(each.value >= WORKING * limit > 0 for each in view.samples("gpu_power_watts", gpu=gpu))


def _clock(view: View, gpu: str) -> list[Evidence]:
    """Return the lowest clock of a card beside the highest that it has, where both are printed."""
    now = min(view.samples("gpu_sm_clock_hertz", gpu=gpu), key=lambda each: each.value, default=None)
    most = next(iter(view.samples("gpu_sm_clock_max_hertz", gpu=gpu)), None)
    if now is None:
        return []
    able = f" of {most.value / 1e6:,.0f}" if most is not None else ""
    return [sampled(now, f"the clock is at {now.value / 1e6:,.0f}{able} MHz", "hertz")]


def power_held(view: View) -> Iterator[Cause]:
    """Judge a busy card that its power limit holds far below its highest clock.

    At its limit with most of its clock a card is healthy. Where no highest clock is printed, how much it costs is not
    known, and only that it is held back is told.
    """
    held = [each for each in view.samples("gpu_clocks_event_active", reason="sw_power_cap") if each.value >= HELD]
    for gpu in dict.fromkeys(each.labels.get("gpu", "") for each in held):
        mine = [each for each in held if each.labels.get("gpu", "") == gpu]
        busy = [each for each in view.samples("gpu_busy_ratio", gpu=gpu) if each.value >= BUSY]
        taken = view.samples("gpu_busy_ratio", gpu=gpu)
        if not busy or len(mine) < max(1.0, len(taken) / 2):
            continue
        found = _held(view, gpu, mine, busy[0])
        if found is not None:
            yield found
            return


def _held(view: View, gpu: str, held: list[Sample], busy: Sample) -> Cause | None:
    clock = min(view.samples("gpu_sm_clock_hertz", gpu=gpu), key=lambda each: each.value, default=None)
    most = next(iter(view.samples("gpu_sm_clock_max_hertz", gpu=gpu)), None)
    limit = next(iter(view.samples("gpu_power_limit_watts", gpu=gpu)), None)
    default = next(iter(view.samples("gpu_power_limit_default_watts", gpu=gpu)), None)
    lowered = limit is not None and default is not None and limit.value < LOWERED * default.value
    if clock is None:
        return None
    if most is not None and clock.value >= (SLOW_LOWERED if lowered else SLOW_DEFAULT) * most.value:
        return None
    share = f" for {held[0].value:.0%} of the time" if held[0].value < 1 else ""
    evidence = [
        sampled(held[0], f"the driver says that the power limit holds the clocks back{share}"),
        *_clock(view, gpu),
        sampled(busy, f"the GPU is busy {busy.value:.0%} of the time", "ratio"),
    ]
    draw = max(view.samples("gpu_power_watts", gpu=gpu), key=lambda each: each.value, default=None)
    if draw is not None:
        allowed = f" of {limit.value:.0f} W allowed" if limit is not None else ""
        evidence.insert(1, sampled(draw, f"it draws {draw.value:.1f} W{allowed}", "watts"))
    if lowered and limit is not None and default is not None:
        cause = (
            f"The power limit of GPU {gpu} was lowered to {limit.value:.0f} W, {default.value:.0f} W is its default, "
            "and it holds the clock far below the highest."
        )
        change = advise(
            "raise the power limit, if cooling and supply allow it",
            "nvidia-smi -pl",
            f"{limit.value:.0f}",
            f"{default.value:.0f}",
        )
    else:
        cause = f"The power limit of GPU {gpu} holds its clock back while it works."
        change = advise(
            "compare limit and clock with what the card can (nvidia-smi -q -d POWER,CLOCK); raise a lowered limit",
            "nvidia-smi -pl",
        )
    return Cause(
        "throttling",
        Explanation(cause, 0.85 if lowered else 0.6, tuple(evidence), (change,)),
        held[0].time,
        severity=None if most is not None else "info",
        labels=(("gpu", gpu),),
    )
