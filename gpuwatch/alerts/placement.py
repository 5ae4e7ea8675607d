"""Which engine a GPU works for: what ties an alert about a card to one about an engine of the same host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.promql.values import PromQLError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatch.promql.values import Querier

RECENT = "max_over_time(gpuwatch_gpu_engine[10m]) or max_over_time(gpuwatch_engine_processes[10m]) > 0"
"""A card that is lost has no processes any more, so what used it lately counts."""


@dataclass(frozen=True, slots=True)
class Placement:
    """What used which GPU lately, as (host, uuid, server); without a uuid: which engine has processes on which host.

    A host is its cluster and its name.
    """

    pairs: frozenset[tuple[tuple[str, str], str, str]] = frozenset()

    def __or__(self, other: Placement) -> Placement:
        """Return what either of the two knows."""
        return self if other.pairs <= self.pairs else Placement(self.pairs | other.pairs)

    def servers(self, labels: Mapping[str, str]) -> frozenset[str]:
        """Return the engines that an alert with `labels` is about.

        That is the engine it names, else those that used its GPU. An alert about a log of no known engine is about
        the only engine of its host that uses a GPU, and about none where there are several. One about the host's
        driver is about every engine there that uses a GPU; where the driver never told which do, about those whose
        processes run there.
        """
        if labels.get("server"):
            return frozenset({labels["server"]})
        host = _host(labels)
        if labels.get("uuid"):
            return frozenset(server for at, uuid, server in self.pairs if (at, uuid) == (host, labels["uuid"]))
        every = frozenset(server for at, uuid, server in self.pairs if at == host and uuid)
        if labels.get("log"):
            return every if len(every) == 1 else frozenset()
        return every or frozenset(server for at, _, server in self.pairs if at == host)

    def shared(self, one: Mapping[str, str], other: Mapping[str, str]) -> bool:
        """Return whether two alerts are about the same engine."""
        return not self.servers(one).isdisjoint(self.servers(other))


NOWHERE = Placement()


def placed(querier: Querier, time: int) -> Placement:
    """Return what used which GPU, and what ran on which host, in the ten minutes before `time` (milliseconds)."""
    try:
        found = [dict(labels) for labels in querier.instant(RECENT, time).labels]
    except PromQLError:
        return NOWHERE
    pairs = {(_host(labels), labels.get("uuid", ""), labels.get("server", "")) for labels in found}
    return Placement(frozenset(pair for pair in pairs if pair[2]))


def _host(labels: Mapping[str, str]) -> tuple[str, str]:
    return labels.get("cluster", ""), labels.get("host", "")
