"""Engine rows: one per server, with one row per data-parallel rank. Ratios of ranks are never combined."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpuwatch.queries import BOUNDED, QUERIES
from gpuwatch.tui.text import clean
from gpuwatch.tui.view.reasons import source_problem
from gpuwatch.tui.view.table import (
    RANK_KEY,
    SERVER_KEY,
    absences,
    collect,
    collect_by,
    in_number_order,
    texts,
    why_absent,
)
from gpuwatch.units import age, seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatch.model import Absence, Fact
    from gpuwatch.snapshot import Snapshot, SourceState
    from gpuwatch.tui.view.table import Key

RANK_FIGURES = (
    "kv_usage",
    "kv_tokens",
    "kv_free_tokens",
    "kv_blocks",
    "kv_block_size",
    "running",
    "waiting",
    "swapped",
    "prompt_rate",
    "generation_rate",
    "preemption_rate",
    "eviction_rate",
    "finish_rate",
    "prefix_enabled",
    "prefix_hit_ratio",
    "ttft_p50",
    "ttft_p95",
    "itl_p50",
    "itl_p95",
    "queue_p95",
    *(f"{name}_at_most" for name in BOUNDED),
    "seconds_since_token",
    "asleep",
)
"""Catalogue queries with one value per engine rank."""

_PRESENT = tuple(name for name in RANK_FIGURES if "[" not in QUERIES[name].template)
"""Those that are of this moment; the others look back and outlive a rank that is gone."""

SERVER_FIGURES = (
    "max_num_seqs",
    "max_model_len",
    "tensor_parallel_size",
    "weights",
    "kv_cache_bytes",
    "activation_peak",
    "graph_bytes",
    "engine_cpu",
    "engine_resident",
)
"""Catalogue queries with one value per server."""

MOST_RANKS = 64
"""Ranks of one server that get rows; of more only the number is said."""

ANSWERED = frozenset({"unauthorized", "not_metrics", "too_large", "not_found"})
"""Reasons of a source that did answer, with something that is no page of metrics."""

_ADDRESS = re.compile(r" (?:from|at) https?://\S+?(?=[;:]?(?:\s|$))|(?<=the page )https?://\S+ ")

KIND_NAMES = {"vllm": "vLLM", "sglang": "SGLang"}


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank of an engine: its figures by query name, and why others are absent."""

    key: Key
    model: str
    dp_rank: str
    figures: Mapping[str, float] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    waiting_for: tuple[tuple[str, float], ...] = ()

    def get(self, query: str) -> float | None:
        """Return one figure, None when it is absent."""
        return self.figures.get(query)

    def latency(self, query: str) -> str:
        """Return a quantile as text; of one in the engine's first bucket only that it is at most its end."""
        bound = self.get(f"{query}_at_most")
        return seconds(self.get(query)) if bound is None else f"≤{seconds(bound)}"

    @property
    def kv_used_tokens(self) -> float | None:
        """Tokens in the KV pool: pool times usage, so that it agrees with the percentage beside it."""
        tokens, free, usage = self.get("kv_tokens"), self.get("kv_free_tokens"), self.get("kv_usage")
        if tokens is None or (usage is None and free is None):
            return None
        return tokens * usage if usage is not None else tokens - (free or 0.0)


