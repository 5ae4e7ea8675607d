"""Facts as series: what a log or a command line told about an engine, for rules and for a Prometheus.

Numbers become gauges. Launch flags become a series for each known trap; one without a flag, at 0, says that flags and
version are known, so that silence means "none".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.engines.facts import FACTS, config_series
from gpuwatch.engines.flag_versions import risky_flags
from gpuwatch.model import Batch, Labels, label, name_of, series

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatch.diagnosis.context import Facts

TARGET = "config"
_PREFIX = "gpuwatch_engine_config_"
_UNSCALED = _PREFIX + "kv_cache_unscaled"
_FLAG = _PREFIX + "flag_problem"
_TRANSFER = _PREFIX + "kv_transfer"
_LOCAL = _PREFIX + "data_parallel_size_local"
NEED_NO_SCALES = ("auto", "float16", "bfloat16", "float32", "half")
"""Types of the KV cache, as vLLM names them, that are not quantised."""


class ConfigSeries:
    """Makes ``gpuwatch_engine_config_*`` of every scraped engine from the facts, without what its page gives itself."""

    def __init__(self, host: str) -> None:
        self._host = host
        self.engines: dict[str, tuple[str, str]] = {}
        """Kind, and version where the page says it, of every scraped engine by server."""
        self._pages: dict[str, tuple[tuple[Labels, ...], str, frozenset[str]]] = {}
        self._keys: tuple[Labels, ...] = ()
        self._values: list[float] = []
        self._changed = False

    def saw(self, batch: Batch) -> None:
        """Take note of an engine's page (its kind, and which of the series it has) and of new facts."""
        self._changed = self._changed or bool(batch.facts)
        kind, _, server = batch.target.partition(":")
        if kind != "engine":
            return
        known = self._pages.get(server)
        if known is None or (batch.up and known[0] is not batch.keys):
            engine = next((label(labels, "engine_kind") for labels in batch.keys), known[1] if known else "")
            given = frozenset(name for name in map(name_of, batch.keys) if name.startswith(_PREFIX))
            self._pages[server] = (batch.keys, engine, given)
            version = _label_on_page(batch.keys, "gpuwatch_engine_info", "version")
            self.engines = self.engines | {server: (engine, version)}
            self._changed = True

    def forget(self, target: str) -> None:
        """Drop the page of an engine that is not scraped any more."""
        kind, _, server = target.partition(":")
        if kind == "engine" and self._pages.pop(server, None) is not None:
            self.engines = {known: engine for known, engine in self.engines.items() if known != server}
            self._changed = True

    def batch(self, time: int, facts: Facts) -> Batch:
        """Return the series at `time` (milliseconds)."""
        if self._changed:
            self._changed = False
            rows = [row for server in self._pages for row in self._rows(server, facts)]
            keys = tuple(labels for labels, _ in rows)
            self._keys = self._keys if keys == self._keys else keys
            self._values = [value for _, value in rows]
        return Batch(TARGET, time, self._keys, self._values)

    def _rows(self, server: str, facts: Facts) -> list[tuple[Labels, float]]:
        page, engine, given = self._pages[server]
        known = {spec.key: facts.get(server, spec.key) for spec in FACTS.values() if spec.series not in ("", *given)}
        values = {key: fact.value for key, fact in known.items() if fact is not None}
        of = {"host": self._host, "server": server, "engine_kind": engine}
        rows = [(series(name, **of), value) for name, value in config_series(values)]
        dtype = _label_on_page(page, "gpuwatch_engine_cache_config_info", "cache_dtype")
        if dtype in NEED_NO_SCALES and series(_UNSCALED, **of) not in dict(rows):
            rows.append((series(_UNSCALED, **of), 0.0))
        told = facts.get(server, "version")
        version = str(told.value) if told is not None else _label_on_page(page, "gpuwatch_engine_info", "version")
        flags = facts.flags(server)
        local = ranks_here(values.get("dp"), flags)
        if local is not None and series(_LOCAL, **of) not in dict(rows):
            rows.append((series(_LOCAL, **of), local))
        if flags:
            rows.append((series(_TRANSFER, **of), float(takes_kv_caches(flags))))
        if flags and version:
            risky = dict.fromkeys(problem.flag for problem in risky_flags(engine, version, flags))
            rows.append((series(_FLAG, **of, problem="risky"), 0.0))
            rows += [(series(_FLAG, **of, problem="risky", flag=flag), 1.0) for flag in risky]
        return rows


def takes_kv_caches(flags: Mapping[str, object]) -> bool:
    """Return whether launch flags let requests wait for a KV cache from another server or from the host.

    vLLM makes a KV connector of ``--kv-transfer-config`` and of ``--kv-offloading-size``.
    """
    connector = any(flags.get(name) not in (None, "", "{}", 0) for name in ("kv-transfer-config", "kv-offloading-size"))
    return connector or flags.get("disaggregation-mode") in ("prefill", "decode")


def ranks_here(ranks: object, flags: Mapping[str, object]) -> float | None:
    """Return how many of the data-parallel `ranks` one server has, where the launch flags say that it has not all."""
    if flags.get("data-parallel-external-lb") is True or "data-parallel-rank" in flags:
        return 1.0
    nodes = flags.get("nnodes")
    if isinstance(ranks, int) and isinstance(nodes, int) and 1 < nodes <= ranks:
        return float(ranks // nodes)
    return None


def _label_on_page(page: tuple[Labels, ...], name: str, key: str) -> str:
    """Return a label of the first series called `name`, or the empty string."""
    return next((label(labels, key) for labels in page if name_of(labels) == name), "")
