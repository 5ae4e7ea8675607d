"""Styled lines as plain data: cleaning foreign text, measuring it in terminal cells, fitting it into columns.

A `Line` is a tuple of (text, tone) spans; a tone is a name in `palette`. Text from outside (log lines, model and
process names, error messages) passes through `clean` before it becomes a span, and a span is never parsed as markup,
so it can inject neither terminal control sequences nor styles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from rich.cells import cell_len, set_cell_size

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

Span: TypeAlias = tuple[str, str]
Line: TypeAlias = tuple[Span, ...]
Row: TypeAlias = "tuple[Hashable | None, Line]"
"""A line and the thing it belongs to; None for a line that cannot be selected."""

_VARIATION_SELECTORS = range(0xFE00, 0xFE10)


def _visible(char: str) -> str:
    """Return what stands on screen for one character that is not plainly printable."""
    if ord(char) in _VARIATION_SELECTORS:
        return ""
    if char.isprintable():
        return char
    return " " if char.isspace() and char in "\t\u00a0\u3000\u2002\u2003\u2009" else "·"


def clean(text: str) -> str:
    """Return `text` without anything a terminal could act on.

    Control, format, bidirectional-override, surrogate and private-use characters become ``·``; tabs and the wide
    spaces become a space. Variation selectors vanish, because terminals disagree about the width they cause.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_visible, text))


def width_of(text: str) -> int:
    """Return the number of terminal cells that `text` takes."""
    return len(text) if text.isascii() else cell_len(text)


def fit(text: str, width: int, align: str = "<") -> str:
    """Return `text` in exactly `width` cells: padded (``<`` left, ``>`` right) or cut with an ellipsis."""
    if width <= 0:
        return ""
    have = width_of(text)
    if have > width:
        return set_cell_size(text, width - 1) + "…"
    pad = " " * (width - have)
    return pad + text if align == ">" else text + pad


def cut(text: str, width: int) -> str:
    """Return `text` in at most `width` cells, with an ellipsis where it was cut."""
    return text if width_of(text) <= width else fit(text, width)


def line_width(line: Line) -> int:
    """Return the number of cells of a line."""
    return sum(width_of(text) for text, _ in line)


def crop(line: Iterable[Span], width: int) -> Line:
    """Return the first `width` cells of a line; an ellipsis marks that something was cut."""
    out: list[Span] = []
    left = width
    for text, tone in line:
        need = width_of(text)
        if need > left:
            if left > 0:
                out.append((fit(text, left), tone))
            elif out:
                last, last_tone = out[-1]
                out[-1] = (fit(last + "x", width_of(last)), last_tone)
            return tuple(out)
        out.append((text, tone))
        left -= need
    return tuple(out)


def pad(line: Line, width: int) -> Line:
    """Return a line of exactly `width` cells."""
    have = line_width(line)
    if have > width:
        return crop(line, width)
    return (*line, (" " * (width - have), "")) if have < width else line


def plain(line: Line) -> str:
    """Return the text of a line without its tones."""
    return "".join(text for text, _ in line)


def wrap(text: str, width: int, limit: int = 0) -> list[str]:
    """Break `text` at spaces into lines of at most `width` cells; `limit` > 0 keeps that many, the last one cut."""
    lines: list[str] = []
    current = ""
    for word in text.split():
        while width_of(word) > width:
            head = set_cell_size(word, width - (width_of(current) + 1 if current else 0)).rstrip()
            if current and len(head) < 8:
                lines.append(current)
                current = ""
                continue
            lines.append(f"{current} {head}" if current else head)
            current, word = "", word[len(head) :]  # noqa: PLW2901  # the rest of a word that is longer than a line
        joined = f"{current} {word}" if current else word
        if width_of(joined) > width:
            lines.append(current)
            joined = word
        current = joined
    if current:
        lines.append(current)
    if limit and len(lines) > limit:
        return [*lines[: limit - 1], fit(lines[limit - 1] + "…", min(width, width_of(lines[limit - 1]) + 1)).rstrip()]
    return lines


def rule(title: Iterable[Span], width: int, right: Iterable[Span] = ()) -> Line:
    """Return a section rule ``─ title ─────── right ─`` of `width` cells; the title goes before `right`."""
    head = crop((("─ ", "rule"), *title, (" ", "rule")), max(width - 1, 1))
    room = width - line_width(head) - 4
    tail = tuple(right)
    if tail and line_width(tail) > room:
        tail = crop(tail, room) if room >= 8 else ()
    end: Line = ((" ", "rule"), *tail, (" ─", "rule")) if tail else ()
    return (*head, ("─" * (width - line_width(head) - line_width(end)), "rule"), *end)


def flow(parts: Iterable[Line], width: int, gap: int = 3, indent: int = 1) -> list[Line]:
    """Set `parts` side by side, `gap` cells apart, on as many lines of `width` cells as they need."""
    lines: list[Line] = []
    current: Line = ()
    for part in parts:
        if not current:
            current = ((" " * indent, ""), *part)
        elif line_width(current) + gap + line_width(part) <= width:
            current = (*current, (" " * gap, ""), *part)
        else:
            lines.append(crop(current, width))
            current = ((" " * indent, ""), *part)
    if current:
        lines.append(crop(current, width))
    return lines
