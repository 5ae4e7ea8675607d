"""Grafana dashboards: what is shown, as data; and how that becomes Grafana's JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.dashboards import engine, findings, fleet, ledger
from gpuwatch.dashboards.render import to_json

if TYPE_CHECKING:
    from gpuwatch.alerts.rulefile import RuleSet
    from gpuwatch.dashboards.model import Dashboard

DASHBOARDS: tuple[Dashboard, ...] = (fleet.DASHBOARD, engine.DASHBOARD, ledger.DASHBOARD, findings.DASHBOARD)
"""Every dashboard that ships."""


def files(rules: RuleSet) -> dict[str, str]:
    """Return the file name and JSON text of every dashboard, with thresholds from `rules`.

    Raises:
        LimitError: a dashboard draws a threshold that a shipped rule does not have.
    """
    return {dashboard.filename: to_json(dashboard, rules) for dashboard in DASHBOARDS}
