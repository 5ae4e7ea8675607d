"""Several engines on the same cards: the shares that they need, as a what-if row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.ledger.changes import FREE
from gpuwatch.ledger.plan import capacity_of, card_of, fraction_needed, verdict_of
from gpuwatch.ledger.whatif import VERDICTS, Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.ledger.need import Engine


def shares_needed(engines: Sequence[Engine]) -> Row | None:
    """Return the shares of the card that several engines need, where those they were told do not do and these would.

    What the row holds is what the fuller of them holds.
    """
    told = [engine.deployment for engine in engines]
    if len(engines) < 2 or not any(one.fraction_asked for one in told) or any(one.pool_asked for one in told):
        return None
    shares = [fraction_needed(engine, engines[:at]) for at, engine in enumerate(engines)]
    tried = [
        engine.with_deployment(fraction=share, fraction_told=True)
        for engine, share in zip(engines, shares, strict=True)
        if share <= 1
    ]
    if len(tried) < len(engines) or _stands(engines) <= _stands(tried):
        return None
    found = [
        capacity_of(engine, sum(card_of([other]).total for other in tried if other is not engine)) for engine in tried
    ]
    before, after = (" and ".join(f"{one:g}" for one in row) for row in ([one.fraction for one in told], shares))
    return Row(
        f"shares of {before} → {after}",
        "nothing: each has the share that it needs",
        FREE,
        tried[0],
        min(one.max_context for one in found),
        min(one.served for one in found),
        verdict_of(tried),
    )


def _stands(engines: Sequence[Engine]) -> int:
    return VERDICTS[verdict_of(engines)]
