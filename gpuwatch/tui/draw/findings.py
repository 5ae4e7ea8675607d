"""Finding lines: the list of the overview, the list and the details of the findings view, the time line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.tui.draw.common import keyed, labelled, paragraph, unkeyed
from gpuwatch.tui.text import clean, crop, fit, line_width, rule, width_of, wrap
from gpuwatch.tui.view.findings import GLYPHS, TONES, advice_text, episode_text, evidence_text, place_of
from gpuwatch.tui.view.fleet import conclusion_on_page
from gpuwatch.tui.view.status import plural, problems_text
from gpuwatch.units import clock, clock_short, percent, with_unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.diagnosis.finding import NotEnough
    from gpuwatch.snapshot import Snapshot
    from gpuwatch.tui.history import Mark
    from gpuwatch.tui.text import Line, Row, Span
    from gpuwatch.tui.view.findings import Row as FindingRow
    from gpuwatch.tui.view.model import Model

TIME_LINE_SECONDS = 900
"""Span of the time line: what the store keeps by default."""

EPISODES_SHOWN = 8
"""Most lines about the times before that a finding fired."""

_ID_WIDTH = 21


def _notes(row: FindingRow) -> Line:
    """Return what the person or the time has done to a finding."""
    notes: list[Span] = []
    if row.finding.state == "resolved":
        until = f" {clock(row.finding.until)}" if row.finding.until else ""
        notes.append((f" over{until}", "dim"))
    if row.finding.state == "pending":
        notes.append((" pending", "dim"))
    if row.earlier:
        notes.append((f" {len(row.earlier) + 1} times", "dim"))
    if row.acknowledged:
        notes.append((" ✓ acknowledged", "dim"))
    if row.silenced:
        notes.append((" silenced", "dim"))
    return tuple(notes)


def head_line(row: FindingRow, width: int) -> Line:
    """Return the first line of a finding: mark, time, id, place, title; a symptom is indented under its cause."""
    finding = row.finding
    quiet = row.tone == "dim"
    when = clock(finding.since) if finding.since else "        "
    if row.depth:
        spans: list[Span] = [(f"   {when}  ↳ {row.glyph} ", "dim" if quiet else TONES[finding.severity])]
    else:
        spans = [(f" {row.glyph} ", row.tone), (f"{when}  ", "dim")]
    spans.append((f"{clean(finding.id)} ".ljust(0 if row.depth else _ID_WIDTH), "dim" if quiet else "bright"))
    spans.append((f" {row.where} " if row.where else " ", "info" if not quiet else "dim"))
    notes = _notes(row)
    room = width - line_width(tuple(spans)) - line_width(notes)
    title = clean(finding.title)
    spans.append((title if width_of(title) <= room else fit(title, max(room, 8)), "dim" if quiet else ""))
    return crop((*spans, *notes), width)


def advice_lines(row: FindingRow, width: int, indent: int, limit: int = 0) -> list[Line]:
    """Return the advice of a finding: ``→ --max-num-seqs 16 → 2  sentence``."""
    lines: list[Line] = []
    for advice in row.finding.advice[: limit or None]:
        change, text = advice_text(advice)
        room = max(width - indent - 3, 10)
        joined = f"{change} · {text}" if change and text else change or text
        wrapped = wrap(joined, room, 3)
        for i, line in enumerate(wrapped):
            mark = "→ " if i == 0 else "  "
            at = min(len(change), len(line)) if i == 0 and line.startswith(change) else 0
            lines.append(((" " * indent, ""), (mark, "advice"), (line[:at], "advice"), (line[at:], "")))
    return lines


def problem_lines(snapshot: Snapshot, width: int) -> list[Line]:
    """Return the line that says that rules are missing, if any are."""
    text = problems_text(snapshot)
    return [crop(((f" {text}", "crit"),), width)] if text else []


def overview(model: Model, width: int, room: int) -> list[Row]:
    """Return the findings for the overview: each with its cause and first advice, the evidence where room is left."""
    snapshot = model.snapshot
    assert snapshot is not None
    glyph, words, tone = conclusion_on_page(model)
    rows: list[Row] = unkeyed(problem_lines(snapshot, width))
    if words:
        rows += unkeyed([crop(((f" {glyph} ", tone), (words, tone)), width)])
    rows += _listed(model.findings, width, room - len(rows))
    if snapshot.not_enough and len(rows) < room:
        first = snapshot.not_enough[0]
        more = f" (+{len(snapshot.not_enough) - 1} more, 4 findings)" if len(snapshot.not_enough) > 1 else ""
        text = f" ? not judged: {clean(first.id)}: {_lack(first, snapshot)}{more}"
        rows += unkeyed([crop(((text, "dim"),), width)])
    return rows


def _listed(found: Sequence[FindingRow], width: int, room: int) -> list[Row]:
    """Return all findings open where `room` lines allow it; else the first one open and a line for each other."""
    if not found:
        return []
    for detail in (2, 1, 0):
        body = [line for row in found for line in keyed(row.key, entry(row, width, detail))]
        if len(body) <= room:
            return body
    opened = next((row for row in found if not (row.depth or _quiet(row))), None)
    for detail in (2, 1, 0):
        body = []
        for row in found:
            lines = entry(row, width, detail) if row is opened else [head_line(row, width)]
            body += keyed(row.key, lines)
        if len(body) <= room:
            return body
    shown = body[: max(room - 1, 1)]
    key, line = shown[-1]
    if len(shown) < len(body) and body[len(shown)][0] == key:
        shown[-1] = key, crop((*line, (" …", "dim")), width)
    left = len({row.key for row in found} - {key for key, _ in shown})
    return [*shown, *unkeyed([crop(((f" … {left} more (key 4)", "dim"),), width)])] if left else body


def _quiet(row: FindingRow) -> bool:
    """Return whether nobody has to look at a finding now."""
    return row.silenced or row.acknowledged or row.finding.state == "resolved"


def entry(row: FindingRow, width: int, detail: int) -> list[Line]:
    """Return one finding of the overview; `detail` 0 is one line for symptoms and quiet findings, 2 adds evidence."""
    lines = [head_line(row, width)]
    if row.depth or _quiet(row):
        return lines
    indent = 13
    lines += paragraph(clean(row.finding.cause), width - 1, "", indent, 3 if detail else 2)
    if detail == 2:
        for evidence in row.finding.evidence:
            text, source = evidence_text(evidence)
            where = f"  [{source}]" if source else ""
            lines.append(crop(((" " * indent + "· ", "dim"), (text, "dim"), (where, "faint")), width))
    return [*lines, *advice_lines(row, width, indent - 2, 0 if detail else 1)]


def details(row: FindingRow, width: int) -> list[Line]:
    """Return everything about one finding: cause, evidence, advice, runbook, labels."""
    finding = row.finding
    state = f"{GLYPHS[finding.severity]} {finding.severity}, {finding.state}"
    if finding.since:
        state += f" since {clock(finding.since)}"
    if finding.until:
        state += f" until {clock(finding.until)}"
    lines: list[Line] = [
        *paragraph(clean(finding.title), width, "bright"),
        ((" ", ""), (f"{state}   confidence {percent(finding.confidence)}", row.tone), *_notes(row)),
    ]
    if row.where:
        lines.append(((" ", ""), (f"about {row.where}", "info")))
    if finding.caused_by:
        lines.append(((" ", ""), (f"↳ caused by {clean(finding.caused_by)}", "dim")))
    lines += _earlier_lines(row, width)
    lines.append(())
    lines += labelled("cause", clean(finding.cause), width)
    lines.append(())
    for i, evidence in enumerate(finding.evidence):
        text, source = evidence_text(evidence)
        value = with_unit(evidence.value, evidence.unit) if evidence.value is not None else ""
        lines += labelled("evidence" if i == 0 else "", clean(text), width)
        origin = " · ".join(
            part for part in (clean(evidence.name) if evidence.text else "", clean(value), source) if part
        )
        if origin:
            lines += labelled("", origin, width, "dim")
    if not finding.evidence:
        lines += labelled("evidence", "none was attached", width, "dim")
    lines.append(())
    advice = advice_lines(row, width, 12)
    if advice:
        first = advice[0]
        lines.append(((" ", ""), (fit("advice", 10), "label"), (" ", ""), *first[1:]))
        lines += advice[1:]
    else:
        lines += labelled("advice", "none: the cause is not certain enough to name a change", width, "dim")
    lines.append(())
    lines += labelled("runbook", f"gpuwatch rules explain {finding.id}", width, "info")
    labels = ", ".join(f"{clean(name)}={clean(value)}" for name, value in sorted(finding.labels.items()))
    if labels:
        lines += labelled("labels", labels, width, "dim")
    return lines


def _earlier_lines(row: FindingRow, width: int) -> list[Line]:
    """Return when the finding fired before."""
    lines: list[Line] = []
    for i, mark in enumerate(row.earlier[:EPISODES_SHOWN]):
        lines += labelled("earlier" if i == 0 else "", episode_text(mark), width, "dim")
    if len(row.earlier) > EPISODES_SHOWN:
        lines += labelled("", f"+{len(row.earlier) - EPISODES_SHOWN} more", width, "dim")
    return lines


def not_judged(snapshot: Snapshot, width: int) -> list[Line]:
    """Return what could not be judged and what it would need."""
    if not snapshot.not_enough:
        return []
    lines: list[Line] = [rule(((f"not judged ({plural(len(snapshot.not_enough), 'finding')})", "title"),), width)]
    for item in snapshot.not_enough:
        lines += labelled(clean(item.id), f"? cannot tell: {_lack(item, snapshot)}", width, "dim", 26)
    return lines


def _lack(item: NotEnough, snapshot: Snapshot) -> str:
    """Return of what a finding could not be judged, and what that would need."""
    place = place_of(item.labels, snapshot)
    return f"{place}: {clean(item.missing)}" if place else clean(item.missing)


def time_line(model: Model, width: int, viewing: int | None) -> Line:
    """Return the last 15 minutes with the marks of findings; `viewing` (milliseconds) is where the screen stands."""
    snapshot = model.snapshot
    if snapshot is None:
        return ()
    end = max(model.pulse.newest, snapshot.time)
    start = end - TIME_LINE_SECONDS * 1000
    left, right = f" {clock_short(start)} ", f" {clock_short(end)} "
    inner = max(width - len(left) - len(right), 8)

    def column(time: int) -> int:
        return min(max((time - start) * inner // (TIME_LINE_SECONDS * 1000), 0), inner - 1)

    track: list[Span] = [("·", "faint")] * inner
    for i in range(column(snapshot.started), inner):
        track[i] = ("─", "rule")
    for mark in sorted(model.history.marks(), key=_gravity):
        _draw_mark(track, mark, column, start)
    if viewing is not None and viewing < end:
        track[column(viewing)] = ("┃", "bright")
    return ((left, "dim"), *_merged(track), (right, "dim"))


def _gravity(mark: Mark) -> tuple[int, int]:
    """Draw the gravest last, so that it stays visible."""
    return list(GLYPHS)[::-1].index(mark.severity), mark.since


def _draw_mark(track: list[Span], mark: Mark, column: object, start: int) -> None:
    """Draw when one finding began and how long it lasted."""
    assert callable(column)
    if mark.until is not None and mark.until < start:
        return
    tone = TONES[mark.severity]
    first = column(mark.since)
    last = len(track) - 1 if mark.until is None else column(mark.until)
    for i in range(first, last + 1):
        track[i] = ("━", tone)
    if mark.since >= start:
        track[first] = (GLYPHS[mark.severity], tone)


def _merged(track: Sequence[Span]) -> list[Span]:
    """Join neighbours of the same tone."""
    out: list[Span] = []
    for text, tone in track:
        if out and out[-1][1] == tone:
            out[-1] = (out[-1][0] + text, tone)
        else:
            out.append((text, tone))
    return out
