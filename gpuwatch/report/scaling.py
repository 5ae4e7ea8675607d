"""Whether more tensor-parallel ranks gave more speed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.finding import Advice, Evidence, Finding, NotEnough
from gpuwatch.report.figures import merged
from gpuwatch.report.versus import busy, value_of
from gpuwatch.units import number, percent

if TYPE_CHECKING:
    from gpuwatch.report.data import RunData
    from gpuwatch.report.versus import Row, Versus

ID = "tp_scaling_poor"
POOR = 0.6
"""Less than this part of the ideal speed-up is poor: of twice the cards at most 20 % more speed."""
SATURATED = 1.0
"""Requests that wait on average in a run whose engine works as fast as it can."""

_WHY = {
    "tp_pcie_slow": "the ranks talk over PCIe",
    "tp_straggler": "one rank is slower than the others",
    "kv_head_replication": "KV heads are fewer than ranks, so that the KV cache is copied",
    "cpu_bound": "the host cannot keep the GPUs busy",
    "throttling": "clocks were lowered",
    "pcie_degraded": "a PCIe link is narrower than it should be",
    "kv_preemption_storm": "requests were thrown out of the KV pool",
}
"""Findings of the run with more ranks that explain why they do not help."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """What a run with more tensor-parallel ranks gained: `speedup` with bounds of 95 %, None where too short to say.

    `basis` says which part of the runs was compared; `efficiency` is the speed-up against the ideal one.
    """

    few: int
    many: int
    speedup: float
    low: float | None
    high: float | None
    rates: tuple[float, float]
    basis: str

    @property
    def ideal(self) -> float:
        """The speed-up if each rank added as much as the first ones."""
        return self.many / self.few

    @property
    def efficiency(self) -> float:
        """The speed-up as a part of the ideal one."""
        return self.speedup / self.ideal


def ranks(run: RunData) -> int | None:
    """Return the tensor-parallel ranks of the engines of a run, None where they are unknown or differ."""
    known = {engine.tensor_parallel for engine in run.engines}
    return known.pop() if len(known) == 1 else None


def scaling(pair: Versus) -> Scaling | NotEnough | None:
    """Return what more ranks gained, why that cannot be said, or None where the runs have equally many.

    A comparison needs runs that worked as hard as they could, or equally many requests at once: a load at a fixed rate
    is served at that rate by any number of ranks.
    """
    few, many = ranks(pair.first), ranks(pair.second)
    if few is None or many is None or few == many:
        return None
    models = [{engine.model for engine in run.engines} for run in (pair.first, pair.second)]
    if models[0] != models[1]:
        return NotEnough(ID, "runs of the same model; these serve different ones")
    row, basis = _basis(pair)
    if row is None or row.comparison is None or not row.comparison.relative:
        return NotEnough(ID, "two runs in which requests waited all the time, or equally many requests ran at once")
    rates = (value_of(row, 0) or 0.0, value_of(row, 1) or 0.0)
    known = row.comparison
    ratio = 1 + known.difference
    low, high = (None if bound is None else 1 + bound for bound in (known.low, known.high))
    if few > many:
        low, high = (None if bound is None or bound <= 0 else 1 / bound for bound in (high, low))
        return Scaling(many, few, 1 / ratio, low, high, (rates[1], rates[0]), basis)
    return Scaling(few, many, ratio, low, high, rates, basis)


def poor(pair: Versus, gained: Scaling) -> Finding | None:
    """Return the finding ``tp_scaling_poor`` where the speed-up is certainly below `POOR` of the ideal one."""
    if gained.high is None or gained.high / gained.ideal >= POOR:
        return None
    ours, theirs = pair.first, pair.second
    wide = theirs if ranks(theirs) == gained.many else ours
    reasons = [finding for finding in wide.findings if finding.id in _WHY]
    why = (
        f" In that run {_WHY[reasons[0].id]} ({reasons[0].id})."
        if reasons
        else " Neither run shows why: interconnect, too little work per rank and the host look alike from here."
    )
    evidence = [
        Evidence(
            f"{number(gained.rates[0])} tok/s with {gained.few} rank{'s' if gained.few > 1 else ''}, "
            f"{number(gained.rates[1])} tok/s with {gained.many}"
        ),
        Evidence(
            f"speed-up {gained.speedup:.2f} (95 %: {gained.low or 0:.2f} to {gained.high:.2f}) of {gained.ideal:g} "
            f"possible: {percent(gained.efficiency)} efficiency",
            name="efficiency",
            value=gained.efficiency,
            unit="ratio",
        ),
        Evidence(f"compared {gained.basis}"),
    ]
    advice = (
        Advice(
            f"the model runs on {gained.few} card{'s' if gained.few > 1 else ''}: {_instead(gained)}",
            "--tensor-parallel-size",
            str(gained.many),
            str(gained.few),
        ),
        *(reasons[0].advice[:1] if reasons else ()),
    )
    return Finding(
        id=ID,
        severity="warning",
        title="More tensor-parallel ranks, hardly more speed",
        cause=f"{gained.many} ranks generate {gained.speedup:.2f} times as much as {gained.few}, at {gained.ideal:g} "
        f"times the cards.{why}",
        confidence=0.9 if reasons else 0.7,
        evidence=tuple(evidence),
        advice=advice,
        caused_by=reasons[0].id if reasons else None,
        state="firing",
        since=wide.started,
        labels={"run": wide.name},
    )


def _instead(gained: Scaling) -> str:
    """Return how the cards serve better: as copies with fewer ranks each, or, where there is only one, without some."""
    copies, left = divmod(gained.many, gained.few)
    if copies < 2:
        fewer = f"{left} card{'s' if left > 1 else ''} fewer"
        return f"stay with {gained.few} ranks, at {number(gained.rates[0])} tok/s and {fewer}"
    cards = f"the same {gained.many} cards" if not left else f"{gained.many - left} of the {gained.many} cards"
    rate = number(copies * gained.rates[0])
    return f"serve with {copies} replicas of {gained.few} instead, up to {rate} tok/s from {cards}"


def _basis(pair: Versus) -> tuple[Row | None, str]:
    """Return the generated tokens of the part of both runs that may be compared, and its name."""
    whole = [merged(busy(run)) for run in (pair.first, pair.second)]
    if all(window is not None and (window.waiting or 0.0) >= SATURATED for window in whole):
        return next(row for row in pair.rows if row.name == "generated tokens"), "while requests waited in both runs"
    common = max(pair.levels, key=lambda level: min(level.seconds), default=None)
    if common is None:
        return None, ""
    row = next((row for row in common.rows if row.name == "generated tokens"), None)
    return row, f"while {common.text} requests ran in either"
