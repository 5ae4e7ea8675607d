"""The GPU itself: Xids, ECC, cards that are lost, drivers that do not answer, power caps, narrow links, odd ranks."""

from __future__ import annotations

import re
import statistics
import time
from pathlib import PurePath
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import moments
from gpuwatch.diagnosis.causes.view import Cause, advise, number, sampled
from gpuwatch.diagnosis.explanation import Explanation, logged, told
from gpuwatch.diagnosis.finding import Evidence, NotEnough

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import View
    from gpuwatch.diagnosis.finding import Advice
    from gpuwatch.model import Fact, LogEvent

BUS = frozenset({79})
_BUS_ID = re.compile(r"\b[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d\b")
_ABSENT = re.compile(r"^absent\.gpuwatch_gpu_\w+\.(?P<gpu>\d+)$")
_SENSOR = re.compile(r"^absent\.gpuwatch_gpu_(\w+?)(?:_(?:watts|celsius|ratio|bytes|total))?\.\d+$")
UNREAD = frozenset({"ERR!", "Unknown Error", "GPU is lost", "GPU requires reset"})
"""What nvidia-smi prints in place of a value that the driver failed to read."""
NAMED_ABOVE = 3
"""The kernel module tells over several lines which GPU fell off the bus."""
UNREAD_LEAST = 3
"""So many values of one card in that state are the card, not a sensor."""
BUSY = "absent.gpuwatch_gpu_busy_ratio."
CAPPED = 0.97
"""A card that draws this share of its limit is held by it."""
LOST_SPEED = 0.9
"""Throughput below this share of the same work's under a higher limit is a loss that is worth a finding."""


def _not_started(failed: list[LogEvent]) -> Cause:
    """Explain a card that the kernel module cannot initialise."""
    cards = sorted({found[0] for event in failed if (found := _BUS_ID.search(event.text)) is not None})
    where = f"the GPU at {', '.join(cards)}" if cards else "a GPU"
    return Cause(
        "gpu_lost",
        Explanation(
            f"The driver cannot start {where}: its initialisation failed, and nothing can use it.",
            0.85,
            tuple(logged(each) for each in failed[:2]),
            (
                advise("what stands above it: dmesg -T | grep -i -E 'nvrm|xid|pcie|iommu'"),
                advise(
                    "power the machine off and on; if it stays: reseat the card, look at its power cables, and use a "
                    "driver that knows this card"
                ),
            ),
        ),
        failed[0].time,
    )


def unread_cards(view: View) -> dict[tuple[str, str], list[Fact]]:
    """Return what nvidia-smi printed in place of values, of cards, by file and index, that the driver fails to read.

    A fan, a thermometer or a power meter alone may fail. Memory is counted by the driver itself: a card that tells no
    more than that, and not even how busy it is, does not answer either.
    """
    errors: dict[tuple[str, str], dict[str, Fact]] = {}
    for fact in view.incident.facts:
        found = _ABSENT.match(fact.key)
        if found is not None and fact.value in UNREAD:
            errors.setdefault((fact.source, found["gpu"]), {}).setdefault(fact.key, fact)
    read = {(each.path, each.labels.get("gpu", "")) for each in view.samples("gpu_memory_used_bytes")}
    return {
        card: list(facts.values())
        for card, facts in errors.items()
        if len(facts) >= UNREAD_LEAST and (card not in read or any(key.startswith(BUSY) for key in facts))
    }


def _unread(view: View) -> Iterator[Cause]:
    """Explain cards of which nvidia-smi reads nothing but errors."""
    dead = unread_cards(view)
    if dead:
        cards = ", ".join(dict.fromkeys(f"GPU {gpu}" for _, gpu in dead))
        read = {(each.path, each.labels.get("gpu", "")) for each in view.samples("gpu_memory_used_bytes")}
        partly = any(card in read for card in dead)
        yield Cause(
            "gpu_lost",
            Explanation(
                f"The driver cannot read {cards} any more: nvidia-smi shows errors in place of "
                + (
                    "its sensors and its load; the memory it shows is the driver's own count."
                    if partly
                    else "all its values."
                ),
                0.75 if partly else 0.85,
                tuple(
                    told(facts[0], f"{len(facts)} values of GPU {gpu} are {facts[0].value}")
                    for (_, gpu), facts in dead.items()
                )[:4],
                (
                    advise("look for its Xid and for power and slot: dmesg -T | grep -i -E 'xid|nvrm|pcie'"),
                    advise("it comes back with a reset, a reboot or a power cycle"),
                ),
            ),
            labels=tuple(("gpu", gpu) for _, gpu in list(dead)[:1] if len(dead) == 1),
            title="The driver cannot read a GPU" if partly else "",
        )


