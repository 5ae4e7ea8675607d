"""Xids of the kernel log by their class: the card, its repairs, or a program; and memory of a card that fails."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import ecc, faults, moments, switches
from gpuwatch.diagnosis.causes.hardware import BUS
from gpuwatch.diagnosis.causes.owners import foreign_program, unnamed_program
from gpuwatch.diagnosis.causes.view import Cause, advise, number, ruled_out
from gpuwatch.diagnosis.explanation import Explanation, logged
from gpuwatch.diagnosis.finding import Evidence
from gpuwatch.diagnosis.xid_table import (
    FIRMWARE_STEPS,
    MEMORY,
    RECOVERY,
    TABLE,
    is_hardware,
    is_repair,
    repair_of,
    xid_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuwatch.diagnosis.causes.view import View
    from gpuwatch.model import LogEvent

_NONFATAL = re.compile(r"\bnon[-_ ]?fatal\b", re.IGNORECASE)
"""What the driver prints in the details of errors of NVLink that it went on after."""


def xids(view: View) -> Iterator[Cause]:
    """Judge Xids by their class, and by whether one card or several report them."""
    told = (event for event in view.events("xid") if xid_of(event.field("code")) is not None)
    known = [event for event in told if not _answered(view, event)]
    hard = [event for event in known if is_hardware(event.field("code"))]
    soft = [event for event in known if not is_hardware(event.field("code"))]
    survived = [event for event in hard if _NONFATAL.search(event.text)]
    hard = [event for event in hard if event not in survived]
    broken, switch = switches.fatal(view), view.events("nvswitch_error")
    after = [
        event
        for event in known
        if event.field("code") in switches.FOLLOWS
        and any(moments.together(each, event) is not False for each in switch)
    ]
    if broken and all(event in after for event in hard):
        yield switches.failed(view, broken, after)
        hard, soft = [], [event for event in soft if event not in after]
    elif hard:
        yield _hardware(view, hard)
    elif survived:
        yield _survived(view, survived)
    elif switch:
        yield switches.survived(view, switch, after)
        soft = [event for event in soft if event not in after]
    elif view.events("ecc_error") or ecc.failing_rows(view):
        yield ecc.failing(view)
    if soft and not hard:
        yield _software(view, soft)


def _answered(view: View, event: LogEvent) -> bool:
    """Whether a request of the driver for a recovery was taken back later: the card was reset since."""
    return event.field("code") == RECOVERY and any(
        done.field("pci") == event.field("pci")
        and (done.line > event.line if done.source == event.source else (moments.lag(event, done) or 0) > 0)
        for done in view.events("recovery_done")
    )


def _survived(view: View, events: list[LogEvent]) -> Cause:
    """Explain errors of a link that the driver itself calls not fatal: the hardware sent again, and went on."""
    codes = sorted({int(number(event, "code") or 0) for event in events})
    cards = sorted({event.field("pci") for event in events})
    where = cards[0] if len(cards) == 1 else f"{len(cards)} cards"
    told = "; ".join(f"Xid {code}: {TABLE[code].meaning}" for code in codes[:4])
    main = _main(events, moments.ends(view))
    return Cause(
        "xid_hardware",
        Explanation(
            f"{where} reported errors that it survived (Nonfatal): {told}. The driver goes on with it; many of them, "
            "or a fatal one, mean a link that fails.",
            0.7,
            (
                *(logged(event) for event in _first_of_each(events)[:3]),
                ruled_out("a fault that ends work on the card: the driver calls none of them fatal", main, len(events)),
            ),
            (
                advise("do the counters rise: nvidia-smi nvlink -e before and after an hour of load"),
                advise("where they do: reseat bridges, check the fabric manager, and reset the node's GPUs"),
            ),
        ),
        main.time,
        severity="warning",
        apart=True,
        title="The hardware of a GPU reported errors that it survived",
    )


def _set_off(view: View, hard: list[LogEvent]) -> LogEvent | None:
    """Return the fault of a program that came shortly before the card's own processors stopped, on the same card."""
    if any(TABLE[int(event.field("code"))].advice != FIRMWARE_STEPS for event in hard):
        return None
    first = hard[0]
    for event in reversed(view.events("xid")):
        known = xid_of(event.field("code"))
        if known is None or known.kind != "program" or event.field("pci") != first.field("pci"):
            continue
        gap = moments.lag(event, first)
        if 0 <= gap <= moments.CLOSE if gap is not None else (event.source == first.source and event.line < first.line):
            return event
    return None


