"""The JSON of single panels: queries, units, thresholds, and what each kind of panel needs."""

from __future__ import annotations

from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

from gpuwatch.dashboards.expressions import for_bars, for_panel, for_table, metrics_of
from gpuwatch.dashboards.limits import Threshold, resolve
from gpuwatch.dashboards.tables import table_fields
from gpuwatch.dashboards.units import grafana_unit, shown
from gpuwatch.queries import CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuwatch.alerts.rulefile import RuleSet
    from gpuwatch.dashboards.model import Panel, Series

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def panel(item: Panel, rules: RuleSet, variables: Sequence[str]) -> dict[str, Any]:
    """Return a panel without its id and place."""
    thresholds = resolve(item.limits, rules)
    return {
        "type": item.kind,
        "title": item.title,
        "description": _description(item, thresholds),
        "datasource": DATASOURCE,
        "targets": [_target(item, series, number, variables) for number, series in enumerate(item.series)],
        **_KINDS[item.kind](item, thresholds, rules),
    }


def unit_of(item: Panel) -> str:
    """Return Grafana's unit of a panel."""
    return item.unit or grafana_unit(CATALOGUE[item.series[0].query].unit)


def _target(item: Panel, series: Series, number: int, variables: Sequence[str]) -> dict[str, Any]:
    template = CATALOGUE[series.query].template
    tabular = item.kind in ("table", "barchart")
    if item.kind == "barchart":
        expr = for_bars(template, variables, item.by)
    elif tabular:
        expr = for_table(template, variables, item.by)
    else:
        expr = for_panel(template, variables)
        if series.total:
            expr = f"sum({expr})"
    now = tabular or item.kind == "stat"
    return {
        "refId": ascii_uppercase[number],
        "datasource": DATASOURCE,
        "expr": expr,
        "legendFormat": "__auto" if tabular else series.legend,
        "format": "table" if tabular else "time_series",
        "instant": now,
        "range": not now,
        "editorMode": "code",
    }


def _description(item: Panel, thresholds: Sequence[Threshold]) -> str:
    """Return what the panel means, where its lines come from, and which series it reads."""
    parts = [item.description]
    for threshold in thresholds:
        if threshold.rule:
            word = "below" if threshold.below else "from"
            parts.append(f"Coloured {word} {shown(threshold.value, unit_of(item))}: the threshold of {threshold.rule}.")
    names = dict.fromkeys(name for series in item.series for name in metrics_of(CATALOGUE[series.query].template))
    parts.append("Metrics: " + ", ".join(f"`{name}`" for name in names))
    return "\n\n".join(parts)


def steps(thresholds: Sequence[Threshold], fine: str = "green") -> dict[str, Any]:
    """Return thresholds as Grafana writes them: the colour of everything, then the colour from each value on."""
    low = [threshold for threshold in thresholds if threshold.below]
    high = [threshold for threshold in thresholds if not threshold.below]
    colours = [*(threshold.colour for threshold in low), fine]
    found: list[dict[str, Any]] = [{"color": colours[0], "value": None}]
    found += [{"color": colour, "value": t.value} for t, colour in zip(low, colours[1:], strict=True)]
    found += [{"color": threshold.colour, "value": threshold.value} for threshold in high]
    return {"mode": "absolute", "steps": found}


def _defaults(item: Panel, thresholds: Sequence[Threshold], fine: str = "green") -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": unit_of(item), "noValue": item.empty, "thresholds": steps(thresholds, fine)}
    if item.mapping:
        options = {
            str(int(value)): {"text": text, "color": colour, "index": index}
            for index, (value, text, colour) in enumerate(item.mapping)
        }
        defaults["mappings"] = [{"type": "value", "options": options}]
    return defaults


def _stat(item: Panel, thresholds: Sequence[Threshold], _: RuleSet) -> dict[str, Any]:
    return {
        "fieldConfig": {
            "defaults": {**_defaults(item, thresholds, "text"), "color": {"mode": "thresholds"}},
            "overrides": [],
        },
        "options": {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "value",
            "graphMode": "none",
            "justifyMode": "auto",
            "orientation": "auto",
            "textMode": "value_and_name" if len(item.series) > 1 or "{{" in item.series[0].legend else "value",
            "wideLayout": True,
        },
    }


