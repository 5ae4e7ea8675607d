"""When alerts of this machine began, as a Prometheus remembers it: for a daemon that lost its own state file."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwatch.alerts.rulefile import AlertRule
from gpuwatch.alerts.state import Saved
from gpuwatch.config import ConfigError
from gpuwatch.diagnosis.context import selector
from gpuwatch.model import label
from gpuwatch.promql.remote import RemoteQuerier
from gpuwatch.promql.values import PromQLError
from gpuwatch.series import METRICS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatch.alerts.rulefile import RuleSet
    from gpuwatch.config import PrometheusConfig
    from gpuwatch.model import Labels
    from gpuwatch.promql.values import Querier

log = logging.getLogger(__name__)

WINDOW = "15m"
"""How far back an alert may have been seen last."""
STEP = "15s"
TOGETHER_MS = 45_000
"""An alert that was seen last this much before the machine itself was over before the daemon ended."""
TIMEOUT_SECONDS = 3.0
"""A start does not wait longer than this for a Prometheus."""

_LABELS = frozenset(name for metric in METRICS.values() for name in metric.labels) | {
    "alertname",
    "severity",
    "diagnosis",
}


def starts(querier: Querier, host: str, rules: RuleSet, now: int) -> tuple[Saved, ...]:
    """Return the alerts of `host` that were active when its daemon was scraped last; `now` in milliseconds.

    ``ALERTS_FOR_STATE`` ends with the daemon's series and with the alert alike. What tells the two apart is when the
    machine itself was seen last. Labels that Prometheus added, such as ``job``, are dropped.

    Raises:
        PromQLError: Prometheus does not answer.
    """
    alerts = selector("ALERTS_FOR_STATE", {"host": host})
    alive = selector("gpuwatch_build_info", {"host": host})
    begun = dict(querier.instant(f"last_over_time({alerts}[{WINDOW}])", now).items())
    seen = {_plain(labels): value for labels, value in querier.instant(_last_seen(alerts), now).items()}
    machine = max((value for _, value in querier.instant(_last_seen(alive), now).items()), default=None)
    if machine is None:
        return ()
    holds = {rule.name: rule.hold for rule in rules.rules if isinstance(rule, AlertRule)}
    found = {}
    for series, value in begun.items():
        labels = _plain(series)
        name = label(labels, "alertname")
        last = seen.get(labels)
        if name not in holds or last is None or machine - last > TOGETHER_MS / 1000:
            continue
        active, saved = round(value * 1000), round(last * 1000)
        fired = active + holds[name]
        found[labels] = Saved(labels, active, saved, fired if saved >= fired else None)
    return tuple(found.values())


def _last_seen(series: str) -> str:
    return f"max_over_time(timestamp({series})[{WINDOW}:{STEP}])"


def _plain(series: Labels) -> Labels:
    return tuple(pair for pair in series if pair[0] in _LABELS)


def merged(known: Iterable[Saved], config: PrometheusConfig, host: str, rules: RuleSet, now: int) -> tuple[Saved, ...]:
    """Return `known` and what only the Prometheus of `config` remembers; where it does not answer, that is said."""
    own = tuple(known)
    endpoint = replace(config.endpoint, timeout=min(config.endpoint.timeout, TIMEOUT_SECONDS))
    try:
        querier = RemoteQuerier.of(endpoint)
        try:
            others = starts(querier, host, rules, now)
        finally:
            querier.close()
    except (PromQLError, ConfigError) as error:
        log.error("the start of alerts cannot be asked of Prometheus: %s", error)  # noqa: TRY400  # one line, no traceback
        return own
    remembered = {saved.labels for saved in own}
    return (*own, *(saved for saved in others if saved.labels not in remembered))