def _hardware(view: View, hard: list[LogEvent]) -> Cause:
    codes = sorted({int(number(event, "code") or 0) for event in hard})
    cards = sorted({event.field("pci") for event in hard})
    told = "; ".join(f"Xid {code}: {TABLE[code].meaning}" for code in codes[:4])
    where = cards[0] if len(cards) == 1 else f"{len(cards)} cards"
    advice = []
    if BUS & set(codes):
        advice += [
            advise(
                "check power, slot, riser and cables of this card; limit its clocks to test whether it is the load",
                "nvidia-smi -lgc",
                None,
                "210,1200",
            ),
            advise("the card comes back with a reboot or a power cycle only"),
        ]
    if any(TABLE[code].advice == MEMORY for code in codes):
        advice += [
            advise(
                "drain the node and reset the GPU, so that pending rows are remapped: nvidia-smi -q shows Remapped Rows"
            ),
            advise("if it comes back, replace the card; do not tune the engine for it"),
        ]
    if not advice:
        advice += [advise(text) for text in dict.fromkeys(text for code in codes for text in TABLE[code].advice)]
    evidence = [logged(event) for event in _first_of_each(hard)[:4]]
    if len(cards) == 1 and len(hard) > 1:
        evidence.append(ruled_out(f"the software: all {len(hard)} come from one card, {cards[0]}", hard[-1], len(hard)))
    evidence += ecc.failing_rows(view)
    ends = moments.ends(view)
    times = moments.logged_times(view)
    main = _main(sorted(hard, key=lambda event: moments.far(event, times) != 0), ends)
    far = moments.far(main, times)
    before = _set_off(view, hard)
    if before is not None:
        code = before.field("code")
        evidence.insert(0, logged(before))
        told += f". Xid {code} came before: the fault of a program, which may have set it off"
    foreign = foreign_program(main)
    engine = view.events("nccl_timeout", "rpc_timeout", "cuda_error", "engine_dead")
    evidence += [logged(event) for event in engine if not foreign and moments.related(main, (event,)) is not False][:1]
    evidence += [*moments.doubt(main, ends), *moments.elsewhere(main, ends), *_whose(main, ends)]
    evidence += moments.another_time(main, far)
    apart = foreign or far != 0 or moments.related(main, ends) is False
    return Cause(
        "xid_hardware",
        Explanation(
            f"The {'card' if before else 'hardware of'} {where} {'stopped' if before else _fails(far)}. {told}.",
            0.95 if before is None else 0.7,
            tuple(evidence),
            tuple(advice),
        ),
        main.time,
        severity="warning" if (foreign and ends) or far > 0 else moments.milder(main, ends),
        apart=apart,
        title="A GPU stopped" if before is not None else "",
    )


def _fails(far: int) -> str:
    return f"failed {moments.lasting(far)} before the engine's log" if far > 0 else "fails"


def _main(events: list[LogEvent], ends: Sequence[LogEvent]) -> LogEvent:
    """Return the Xid that a finding is about: one that can be the engine's, near to an end."""
    ordered = moments.nearest(events, ends) if ends else events
    return min(ordered, key=foreign_program)


def _whose(main: LogEvent, ends: Sequence[LogEvent]) -> list[Evidence]:
    """Return what has to be said of the program that an Xid ended, where an engine ended as well."""
    if not ends or moments.related(main, ends) is False:
        return []
    if foreign_program(main):
        name, pid = main.field("name"), main.field("pid")
        return [ruled_out(f"this as the cause of the engine's end: the driver names {name} (pid {pid})", main)]
    if unnamed_program(main):
        text = "Not ruled out: that it was another program's: the driver does not name the one that it ended"
        return [Evidence(text, main.source, main.line, main.event)]
    return []


