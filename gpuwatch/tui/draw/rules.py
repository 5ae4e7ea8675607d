"""Rule lines: state, value against threshold, and the details of one rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.tui.draw.common import columns, labelled
from gpuwatch.tui.text import clean, crop, fit, width_of, wrap
from gpuwatch.tui.view.rules import holds, rules, verdict
from gpuwatch.tui.view.status import source_rows
from gpuwatch.units import number

if TYPE_CHECKING:
    from gpuwatch.snapshot import Snapshot
    from gpuwatch.tui.text import Line
    from gpuwatch.tui.view.rules import RuleRow

MOST_PROBLEMS = 50


def table(snapshot: Snapshot, width: int) -> tuple[Line, list[tuple[RuleRow, Line]]]:
    """Return the header and one line per rule."""
    found = rules(snapshot)
    name_width = min(max((width_of(row.name) for row in found), default=4), 24 if width < 100 else 40)
    rest = width - name_width - 58

    def line(name: str, severity: str, status: tuple[str, str], reading: str, detail: str) -> Line:
        head = status[1] == "label"
        cells = [
            (status[0], 17, "<", status[1]),
            (name, name_width, "<", "label" if head else ""),
            (severity, 8, "<", "label" if head else "dim"),
            (reading, 21, ">", "label" if head else "bright"),
        ]
        return columns([*cells, (detail, rest, "<", "label" if head else "dim")] if rest >= 12 else cells)

    header = line("rule", "severity", ("  state", "label"), "value / threshold", "detail")
    rows = []
    for row in found:
        shown = line(row.name, row.severity, (f"{row.glyph} {row.status}", row.tone), row.reading or "-", row.detail)
        rows.append((row, crop(shown, width)))
    return crop(header, width), rows


def problems(snapshot: Snapshot, width: int) -> list[Line]:
    """Return the rule files that were refused and the rules that fail, each with its place."""
    lines: list[Line] = []
    for problem in snapshot.problems[:MOST_PROBLEMS]:
        wrapped = wrap(clean(problem), max(width - 4, 8))
        lines += [((" ✗ " if i == 0 else "   ", "crit"), (line, "crit")) for i, line in enumerate(wrapped)]
    if len(snapshot.problems) > MOST_PROBLEMS:
        lines.append(crop(((f"   +{len(snapshot.problems) - MOST_PROBLEMS} more not shown", "crit"),), width))
    return lines


def details(row: RuleRow, width: int) -> list[Line]:
    """Return one rule with its expression and every comparison."""
    rule = row.rule
    lines = [
        *labelled("rule", f"{row.name} ({row.severity})", width, "bright"),
        *labelled("state", f"{row.glyph} {row.status}", width, row.tone),
    ]
    if row.detail:
        lines += labelled("", row.detail, width, "warn")
    for i, (text, value, threshold) in enumerate(rule.readings):
        mark, said = ("✓", "holds") if holds(text, value, threshold) else ("✗", "does not hold")
        shown = f"{mark} {said}: {clean(text)} · nearest value {number(value)} · threshold {number(threshold)}"
        lines += labelled("compares" if i == 0 else "", shown, width)
    if verdict(rule):
        lines += labelled("", verdict(rule), width, "dim")
    lines += labelled("finding", clean(rule.id), width, "info")
    lines += labelled("expr", clean(" ".join(rule.expr.split())), width)
    return lines + labelled("file", clean(rule.file), width, "dim")


def sources(snapshot: Snapshot, width: int) -> list[Line]:
    """Return one line per source: whether it answers, why not, and how old its data is."""
    target_width = min(max((len(target) for _, target, _, _ in source_rows(snapshot)), default=8), 34)
    return [
        crop(
            ((f" {glyph} ", tone), (fit(target, target_width), ""), (f"  {state}", tone if tone != "ok" else "dim")),
            width,
        )
        for glyph, target, state, tone in source_rows(snapshot)
    ]
