"""Sentences of reports: what foreign text is made fit to show, and findings in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.engines.log_text import clean, redact

if TYPE_CHECKING:
    from gpuwatch.diagnosis.finding import Advice, Evidence, Finding


def safe(text: str) -> str:
    """Return a text without control characters, keys, tokens and prompts."""
    return redact(clean(text))


def advice_text(item: Advice) -> str:
    """Return one advice as a line: the flag with its values first, then the words."""
    if not item.flag:
        return item.text
    current = "" if item.current is None else f" {item.current}"
    proposed = "" if item.proposed is None else f" → {item.proposed}"
    return f"{item.flag}{current}{proposed}: {item.text}"


def evidence_text(item: Evidence) -> str:
    """Return one piece of evidence with the line that it was read from."""
    return f"{item.text} [{item.source}:{item.line}]" if item.line is not None else item.text


def labels_text(finding: Finding) -> str:
    """Return what a finding is about, without the machine, which the report names once."""
    return ", ".join(f"{key} {value}" for key, value in sorted(finding.labels.items()) if key != "host")
