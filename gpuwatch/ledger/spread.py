"""One model on several cards: one group of ranks, or independent replicas, and what each way serves in all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.ledger.plan import capacity_of, starts, verdict_of
from gpuwatch.ledger.ranks import at_tp, possible_tp

if TYPE_CHECKING:
    from gpuwatch.ledger.need import Engine
    from gpuwatch.ledger.plan import Verdict


@dataclass(frozen=True, slots=True)
class Spread:
    """`replicas` groups of `tp` ranks. `concurrency` is that of all replicas together, 0 where one does not start.

    `shared`: the groups are data-parallel ones of one engine, which divide the experts among them.
    """

    tp: int
    replicas: int
    verdict: Verdict
    concurrency: float
    shared: bool = False


def spreads(engine: Engine, gpus: int) -> tuple[Spread, ...]:
    """Return every way to spread an engine over `gpus` cards in groups of 1, 2, 4 … ranks, the smallest groups first.

    Last comes the way that was asked for where its groups share the experts.
    MIG slices cannot form groups: there is no peer-to-peer between them.
    """
    found = []
    tp = 1
    while tp <= gpus and (tp == 1 or not engine.deployment.mig):
        tried = at_tp(engine, tp)
        if gpus % tp == 0 and possible_tp(tried):
            verdict, replicas = verdict_of([tried]), gpus // tp
            each = 0.0 if verdict == "does_not_fit" or not starts([tried]) else capacity_of(tried).served
            found.append(Spread(tp, replicas, verdict, replicas * each))
        tp *= 2
    asked = engine.deployment
    if asked.sharing_dp > 1 and gpus % asked.cards == 0:
        verdict, replicas = verdict_of([engine]), gpus // asked.cards
        each = 0.0 if verdict == "does_not_fit" else capacity_of(engine).served
        found.append(Spread(asked.tp, replicas * asked.dp, verdict, replicas * each, shared=True))
    return tuple(found)
