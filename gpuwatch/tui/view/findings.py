"""Findings in the order a person should read them: the gravest cause first, each symptom under its cause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gpuwatch.diagnosis.finding import SEVERITY_ORDER
from gpuwatch.tui.text import clean
from gpuwatch.tui.view.table import GPU_KEY
from gpuwatch.units import clock, percent, seconds, with_unit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatch.diagnosis.finding import Advice, Evidence, Finding
    from gpuwatch.snapshot import Snapshot
    from gpuwatch.tui.history import Mark

FindingKey: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]

GLYPHS: Mapping[str, str] = {"critical": "●", "warning": "▲", "info": "○"}
TONES: Mapping[str, str] = {"critical": "crit", "warning": "warn", "info": "info"}

_PLACE_LABELS = ("uuid", "server", "dp_rank", "log", "host")


@dataclass(frozen=True, slots=True)
class Row:
    """One finding in the list. `depth` is 1 for a symptom; `where` names the GPU, engine or rank it is about.

    `earlier` are the times before that it fired, the newest first.
    """

    finding: Finding
    depth: int
    where: str
    acknowledged: bool = False
    silenced: bool = False
    earlier: tuple[Mark, ...] = ()

    @property
    def key(self) -> FindingKey:
        """The identity of the finding."""
        return self.finding.key

    @property
    def glyph(self) -> str:
        """The mark of the severity, or of a finding that is over or not certain yet."""
        return {"resolved": "✓", "pending": "…"}.get(self.finding.state, GLYPHS[self.finding.severity])

    @property
    def tone(self) -> str:
        """The colour of the mark."""
        quiet = self.finding.state == "resolved" or self.silenced or self.acknowledged
        return "dim" if quiet else TONES[self.finding.severity]


def findings(
    snapshot: Snapshot,
    acknowledged: frozenset[FindingKey] = frozenset(),
    silenced: Mapping[FindingKey, int] | None = None,
    *,
    hosts: bool = False,
) -> tuple[Row, ...]:
    """Return the findings of a snapshot as rows.

    Firing before pending before resolved, the gravest first, otherwise in the diagnosis' own order; a symptom
    follows its cause. Silenced findings (until the given time in milliseconds) come last. With `hosts` each says on
    which machine it is.
    """
    quiet = {key for key, until in (silenced or {}).items() if until > snapshot.time}
    shown = snapshot.findings
    causes = {id(finding): _cause(finding, shown) for finding in shown}
    roots = [finding for finding in shown if causes[id(finding)] is None]
    roots.sort(key=lambda finding: _rank(finding, finding.key in quiet))
    places = _places(snapshot)
    rows: list[Row] = []

    def add(finding: Finding, depth: int) -> None:
        silent = finding.key in quiet
        place = where(finding.labels, places)
        if hosts:
            place = f"{clean(finding.labels.get('host', ''))} {place}".strip()
        rows.append(Row(finding, depth, place, finding.key in acknowledged, silent))
        for symptom in shown:
            if causes[id(symptom)] is finding:
                add(symptom, depth + 1)

    for root in roots:
        add(root, 0)
    return tuple(rows)


def _rank(finding: Finding, silenced: bool) -> tuple[bool, int, int]:
    """Return the sort key of a finding without a cause in the list."""
    state = {"firing": 0, "pending": 1, "resolved": 2}[finding.state]
    return silenced, state, -SEVERITY_ORDER[finding.severity]


def _cause(finding: Finding, shown: Sequence[Finding]) -> Finding | None:
    """Return the finding in `shown` that caused this one; of several with that id the one most like it in labels."""
    if finding.caused_by is None:
        return None
    best: Finding | None = None
    score = -1
    for other in shown:
        if other.id == finding.caused_by and other is not finding and other.caused_by is None:
            same = sum(finding.labels.get(k) == v for k, v in other.labels.items())
            if same > score:
                best, score = other, same
    return best


def _places(snapshot: Snapshot) -> dict[str, str]:
    """Return the display index of each GPU by its UUID."""
    places: dict[str, str] = {}
    for query in ("gpu_state", "gpu_info", "gpu_memory_used"):
        for labels, _ in snapshot.answer(query).samples:
            own = dict(labels)
            places.setdefault(own.get(GPU_KEY[1], ""), own.get("gpu", ""))
    return places


def place_of(labels: Mapping[str, str], snapshot: Snapshot) -> str:
    """Return what a finding of a snapshot is about, as `where` does."""
    return where(labels, _places(snapshot))


def where(labels: Mapping[str, str], places: Mapping[str, str]) -> str:
    """Return what a finding is about: ``GPU 1``, ``:8000``, ``:8000 dp 1``; empty when the labels do not say."""
    words = []
    if uuid := labels.get("uuid"):
        index = labels.get("gpu") or places.get(uuid, "")
        words.append(f"GPU {clean(index)}" if index else clean(uuid))
    if server := labels.get("server"):
        host, _, port = server.rpartition(":")
        words.append(clean(f":{port}" if host in ("127.0.0.1", "localhost") else server))
    if labels.get("dp_rank"):
        words.append(f"dp {clean(labels['dp_rank'])}")
    return " ".join(words)


def advice_text(advice: Advice) -> tuple[str, str]:
    """Return an advice as (flag with its change, sentence): ``("--max-num-seqs 16 → 2", "…")``."""
    change = ""
    if advice.flag:
        change = clean(advice.flag)
        if advice.current is not None:
            change = f"{change} {clean(advice.current)}"
        if advice.proposed is not None:
            change = f"{change} → {clean(advice.proposed)}"
    return change, clean(advice.text)


def evidence_text(evidence: Evidence) -> tuple[str, str]:
    """Return a piece of evidence as (sentence, where it was read)."""
    text = clean(evidence.text)
    if not text:
        text = clean(f"{evidence.name} = {with_unit(evidence.value, evidence.unit)}")
    source = clean(evidence.source)
    if source and evidence.line is not None:
        source = f"{source}:{evidence.line}"
    return text, source or clean(evidence.name)


def episode_text(mark: Mark) -> str:
    """Return when a finding fired and for how long: ``12:40:31 to 12:41:10, 39 s``."""
    if mark.until is None:
        return f"since {clock(mark.since)}"
    return f"{clock(mark.since)} to {clock(mark.until)}, {seconds((mark.until - mark.since) / 1000)}"


def as_text(row: Row) -> str:
    """Return a finding as plain text to paste into a ticket; it holds no control characters but line breaks."""
    finding = row.finding
    lines = [f"{finding.severity}: {finding.id}: {clean(finding.title)}"]
    if row.where:
        lines[0] += f" ({row.where})"
    if finding.since:
        lines.append(f"since {clock(finding.since)}, {finding.state}, confidence {percent(finding.confidence)}")
    lines.append(f"cause: {clean(finding.cause)}")
    lines += [f"earlier: {episode_text(mark)}" for mark in row.earlier]
    for evidence in finding.evidence:
        text, source = evidence_text(evidence)
        lines.append(f"evidence: {text}" + (f" [{source}]" if source else ""))
    for advice in finding.advice:
        change, text = advice_text(advice)
        lines.append("advice: " + ": ".join(part for part in (change, text) if part))
    if finding.caused_by:
        lines.append(f"caused by: {finding.caused_by}")
    lines.append(f"runbook: gpuwatch rules explain {finding.id}")
    return "\n".join(lines)
