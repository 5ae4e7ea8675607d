"""Fleet rows: one per machine, with what is worst there; sums are of countable things, ratios are never combined."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.finding import SEVERITY_ORDER
from gpuwatch.queries import PER_HOST
from gpuwatch.snapshot import lost_machines, shared_names
from gpuwatch.tui.text import clean
from gpuwatch.tui.view.findings import GLYPHS, TONES
from gpuwatch.tui.view.status import conclusion, plural
from gpuwatch.units import age

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatch.snapshot import Snapshot
    from gpuwatch.tui.view.findings import Row
    from gpuwatch.tui.view.model import Model


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine. `figures` holds what is known by query name; `lost` is how long it has not been scraped, in seconds.

    `findings` are its firing findings, the worst first. `failed` are the queries that failed: what they ask is not
    known, of no machine. `programs` is how many programs use the name of the machine.
    """

    key: tuple[str, str]
    figures: Mapping[str, float] = field(default_factory=dict)
    findings: tuple[Row, ...] = ()
    lost: float | None = None
    failed: frozenset[str] = frozenset()
    programs: int = 1

    @property
    def cluster(self) -> str:
        """The cluster, or the empty string."""
        return clean(self.key[0])

    @property
    def host(self) -> str:
        """The host name."""
        return clean(self.key[1]) or "(no host label)"

    @property
    def name(self) -> str:
        """Host and cluster in one word."""
        return f"{self.cluster}/{self.host}" if self.cluster else self.host

    @property
    def severity(self) -> str:
        """The worst severity of its firing findings that nobody has silenced, or the empty string."""
        loud = [row.finding.severity for row in self.findings if not (row.silenced or row.acknowledged)]
        return max(loud, key=lambda name: SEVERITY_ORDER[name], default="")

    def get(self, query: str) -> float | None:
        """Return one figure, None when it is absent."""
        return self.figures.get(query)


def machines(snapshot: Snapshot, rows: Sequence[Row]) -> tuple[Machine, ...]:
    """Return every machine that the answers or the findings speak of, those in trouble first, otherwise by name."""
    figures: dict[tuple[str, str], dict[str, float]] = {}
    for query in PER_HOST:
        for labels, value in snapshot.answer(query).samples:
            own = dict(labels)
            key = (own.get(snapshot.cluster_label, ""), own.get("host", ""))
            if value == value:  # noqa: PLR0124  # NaN is not equal to itself
                figures.setdefault(key, {})[query] = value
    findings: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.finding.state == "firing" and "host" in row.finding.labels:
            findings.setdefault(machine_of(row, snapshot.cluster_label), []).append(row)
    lost, shared = lost_machines(snapshot), shared_names(snapshot)
    failed = frozenset(query for query in PER_HOST if snapshot.answer(query).error)
    made = [
        Machine(
            key,
            figures.get(key, {}),
            tuple(sorted(findings.get(key, []), key=lambda row: -SEVERITY_ORDER[row.finding.severity])),
            lost.get(key),
            failed,
            shared.get(key, 1),
        )
        for key in figures.keys() | findings.keys()
    ]
    return tuple(sorted(made, key=_order))


def machine_of(row: Row, cluster_label: str) -> tuple[str, str]:
    """Return the machine that a finding is about; `cluster_label` tells clusters apart."""
    labels = row.finding.labels
    return labels.get(cluster_label, ""), labels.get("host", "")


def conclusion_of(snapshot: Snapshot, about: Sequence[Machine], rows: tuple[Row, ...] = ()) -> tuple[str, str, str]:
    """Return (glyph, words, tone): what can be said about machines without a finding; unknown is never healthy."""
    said = glyph, words, _ = conclusion(snapshot, rows)
    if glyph not in ("✓", "·"):
        return said
    lost = [machine.lost for machine in about if machine.lost is not None]
    if lost and len(lost) == len(about):
        return "?", f"cannot tell: not scraped for {age(min(lost))}", "warn"
    # The sources of the machine in focus are counted in the words already.
    silent = 0 if snapshot.focus else round(sum(machine.get("host_sources_silent") or 0 for machine in about))
    parts = [f"{plural(len(lost), 'host')} not scraped"] if lost else []
    parts += [f"{plural(silent, 'source')} not answering"] if silent else []
    unasked = any("host_sources_silent" in machine.failed for machine in about) and not snapshot.focus
    parts += ["whether every source answers is not known"] if unasked else []
    if not parts:
        return said
    return "·", "; ".join(["no findings", *parts, *([words] if glyph == "·" else [])]), "dim"


def conclusion_on_page(model: Model) -> tuple[str, str, str]:
    """Return (glyph, words, tone) for a page without a finding: of this machine, of the one in focus, of the fleet."""
    assert model.snapshot is not None
    focus = model.snapshot.focus
    about = [machine for machine in model.machines if focus in (None, machine.key)]
    return conclusion_of(model.snapshot, about, model.findings)


def _order(machine: Machine) -> tuple[int, tuple[str, str]]:
    """Sort key: critical, lost, warning, the rest; by name within, so that rows stay where they are."""
    if machine.severity == "critical":
        return 0, machine.key
    if machine.lost is not None:
        return 1, machine.key
    return (2 if machine.severity == "warning" else 3), machine.key


def totals(found: Sequence[Machine], *, brief: bool = False) -> list[tuple[str, str]]:
    """Return (words, tone) of the whole fleet: machines, lost ones, GPUs, engines, findings; `brief` in fewer cells."""
    lost = sum(machine.lost is not None for machine in found)
    parts = [(plural(len(found), "host"), "bright")]
    if lost:
        parts.append((f"{lost} lost", "crit"))
    for query, word, bad, what in (
        ("host_gpus", "GPU", "host_gpus_not_ok", "not ok"),
        ("host_engines", "engine", "host_engines_silent", "silent"),
    ):
        known = [machine.get(query) for machine in found if machine.get(query) is not None]
        if any(query in machine.failed for machine in found):
            parts.append((f"{word}s n/a", "dim"))
        elif known:
            parts.append((plural(round(sum(filter(None, known))), word), ""))
        wrong = round(sum(machine.get(bad) or 0 for machine in found))
        if wrong:
            parts.append((f"{wrong} {what}", "warn"))
        elif any(bad in machine.failed for machine in found):
            parts.append((f"{what} n/a", "dim"))
    firing = [row.finding.severity for machine in found for row in machine.findings]
    parts += [
        (
            f"{GLYPHS[name]} {firing.count(name)}{'' if brief else f' {name}'}",
            TONES[name],
        )
        for name in ("critical", "warning", "info")
        if name in firing
    ]
    return parts
