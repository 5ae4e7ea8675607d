"""A document as blocks, which are written as HTML or as Markdown. Texts are plain: the writers escape them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from gpuwatch.diagnosis.finding import Finding


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading; level 2 starts a section."""

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph. `tone` is empty, a severity, ``good`` or ``quiet``."""

    text: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Items:
    """A list; `ordered` numbers it."""

    items: tuple[str, ...]
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table. Columns from `numbers_from` on are aligned to the right; `tones` colours rows (empty: none)."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers_from: int = 99
    tones: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture: SVG for a page, and `text` (name, row of characters or figure) for a text without pictures."""

    caption: str
    svg: str
    legend: tuple[tuple[str, str], ...] = ()
    """(class of the colour, text)."""
    text: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class FindingBlock:
    """A finding with evidence and advice; `when` says when it was there."""

    finding: Finding
    when: str


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of characters whose places matter."""

    lines: tuple[str, ...]


Block: TypeAlias = "Heading | Text | Items | Table | Figure | FindingBlock | Lines"


@dataclass(frozen=True, slots=True)
class Document:
    """A title, a line below it, and blocks."""

    title: str
    subtitle: str
    blocks: tuple[Block, ...]
    foot: str = ""