def unread_sensors(view: View) -> Iterator[NotEnough]:
    """Tell of a card of which some sensors, and not the card itself, give errors: a sensor, or a card that goes."""
    dead = unread_cards(view)
    errors: dict[tuple[str, str], list[Fact]] = {}
    for fact in view.incident.facts:
        found = _ABSENT.match(fact.key)
        if found is not None and fact.value in UNREAD and (fact.source, found["gpu"]) not in dead:
            errors.setdefault((fact.source, found["gpu"]), []).append(fact)
    for (source, gpu), facts in errors.items():
        names = sorted({_SENSOR.sub(r"\1", fact.key).replace("_", " ") for fact in facts})
        yield NotEnough(
            "gpu_lost",
            f"whether GPU {gpu} or only its sensors fail: nvidia-smi prints {facts[0].value} for "
            f"{' and '.join(names)} [{PurePath(source).name}:{facts[0].line}]; dmesg -T | grep -i -E 'xid|nvrm|pcie'",
        )
        return


def _container() -> Advice:
    """Return what an unknown error of NVML means in a container, where it is what a lost device looks like."""
    return advise(
        "in a container that had its GPUs before: systemctl daemon-reload on the host takes them away (cgroup v2); "
        "make the container anew, and give it the devices by name (nvidia-ctk cdi, --device), so that they stay"
    )


def lost(view: View) -> Iterator[Cause | NotEnough]:
    """Judge a GPU that is gone, and a driver that does not answer."""
    gone = view.events("gpu_lost")
    bus = [event for event in view.events("xid") if number(event, "code") in BUS]
    if gone or bus:
        ends = moments.ends(view)
        times = moments.logged_times(view)
        every = sorted((*gone, *bus), key=lambda each: moments.far(each, times) != 0)
        event = moments.nearest(every, ends)[0] if ends else every[0]
        named = [
            each
            for each in view.events("gpu_address")
            if each.source == event.source and 0 < event.line - each.line <= NAMED_ABOVE
        ][-1:]
        where = f" at {named[0].field('pci')}" if named else ""
        far = moments.far(event, times)
        yield Cause(
            "gpu_lost",
            Explanation(
                f"A GPU{where} was gone then: the driver could not reach it."
                if far > 0
                else f"A GPU{where} is gone: the driver cannot reach it any more.",
                0.92,
                (
                    *(logged(each) for each in (*named, *gone[:2], *bus[:1])),
                    *moments.elsewhere(event, ends),
                    *moments.another_time(event, far),
                ),
                (
                    advise("look for its Xid and for power and slot: dmesg -T | grep -i -E 'xid|nvrm|pcie'"),
                    advise("it comes back with a reboot or a power cycle"),
                ),
            ),
            event.time,
            severity="warning" if far > 0 else moments.milder(event, ends),
            apart=far != 0 or moments.related(event, ends) is False,
        )
    else:
        yield from _unread(view)
        yield from unread_sensors(view)
    refused = view.events("driver_error")
    failed = [event for event in refused if not event.field("what").startswith("API mismatch")]
    if failed and not (gone or bus):
        yield _not_started(failed)
    mismatched = tuple(event for event in refused if event.field("what").startswith("API mismatch"))
    for event in (*view.events("driver_unreachable"), *mismatched)[:1]:
        mismatch = "mismatch" in event.text
        yield Cause(
            "driver_unresponsive",
            Explanation(
                "The driver was upgraded while it was loaded: the library and the kernel module are of different "
                "versions."
                if mismatch
                else "The driver does not answer on this machine.",
                0.92 if mismatch else 0.8,
                (logged(event),),
                (
                    advise("reload the driver's modules (all users of the GPUs must have ended), or reboot")
                    if mismatch
                    else advise("is the module loaded: lsmod | grep nvidia; what does it say: dmesg | grep -i nvrm"),
                    *([_container()] if "Unknown Error" in event.text else []),
                ),
            ),
            event.time,
        )