def _timeseries(item: Panel, thresholds: Sequence[Threshold], _: RuleSet) -> dict[str, Any]:
    custom: dict[str, Any] = {
        "drawStyle": "line",
        "lineInterpolation": "linear",
        "lineWidth": 1,
        "fillOpacity": 70 if item.stacked else 8,
        "showPoints": "auto",
        "spanNulls": False,
        "stacking": {"mode": "normal" if item.stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "dashed" if thresholds else "off"},
    }
    if item.bottom is not None:
        custom["axisSoftMin"] = item.bottom
    defaults = {**_defaults(item, thresholds), "color": {"mode": "palette-classic"}, "custom": custom}
    if item.top is not None:
        defaults["max"] = item.top
    return {
        "fieldConfig": {"defaults": defaults, "overrides": _overrides(item)},
        "options": {
            "legend": {
                "showLegend": True,
                "displayMode": "table",
                "placement": "bottom",
                "calcs": ["lastNotNull", "max"],
            },
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }


def _overrides(item: Panel) -> list[dict[str, Any]]:
    """Return what single queries look like, told apart by their letter."""
    found = []
    for number, series in enumerate(item.series):
        properties: list[dict[str, Any]] = []
        if series.colour:
            properties.append({"id": "color", "value": {"mode": "fixed", "fixedColor": series.colour}})
        if series.dashed:
            properties += [
                {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}},
                {"id": "custom.fillOpacity", "value": 0},
                {"id": "custom.stacking", "value": {"mode": "none", "group": "B"}},
            ]
        if properties:
            found.append(
                {"matcher": {"id": "byFrameRefID", "options": ascii_uppercase[number]}, "properties": properties}
            )
    return found


def _barchart(item: Panel, thresholds: Sequence[Threshold], _: RuleSet) -> dict[str, Any]:
    names = [series.legend for series in item.series]
    overrides = [
        {
            "matcher": {"id": "byName", "options": series.legend},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": series.colour}}],
        }
        for series in item.series
        if series.colour
    ]
    single = len(names) == 1
    renamed = {"Value" if single else f"Value #{ascii_uppercase[n]}": name for n, name in enumerate(names)}
    order = {"bar": 0, **{column: number for number, column in enumerate(renamed, 1)}}
    organize = {"excludeByName": {"Time": True}, "indexByName": order, "renameByName": {"bar": "GPU", **renamed}}
    return {
        "fieldConfig": {
            "defaults": {
                **_defaults(item, thresholds),
                "color": {"mode": "palette-classic"},
                "custom": {"fillOpacity": 80, "lineWidth": 0},
                "min": 0,
            },
            "overrides": overrides,
        },
        "options": {
            "xField": "GPU",
            "orientation": "horizontal",
            "stacking": "normal",
            "showValue": "never",
            "barWidth": 0.8,
            "groupWidth": 0.7,
            "fullHighlight": False,
            "barRadius": 0,
            "xTickLabelRotation": 0,
            "xTickLabelSpacing": 0,
            "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []},
            "tooltip": {"mode": "multi", "sort": "none"},
        },
        "transformations": [{"id": "merge", "options": {}}, {"id": "organize", "options": organize}],
    }


def _state_timeline(item: Panel, thresholds: Sequence[Threshold], _: RuleSet) -> dict[str, Any]:
    return {
        "fieldConfig": {
            "defaults": {
                **_defaults(item, thresholds),
                "color": {"mode": "thresholds"},
                "custom": {"fillOpacity": 80, "lineWidth": 0, "spanNulls": False},
            },
            "overrides": [],
        },
        "options": {
            "mergeValues": True,
            "showValue": "never",
            "alignValue": "left",
            "rowHeight": 0.85,
            "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []},
            "tooltip": {"mode": "single", "sort": "none"},
        },
    }


def _table(item: Panel, thresholds: Sequence[Threshold], rules: RuleSet) -> dict[str, Any]:
    defaults = {**_defaults(item, thresholds, "text"), "color": {"mode": "thresholds"}}
    defaults["custom"] = {"align": "auto", "cellOptions": {"type": "auto"}, "filterable": True, "inspect": False}
    return table_fields(item, defaults, rules, steps)


_KINDS: dict[str, Callable[[Panel, Sequence[Threshold], RuleSet], dict[str, Any]]] = {
    "stat": _stat,
    "timeseries": _timeseries,
    "table": _table,
    "barchart": _barchart,
    "state-timeline": _state_timeline,
}
