"""After how many tokens of other prompts a prompt is pushed out of the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.probes.prefix_prompts import expected

if TYPE_CHECKING:
    from gpuwatch.probes.limits import Pool
    from gpuwatch.probes.prefix import Bench
    from gpuwatch.probes.prefix_prompts import Units

AGES = (1.25, 1.0, 0.75, 0.5, 0.25)
"""Parts of the pool that other prompts fill between a prompt and its repetition."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Tokens of the pool that prompts took for good, in whole blocks.

    A block that is not full is never found again, and some versions use it again before any other: whether it counts
    (`most`) or not (`least`) is not known.
    """

    least: int = 0
    most: int = 0

    @classmethod
    def by(cls, pool: Pool, tokens: int) -> Taken:
        """Return what one prompt takes."""
        return cls(tokens // pool.block * pool.block, pool.demand(tokens))

    def __add__(self, other: Taken) -> Taken:
        return Taken(self.least + other.least, self.most + other.most)


def pressure(bench: Bench) -> None:
    """Send other prompts until earlier ones are pushed out, and see which are still found, the youngest first."""
    pool, size = bench.pool, bench.size
    reading = bench.run.metrics()
    if pool is None or size is None or reading is None or bench.once:
        bench.skip("after other prompts", "needs the true sizes of the KV pool and of its blocks")
        return
    if reading.ranks() > 1:
        bench.skip(
            "after other prompts", f"{reading.ranks()} replicas have a pool each: which one is filled is not known"
        )
        return
    need = round(max(AGES) * pool.usable)
    if need > bench.options.fill:
        bench.skip("after other prompts", f"{need:,} tokens would have to be sent: --fill {need}")
        return
    bench.steps = len(bench.cases) + 2 * len(AGES)
    length = 2 * size + 1 if size > 1 else 64
    witnesses: list[tuple[Units, Taken]] = []
    sent = Taken()
    for index, age in enumerate(AGES):
        units = bench.prompts.fresh(bench.prompts.units(length))
        if bench.send([bench.ask(units)]).ended:
            return
        sent += Taken.by(pool, length)
        witnesses.append((units, sent))
        younger = AGES[index + 1] if index + 1 < len(AGES) else 0.0
        bench.run.report(len(bench.cases) + index, bench.steps, "filling the pool")
        sent += _fill(bench, pool, round((age - younger) * pool.usable))
    own = pool.demand(length) * len(AGES)
    for units, then in reversed(witnesses):
        least, most = sent.least - then.least, sent.most - then.most
        seen = bench.send([bench.ask(units)])
        tokens = bench.prompts.tokens(len(units))
        whole = expected(tokens, tokens, size)
        best = 0 if least >= pool.usable else whole if most + own <= pool.usable else None
        bench.note(f"after {least:,} tokens of other prompts", seen, length, 0, best)


def _fill(bench: Bench, pool: Pool, tokens: int) -> Taken:
    """Send new prompts of `tokens` tokens in all; return what they took of the pool."""
    longest = min(len(bench.base), max(1, pool.usable // 4))
    lengths = [longest] * (tokens // longest)
    lengths += [tokens % longest] if tokens % longest else []
    asks = [bench.ask(bench.prompts.fresh(bench.prompts.units(length))) for length in lengths]
    # Not only sent, but counted on the page: the counters have to be at rest before the next case.
    bench.send(asks, min(bench.options.concurrency, 2))
    return sum((Taken.by(pool, length) for length in lengths), Taken())
