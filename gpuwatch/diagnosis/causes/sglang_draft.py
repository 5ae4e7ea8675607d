"""SGLang's draft models: a second load, after the target's KV pool, whose lines look like those of the target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import moves
from gpuwatch.diagnosis.causes.view import Cause, advise, from_fact, ruled_out
from gpuwatch.diagnosis.explanation import Explanation, logged, size, told

if TYPE_CHECKING:
    from gpuwatch.diagnosis.causes.view import Run, View
    from gpuwatch.diagnosis.finding import Evidence
    from gpuwatch.model import Fact, LogEvent

BEGUN, ENDED = "gpu.free_at_start_bytes", "avail.after_weights_bytes"
POOLS = ("kv.bytes", "kv.tokens", "avail.after_pool_bytes")
TOKENS = 256
"""Tokens of a pool are proposed in multiples of this."""


def first_load(run: Run) -> Fact | None:
    """Return what was free before the first load of weights: the least of the ranks, before one of them ended it."""
    begun, ended = [fact for fact in run.all(BEGUN) if not isinstance(fact.value, str)], run.all(ENDED)
    first = [fact for fact in begun if not ended or (fact.line or 0) < (ended[0].line or 0)]
    return first[-1] if first else None


def _after_pool(run: Run, event: LogEvent) -> tuple[Fact | None, Fact | None] | None:
    """Return the beginning and the end of a load that came after the pool of the same rank, before an error."""
    for suffix in sorted({fact.key.removeprefix(ENDED) for fact in run.facts if fact.key.startswith(ENDED)}):
        made = [fact.line or 0 for key in POOLS for fact in run.all(key + suffix)]
        later = [
            [fact for fact in run.all(key + suffix) if made and min(made) < (fact.line or 0) < event.line]
            for key in (BEGUN, ENDED)
        ]
        if later[0] or later[1]:
            return next(iter(later[0]), None), next(iter(later[1]), None)
    return None


def crowded_out(view: View, event: LogEvent) -> Cause | None:
    """Explain a draft model that found no memory for its own pool, as that of the target had taken it; None if none.

    The share of the card covers the target first: a larger one makes its pool larger, and the draft's room smaller.
    """
    run = view.run_of(event)
    load = _after_pool(run, event)
    if load is None:
        return None
    begun, ended = load
    before, after = (None if fact is None else float(fact.value) for fact in load)
    weights = before - after if before is not None and after is not None else None
    evidence: list[Evidence] = [logged(event)]
    if begun is not None:
        evidence.append(
            told(begun, f"free when the draft model was loaded, after that pool: {size(before or 0)}", "bytes")
        )
    if ended is not None:
        evidence.append(told(ended, f"free after the draft's weights: {size(after or 0)}", "bytes"))
    first = first_load(run)
    if first is not None:
        evidence.append(told(first, f"free before the target's weights: {size(float(first.value))}", "bytes"))
    evidence += from_fact(run, "kv.bytes", "the target's KV pool: {}", "bytes")
    evidence.append(ruled_out("the target's weights: its pool had been allocated beside them", event))
    total = float(first.value) if first is not None else None
    tokens, pool = run.number("kv.tokens"), run.number("kv.bytes")
    freed = (weights or 0) + moves.RESERVE
    fewer = int(tokens * (pool - freed) / pool) // TOKENS * TOKENS if tokens and pool and pool > freed else None
    drafts = run.number("flag.speculative-num-draft-tokens")
    return Cause(
        "spec_decode_memory",
        Explanation(
            "The KV pool of the target model took the room of the draft model: "
            + (
                f"of {size(before)} that were left, the draft's weights take {size(weights)}, and "
                if weights and before
                else ""
            )
            + "nothing is left for the draft's own pool. The message asks for a larger share, which makes the target's "
            "pool larger and that room smaller.",
            0.85,
            tuple(evidence),
            (
                *moves.lower_fraction(run, weights or 0, total, "leave room for the draft beside the target's pool"),
                advise(
                    "or cap the target's pool, which leaves the rest to the draft",
                    "--max-total-tokens",
                    run.number("flag.max-total-tokens") or (tokens and int(tokens)),
                    fewer,
                ),
                *(
                    [advise("or draft fewer tokens", "--speculative-num-draft-tokens", int(drafts), int(drafts) // 2)]
                    if drafts and drafts > 1
                    else []
                ),
                advise("or update SGLang: newer versions count the draft model before they size the pool"),
            ),
        ),
        event.time,
    )
