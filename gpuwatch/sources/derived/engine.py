"""What can be said about one engine only by comparing its page with the previous one.

The counter of evictions is the point of it. vLLM V1 counts a preemption when its victim runs again, 10 to 20 seconds
late, and some versions never do within a storm. Seen from outside, with E requests thrown out, A admitted, F finished
and N newly arrived between two pages,

    running before - running now - F = E - A        and        queued now - queued before = N + E - A

so that ``min`` of the two is a lower bound of E as long as no client goes away. A client that disconnects makes
`running` fall as well, but puts nothing in the queue; a request that the front end finished a step before the
scheduler does likewise. Both therefore count nothing.

A client that gives up and sends its request again does both: its place is empty and the queue is longer. But what it
held in the KV pool is free, so the scheduler fills the place from the queue at once, while after an eviction there is
no room. A fall of `running` is therefore counted only when no place was filled again on a later page (`SETTLED_MS`),
or, where some were, for those that stayed empty (`LASTING_MS`), or when the engine's own counter of preemptions moved
meanwhile: that counter moves when a victim runs again.

Many clients that give up at once leave more places than prefill fills in that time. But a request is thrown out only
when the pool is full, so that what is free right after several evictions is what the last of them held, and those that
finished. Several that leave a pool with more room than that were not thrown out of it (`ROOM`, `VICTIM`). Of a pool
that was full a page before (`FULL`) this says nothing: the last victim may have held many times as much as the others.

A prompt that is computed in chunks needs room for the first of them only. Thrown out half computed, it is admitted
again at once: such an eviction is read off the pool (`pool`), as one request, if the places did not show it.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuwatch.model import NAME
from gpuwatch.sources.derived.pool import Pool, PoolTrail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.model import Labels

LONGEST_GAP_MS = 60_000
"""Two pages further apart than this are not compared: too much may have happened in between."""
LASTING_MS = 2_000
"""A place in the running batch that is filled again within this time was not lost to an eviction."""
SETTLED_MS = 700
"""When no place was filled again within this time, none will be soon. Less than the interval of pages at 1 Hz."""
ROOM = 0.7
"""A pool that is used to this share may have thrown out requests just now: 0.72 to 0.92 was measured."""
FULL = 0.95
"""A pool that was used to this share a page before was full: its requests may well have been thrown out."""
VICTIM = 2.0
"""What a victim, or a request that finished, held at most, in means of those that ran a page before."""
LENGTH_WINDOW_MS = 300_000
"""How long the request length that was seen is remembered."""

_PREFIX = "gpuwatch_engine_"
_SINGLE = {
    "requests_running": "running",
    "requests_waiting": "waiting",
    "requests_swapped": "swapped",
    "preemptions_total": "preemptions",
    "generation_tokens_total": "generation",
    "prompt_tokens_total": "prompt",
    "iteration_tokens_sum": "iteration",
    "kv_cache_usage_ratio": "usage",
    "kv_cache_tokens": "tokens",
    "kv_cache_free_tokens": "free",
    "kv_cache_blocks": "blocks",
    "kv_block_size_tokens": "block_size",
    "asleep": "asleep",
}
_FINISHED = "requests_finished_total"
_NOT_OF_THE_PAGE = ("process_", "processes", "config_", "info")


@dataclass(slots=True)
class PageRows:
    """All rows of the page of one server and rank, which its models share, and their values at the last look."""

    rows: list[int] = field(default_factory=list)
    _time: int = 0
    _values: tuple[float, ...] = ()
    _changed: bool = True

    def changed(self, time: int, values: Sequence[float]) -> bool:
        """Return whether a value at `time` is another than at the look before; the first look is a change."""
        if time != self._time:
            current = tuple(float(values[row]) for row in self.rows)
            self._changed = not current or not _same(current, self._values)
            self._time, self._values = time, current
        return self._changed


@dataclass(frozen=True, slots=True)
class EngineRows:
    """Where the values of one engine are in its batch: rows by short name, the finished rows, all rows of the page."""

    single: dict[str, int]
    finished: tuple[int, ...]
    page: PageRows


def engine_rows(keys: Sequence[Labels]) -> dict[Labels, EngineRows]:
    """Return, for each engine (labels without name) in `keys` that reports running requests, where its rows are."""
    single: dict[Labels, dict[str, int]] = {}
    finished: dict[Labels, list[int]] = {}
    page: defaultdict[tuple[str, str], PageRows] = defaultdict(PageRows)
    for row, labels in enumerate(keys):
        pairs = dict(labels)
        name = pairs.pop(NAME, "")
        if not name.startswith(_PREFIX):
            continue
        short = name.removeprefix(_PREFIX)
        if not short.startswith(_NOT_OF_THE_PAGE):
            page[pairs.get("server", ""), pairs.get("dp_rank", "")].rows.append(row)
        if short == _FINISHED:
            pairs.pop("reason", None)
            finished.setdefault(tuple(sorted(pairs.items())), []).append(row)
        elif short in _SINGLE:
            single.setdefault(tuple(sorted(pairs.items())), {})[_SINGLE[short]] = row
    found = {}
    for engine, rows in single.items():
        if "running" in rows:
            of = dict(engine)
            own = page[of.get("server", ""), of.get("dp_rank", "")]
            found[engine] = EngineRows(rows, tuple(finished.get(engine, ())), own)
    return found


@dataclass(frozen=True, slots=True)
class Page:
    """The values of one engine at one scrape that are compared with the next; None where the page lacks them."""

    time: int
    running: float
    queued: float | None
    finished: float | None
    counters: tuple[float | None, ...]
    preemptions: float | None
    usage: float | None
    tokens: float | None
    progress: tuple[float | None, ...]


@dataclass(slots=True, eq=False)
class Drop:
    """Requests that left the batch for the queue between two pages, as it seems.

    `at` is the second of the pages, `most` the most requests that ran on it or since. `pool` is what the KV pool says:
    that it lost what a request had computed (true), or that it did although there was room (None).
    """

    at: Page
    requests: float
    most: float
    pool: bool | None = False

    def is_decided(self, page: Page) -> bool:
        """Return whether `page` tells what it was: enough time has passed, or the engine counted a preemption."""
        refilling = self.most > self.at.running or not self.requests
        return self._confirmed(page) or page.time - self.at.time >= (LASTING_MS if refilling else SETTLED_MS)

    def _confirmed(self, page: Page) -> bool:
        return (page.preemptions or 0.0) > (self.at.preemptions or 0.0)

    def lasting(self, page: Page) -> float:
        """Return how many of them were evicted, as the pages up to `page` show; a lower bound."""
        if self._confirmed(page):
            return self.requests
        empty = self.at.running + self.requests - self.most
        if self.most > self.at.running:  # places were filled, so one that is empty may be of a request that finished
            empty -= (page.finished or 0.0) - (self.at.finished or 0.0)
        return max(0.0, min(self.requests, empty))

    def freed(self, page: Page) -> bool:
        """Return whether the pool lost what was computed, and not a prompt that got its first token meanwhile."""
        return self.pool is not False and (self.at.counters[1] == page.counters[1] or self._confirmed(page))


@dataclass(slots=True)
class EngineTrail:
    """The state of one engine (or data-parallel rank) across scrapes. Times in milliseconds."""

    engine: Labels
    sglang: bool
    evictions: float | None = None
    seconds_since_token: float = 0.0
    page_frozen_seconds: float = 0.0
    seen: deque[tuple[int, float]] = field(default_factory=deque)
    alive: bool = False
    _drops: deque[Drop] = field(default_factory=deque)
    _pool: PoolTrail = field(default_factory=PoolTrail)
    _page: Page | None = None
    _token_at: int = 0
    _looked: bool = False
    _changed_at: int = 0

    def update(self, time: int, rows: EngineRows, values: Sequence[float]) -> None:
        """Take one page of the engine, scraped at `time`."""
        page = self._read(time, rows, values)
        previous = self._page
        restarted = previous is not None and _went_back(previous, page)
        if previous is not None and (restarted or page.time - previous.time > LONGEST_GAP_MS):
            previous = None
        self._count_evictions(previous, page, pool_held(page, rows, values))
        self._watch_tokens(previous, page)
        self._watch_page(previous, page, rows, values)
        self._note_length(time, rows, values)
        self._page = page
        self.alive = True

    def lost(self) -> None:
        """Note that the page could not be read. The next page is compared with the last one that was."""
        self.alive = False
        self._looked = False

    @property
    def length_seen(self) -> float | None:
        """Most KV tokens per running request in the last five minutes, or None before any were seen."""
        return self.seen[0][1] if self.seen else None

    def _read(self, time: int, rows: EngineRows, values: Sequence[float]) -> Page:
        def get(name: str) -> float | None:
            row = rows.single.get(name)
            return None if row is None else float(values[row])

        waiting = get("waiting")
        finished = float(sum(values[row] for row in rows.finished)) if rows.finished else None
        generation, prompt, preemptions = get("generation"), get("prompt"), get("preemptions")
        usage = get("usage")
        progress = [generation, prompt, get("iteration")]
        if self.sglang:  # its token counters move only when a chunk is streamed or a request ends
            progress += [usage, get("free")]
        return Page(
            time=time,
            running=float(values[rows.single["running"]]),
            queued=None if waiting is None else waiting + (get("swapped") or 0.0),
            finished=finished,
            counters=(generation, prompt, finished, preemptions),
            preemptions=preemptions,
            usage=usage,
            tokens=get("tokens"),
            progress=tuple(progress),
        )

    def _count_evictions(self, previous: Page | None, page: Page, pool: Pool | None) -> None:
        if self.sglang:
            # Its gauges are refreshed every 40 decode steps, its finished counter at once: they do not compare.
            if page.preemptions is None:
                return
            before = previous.preemptions if previous is not None else None
            added = page.preemptions - before if before is not None else 0.0
        else:
            if page.queued is None or page.finished is None:
                return
            added = self._lasting_drops(previous, page, pool)
        self.evictions = (self.evictions or 0.0) + max(0.0, added)

    def _lasting_drops(self, previous: Page | None, page: Page, pool: Pool | None) -> float:
        """Return the evictions that this page proves, and remember those that it makes likely."""
        drops = self._drops
        if previous is None:
            drops.clear()
            self._pool.forget()
            self._pool.update(pool)
            return 0.0
        for drop in drops:
            drop.most = max(drop.most, page.running)
        proven = 0.0
        for drop in [one for one in drops if one.is_decided(page)]:
            drops.remove(drop)
            freed = drop.freed(page)
            proven += max(drop.lasting(page), 1.0 if freed and drop.pool else 0.0)
            if freed and drop.pool is None:
                self._pool.spoil(page.time)
        likely, fell = evicted_between(previous, page), self._pool.update(pool)
        if likely or fell is not False:
            drops.append(Drop(page, likely, page.running, fell))
        return proven

    def _watch_tokens(self, previous: Page | None, page: Page) -> None:
        if previous is None or page.running <= 0 or page.progress != previous.progress or previous.running <= 0:
            self._token_at = page.time
        self.seconds_since_token = (page.time - self._token_at) / 1000 if page.running > 0 else 0.0

    def _watch_page(self, previous: Page | None, page: Page, rows: EngineRows, values: Sequence[float]) -> None:
        is_open = page.running > 0 or (page.queued or 0.0) > 0
        moved = previous is None or page.progress != previous.progress
        # The whole page is only copied while the quick signs of life stand still.
        looks = is_open and not moved
        if not looks or rows.page.changed(page.time, values) or not self._looked:
            self._changed_at = page.time
        self._looked = looks
        self.page_frozen_seconds = (page.time - self._changed_at) / 1000

    def _note_length(self, time: int, rows: EngineRows, values: Sequence[float]) -> None:
        length = tokens_per_request(rows, values)
        seen = self.seen
        while seen and seen[0][0] <= time - LENGTH_WINDOW_MS:
            seen.popleft()
        if length is None:
            return
        while seen and seen[-1][1] <= length:
            seen.pop()
        seen.append((time, length))


def evicted_between(previous: Page | None, page: Page) -> float:
    """Return how many requests left the running batch for the queue between two pages, as it seems; a lower bound."""
    if previous is None or previous.queued is None or previous.finished is None:
        return 0.0
    assert page.queued is not None
    assert page.finished is not None
    ended = page.finished - previous.finished
    likely = max(0.0, min(previous.running - page.running - ended, page.queued - previous.queued))
    if likely > 1 and _has_room(previous, page):
        return min(likely, _added(previous.preemptions, page.preemptions))
    return likely


def _has_room(previous: Page, page: Page) -> bool:
    """Return whether the pool has more room than the last of several evictions and the finished requests left."""
    if page.usage is None or previous.usage is None or previous.running < 1:
        return False
    if page.usage >= ROOM or previous.usage >= FULL:
        return False
    told = [_added(before, now) for before, now in zip(previous.counters, page.counters, strict=True)]
    computed = (told[0] + told[1]) / page.tokens if page.tokens else 0.0
    held = VICTIM * previous.usage / previous.running
    return 1 - page.usage > held * (1 + told[2]) + computed


def _added(before: float | None, now: float | None) -> float:
    """Return by how much a counter grew, 0 where it is absent."""
    return max(0.0, (now or 0.0) - (before or 0.0))


def pool_held(page: Page, rows: EngineRows, values: Sequence[float]) -> Pool | None:
    """Return what the KV pool holds, or None where the page does not say all that it takes to compare it.

    vLLM's usage excludes the null block from the pool (facts of version 0.10.2 and later).
    """
    single = rows.single
    generation, prompt = page.counters[0], page.counters[1]
    if generation is None or prompt is None or page.finished is None or page.queued is None:
        return None
    if "usage" not in single or "blocks" not in single or "block_size" not in single:
        return None
    size, block = float(values[single["blocks"]]) - 1, float(values[single["block_size"]])
    usage = float(values[single["usage"]])
    if not (size > 0 and block > 0 and usage >= 0):
        return None
    used = round(usage * size)
    return Pool(
        time=page.time,
        running=page.running,
        open=page.running + page.queued,
        finished=page.finished,
        prompt=prompt,
        untold=used * block - prompt - generation,
        used=used,
        size=size,
        block=block,
    )


def tokens_per_request(rows: EngineRows, values: Sequence[float]) -> float | None:
    """Return a lower bound of the longest running request: KV tokens held, divided by running requests.

    vLLM's usage excludes the null block from the pool (facts of version 0.10.2 and later), and a block that is
    held need not be full: up to one token less than a block per request is taken off.
    """
    single = rows.single
    if "usage" not in single or "tokens" not in single:
        return None
    running, usage = float(values[single["running"]]), float(values[single["usage"]])
    if running < 1 or not usage > 0:
        return None
    held = usage * float(values[single["tokens"]])
    if "blocks" in single and values[single["blocks"]] > 1:
        held *= 1 - 1 / float(values[single["blocks"]])
    block = float(values[single["block_size"]]) if "block_size" in single else 1.0
    length = held / running - (block - 1)
    return length if length > 0 else None


def _same(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    """Return whether two pages have the same values; NaN equals NaN here."""
    return a == b or (
        len(a) == len(b) and all(x == y or (math.isnan(x) and math.isnan(y)) for x, y in zip(a, b, strict=True))
    )


def _went_back(previous: Page, page: Page) -> bool:
    """Return whether a counter fell, which means that the engine was restarted."""
    return any(
        before is not None and now is not None and now < before
        for before, now in zip(previous.counters, page.counters, strict=True)
    )
