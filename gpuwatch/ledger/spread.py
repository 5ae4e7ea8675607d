"""One model on several cards: one group of ranks, or independent replicas, and what each way serves in all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.ledger.plan import at_tp, capacity_of, possible_tp, verdict_of

if TYPE_CHECKING:
    from gpuwatch.ledger.need import Engine
    from gpuwatch.ledger.plan import Verdict


@dataclass(frozen=True, slots=True)
class Spread:
    """`replicas` groups of `tp` ranks. `concurrency` is that of all replicas together, 0 where one does not fit."""

    tp: int
    replicas: int
    verdict: Verdict
    concurrency: float


def spreads(engine: Engine, gpus: int) -> tuple[Spread, ...]:
    """Return every way to spread an engine over `gpus` cards in groups of 1, 2, 4 … ranks, the smallest groups first.

    MIG slices cannot form groups: there is no peer-to-peer between them.
    """
    found = []
    tp = 1
    while tp <= gpus and (tp == 1 or not engine.deployment.mig):
        tried = at_tp(engine, tp)
        if gpus % tp == 0 and possible_tp(tried):
            verdict, replicas = verdict_of([tried]), gpus // tp
            each = 0.0 if verdict == "does_not_fit" else capacity_of(tried).max_concurrency
            found.append(Spread(tp, replicas, verdict, replicas * each))
        tp *= 2
    return tuple(found)