def _first_of_each(events: list[LogEvent]) -> list[LogEvent]:
    first: dict[str, LogEvent] = {}
    for event in events:
        first.setdefault(event.field("code"), event)
    return list(first.values())


def _software(view: View, soft: list[LogEvent]) -> Cause:
    """Explain Xids that are no fault of the card: those of programs, and repairs after which it goes on working."""
    ends = moments.ends(view)
    repairs = [event for event in soft if is_repair(event.field("code"))]
    programs = [event for event in soft if not is_repair(event.field("code"))]
    main = _main(programs or repairs, ends)
    found = _failed(programs, repairs) if programs else _repaired(repairs)
    apart = foreign_program(main) or moments.related(main, ends) is False
    told, ended = ((), ()) if apart or not programs else _brought_about(view, main)
    evidence = (
        *found.evidence[:1],
        *(logged(each) for each in (*told[:1], *ended[:1])),
        *found.evidence[1:],
        *moments.doubt(main, ends),
        *moments.elsewhere(main, ends),
        *_whose(main, ends),
    )
    return Cause(
        "xid_software",
        replace(found, evidence=evidence),
        main.time,
        severity="critical" if told and ended else None,
        apart=apart,
    )


def _brought_about(view: View, main: LogEvent) -> tuple[tuple[LogEvent, ...], tuple[LogEvent, ...]]:
    """Return the faults that CUDA reported to the engine at the time of an Xid, and the ends that they brought."""
    told = tuple(each for each in faults.faults(view) if moments.together(main, each))
    return told, tuple(end for each in told[:1] for end in faults.deaths(view, each))


def _told(events: list[LogEvent]) -> str:
    codes = sorted({int(number(event, "code") or 0) for event in events})
    return "; ".join(f"Xid {code}: {TABLE[code].meaning}" for code in codes[:3])


def _repaired(repairs: list[LogEvent]) -> Explanation:
    """Explain memory that a card took out of use by itself."""
    cards = sorted({event.field("pci") for event in repairs})
    where = f"The card at {cards[0]}" if len(cards) == 1 else f"{len(cards)} cards"
    advice = dict.fromkeys(text for event in repairs for text in TABLE[int(number(event, "code") or 0)].advice)
    codes = sorted({int(number(event, "code") or 0) for event in repairs})
    return Explanation(
        f"{repair_of(where, codes, several=len(cards) > 1)} An ECC error that came with it has an Xid of its own "
        "(48, 94, 95).",
        0.85,
        (
            *(logged(event) for event in repairs[:2]),
            ruled_out("a program or the driver: an Xid of that number is about the card itself", repairs[0]),
        ),
        tuple(advise(text) for text in advice),
    )


def _failed(programs: list[LogEvent], repairs: list[LogEvent]) -> Explanation:
    """Explain a program on the GPU that failed, beside repairs that may have come as well."""
    cards = {event.field("pci") for event in programs}
    several = len(cards) > 1
    evidence = [logged(event) for event in programs[:2]]
    advice = [
        advise("update the driver and the engine; CUDA_LAUNCH_BLOCKING=1 names the kernel"),
        advise("suspect the card only if the same one repeats it across versions"),
    ]
    if repairs:
        evidence += [logged(repairs[0])]
        repair = _repaired(repairs)
        return Explanation(
            f"A program on the GPU failed: {_told(programs)}. {repair.cause} Whether the program met that memory is "
            "not said.",
            0.6,
            tuple(evidence),
            (*repair.advice, *advice),
        )
    evidence.append(
        ruled_out(
            "failing memory: no Xid of that kind (48, 63, 64, 94, 95) is among them"
            + (f", and {len(cards)} cards report it" if several else ""),
            programs[0],
            len(cards),
        )
    )
    return Explanation(
        f"A program on the GPU failed: {_told(programs)}. That is a program or the driver, not the card's memory.",
        0.85 if several else 0.75,
        tuple(evidence),
        tuple(advice),
    )
