"""What the ledger expects of each engine that runs, as series: computed when facts change, not every tick."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.model import Batch, Labels, series

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatch.diagnosis.context import Facts
    from gpuwatch.pipeline.config_series import ConfigSeries
    from gpuwatch.sources.derived.ledger import Engine, Ledger

TARGET = "ledger-prediction"
_NAME = "gpuwatch_ledger_predicted_bytes"
_TOTAL = "gpu.total_bytes"


class Predictions:
    """Makes ``gpuwatch_ledger_predicted_bytes`` of every engine whose model, version and launch are known."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._seen: tuple[Mapping[str, tuple[str, str]], Mapping[Engine, float]] = ({}, {})
        self._keys: tuple[Labels, ...] = ()
        self._values: list[float] = []

    def batch(self, time: int, batches: Sequence[Batch], facts: Facts, config: ConfigSeries, ledger: Ledger) -> Batch:
        """Return the series at `time` (milliseconds); `batches` are those of this tick."""
        seen = (config.engines, ledger.capacities())
        if seen != self._seen or any(batch.facts for batch in batches):
            self._seen = seen
            rows = [row for server in seen[0] for row in self._rows(server, facts, *seen)]
            keys = tuple(labels for labels, _ in rows)
            self._keys = self._keys if keys == self._keys else keys
            self._values = [value for _, value in rows]
        return Batch(TARGET, time, self._keys, self._values)

    def _rows(
        self,
        server: str,
        facts: Facts,
        engines: Mapping[str, tuple[str, str]],
        capacities: Mapping[Engine, float],
    ) -> list[tuple[Labels, float]]:
        kind, version = engines[server]
        known = facts.of(server)
        total = known.get(_TOTAL)  # as the engine saw it, which is what its fraction is of
        capacity = capacities.get((self._host, server))
        if total is not None and isinstance(total.value, (int, float)):
            capacity = float(total.value)
        if capacity is None or not _launch_is_known(facts, server):
            return []
        values = {"version": version, **{key: fact.value for key, fact in known.items()}}
        from gpuwatch.ledger.predict import engine_of, predict  # noqa: PLC0415  # memory of those who watch no engine

        engine = engine_of(kind, values, capacity)
        if engine is None:
            return []
        of = {"host": self._host, "server": server, "engine_kind": kind}
        return [(series(_NAME, **of, component=part), amount) for part, amount in predict(engine).items()]


def _launch_is_known(facts: Facts, server: str) -> bool:
    """Return whether a setting that is not told was not given: there is a command line, a start in a log, or ranks."""
    tp, model, started = (facts.get(server, key) for key in ("tp", "model", "started"))
    return tp is not None or started is not None or (model is not None and model.source.startswith("command line"))
