"""The table of a fleet: one line per machine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwatch.tui.draw.bars import meter
from gpuwatch.tui.text import clean, crop, fit, line_width, width_of
from gpuwatch.tui.view.findings import GLYPHS, TONES
from gpuwatch.units import age, count, gib, number, percent, watts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuwatch.tui.text import Line, Span
    from gpuwatch.tui.view.fleet import Machine

GAP = 2
_KV_HIGH = 0.9
"""From here a pool's figure is coloured: it says where to look, the rules say whether it is wrong."""


def _memory(machine: Machine) -> str:
    used, total = machine.get("host_gpu_memory_used"), machine.get("host_gpu_memory_total")
    if used is None or total is None:
        return "n/a"
    return f"{gib(used).rpartition('.')[0]}/{gib(total).rpartition('.')[0]}"


def _busy(machine: Machine) -> str:
    low, high = machine.get("host_idlest_gpu"), machine.get("host_busiest_gpu")
    if low is None or high is None:
        return "n/a"
    least, most = percent(low), percent(high)
    return most if least == most else f"{least.removesuffix(' %')}-{most}"


def _figure(machine: Machine, query: str, text: Callable[[float | None], str]) -> str:
    """Return a figure; a dash where the machine has none, n/a where it could not be asked."""
    value = machine.get(query)
    return "-" if value is None and query not in machine.failed else text(value)


def _with_bad(whole: str, machine: Machine, query: str) -> str:
    """Return a number with how many of it are in trouble: ``8 -1``; ``8 ?`` where that could not be asked."""
    bad = machine.get(query)
    if whole in ("-", "n/a"):
        return whole
    return f"{whole} ?" if query in machine.failed else f"{whole} -{count(bad)}" if bad else whole


def _gpus(machine: Machine) -> str:
    return _with_bad(count(machine.get("host_gpus")), machine, "host_gpus_not_ok")


def _requests(machine: Machine) -> str:
    running, waiting = (_figure(machine, query, count) for query in ("host_running", "host_waiting"))
    return running if running == waiting and running in ("-", "n/a") else f"{running}/{waiting}"


def _engines(machine: Machine) -> str:
    return _with_bad(_figure(machine, "host_engines", count), machine, "host_engines_silent")


_COLUMNS: tuple[tuple[str, int, int, Callable[[Machine], str]], ...] = (
    ("GPUs", 5, 0, _gpus),
    ("memory GiB", 11, 0, _memory),
    ("busy", 7, 0, _busy),
    ("KV max", 6, 0, lambda m: _figure(m, "host_kv_highest", percent)),
    ("run/wait", 8, 0, _requests),
    ("engines", 7, 96, _engines),
    ("tok/s", 8, 110, lambda m: _figure(m, "host_generation_rate", number)),
    ("power", 8, 124, lambda m: watts(m.get("host_gpu_power"))),
)
"""(name, width, least width of the screen, text) of each column."""


def _name_width(found: Sequence[Machine], width: int) -> int:
    longest = max((width_of(machine.name) for machine in found), default=4)
    return min(max(longest, 4), max(12, width // 6))


def _bar_width(width: int) -> int:
    return 0 if width < 100 else 10 if width < 140 else 18


def header(found: Sequence[Machine], width: int) -> Line:
    """Return the names of the columns."""
    spans: list[Span] = [("   ", ""), (fit("host", _name_width(found, width)), "label")]
    for name, size, least, _ in _COLUMNS:
        if width < least:
            continue
        if name == "memory GiB" and _bar_width(width):
            spans += [(" " * GAP, ""), (fit("GPU memory", _bar_width(width)), "label")]
            name = "GiB"  # noqa: PLW2901  # the bar has taken the longer name
        spans += [(" " * GAP, ""), (fit(name, size, ">"), "label")]
    return crop((*spans, (" " * GAP, ""), ("worst finding", "label")), width)


def machine_line(machine: Machine, found: Sequence[Machine], width: int) -> Line:
    """Return the line of one machine."""
    lost = machine.lost is not None
    glyph, tone = ("✗", "crit") if lost else (GLYPHS.get(machine.severity, " "), TONES.get(machine.severity, "dim"))
    spans: list[Span] = [(f" {glyph} ", tone), (fit(machine.name, _name_width(found, width)), "stale" if lost else "")]
    if lost:
        text = f"not scraped for {age(machine.lost)}"
        return crop((*spans, (" " * GAP, ""), (text, "crit"), *_findings(machine, width)), width)
    for name, size, least, text_of in _COLUMNS:
        if width < least:
            continue
        if name == "memory GiB" and _bar_width(width):
            spans += [(" " * GAP, ""), *meter(_share(machine), _bar_width(width), "bar.kv_used")]
        text = text_of(machine)
        spans += [(" " * GAP, ""), (fit(text, size, ">"), _tone(name, machine, text))]
    return crop((*spans, *_findings(machine, width - line_width(tuple(spans)))), width)


def _share(machine: Machine) -> float | None:
    used, total = machine.get("host_gpu_memory_used"), machine.get("host_gpu_memory_total")
    return used / total if used is not None and total else None


def _tone(column: str, machine: Machine, text: str) -> str:
    if text in ("n/a", "-"):
        return "dim"
    kv = machine.get("host_kv_highest")
    if column == "KV max" and kv is not None and kv >= _KV_HIGH:
        return "warn"
    return "warn" if (" -" in text or " ?" in text) and column in ("GPUs", "engines") else ""


def _findings(machine: Machine, room: int) -> Line:
    """Return the worst finding and how many there are beside it, after the word that the row is of several machines."""
    if machine.programs > 1:
        said: Span = (f"{machine.programs} of this name", "warn")
        rest = _findings(replace(machine, programs=1), room - GAP - width_of(said[0]))
        return ((" " * GAP, ""), said, *rest)
    if not machine.findings:
        return ()
    worst = next((row for row in machine.findings if not row.finding.caused_by), machine.findings[0])
    more = f" +{len(machine.findings) - 1}" if len(machine.findings) > 1 else ""
    tone = TONES.get(machine.severity, "dim")
    name = clean(worst.finding.id)
    return ((" " * GAP, ""), (fit(name, min(width_of(name), max(room - GAP - len(more), 8))), tone), (more, "dim"))
