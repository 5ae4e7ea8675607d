"""What the rules found, kept in a recording: a report then needs no replay, which takes as long as the rules do.

A line ``{"found": MS, "by": VERSION, "rules": DIGEST, "findings": […], "not_enough": […]}`` is written at the first
tick of a recording and of each part, when a finding comes, goes or changes its state, and every ten seconds while there
is one. ``not_enough`` is there when it changed. Only lines of the same program and the same rules are believed; for
others a recording is replayed.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from gpuwatch import __version__
from gpuwatch.diagnosis.finding import SEVERITY_ORDER, Advice, Evidence, Finding, NotEnough

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatch.alerts.rulefile import RuleSet
    from gpuwatch.recording import Writer

REFRESH_MS = 10_000
_STATES = ("pending", "firing", "resolved")
_DAMAGE = (TypeError, ValueError, KeyError, AttributeError)


def digest(rules: RuleSet) -> str:
    """Return a text that differs where rules differ in what they ask."""
    asked = [(rule.name, rule.expr, getattr(rule, "hold", None), getattr(rule, "severity", "")) for rule in rules.rules]
    import hashlib  # noqa: PLC0415  # only for a recording

    return hashlib.sha256(repr(asked).encode()).hexdigest()[:16]


class Verdicts:
    """Writes what one pipeline finds into its recording."""

    def __init__(self, rules: RuleSet) -> None:
        self._rules = rules
        self._digest = ""
        self._states: dict[Any, str] = {}
        self._not_enough: tuple[NotEnough, ...] | None = None
        self._written: int | None = None
        self._writer: Writer | None = None

    def note(
        self, writer: Writer, time: int, findings: Sequence[Finding], not_enough: tuple[NotEnough, ...], *, first: bool
    ) -> None:
        """Write what was found at `time` (milliseconds) if that is new; `first`: a recording or a part begins."""
        shown = [finding for finding in findings if finding.state != "pending"]
        states = {finding.key: f"{finding.state} {finding.severity}" for finding in shown}
        first = first or writer is not self._writer
        late = bool(states) and self._written is not None and not 0 <= time - self._written < REFRESH_MS
        if not first and not late and states == self._states and not_enough == self._not_enough:
            return
        self._digest = self._digest or digest(self._rules)
        line: dict[str, Any] = {"by": __version__, "rules": self._digest, "findings": [_plain(one) for one in shown]}
        if first or not_enough != self._not_enough:
            line["not_enough"] = [asdict(item) for item in not_enough]
        writer.found(time, line)
        self._states, self._not_enough, self._written, self._writer = states, not_enough, time, writer


def read(line: Mapping[str, Any], rules: str) -> tuple[int, list[Finding], tuple[NotEnough, ...] | None] | None:
    """Return time, findings and what could not be judged (None: as before) of a line.

    None instead of all that: the line is damaged, or other rules or another program wrote it. `rules` is the digest of
    the rules that are wanted.
    """
    if line.get("by") != __version__ or line.get("rules") != rules:
        return None
    try:
        missing = line.get("not_enough")
        not_enough = None if missing is None else tuple(_missing(item) for item in missing)
        return int(line["found"]), [_finding(item) for item in line["findings"]], not_enough
    except _DAMAGE:
        return None


def _plain(finding: Finding) -> dict[str, Any]:
    data = asdict(finding)
    del data["alerts"]
    for item in data["evidence"]:
        if isinstance(item["value"], float) and not abs(item["value"]) < float("inf"):
            item["value"] = str(item["value"])
    return data


def _finding(data: dict[str, Any]) -> Finding:
    known = {key: data[key] for key in (item.name for item in fields(Finding)) if key in data}
    known["evidence"] = tuple(Evidence(**item) for item in data["evidence"])
    known["advice"] = tuple(Advice(**item) for item in data["advice"])
    known["labels"] = {str(key): str(value) for key, value in data["labels"].items()}
    if known["severity"] not in SEVERITY_ORDER or known["state"] not in _STATES:
        raise ValueError
    return Finding(**known)


def _missing(data: dict[str, Any]) -> NotEnough:
    return NotEnough(str(data["id"]), str(data["missing"]), dict(data["labels"]))