@dataclass(frozen=True, slots=True)
class Engine:
    """One server. `problem` is one sentence, empty while it answers; `stale` is the age of old figures in seconds.

    `hidden` is how many ranks it has beyond `MOST_RANKS`; `predicted` the memory that the ledger expects on each GPU.
    """

    key: Key
    host: str
    server: str
    kind: str
    version: str = ""
    role: str = ""
    ranks: tuple[Rank, ...] = ()
    hidden: int = 0
    figures: Mapping[str, float] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    stale: float | None = None
    facts: tuple[Fact, ...] = ()
    predicted: Mapping[str, float] = field(default_factory=dict)

    def get(self, query: str) -> float | None:
        """Return one figure of the server, None when it is absent."""
        return self.figures.get(query)

    @property
    def title(self) -> str:
        """Engine and version, such as ``vLLM 0.32``."""
        name = KIND_NAMES.get(self.kind, self.kind or "engine")
        return f"{name} {self.version}" if self.version else name

    @property
    def address(self) -> str:
        """The server's address, without a host that is this machine."""
        host, _, port = self.server.rpartition(":")
        return f":{port}" if host in ("127.0.0.1", "localhost", "0.0.0.0", "[::1]") else self.server  # noqa: S104  # compared, not bound

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models it serves."""
        return tuple(dict.fromkeys(rank.model for rank in self.ranks if rank.model))

    @property
    def data_parallel(self) -> int:
        """The number of data-parallel ranks; several models of one server are not ranks of each other."""
        if len(self.models) <= 1:
            return len(self.ranks) + self.hidden
        return len({rank.dp_rank for rank in self.ranks})


def engines(snapshot: Snapshot) -> tuple[Engine, ...]:
    """Return every engine that the snapshot speaks of, by host and address."""
    by_server = collect(snapshot, SERVER_FIGURES, SERVER_KEY)
    infos = texts(snapshot, "engine_info", SERVER_KEY)
    kinds = _kinds(snapshot)
    missing = absences(snapshot, "server")
    predicted = collect_by(snapshot, "ledger_predicted", SERVER_KEY, "component")
    ranks = _ranks(snapshot, missing)
    sources = {s.server or s.target.partition(":")[2]: s for s in snapshot.sources if s.kind == "engine"}
    keys = set(ranks) | set(by_server) | set(infos)
    seen = {server for _, server in keys}
    host = snapshot.focus[1] if snapshot.focus is not None else snapshot.host
    keys |= {(host, server) for server in sources if server not in seen}
    rows = []
    for key in sorted(keys):
        own, info, source = by_server.get(key, {}), infos.get(key, {}), sources.get(key[1])
        row = Engine(
            key=key,
            host=clean(key[0]),
            server=clean(key[1]),
            kind=clean(info.get("engine_kind") or kinds.get(key) or (source.engine_kind if source else "")),
            version=clean(info.get("version") or (source.engine_version if source else "")),
            role=clean(info.get("role", "")),
            ranks=ranks.get(key, ((), 0))[0],
            hidden=ranks.get(key, ((), 0))[1],
            figures=own,
            reasons={q: why for q in SERVER_FIGURES if q not in own and (why := why_absent(missing, key[1], q))},
            facts=tuple(fact for fact in snapshot.facts if fact.server == key[1]),
            predicted=dict(predicted.get(key, ())),
        )
        rows.append(replace(row, problem=_problem(row, source)))
    return tuple(rows)


def _ranks(snapshot: Snapshot, missing: Mapping[tuple[str, str], Absence]) -> dict[Key, tuple[tuple[Rank, ...], int]]:
    """Return the first `MOST_RANKS` ranks of each server, by model and number, and how many more it has."""
    figures = collect(snapshot, RANK_FIGURES, RANK_KEY)
    waiting = collect_by(snapshot, "waiting_by_reason", RANK_KEY, "reason")
    there = {key for key, own in figures.items() if any(name in own for name in _PRESENT)}
    down = {state.server or state.target for state in snapshot.sources if state.kind == "engine" and not state.up}
    # Where the server does not answer, or its other ranks are there, what only looks back is of a rank that is gone.
    known = {key[:2] for key in there} | {key[:2] for key in figures if key[1] in down}
    figures = {key: own for key, own in figures.items() if key in there or key[:2] not in known}
    found: dict[Key, list[Rank]] = {}
    number = Counter(key[:2] for key in figures)
    for key in sorted(figures, key=lambda k: (k[:3], in_number_order(k[3]))):
        ranks = found.setdefault(key[:2], [])
        if len(ranks) == MOST_RANKS:
            continue
        own = figures[key]
        rank = Rank(
            key=key,
            model=clean(key[2]),
            dp_rank=clean(key[3]),
            figures=own,
            reasons={q: why for q in RANK_FIGURES if q not in own and (why := why_absent(missing, key[1], q))},
            waiting_for=tuple((clean(reason), value) for reason, value in waiting.get(key, ())),
        )
        ranks.append(rank)
    return {server: (tuple(ranks), number[server] - len(ranks)) for server, ranks in found.items()}


def _kinds(snapshot: Snapshot) -> dict[Key, str]:
    """Return vllm or sglang per server, from any answer that says it."""
    found: dict[Key, str] = {}
    for query in ("running", "kv_usage", "max_model_len"):
        for labels, _ in snapshot.answer(query).samples:
            own = dict(labels)
            if own.get("engine_kind"):
                found.setdefault((own.get("host", ""), own.get("server", "")), own["engine_kind"])
    return found


def _problem(engine: Engine, source: SourceState | None) -> str:
    """Return why an engine's figures are missing or old, in one sentence, or nothing."""
    if source is not None and not source.up:
        why = _without_address(clean(source_problem(source)))
        if source.reason in ANSWERED:
            return f"no metrics for {age(source.age)}: {why}" if source.age is not None else f"no metrics: {why}"
        return f"no answer for {age(source.age)}: {why}" if source.age is not None else f"has not answered yet: {why}"
    if any(rank.get("asleep") for rank in engine.ranks):
        return "asleep"
    return "" if engine.ranks else "no data yet"


def _without_address(text: str) -> str:
    """Return why an engine cannot be read without the address of its page, which its row has already."""
    return _ADDRESS.sub("", text)


def keep_last(row: Engine, last: Engine, seconds: float) -> Engine:
    """Return `row` with the figures that `last` had `seconds` ago, marked as stale."""
    return replace(
        last,
        kind=row.kind or last.kind,
        version=row.version or last.version,
        figures=row.figures or last.figures,
        problem=row.problem,
        stale=seconds,
        facts=row.facts or last.facts,
    )
