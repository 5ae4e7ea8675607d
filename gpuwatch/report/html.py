"""A document as one HTML file that needs nothing else: styles and pictures inside, no script, no address."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING

from gpuwatch.report.document import Figure, FindingBlock, Heading, Items, Table, Text
from gpuwatch.report.style import STYLE
from gpuwatch.report.texts import advice_text, evidence_text, labels_text, safe

if TYPE_CHECKING:
    from gpuwatch.report.document import Block, Document

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def write(document: Document) -> str:
    """Return the page."""
    headings = [block.text for block in document.blocks if isinstance(block, Heading) and block.level == 2]
    menu = "".join(f'<a href="#{_anchor(text)}">{_text(text)}</a>' for text in headings)
    body = "\n".join(map(_block, document.blocks))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(document.title)}</title>\n<style>{STYLE}</style></head>\n<body>\n"
        f"<header><h1>{_text(document.title)}</h1><p>{_text(document.subtitle)}</p><nav>{menu}</nav></header>\n"
        f"<main>\n{body}\n</main>\n<footer>{_text(document.foot)}</footer>\n</body></html>\n"
    )


def _block(block: Block) -> str:
    if isinstance(block, Table):
        text = _table(block)
    elif isinstance(block, Figure):
        text = _figure(block)
    elif isinstance(block, FindingBlock):
        text = _finding(block)
    elif isinstance(block, Heading):
        anchor = f' id="{_anchor(block.text)}"' if block.level == 2 else ""
        text = f"<h{block.level}{anchor}>{_text(block.text)}</h{block.level}>"
    elif isinstance(block, Text):
        tone = f' class="{escape(block.tone)}"' if block.tone else ""
        text = f"<p{tone}>{_text(block.text)}</p>"
    elif isinstance(block, Items):
        name = "ol" if block.ordered else "ul"
        text = f"<{name}>" + "".join(f"<li>{_text(item)}</li>" for item in block.items) + f"</{name}>"
    else:
        text = "<pre>" + "\n".join(_text(line) for line in block.lines) + "</pre>"
    return text


def _figure(figure: Figure) -> str:
    legend = "".join(f'<span><i class="{escape(colour)}"></i>{_text(text)}</span>' for colour, text in figure.legend)
    legend = f'<div class="legend">{legend}</div>' if legend else ""
    return f"<figure><figcaption>{_text(figure.caption)}</figcaption>{legend}{figure.svg}</figure>"


def _table(table: Table) -> str:
    def cell(name: str, number: int, text: str) -> str:
        right = ' class="n"' if number >= table.numbers_from else ""
        return f"<{name}{right}>{_text(text)}</{name}>"

    head = "".join(cell("th", number, text) for number, text in enumerate(table.head))
    rows = []
    for index, row in enumerate(table.rows):
        tone = table.tones[index] if index < len(table.tones) else ""
        opening = f'<tr class="{escape(tone)}">' if tone else "<tr>"
        rows.append(opening + "".join(cell("td", number, text) for number, text in enumerate(row)) + "</tr>")
    head = f"<thead><tr>{head}</tr></thead>" if any(table.head) else ""
    return f'<div class="wide"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>'


def _finding(block: FindingBlock) -> str:
    finding = block.finding
    after = f" · caused by {_text(finding.caused_by)}" if finding.caused_by else ""
    where = labels_text(finding)
    about = f" · {_text(where)}" if where else ""
    parts = [
        f'<article class="finding {escape(finding.severity)}">',
        f"<h3><code>{_text(finding.id)}</code> {_text(finding.title)}</h3>",
        f'<p class="quiet">{_text(finding.severity)} · {_text(block.when)}{after}{about}</p>',
        f"<p>{_text(finding.cause)}</p>",
    ]
    if finding.evidence:
        parts.append("<ul>" + "".join(f"<li>{_text(evidence_text(item))}</li>" for item in finding.evidence) + "</ul>")
    parts += [f'<p class="advice">{_text(advice_text(item))}</p>' for item in finding.advice]
    return "".join([*parts, "</article>"])


def _text(text: str) -> str:
    return escape(safe(text))


def _anchor(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
