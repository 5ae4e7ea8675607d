"""Tables: one row for each set of labels, one column for each query."""

from __future__ import annotations

from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

from gpuwatch.dashboards.limits import resolve
from gpuwatch.dashboards.units import grafana_unit
from gpuwatch.queries import CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuwatch.alerts.rulefile import RuleSet
    from gpuwatch.dashboards.limits import Threshold
    from gpuwatch.dashboards.model import Column, Panel

HEADINGS = {"server": "engine", "model_name": "model", "dp_rank": "rank", "engine_kind": "kind", "id": "finding"}
"""What labels are called in tables."""


def heading(label: str) -> str:
    """Return the heading of the column of a label."""
    return HEADINGS.get(label, label)


def table_fields(
    item: Panel,
    defaults: dict[str, Any],
    rules: RuleSet,
    steps: Callable[[Sequence[Threshold], str], dict[str, Any]],
) -> dict[str, Any]:
    """Return the part of a table's JSON that other panels do not have.

    A series with an empty legend shows its labels only: the value of an information series is always 1.
    """
    single = len(item.series) == 1
    values = {"Value" if single else f"Value #{ascii_uppercase[n]}": s.legend for n, s in enumerate(item.series)}
    hidden = {"Time": True, **{column: True for column, name in values.items() if not name}}
    renamed = {label: heading(label) for label in item.by if heading(label) != label}
    renamed |= {column: name for column, name in values.items() if name}
    order = {column: number for number, column in enumerate([*item.by, *values])}
    organize = {"excludeByName": hidden, "indexByName": order, "renameByName": renamed}
    sort = [{"displayName": item.sort, "desc": True}] if item.sort else []
    return {
        "fieldConfig": {"defaults": defaults, "overrides": _overrides(item, rules, steps)},
        "options": {"showHeader": True, "cellHeight": "sm", "footer": {"show": False}, "sortBy": sort},
        "transformations": [{"id": "merge", "options": {}}, {"id": "organize", "options": organize}],
    }


def _overrides(
    item: Panel, rules: RuleSet, steps: Callable[[Sequence[Threshold], str], dict[str, Any]]
) -> list[dict[str, Any]]:
    columns = {column.name: column for column in item.columns}
    found = []
    for series in item.series:
        if series.legend:
            unit = grafana_unit(CATALOGUE[series.query].unit)
            properties: list[dict[str, Any]] = [{"id": "unit", "value": unit}]
            properties += _properties(columns.pop(series.legend, None), item, rules, steps)
            found.append({"matcher": {"id": "byName", "options": series.legend}, "properties": properties})
    for name, column in columns.items():
        properties = _properties(column, item, rules, steps)
        found.append({"matcher": {"id": "byName", "options": name}, "properties": properties})
    return found


def _properties(
    column: Column | None, item: Panel, rules: RuleSet, steps: Callable[[Sequence[Threshold], str], dict[str, Any]]
) -> list[dict[str, Any]]:
    if column is None:
        return []
    found: list[dict[str, Any]] = []
    if column.width:
        found.append({"id": "custom.width", "value": column.width})
    if column.limits:
        fine = "green" if column.bar else "text"
        found.append({"id": "thresholds", "value": steps(resolve(column.limits, rules), fine)})
        kind = {"type": "gauge", "mode": "basic"} if column.bar else {"type": "color-text"}
        found.append({"id": "custom.cellOptions", "value": kind})
    if column.wrap:
        found.append({"id": "custom.cellOptions", "value": {"type": "auto", "wrapText": True}})
    if column.bar:
        found += [{"id": "min", "value": 0}, {"id": "max", "value": 1}]
    if column.mapping:
        options = {
            value: {"text": text, "color": colour, "index": index}
            for index, (value, text, colour) in enumerate(column.mapping)
        }
        found.append({"id": "mappings", "value": [{"type": "value", "options": options}]})
        found.append({"id": "custom.cellOptions", "value": {"type": "color-text"}})
    if column.link:
        found.append({"id": "links", "value": [_link(column.link, item)]})
    return found


def _link(uid: str, item: Panel) -> dict[str, Any]:
    """Return a link to the dashboard `uid` at the same time, for the host and the engine of the row.

    The choice of clusters stays as it is: where no series has the label, the table has no such column to take it from.
    """
    chosen = "".join(
        f"&var-{label}=${{__data.fields.{heading(label)}}}" for label in item.by if label in ("host", "server")
    )
    url = f"/d/{uid}?${{__url_time_range}}&${{datasource:queryparam}}&${{cluster:queryparam}}{chosen}"
    return {"title": f"Open {uid}", "url": url, "targetBlank": False}
