"""Does prefix caching work, and where does it end? Prompts with a known common beginning, one reason to miss each."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpuwatch.probes.client import ProbeError
from gpuwatch.probes.limits import read_pool
from gpuwatch.probes.prefix_own import part, shared_tokens
from gpuwatch.probes.prefix_pressure import pressure
from gpuwatch.probes.prefix_prompts import TAIL, Prompts, base_length, expected, longest
from gpuwatch.probes.prefix_reading import NEEDS, send
from gpuwatch.probes.prefix_verdict import OWN, Case, Measured, conclude

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuwatch.probes.exchange import Ask
    from gpuwatch.probes.limits import Pool
    from gpuwatch.probes.prefix_own import Parting
    from gpuwatch.probes.prefix_prompts import Units
    from gpuwatch.probes.prefix_reading import Seen
    from gpuwatch.probes.result import Result
    from gpuwatch.probes.run import Run

NAME = "prefix"
DEPTHS = (1 / 8, 1 / 4, 1 / 2, 3 / 4, 7 / 8)
REPEATS_PER_RANK = 2
LONGER = 8192 + TAIL // 2
"""Tokens of the prompt that is tried where a shorter one is never found: hybrid models have blocks of 4,096."""


@dataclass(frozen=True, slots=True)
class PrefixOptions:
    """What to try.

    Attributes:
        length: Tokens of the common prompt; None: about 16 blocks.
        concurrency: Equal prompts that are sent at the same moment.
        lora: Adapter to compare with the model itself; empty: the first one that the server names.
        fill: Most tokens to send in order to push a prompt out of the cache; 0: do not try.
        own: Two prompts of the user's own, in the order in which they are sent; empty: none.
    """

    length: int | None = None
    concurrency: int = 8
    lora: str = ""
    fill: int = 200_000
    own: tuple[str, ...] = ()


@dataclass(slots=True)
class Bench:
    """The state of one probe: what was sent and what was measured."""

    run: Run
    options: PrefixOptions
    prompts: Prompts
    block: int | None
    pool: Pool | None
    base: Units
    cases: list[Case] = field(default_factory=list)
    single: set[int] = field(default_factory=set)
    """Places of the cases of one request, of which what should be found follows from the size of a block."""
    smallest: int | None = None
    step: int | None = None
    once: bool = False
    """Whether the prompt was too short to see if hits come in multiples of the smallest one."""
    steps: int = 24
    tells: bool = False
    parting: Parting | None = None
    since: int = 0
    """Tokens of the pool that requests took at most since the whole common prompt was sent."""

    def ask(self, units: Units, salt: str = "", lora: str = "") -> Ask:
        """Return the request for a prompt; one token of output is enough to have it computed."""
        return self.run.make(self.prompts.prompt(units), 1, salt=salt, lora=lora)

    def send(self, asks: Sequence[Ask], concurrency: int = 1) -> Seen:
        """Send requests, and remember whether the server tells what it found."""
        seen = send(self.run, asks, concurrency, tells=self.tells)
        self.tells = self.tells or seen.told
        if self.pool is not None:
            self.since += sum(self.pool.demand(self._length(ask) + 1) for ask in asks)
        return seen

    def _length(self, ask: Ask) -> int:
        if isinstance(ask.prompt, str):
            return self.prompts.tokens(len(ask.prompt.split()))
        return len(ask.prompt)

    def keep(self) -> None:
        """Send the common prompt again where others may have pushed it out of a small pool since it was sent.

        A miss would else be the size of the pool, not the prompt that differs.
        """
        pool, whole = self.pool, self.prompts.tokens(len(self.base)) + 1
        if pool is not None and self.since and self.since + pool.demand(whole) + pool.block > pool.usable:
            self.send([self.ask(self.base)])
            self.since = 0

    def case(self, name: str, units: Units, shared: int, salt: str = "", lora: str = "") -> Seen:
        """Send one prompt of which `shared` units were sent before, and note what was found of it."""
        self.run.report(len(self.cases), max(self.steps, len(self.cases) + 1), name)
        if shared and units[:shared] == self.base[:shared] and not (salt or lora):
            self.keep()
        seen = self.send([self.ask(units, salt, lora)])
        if units == self.base and not (salt or lora):
            self.since = 0
        self.note(name, seen, self.prompts.tokens(shared), 1)
        return seen

    def note(self, name: str, seen: Seen, shared: int | None, requests: int, best: int | None = None) -> None:
        """Keep what came of a case; `best` replaces what a cache of whole blocks should find."""
        if seen.ended:
            return
        tokens = seen.tokens
        if best is None and shared is not None and tokens is not None and requests == 1:
            best = expected(shared, tokens, self.size)
            self.single.add(len(self.cases))
        self.cases.append(
            Case(name, tokens, shared, best, seen.cached, seen.ttft, seen.detail, refused=seen.refused, kind=seen.kind)
        )

    def measured(self) -> tuple[Case, ...]:
        """Return the cases by the size of a block that was measured in the end: early ones were noted without it."""
        return tuple(
            replace(case, best=expected(case.shared, case.tokens, self.size))
            if place in self.single and case.shared is not None and case.tokens is not None
            else case
            for place, case in enumerate(self.cases)
        )

    def skip(self, name: str, why: str) -> None:
        """Note that a case was not tried."""
        self.cases.append(Case(name, detail=why, tried=False))

    @property
    def size(self) -> int | None:
        """Tokens in which hits come: as measured, else as the page says."""
        return self.step or (self.smallest if self.once else self.block)


def probe(run: Run, options: PrefixOptions) -> Result:
    """Send prompts with a known common beginning and see how much of each is found.

    Raises:
        ProbeError: the first prompt is not answered, or the pool is too small for any common beginning.
    """
    bench = _bench(run, options)
    first = bench.case("first time", bench.base, 0)
    if first.refused:
        raise ProbeError(
            f"{run.server.url}: a prompt of {len(bench.base):,} tokens was not answered: {first.detail}", 3
        )
    _same(bench)
    if _never(bench):
        _longer(bench)
    for step in _STEPS if any(case.cached for case in bench.cases) else ():
        if run.over:
            break
        step(bench)
    reading = run.metrics()
    stopped = run.over
    run.report(len(bench.cases), len(bench.cases), "done")
    measured = Measured(
        cases=tuple(_nothing_said(case, bench) for case in bench.measured()),
        block=bench.block,
        step=bench.step,
        smallest=bench.smallest,
        once=bench.once,
        pool=bench.pool.usable if bench.pool else None,
        ranks=reading.ranks() if reading is not None else 1,
        enabled=None if reading is None or (on := reading.least("prefix_cache_enabled")) is None else bool(on),
        concurrency=options.concurrency,
        exact=run.vocabulary.exact,
        parting=bench.parting,
    )
    return conclude(run, measured, stopped)


def _nothing_said(case: Case, bench: Bench) -> Case:
    """Return a case of which the server said nothing as one without a hit, where it did say so of others."""
    if bench.tells and case.detail == NEEDS[bench.run.server.engine]:
        return replace(case, cached=0, detail="")
    return case


def _bench(run: Run, options: PrefixOptions) -> Bench:
    reading = run.metrics()
    pool = read_pool(reading, run.server.engine)
    said = reading.most("kv_block_size_tokens") if reading is not None else None
    block = int(said) if said is not None and said >= 1 else None
    prompts = Prompts(run.vocabulary, f"prefix/{run.seed}/{secrets.token_hex(8)}")
    tokens = options.length or base_length(block, run.server.max_model_len, pool.usable if pool else None)
    if tokens < 2 * (block or 1):
        blocks = f"two blocks of {block:,}" if block else "two tokens"
        raise ProbeError(
            f"a prompt of {max(tokens, 0):,} tokens does not hold {blocks}: "
            "the pool or the context is too small for a common beginning"
        )
    return Bench(run, options, prompts, block, pool, prompts.fresh(prompts.units(tokens)))


def _same(bench: Bench) -> None:
    """Repeat the prompt; where it is not found, again, in case that each replica has a cache of its own."""
    whole = len(bench.base)
    seen = bench.case("same prompt", bench.base, whole)
    reading = bench.run.metrics()
    ranks = reading.ranks() if reading is not None else 1
    for repeat in range(2, 2 + REPEATS_PER_RANK * ranks if seen.cached == 0 else 2):
        if bench.case(f"same prompt, repetition {repeat}", bench.base, whole).cached:
            break


def _never(bench: Bench) -> bool:
    """Return whether the server tells what it found, and found nothing in all that was sent so far."""
    again, reading = bench.cases[1:], bench.run.metrics()
    if reading is not None and reading.least("prefix_cache_enabled") == 0:
        return False
    return bool(again) and all(case.cached == 0 for case in again) and not bench.run.over


def _longer(bench: Bench) -> None:
    """Begin again with a longer prompt: a common beginning that is shorter than a real block is never found.

    Hybrid models and some backends enlarge the block beyond what the page says.
    """
    run, short = bench.run, len(bench.base)
    room = longest(run.server.max_model_len, 3 * (bench.pool.usable - TAIL) if bench.pool else None)  # all of the pool
    units = bench.prompts.units(min(LONGER, room))
    if bench.options.length is not None or units <= short:
        return
    before = len(bench.cases)
    bench.base = bench.prompts.fresh(units)
    if bench.case("first time", bench.base, 0).refused or run.over:
        del bench.cases[before:]
        bench.base = bench.base[:short]
        return
    bench.cases[:before] = [replace(case, name=f"shorter prompt, {case.name}") for case in bench.cases[:before]]
    _same(bench)


def _ends(bench: Bench) -> None:
    whole = len(bench.base)
    tail = min(bench.prompts.units(TAIL), whole // 4)
    bench.case("random tail", bench.prompts.sharing(bench.base, whole - tail, whole), whole - tail)
    bench.case("random head", (*bench.prompts.fresh(tail), *bench.base[tail:]), 0)


def _depths(bench: Bench) -> None:
    whole = len(bench.base)
    for depth in DEPTHS:
        shared = int(whole * depth)
        bench.case(f"differs from {depth * 100:g} % on", bench.prompts.sharing(bench.base, shared, whole), shared)


def _granularity(bench: Bench) -> None:
    """Find the shortest common beginning that hits, by halving, and whether hits come in multiples of it."""
    if not bench.prompts.vocabulary.exact:
        bench.skip("block size", "needs a server that takes token ids")
        return
    hits = [case.shared for case in bench.cases if case.cached and case.shared]
    if not hits:
        bench.skip("block size", "nothing was found in the cache")
        return
    low, high = 0, min(hits)
    while high - low > 1 and not bench.run.over:
        middle = (low + high) // 2
        found = _found(bench, middle)
        if found is None:
            return
        low, high = (low, middle) if found else (middle, high)
    bench.smallest = high
    if 2 * high > len(bench.base):
        bench.once = True
        return
    below, twice = _found(bench, 2 * high - 1), _found(bench, 2 * high)
    if (below, twice) == (2 * high - 1 if high == 1 else high, 2 * high):
        bench.step = high


def _found(bench: Bench, shared: int) -> int | None:
    """Return how much is found of a prompt that shares so many tokens and then goes on differently."""
    bench.keep()
    units = bench.prompts.sharing(bench.base, shared, shared + 8)
    return bench.send([bench.ask(units)]).cached


def _edges(bench: Bench) -> None:
    """Repeat a prompt that is shorter than a block, and one that is exactly two blocks long."""
    size = bench.size
    if size is None or bench.once or not bench.prompts.vocabulary.exact:
        bench.skip("shorter than a block", "needs the block size and a server that takes token ids")
        return
    edges = [("exactly two blocks", 2 * size)]
    if size > 2:
        edges.insert(0, ("shorter than a block", size - 1))
    for name, length in edges:
        units = bench.prompts.fresh(length)
        bench.send([bench.ask(units)])
        bench.case(f"{name}, repeated", units, length)


def _salt(bench: Bench) -> None:
    whole = len(bench.base)
    one, other = secrets.token_hex(8), secrets.token_hex(8)
    if bench.case("new salt", bench.base, 0, salt=one).refused:
        return
    bench.case("same salt", bench.base, whole, salt=one)
    bench.case("another salt", bench.base, 0, salt=other)


def _lora(bench: Bench) -> None:
    name = bench.options.lora or next(iter(bench.run.server.adapters), "")
    if not name:
        bench.skip("LoRA adapter", "the server names no adapter; --lora NAME")
        return
    if bench.case("LoRA adapter, first time", bench.base, 0, lora=name).refused:
        return
    bench.case("LoRA adapter, repeated", bench.base, len(bench.base), lora=name)


def _together(bench: Bench) -> None:
    """Send equal prompts at the same moment: new ones, then the same ones again."""
    many = bench.options.concurrency
    if bench.pool is not None:
        many = min(many, max(1, bench.pool.usable // max(1, len(bench.base))))
    if many < 2:
        bench.skip("at the same moment", "the pool holds one such prompt at a time")
        return
    units = bench.prompts.fresh(len(bench.base))
    for name, of in (("new, at the same moment", many - 1), ("repeated, at the same moment", many)):
        bench.run.report(len(bench.cases), max(bench.steps, len(bench.cases) + 1), name)
        seen = bench.send([bench.ask(units)] * many, many)
        each = expected(len(units), len(units), bench.size)
        bench.note(f"{many} {name}", seen, None, many, None if each is None else each * of)


def _own(bench: Bench) -> None:
    """Send two prompts of the user's own, one after the other."""
    if not bench.options.own:
        return
    first, second = bench.options.own
    bench.parting = part(first, second)
    shared, exact = shared_tokens(bench.run.client, first, second, bench.parting.shared)
    bench.send([bench.run.make(first, 1)])
    seen = bench.send([bench.run.make(second, 1)])
    best = expected(shared, seen.tokens, bench.size) if exact and seen.tokens is not None else None
    bench.note(OWN, seen, shared, 1, best)


_STEPS: tuple[Callable[[Bench], None], ...] = (
    _ends,
    _depths,
    _granularity,
    _edges,
    _salt,
    _lora,
    _together,
    _own,
    pressure,
)
"""What is tried once the same prompt was found.

In this order: what follows uses what was measured, and the last one pushes everything out of the cache.
"""
