"""The order of findings: root causes first, each followed by its symptoms."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwatch.alerts.inhibitions import CLUSTER, INHIBITIONS, named
from gpuwatch.alerts.placement import NOWHERE
from gpuwatch.diagnosis.finding import SEVERITY_ORDER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatch.alerts.inhibitions import Inhibition
    from gpuwatch.alerts.placement import Placement
    from gpuwatch.diagnosis.finding import Finding


def rank(
    findings: Iterable[Finding],
    table: Sequence[Inhibition] = INHIBITIONS,
    placement: Placement = NOWHERE,
    cluster_label: str = CLUSTER,
) -> tuple[Finding, ...]:
    """Return `findings` with `caused_by` set, in the order in which a person should read them.

    Firing ones come before resolved ones. Roots are ordered by severity, then by start, then by confidence; a
    finding that the table calls a symptom of another one in the list follows it. A resolved finding explains no
    firing one. A chain of causes is followed to its end; a circle is cut where it is met. `placement` tells which
    engine uses which GPU; without it, a GPU explains an engine only where `caused_by` says so already. `cluster_label`
    is the name that the table's label of clusters has in the findings.
    """
    listed = sorted(findings, key=_order)
    causes = {index: _cause_of(index, listed, table, placement, cluster_label) for index in range(len(listed))}
    for index in list(causes):
        _cut_circle(index, causes)
    symptoms: dict[int | None, list[int]] = {}
    for index, cause in causes.items():
        symptoms.setdefault(cause, []).append(index)
    ordered: list[Finding] = []
    for root in symptoms.get(None, []):
        _place(root, listed, causes, symptoms, ordered)
    return tuple(ordered)


def _order(finding: Finding) -> tuple[bool, int, int, float, str]:
    return (
        finding.state == "resolved",
        -SEVERITY_ORDER[finding.severity],
        finding.since,
        -finding.confidence,
        finding.id,
    )


def _cause_of(
    index: int, listed: Sequence[Finding], table: Sequence[Inhibition], placement: Placement, cluster_label: str
) -> int | None:
    finding = listed[index]
    for row in table:
        if finding.id not in row.symptoms:
            continue
        for other, candidate in enumerate(listed):
            if other == index or candidate.id != row.cause:
                continue
            if candidate.state == "resolved" != finding.state:
                continue
            known = finding.caused_by == candidate.id or placement.shared(candidate.labels, finding.labels)
            if row.placed and not known:
                continue
            equal = named(row.equal, cluster_label)
            if all(finding.labels.get(key, "") == candidate.labels.get(key, "") for key in equal):
                return other
    return None


def _cut_circle(start: int, causes: dict[int, int | None]) -> None:
    seen = {start}
    at = causes[start]
    while at is not None:
        if at in seen:
            causes[start] = None
            return
        seen.add(at)
        at = causes[at]


def _place(
    index: int,
    listed: Sequence[Finding],
    causes: dict[int, int | None],
    symptoms: dict[int | None, list[int]],
    ordered: list[Finding],
) -> None:
    cause = causes[index]
    ordered.append(replace(listed[index], caused_by=listed[cause].id if cause is not None else None))
    for symptom in symptoms.get(index, []):
        _place(symptom, listed, causes, symptoms, ordered)
