"""A document as Markdown, to be pasted into an issue or a chat. Plots become rows of block characters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuwatch.report.document import Figure, FindingBlock, Heading, Items, Table, Text
from gpuwatch.report.texts import advice_text, evidence_text, labels_text, safe

if TYPE_CHECKING:
    from gpuwatch.report.document import Block, Document

_ACTIVE = re.compile(r"([\\`*_\[\]<>#|~])")
_TONES = {"critical": "**", "warning": "**", "good": "**"}


def write(document: Document) -> str:
    """Return the text."""
    parts = [f"# {_text(document.title)}", "", _text(document.subtitle), ""]
    for block in document.blocks:
        parts += [*_block(block), ""]
    if document.foot:
        parts.append(f"<sub>{_text(document.foot)}</sub>")
    return "\n".join(parts).rstrip() + "\n"


def _block(block: Block) -> list[str]:
    if isinstance(block, Table):
        lines = _table(block)
    elif isinstance(block, Figure):
        lines = [_text(block.caption) + ":", "", *_table(Table(("", ""), block.text))] if block.text else []
    elif isinstance(block, FindingBlock):
        lines = _finding(block)
    elif isinstance(block, Heading):
        lines = [f"{'#' * block.level} {_text(block.text)}"]
    elif isinstance(block, Text):
        edge = _TONES.get(block.tone, "")
        lines = [f"{edge}{_text(block.text)}{edge}"]
    elif isinstance(block, Items):
        marks = (f"{number}." if block.ordered else "*" for number in range(1, len(block.items) + 1))
        lines = [f"{mark} {_text(item)}" for mark, item in zip(marks, block.items, strict=True)]
    else:
        lines = ["```text", *(safe(line).replace("```", "'''") for line in block.lines), "```"]
    return lines


def _table(table: Table) -> list[str]:
    if not table.rows:
        return []
    head = table.head if any(table.head) else tuple("" for _ in table.head)
    line = ["---:" if number >= table.numbers_from else "---" for number in range(len(head))]
    rows = [head, *table.rows]
    texts = ["| " + " | ".join(_text(cell) for cell in row) + " |" for row in rows]
    return [texts[0], "|" + "|".join(line) + "|", *texts[1:]]


def _finding(block: FindingBlock) -> list[str]:
    finding = block.finding
    after = f", caused by `{finding.caused_by}`" if finding.caused_by else ""
    where = labels_text(finding)
    lines = [
        f"### {_text(finding.title)}",
        "",
        f"`{finding.id}` ({finding.severity}, {_text(block.when)}{after}){': ' + _text(where) if where else ''}",
        "",
        _text(finding.cause),
        "",
    ]
    lines += [f"* seen: {_text(evidence_text(item))}" for item in finding.evidence]
    lines += [f"* **{_text(advice_text(item))}**" for item in finding.advice]
    return lines


def _text(text: str) -> str:
    """Return a text in which no character means anything to Markdown or HTML."""
    return _ACTIVE.sub(r"\\\1", safe(text)).replace("&", "&amp;")