def power_cap(view: View) -> Iterator[Cause]:
    """Judge a card that runs into its power limit, where a higher limit is known to have been faster."""
    draws = {(each.path, each.time, each.labels.get("gpu", "")): each for each in view.samples("gpu_power_watts")}
    pairs = [
        (draws[key], limit)
        for limit in view.samples("gpu_power_limit_watts")
        if (key := (limit.path, limit.time, limit.labels.get("gpu", ""))) in draws
    ]
    held = [(draw, limit) for draw, limit in pairs if limit.value > 0 and draw.value >= CAPPED * limit.value]
    if not held or len(held) < len(pairs) / 2:
        return
    low = min(held, key=lambda pair: pair[1].value)
    high = max(held, key=lambda pair: pair[1].value)
    speeds = _speeds(view)
    slow, fast = speeds.get(_day(low[1].time)), speeds.get(_day(high[1].time))
    reasons = [each for each in view.samples("gpu_clocks_event_active", reason="sw_power_cap") if each.value == 1]
    evidence = [
        sampled(low[0], f"it draws {low[0].value:.1f} W of {low[1].value:.0f} W allowed", "watts"),
        *(sampled(each, "the driver says that the power limit holds the clocks back") for each in reasons[:1]),
    ]
    busy = [each for each in view.samples("gpu_busy_ratio") if each.value >= 0.9]
    if busy:
        evidence.append(
            Evidence(
                f"Ruled out: the CPU: the GPU is busy {busy[0].value:.0%} of the time",
                busy[0].path,
                None,
                busy[0].name,
                busy[0].value,
                "ratio",
            )
        )
    if low[1].value == high[1].value or slow is None or fast is None or slow >= LOST_SPEED * fast:
        return
    evidence.append(
        Evidence(
            f"{fast:.1f} tokens/s under {high[1].value:.0f} W and {slow:.1f} under {low[1].value:.0f} W, at the same "
            "load",
            name="generation",
            value=slow / fast,
            unit="ratio",
        )
    )
    yield Cause(
        "throttling",
        Explanation(
            f"The power limit of {low[1].value:.0f} W slows the card down: it costs {1 - slow / fast:.0%} of the "
            f"throughput that {high[1].value:.0f} W give.",
            0.9,
            tuple(evidence),
            (
                advise(
                    "raise the power limit, if cooling and supply allow it",
                    "nvidia-smi -pl",
                    f"{low[1].value:.0f}",
                    f"{high[1].value:.0f}",
                ),
            ),
        ),
        low[1].time,
    )


def _day(millis: int) -> tuple[int, int]:
    """Return month and day: engine logs have no year, and the one that was guessed for them may be another one."""
    moment = time.gmtime(millis / 1000)
    return moment.tm_mon, moment.tm_mday


def _speeds(view: View) -> dict[tuple[int, int], float]:
    """Return the median generation throughput by day, of the statistics lines with requests running."""
    by_day: dict[tuple[int, int], list[float]] = {}
    for event in view.events("stats"):
        running, speed = number(event, "run"), number(event, "gt")
        if running and speed and event.time:
            by_day.setdefault(_day(event.time), []).append(speed)
    return {day: statistics.median(values) for day, values in by_day.items()}


def narrow_link(view: View) -> Iterator[Cause]:
    """Judge a link that is narrower than card and slot allow while the card works."""
    most = {(each.path, each.labels.get("gpu", "")): each for each in view.samples("gpu_pcie_link_width_max")}
    for each in view.samples("gpu_pcie_link_width"):
        able = most.get((each.path, each.labels.get("gpu", "")))
        if able is not None and each.value < able.value:
            yield Cause(
                "pcie_degraded",
                Explanation(
                    f"GPU {each.labels.get('gpu')} runs with {each.value:.0f} of {able.value:.0f} PCIe lanes.",
                    0.9,
                    (sampled(each, f"{each.value:.0f} lanes now"), sampled(able, f"{able.value:.0f} lanes possible")),
                    (advise("reseat the card; check riser, slot and BIOS settings"),),
                ),
                each.time,
            )
            return
