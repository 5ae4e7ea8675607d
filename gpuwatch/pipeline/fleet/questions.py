"""What is asked about a fleet: the catalogue's queries, narrowed to matchers, clusters told apart."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gpuwatch.promql.scope import scoped
from gpuwatch.queries import OVERVIEWS, PER_HOST, QUERIES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatch.config import PrometheusConfig

Machine: TypeAlias = tuple[str, str]
"""A machine of the fleet: the value of the cluster label (may be empty) and of ``host``."""

OF_SOURCES = ("source_up", "source_age", "source_failing")
"""Catalogue queries about the sources of the machine in focus."""

ALERTS = 'ALERTS{alertname=~"Gpuwatch.*",alertstate="firing"}'
STARTS = 'ALERTS_FOR_STATE{alertname=~"Gpuwatch.*"}'
INFOS = "gpuwatch_finding_info"
SCRAPES = "max(count_over_time(gpuwatch_build_info[5m]))"
"""How often the busiest target was scraped within five minutes."""
SCRAPES_SECONDS = 300

SCRAPE_SECONDS = 15.0
"""Time between two scrapes until it is known."""
INTERVALS = 4
"""A rate looks at this many scrapes."""
SHORTEST_WINDOW = 60

_PER_HOST = re.compile(r"\b(by|on) \(host\b")
_MINUTE = re.compile(r"\[1m(?=[\]:])")


@dataclass(frozen=True, slots=True)
class Phrasing:
    """How the catalogue's queries are put to one Prometheus. `scrape` is the time between two scrapes in seconds."""

    matchers: tuple[tuple[str, str], ...] = ()
    cluster_label: str = "cluster"
    scrape: float = SCRAPE_SECONDS

    @classmethod
    def of(cls, config: PrometheusConfig) -> Phrasing:
        """Return the phrasing for a configured Prometheus."""
        return cls(config.matchers, config.cluster_label)

    @property
    def window(self) -> str:
        """The window of rates: four scrapes, a minute at least."""
        return f"{max(SHORTEST_WINDOW, round(INTERVALS * self.scrape))}s"

    def expr(self, text: str, machine: Machine | None = None) -> str:
        """Return `text` narrowed to the configured series, or to those of one machine."""
        return scoped(text, self.matchers_of(machine))

    def matchers_of(self, machine: Machine | None) -> tuple[tuple[str, str], ...]:
        """Return the label values that every series must have."""
        own = () if machine is None else ((self.cluster_label, machine[0]), ("host", machine[1]))
        return (*(pair for pair in self.matchers if machine is None or pair[0] not in dict(own)), *own)

    def of_fleet(self) -> dict[str, str]:
        """Return the queries with one value per machine, by name."""
        return {
            name: self.expr(_PER_HOST.sub(rf"\1 ({self.cluster_label}, host", self._widened(OVERVIEWS[name].template)))
            for name in PER_HOST
        }

    def of_machine(self, machine: Machine) -> dict[str, str]:
        """Return the whole catalogue for one machine, by name."""
        templates = {name: query.template for name, query in QUERIES.items()}
        templates |= {name: OVERVIEWS[name].template for name in OF_SOURCES}
        return {name: self.expr(self._widened(template), machine) for name, template in templates.items()}

    def _widened(self, template: str) -> str:
        """Return a query with the window of this Prometheus; a minute is too short where scrapes are far apart."""
        return _MINUTE.sub(f"[{self.window}", template.replace("$__rate_interval", self.window))

    def machine(self, labels: Mapping[str, str]) -> Machine:
        """Return which machine a series is about."""
        return labels.get(self.cluster_label, ""), labels.get("host", "")


def scrape_seconds(scrapes: float | None) -> float:
    """Return the time between two scrapes from the answer to `SCRAPES`, 15 s where there is none."""
    if not scrapes or scrapes < 1:
        return SCRAPE_SECONDS
    return max(1.0, SCRAPES_SECONDS / scrapes)
