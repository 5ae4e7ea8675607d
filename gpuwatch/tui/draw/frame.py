"""The frame of the screen: header, footer, and what stands there when there is nothing to watch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.tui.draw.common import labelled
from gpuwatch.tui.text import clean, crop, cut, fit, line_width, width_of
from gpuwatch.tui.view.gpus import no_gpu
from gpuwatch.tui.view.status import banner, link_trouble, plural, recording_text, sources_text, state_text
from gpuwatch.units import clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.snapshot import Snapshot
    from gpuwatch.tui.text import Line, Span
    from gpuwatch.tui.view.model import Model

VIEWS = ("overview", "gpus", "engine", "findings", "logs", "ledger", "rules")


@dataclass(frozen=True, slots=True)
class KeyHint:
    """One entry of the footer: the key as it is written, what it does, and the action it stands for."""

    key: str
    label: str
    action: str
    active: bool = False


def header(model: Model, width: int) -> list[Line]:
    """Return the header: program, host, state, what is watched, recording, time; and the banner of a demo."""
    snapshot = model.snapshot
    glyph, words, tone = state_text(snapshot, model.pulse)
    if snapshot is None:
        return [crop(((" gpuwatch", "title"), (f"   {glyph} {words}", tone)), width)]
    time = f"{clock(snapshot.time)} "
    record, record_tone = recording_text(snapshot)
    watched = _watched(model, snapshot)
    host = " ".join(filter(None, snapshot.focus)) if snapshot.focus is not None else snapshot.host
    for host_width, gap, brief in ((30, 5, 0), (16, 3, 0), (10, 2, 0), (8, 2, 1), (8, 2, 2)):
        left: list[Span] = [(" gpuwatch ", "title"), (f" {cut(clean(host), host_width)}", "bright")]
        left += [(" " * gap + glyph + " ", tone), (words, tone), (" " * gap, "")]
        kept = [part for part in watched if part[1] != "ok"] if brief else watched
        for i, (text, colour) in enumerate(kept[: 2 if brief > 1 else None]):
            left += [(" · " if i else "", "dim"), (text, colour)]
        if record:
            left += [
                (" " * gap, ""),
                (record.split(" ●")[0] + " ●" if brief and "●" in record else record, record_tone),
            ]
        if line_width(tuple(left)) + len(time) + 1 <= width:
            break
    line = crop(left, width - len(time) - 1)
    top = (*line, (" " * (width - line_width(line) - len(time)), ""), (time, "bright"))
    text = banner(snapshot)
    return [top, ((fit(f" {text}", width), "banner"),)] if text else [top]


def _watched(model: Model, snapshot: Snapshot) -> list[tuple[str, str]]:
    """Return (words, tone) of what is watched: GPUs, engines and sources of one machine, or the machines of a fleet."""
    if snapshot.mode == "prometheus" and snapshot.focus is None:
        return [(plural(len(model.machines), "host") if model.machines else "no host", "")]
    return [
        (plural(len({gpu.card for gpu in model.gpus}), "GPU") if model.gpus else "no GPU", ""),
        (plural(len(model.engines), "engine") if model.engines else "no engine", ""),
        *sources_text(snapshot),
    ]


def footer(hints: Sequence[KeyHint], notice: tuple[str, str], width: int) -> tuple[Line, list[tuple[int, int, str]]]:
    """Return the footer and where its entries are, as (first cell, cell after the last, action).

    Where not all fit, the first ones go before the others, but the very last one, the way out, is always there.
    """
    if notice[0]:
        return crop(((f" {notice[0]}", notice[1]),), width), []
    spans: list[Span] = []
    places: list[tuple[int, int, str]] = []
    gap = 2 if sum(2 + width_of(f"{hint.key} {hint.label}") for hint in hints) <= width else 1
    at = 0
    kept = gap + width_of(f"{hints[-1].key} {hints[-1].label}") if hints else 0
    for place, hint in enumerate(hints):
        text = f" {hint.label}" if hint.label else ""
        need = gap + width_of(hint.key + text)
        if at + need > width - (kept if place < len(hints) - 1 else 0):
            continue
        spans += [(" " * gap, ""), (hint.key, "title.focus" if hint.active else "key")]
        spans.append((text, "title" if hint.active else "dim"))
        places.append((at, at + need, hint.action))
        at += need
    return tuple(spans), places


def empty_machine(snapshot: Snapshot, width: int, *, demo: bool) -> list[Line]:
    """Return what was looked for on a machine without GPUs and engines, and why it was not found."""
    where = f"by {clean(snapshot.host)}" if snapshot.mode == "attached" else "on this machine"
    lines: list[Line] = [(), ((" ◌ ", "info"), (f"no GPU and no engine found {where}", "bright")), ()]
    if snapshot.mode == "attached" and link_trouble(snapshot):
        lines[1] = ((" ✗ ", "crit"), ("nothing is known yet: the daemon does not answer", "bright"))
    if not any("GPU" in what for what, _ in snapshot.looked_for):
        lines += labelled("GPUs", no_gpu(snapshot), width, "", 28)
    for what, why in snapshot.looked_for:
        lines += labelled(clean(what), clean(why), width, "", 28)
    lines.append(())
    if demo:
        lines += [(("   press ", ""), ("d", "key"), (" to see a recorded run with simulated GPUs", "")), ()]
    for command, what in _HELPFUL:
        lines += labelled(f"  {command}", what, width, "dim", 41)
    lines += [(), crop((("   this page changes by itself as soon as a GPU or an engine appears", "dim"),), width)]
    return lines


_HELPFUL = (
    ("gpuwatch doctor", "what can be seen here, and how to fix the rest"),
    ("gpuwatch tui --engine http://HOST:PORT", "an engine that was not found"),
)


def nothing_recorded(snapshot: Snapshot, width: int) -> list[Line]:
    """Return what is shown of a recording without a single tick."""
    assert snapshot.recording is not None
    lines: list[Line] = [(), crop(((" ✗ ", "crit"), ("this recording has nothing to show", "bright")), width), ()]
    lines += labelled("file", clean(snapshot.recording.path), width)
    return lines + labelled("why", clean(snapshot.recording.error), width)


def asking(width: int) -> list[Line]:
    """Return what is shown of a machine of a fleet before its figures have come."""
    return [(), crop(((" ◌ ", "info"), ("asking Prometheus about this machine…", "bright")), width)]


def starting(width: int) -> list[Line]:
    """Return what is shown before the first snapshot."""
    return [(), crop(((" ◌ ", "info"), ("looking for GPUs and engines…", "bright")), width)]
