"""GPU lines: the ledger bar with figures, the legend, the table and the details of one GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from gpuwatch.tui.draw.bars import stacked
from gpuwatch.tui.draw.common import columns
from gpuwatch.tui.text import clean, crop, fit, flow, line_width, rule, width_of
from gpuwatch.tui.view.ledger import FREE, KINDS
from gpuwatch.units import GIB, NONE, age, celsius, count, gib, megahertz, percent, size, watts, with_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuwatch.tui.text import Line, Span
    from gpuwatch.tui.view.gpus import Gpu

    _Column: TypeAlias = tuple[str, int, str, Callable[[Gpu], str]]

_STALE = "stale"


def bar(gpu: Gpu, width: int) -> Line:
    """Return the ledger bar of a GPU in `width` cells; grey where its figures are old."""
    total = gpu.get("gpu_memory_total")
    if total is None or gpu.get("gpu_memory_used") is None:
        return (("▕", "rule"), (" " * (width - 2), ""), ("▏", "rule"))
    parts = [
        (KINDS[part.kind].glyph, _STALE if gpu.stale is not None else KINDS[part.kind].tone, part.bytes)
        for part in gpu.parts
    ]
    return stacked(parts, total, gpu.get("gpu_memory_peak"), width)


def _used(gpu: Gpu, *, narrow: bool) -> str:
    """Return ``74.1 / 79.6 GiB`` in a fixed width, or why there is no figure."""
    used, total = gpu.get("gpu_memory_used"), gpu.get("gpu_memory_total")
    if used is None and total is None:
        why = gpu.reasons.get("gpu_memory_used", "")
        return f"memory n/a ({why})" if why else "memory n/a"
    middle = "/" if narrow else " / "
    text = f"{gib(used).rjust(5)}{middle}{gib(total)} GiB"
    return text.ljust(14 if narrow else 16)


def _fields(gpu: Gpu, width: int) -> list[tuple[str, str]]:
    """Return the (text, tone) figures to the right of the bar that a line of `width` cells has room for."""
    peak, busy = gib(gpu.get("gpu_memory_peak")), percent(gpu.get("gpu_busy"))
    if width < 105:
        fields = [(f"pk {peak:>5}", "dim"), (f"{busy:>5}", ""), (f"{watts(gpu.get('gpu_power')):>5}", "")]
        return fields if width >= 78 else fields[1:2]
    fields = [
        (f"peak {peak:>5}", "dim"),
        (f"busy {busy:>5}", ""),
        (f"{megahertz(gpu.get('gpu_sm_clock')):>9}", ""),
        (f"{watts(gpu.get('gpu_power')):>5}", ""),
    ]
    if width >= 130:
        fields.append((f"{celsius(gpu.get('gpu_temperature')):>5}", ""))
    if width >= 165:
        fields.insert(2, (f"bandwidth {percent(gpu.get('gpu_bandwidth_busy')):>5}", ""))
        fields[-2] = (f"{watts(gpu.get('gpu_power')):>5} of {watts(gpu.get('gpu_power_limit')):>5}", "")
    return fields


def _notes(gpu: Gpu) -> list[tuple[str, str]]:
    """Return what deserves a word at the end of a GPU's line."""
    notes = [(f"▲ {clean(reason)} {percent(share)}", "warn") for reason, share in gpu.throttle[:1]]
    notes += [(f"● Xid {clean(code)}", "crit") for code, _ in gpu.xid[:1]]
    return notes


