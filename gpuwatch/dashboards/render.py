"""From a dashboard to Grafana's classic JSON.

Schema version 39 is that of Grafana 10.4; newer ones bring it up to date when they load it. The form is that of
``@grafana/schema``; what is not written has Grafana's default.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gpuwatch.dashboards.expressions import for_panel
from gpuwatch.dashboards.model import COLUMNS
from gpuwatch.dashboards.panels import DATASOURCE, panel

if TYPE_CHECKING:
    from gpuwatch.alerts.rulefile import RuleSet
    from gpuwatch.dashboards.model import Dashboard, Variable

SCHEMA_VERSION = 39
TAG = "gpuwatch"
ALL = "$__all"


def to_json(dashboard: Dashboard, rules: RuleSet) -> str:
    """Return the text of the dashboard's file, with thresholds from `rules`.

    Raises:
        LimitError: a dashboard draws a threshold that a shipped rule does not have.
    """
    return json.dumps(document(dashboard, rules), indent=2, ensure_ascii=False) + "\n"


def document(dashboard: Dashboard, rules: RuleSet) -> dict[str, Any]:
    """Return the dashboard as the object that its file holds."""
    names = [variable.name for variable in dashboard.variables]
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "timezone": "browser",
        "time": {"from": dashboard.span, "to": "now"},
        "refresh": "30s",
        "timepicker": {},
        "templating": {"list": [_datasource(), *map(_variable, dashboard.variables), _filters()]},
        "annotations": {"list": [_built_in(), _alerts(names)]},
        "links": [_links()],
        "panels": _panels(dashboard, rules, names),
    }


def _panels(dashboard: Dashboard, rules: RuleSet, names: list[str]) -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    top = 0
    for row in dashboard.rows:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
                "panels": [],
            }
        )
        top += 1
        left = height = 0
        for item in row.panels:
            if left + item.width > COLUMNS:
                top, left, height = top + height, 0, 0
            place = {"x": left, "y": top, "w": item.width, "h": item.height}
            panels.append({"id": len(panels) + 1, **panel(item, rules, names), "gridPos": place})
            left, height = left + item.width, max(height, item.height)
        top += height
    return panels


def _datasource() -> dict[str, Any]:
    return {
        "type": "datasource",
        "name": "datasource",
        "label": "Data source",
        "query": "prometheus",
        "current": {"selected": False, "text": "default", "value": "default"},
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "options": [],
        "refresh": 1,
        "regex": "",
        "skipUrlSync": False,
    }


def _variable(variable: Variable) -> dict[str, Any]:
    """Return a variable that shows all values at first; "All" also takes series without the label."""
    return {
        "type": "query",
        "name": variable.name,
        "label": variable.title,
        "datasource": DATASOURCE,
        "query": f"label_values({variable.source}, {variable.label})",
        "current": {"selected": True, "text": ["All"], "value": [ALL]},
        "hide": 0,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "options": [],
        "refresh": 2,
        "regex": "",
        "skipUrlSync": False,
        "sort": 7,
    }


def _filters() -> dict[str, Any]:
    """Return the variable for labels that Prometheus adds, such as job or instance."""
    return {
        "type": "adhoc",
        "name": "filters",
        "label": "Filters",
        "datasource": DATASOURCE,
        "hide": 0,
        "skipUrlSync": False,
    }


def _built_in() -> dict[str, Any]:
    return {
        "name": "Annotations & Alerts",
        "type": "dashboard",
        "builtIn": 1,
        "datasource": {"type": "grafana", "uid": "-- Grafana --"},
        "enable": True,
        "hide": True,
        "iconColor": "rgba(0, 211, 255, 1)",
    }


def _alerts(names: list[str]) -> dict[str, Any]:
    return {
        "name": "Firing alerts",
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": "red",
        "expr": for_panel('ALERTS{alertname=~"Gpuwatch.*", alertstate="firing"}', names),
        "titleFormat": "{{alertname}}",
        "textFormat": "{{cluster}} {{host}} {{server}} {{gpu}}",
        "tagKeys": "severity,diagnosis",
        "useValueForTime": False,
    }


def _links() -> dict[str, Any]:
    return {
        "type": "dashboards",
        "title": "gpuwatch",
        "tags": [TAG],
        "asDropdown": False,
        "icon": "external link",
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "tooltip": "",
        "url": "",
    }
