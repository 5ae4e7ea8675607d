"""Numeric facts as series: what a log or a command line told about an engine, for rules and for a Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.engines.facts import FACTS, config_series
from gpuwatch.model import Batch, Labels, label, name_of, series

if TYPE_CHECKING:
    from gpuwatch.diagnosis.context import Facts

TARGET = "config"
_PREFIX = "gpuwatch_engine_config_"


class ConfigSeries:
    """Makes ``gpuwatch_engine_config_*`` of every scraped engine from the facts, without what its page gives itself."""

    def __init__(self, host: str) -> None:
        self._host = host
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
        _, engine, given = self._pages[server]
        known = {spec.key: facts.get(server, spec.key) for spec in FACTS.values() if spec.series not in ("", *given)}
        values = {key: fact.value for key, fact in known.items() if fact is not None}
        return [
            (series(name, host=self._host, server=server, engine_kind=engine), value)
            for name, value in config_series(values)
        ]
