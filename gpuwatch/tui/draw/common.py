"""Small pieces of lines that several views share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.tui.text import crop, cut, fit, line_width, pad, width_of, wrap

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from gpuwatch.tui.text import Line, Row, Span


def title(text: str) -> tuple[Span, ...]:
    """Return the title of a section rule."""
    return ((text, "title"),)


def pair(label: str, value: str, tone: str = "bright", width: int = 0) -> Line:
    """Return ``label value``; `width` > 0 right-aligns the value in that many cells, so that it does not jump."""
    shown = value if width == 0 else fit(value, max(width, len(value)), ">")
    return ((f"{label} ", "label"), (shown, tone if value != "n/a" else "dim"))


def columns(cells: Sequence[tuple[str, int, str, str]], gap: int = 2) -> Line:
    """Return one table line from (text, width, align, tone) cells with one cell of margin."""
    spans: list[Span] = [(" ", "")]
    for i, (text, width, align, tone) in enumerate(cells):
        if i:
            spans.append((" " * gap, ""))
        spans.append((fit(text, width, align), tone))
    return tuple(spans)


REMARK_CELLS = 12
"""A remark at the end of a line is left out where it has fewer cells than this."""


def with_remark(line: Line, remark: str, width: int) -> Line:
    """Return a line with a dim remark in what is left of `width` cells, without it where that is too little."""
    room = width - line_width(line) - 2
    if room >= min(REMARK_CELLS, width_of(remark)) and remark:
        return (*line, (f"  {cut(remark, room)}", "dim"))
    return crop(line, width)


def paragraph(text: str, width: int, tone: str = "", indent: int = 1, limit: int = 0) -> list[Line]:
    """Return `text` wrapped into lines of `width` cells with an indent."""
    return [((" " * indent, ""), (line, tone)) for line in wrap(text, max(width - indent, 8), limit)]


def labelled(label: str, text: str, width: int, tone: str = "", label_width: int = 10) -> list[Line]:
    """Return ``label  text`` with the text wrapped in a column of its own."""
    lines = wrap(text, max(width - label_width - 2, 8)) or [""]
    head = fit(label, label_width)
    return [
        ((" ", ""), (head if i == 0 else " " * label_width, "label"), (" ", ""), (line, tone))
        for i, line in enumerate(lines)
    ]


def beside(left: Sequence[Line], right: Sequence[Line], width: int) -> list[Line]:
    """Return two columns, the left one `width` cells wide."""
    number = max(len(left), len(right))
    first = [*left, *[()] * (number - len(left))]
    second = [*right, *[()] * (number - len(right))]
    return [(*pad(a, width), *b) for a, b in zip(first, second, strict=True)]


def keyed(key: Hashable, lines: Sequence[Line]) -> list[Row]:
    """Return lines that belong to one selectable thing."""
    return [(key, line) for line in lines]


def unkeyed(lines: Sequence[Line]) -> list[Row]:
    """Return lines that cannot be selected."""
    return [(None, line) for line in lines]
