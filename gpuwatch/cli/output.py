"""What commands print: the JSON of findings and its counterpart for people."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuwatch.cli import FINE, FOUND
from gpuwatch.diagnosis.finding import SEVERITY_ORDER
from gpuwatch.diagnosis.ranking import rank
from gpuwatch.engines.log_text import clean

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from gpuwatch.diagnosis.finding import Advice, Evidence, Finding, NotEnough

SCHEMA = 1
EVIDENCE_SHOWN = 3
_GLYPH = {"critical": "●", "warning": "▲", "info": "○"}


def finding_json(finding: Finding) -> dict[str, Any]:
    """Return the documented JSON object of one finding."""
    return {
        "id": finding.id,
        "severity": finding.severity,
        "title": finding.title,
        "cause": finding.cause,
        "confidence": round(finding.confidence, 2),
        "evidence": [_evidence(item) for item in finding.evidence],
        "advice": [_advice(item) for item in finding.advice],
        "caused_by": finding.caused_by,
        "state": finding.state,
        "since": finding.since,
        "until": finding.until,
        "labels": dict(finding.labels),
    }


def _evidence(item: Evidence) -> dict[str, Any]:
    return {
        "source": item.source,
        "line": item.line,
        "text": item.text,
        "name": item.name,
        "value": _json_value(item.value),
        "unit": item.unit,
    }


def _json_value(value: float | str | None) -> float | str | None:
    """Return a value that JSON has: what is not finite becomes a text such as ``+Inf``, as Prometheus writes it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{value:+}".title()
    return value


def _advice(item: Advice) -> dict[str, Any]:
    return {"text": item.text, "flag": item.flag, "from": item.current, "to": item.proposed}


def report_json(
    inputs: Iterable[dict[str, Any]],
    findings: Iterable[Finding],
    not_enough: Iterable[NotEnough],
    problems: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the documented JSON of ``check``; `problems` are refused rule files and a recording that stopped."""
    return {
        "schema": SCHEMA,
        "inputs": list(inputs),
        "findings": [finding_json(finding) for finding in findings],
        "not_enough_evidence": [
            {"id": item.id, "missing": item.missing, "labels": dict(item.labels)} for item in not_enough
        ],
        "problems": list(problems),
    }


def print_json(data: Any) -> None:
    """Print one JSON document to stdout."""
    print(json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False))


def ranked(findings: Collection[Finding]) -> list[Finding]:
    """Return the findings of a whole run, root causes first; one that is over counts like one that is not."""
    states = {finding.key: finding.state for finding in findings}
    ordered = rank(replace(finding, state="firing") for finding in findings)
    return [replace(finding, state=states[finding.key]) for finding in ordered]


def exit_code(findings: Iterable[Finding], fail_on: str) -> int:
    """Return `FOUND` where a finding has the severity `fail_on` or a higher one, else `FINE`; always for ``never``."""
    limit = SEVERITY_ORDER.get(fail_on)
    bad = limit is not None and any(SEVERITY_ORDER[finding.severity] >= limit for finding in findings)
    return FOUND if bad else FINE


def finding_lines(finding: Finding, machine: Sequence[str] = ()) -> list[str]:
    """Return a finding as lines for people: where, cause, evidence, what to change.

    `machine` are the labels that name the machine; they come first. A finding of this machine is shown without them.
    """
    indent = "  " if finding.caused_by else ""
    labels = finding.labels
    place = [(key, labels[key]) for key in machine if labels.get(key)]
    place += [(key, labels[key]) for key in sorted(labels) if key != "host" and key not in machine]
    where = ", ".join(f"{key} {value}" for key, value in place)
    state = "" if finding.state == "firing" else f", {finding.state}"
    arrow = "↳ " if finding.caused_by else ""
    lines = [f"{indent}{_GLYPH[finding.severity]} {arrow}{finding.id}: {finding.title} ({finding.severity}{state})"]
    if where:
        lines.append(f"{indent}    at     {where}")
    lines.append(f"{indent}    cause  {finding.cause}")
    for item in finding.evidence[:EVIDENCE_SHOWN]:
        line = f" [{item.source}:{item.line}]" if item.line is not None else ""
        lines.append(f"{indent}    seen   {item.text}{line}")
    lines += [f"{indent}    →      {advice_text(item)}" for item in finding.advice]
    return [clean(line) for line in lines]


def advice_text(item: Advice) -> str:
    """Return one advice as a line: the flag with its values first, then the words."""
    if not item.flag:
        return item.text
    current = "" if item.current is None else f" {item.current}"
    proposed = "" if item.proposed is None else f" → {item.proposed}"
    return f"{item.flag}{current}{proposed}  {item.text}"


def print_findings(
    findings: Sequence[Finding], not_enough: Sequence[NotEnough], verbose: bool, machine: Sequence[str] = ()
) -> None:
    """Print findings for people; what could not be judged comes last, in full only when `verbose`.

    `machine` as for `finding_lines`; findings of several hosts always name theirs.
    """
    if not machine and len({finding.labels.get("host") for finding in findings}) > 1:
        machine = ("host",)
    for finding in findings:
        print("\n".join(finding_lines(finding, machine)))
        print()
    if not findings:
        print("no findings")
    if not_enough and verbose:
        print("could not be judged:")
        for item in not_enough:
            print(clean(f"  {item.id}: {item.missing}"))
    elif not_enough:
        print(f"{len({item.id for item in not_enough})} findings could not be judged here; -v says which and why")