def gpu_line(gpu: Gpu, width: int, name_width: int, *, hosts: bool = False) -> Line:
    """Return the one line of a GPU: index, name, ledger bar, used of total, peak, busy, clock, power."""
    stale = gpu.stale is not None
    spans: list[Span] = [(f" {gpu.index:>2} ", "bright" if not gpu.problem else "crit")]
    if hosts:
        spans.append((fit(gpu.host, 12) + " ", "dim"))
    longer = max(width_of(gpu.index) - 2, 0)  # a MIG device such as 5:0
    spans += [(fit(gpu.name, name_width - longer), _STALE if stale else ""), (" ", "")]
    narrow = width < 105
    room = width - line_width(tuple(spans))
    if gpu.problem:
        old = f", figures {age(gpu.stale)} old" if stale else ""
        text = f"✗ {gpu.problem}{old}"
        used = _used(gpu, narrow=narrow) + "  " if stale else ""
        if room < width_of(text) + len(used) + 13:
            used = ""
        bar_width = min(room // 3, room - width_of(text) - len(used) - 1)
        if bar_width < 6:
            return crop((*spans, (text, "crit")), width)
        return crop((*spans, *bar(gpu, bar_width), (" ", ""), (used, _STALE), (text, "crit")), width)
    notes = _notes(gpu)
    tail: list[Span] = [(" " + _used(gpu, narrow=narrow), _STALE if stale else "")]
    fields = _fields(gpu, width)
    for text, tone in (*(fields[1:2] if narrow and notes and len(fields) > 1 else fields), *notes):
        tail += [("  " if not narrow else " ", ""), (text, _STALE if stale else tone)]
    bar_width = max(room - line_width(tuple(tail)), 10)
    return crop((*spans, *bar(gpu, bar_width), *tail), width)


def name_width(gpus: Sequence[Gpu], width: int) -> int:
    """Return the width of the name column."""
    return min(max((width_of(gpu.name) for gpu in gpus), default=4), 9 if width < 105 else 16 if width < 165 else 24)


def legend(gpus: Sequence[Gpu], selected: Gpu | None, width: int) -> Line:
    """Return the key of the bar: the kinds that occur on any GPU, with the amounts of the selected one in GiB."""
    here = {part.kind: part.bytes for part in selected.parts} if selected is not None else {}
    kinds = [kind for kind in KINDS if any(part.kind == kind for gpu in gpus for part in gpu.parts)]
    if not kinds or selected is None:
        return ()
    amounts = [(kind, _amount(here[kind]) if kind in here else NONE) for kind in kinds]
    amounts.append(("free", _amount(selected.get("gpu_memory_free"))))
    for names, gap in ((_LONG, 3), (_LONG, 2), (_SHORT, 2), (_SHORT, 1), (_TINY, 1)):
        parts = []
        for kind, amount in amounts:
            look = KINDS.get(kind, FREE)
            name = f"{names.get(kind, look.label)} ".lstrip()
            parts.append(((f"{look.glyph} ", look.tone), (name, "dim"), (amount, "")))
        line = flow(parts, 10_000, gap, 0)[0]
        if line_width(line) + 9 <= width:
            break
    return crop(((f"{selected.title:>7}  ", "dim"), *line), width)


def _amount(value: float | None) -> str:
    """Return bytes in GiB without the unit; what would read 0.0 is said in its own unit: ``10 MiB``."""
    return size(value) if value and abs(value) < GIB / 20 else gib(value)


_LONG: dict[str, str] = {}
_SHORT = {"work": "act+graphs", "rest": "context", "other": "others", "unexplained": ""}
_TINY = {**_SHORT, "kv_used": "KV", "kv_free": "", "work": "act", "rest": "ctx", "reserved": "", "free": ""}
"""Names of the kinds of memory where there is little room; the glyphs carry the rest."""


def table(gpus: Sequence[Gpu], width: int, *, hosts: bool = False) -> tuple[Line, list[tuple[Gpu, Line]]]:
    """Return the header and one line per GPU of the table of all figures that `width` has room for."""
    wide: list[_Column] = [
        ("gpu", 3, ">", lambda g: g.index),
        *([("host", 12, "<", lambda g: g.host)] if hosts else []),
        ("name", name_width(gpus, width), "<", lambda g: g.name),
        ("used GiB", 8, ">", lambda g: gib(g.get("gpu_memory_used"))),
        ("total", 6, ">", lambda g: gib(g.get("gpu_memory_total"))),
        ("peak", 6, ">", lambda g: gib(g.get("gpu_memory_peak"))),
        ("busy", 5, ">", lambda g: percent(g.get("gpu_busy"))),
        ("power", 7, ">", lambda g: watts(g.get("gpu_power"))),
        ("temp", 5, ">", lambda g: celsius(g.get("gpu_temperature"))),
        ("SM clock", 9, ">", lambda g: megahertz(g.get("gpu_sm_clock"))),
        ("free", 6, ">", lambda g: gib(g.get("gpu_memory_free"))),
        ("bandwidth", 9, ">", lambda g: percent(g.get("gpu_bandwidth_busy"))),
        ("limit", 7, ">", lambda g: watts(g.get("gpu_power_limit"))),
        ("PCIe", 7, ">", _lanes),
        ("PCIe in", 11, ">", lambda g: with_unit(g.get("gpu_pcie_receive"), "bytes/s")),
        ("PCIe out", 11, ">", lambda g: with_unit(g.get("gpu_pcie_transmit"), "bytes/s")),
        ("throttled", 16, "<", lambda g: "  ".join(f"{clean(r)} {percent(s)}" for r, s in g.throttle) or "-"),
        ("engine", 22, "<", lambda g: " ".join(clean(server) for _, server, _ in g.engines) or "none"),
    ]
    shown, left = [], width - 1
    for column in wide:
        if left < column[1]:
            break
        shown.append(column)
        left -= column[1] + 2
    header = columns([(name, size_, align, "label") for name, size_, align, _ in shown])
    lines = []
    for gpu in gpus:
        tone = _STALE if gpu.stale is not None else ""
        line = columns([(get(gpu), size_, align, tone) for _, size_, align, get in shown])
        if gpu.problem:
            head = columns([(get(gpu), size_, align, "crit") for _, size_, align, get in shown[: 3 if hosts else 2]])
            old = f", figures {age(gpu.stale)} old" if gpu.stale is not None else ""
            line = crop((*head, (f"  ✗ {gpu.problem}{old}", "crit")), width)
        lines.append((gpu, line))
    return header, lines


def _lanes(gpu: Gpu) -> str:
    """Return the PCIe lanes as ``16/16``."""
    now, most = gpu.get("gpu_pcie_width"), gpu.get("gpu_pcie_width_max")
    return "n/a" if now is None else count(now) if most is None else f"{count(now)}/{count(most)}"


def section(width: int, problem: str, few: str = "") -> Line:
    """Return the rule above the GPUs; `few` says how many of them are in sight."""
    title: list[Span] = [("GPUs", "title"), *([(f" {few}", "warn")] if few else [])]
    right: tuple[Span, ...] = ((f"✗ {problem}", "crit"),) if problem else ()
    return rule(title, width, right)
