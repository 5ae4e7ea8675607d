"""Check dashboards against the rules of Grafana's dashboard-linter, and more that concerns these series.

usage: python tests/tools/lint_dashboards.py [FILE...]        (default: dashboards/*.json); exits with 1 on a problem

Of the linter's own rules the four about the labels `job` and `instance` are replaced: a series of gpuwatch is told
apart by its own labels, so every selector must have a matcher for each variable that is a label of its metric.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gpuwatch.promql.nodes import Aggregate, Binary, Call, Selector, Subquery, Window, constant, walk  # noqa: E402  # path set above
from gpuwatch.promql.plan import parse  # noqa: E402
from gpuwatch.promql.values import PromQLError  # noqa: E402
from gpuwatch.series import METRICS  # noqa: E402

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
UNITS = {"bytes", "binBps", "percentunit", "s", "watt", "hertz", "celsius", "short", "reqps", "none"}
OWN_UNIT = re.compile(r"(si|suffix):\S+")
UIDS = {"gpuwatch-fleet", "gpuwatch-engine", "gpuwatch-ledger", "gpuwatch-findings"}
RATE_STAND_IN = "61001ms"
"""Stands for ``$__rate_interval`` while an expression is parsed."""
RATE_MS = 61001
ON_COUNTERS = {"rate", "irate", "increase", "resets", "changes"}
LABELS_OF_ALERTS = ("host",)
CLUSTER = "cluster"
"""The label that a Prometheus gives to every series of a cluster."""


def problems(document: dict) -> list[str]:
    """Return every problem of a dashboard as `rule: where: what`."""
    found = [*_document(document), *_variables(document), *_layout(document)]
    for panel in panels_of(document):
        found += [f"{rule}: {panel.get('title')}: {text}" for rule, text in _panel(panel, document)]
    return found


def panels_of(document: dict) -> list[dict]:
    return [panel for panel in document["panels"] if panel["type"] != "row"]


def variables_of(document: dict) -> list[dict]:
    return [variable for variable in document["templating"]["list"] if variable["type"] == "query"]


def _document(document: dict) -> Iterator[str]:
    if document["uid"] not in UIDS:
        yield f"uid: {document['uid']}: links of the other dashboards do not know it"
    if document["editable"]:
        yield "uneditable: the dashboard can be edited where it would be overwritten"
    if document["schemaVersion"] != 39:
        yield "schema: the version is not the one that the panels are written for"
    sources = [variable for variable in document["templating"]["list"] if variable["type"] == "datasource"]
    if [(v["name"], v["label"], v["query"]) for v in sources] != [("datasource", "Data source", "prometheus")]:
        yield "template-datasource: there must be one data source variable, named datasource, for Prometheus"
    links = [link for link in document["links"] if link["type"] == "dashboards"]
    if not links or not all(link["includeVars"] and link["keepTime"] for link in links):
        yield "links: the links to the other dashboards do not keep variables and time"
    if not set(document["tags"]).issuperset(tag for link in links for tag in link["tags"]):
        yield "links: the dashboard lacks the tag by which the others find it"
    alerts = [one for one in document["annotations"]["list"] if one.get("expr", "").startswith("ALERTS{")]
    if not alerts or not all(one["enable"] and one["datasource"] == DATASOURCE for one in alerts):
        yield "annotations: alerts are not marked"
    for one in alerts:
        yield from (f"annotations: {text}" for _, text in _expression(one["expr"], document))


def _variables(document: dict) -> Iterator[str]:
    before: set[str] = set()
    for variable in variables_of(document):
        name = variable["name"]
        found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
        if variable["datasource"] != DATASOURCE:
            yield f"template-datasource: {name}: does not use the data source variable"
        if not (variable["multi"] and variable["includeAll"] and variable["allValue"] == ".*"):
            yield f"template-required-variables: {name}: several values and all of them must be possible"
        if variable["refresh"] != 2:
            yield f"template-on-time-change-reload: {name}: is not asked again when the time range changes"
        if found is None or found[2] != name:
            yield f"template-label-promql: {name}: is not label_values of the label of its name"
            continue
        used = set(re.findall(r"\$(\w+)", found[1]))
        if not used <= before:
            yield f"template-label-promql: {name}: uses {', '.join(sorted(used - before))}, which comes later"
        for rule, text in _expression(found[1], document, skip={name} | _names(document) - before):
            yield f"template-label-promql: {name}: {rule}: {text}"
        before.add(name)


def _layout(document: dict) -> Iterator[str]:
    taken: dict[tuple[int, int], str] = {}
    numbers = [panel["id"] for panel in document["panels"]]
    if len(set(numbers)) != len(numbers):
        yield "layout: two panels have one id"
    for panel in document["panels"]:
        place = panel["gridPos"]
        if place["x"] + place["w"] > 24:
            yield f"layout: {panel['title']}: is wider than the grid"
        for cell in (
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ):
            if cell in taken:
                yield f"layout: {panel['title']}: lies on {taken[cell]}"
                break
            taken[cell] = panel["title"]


def _panel(panel: dict, document: dict) -> Iterator[tuple[str, str]]:
    for key in ("title", "description"):
        if not panel.get(key):
            yield "panel-title-description", f"has no {key}"
    if panel["datasource"] != DATASOURCE or any(target["datasource"] != DATASOURCE for target in panel["targets"]):
        yield "panel-datasource", "does not use the data source variable"
    if not panel["fieldConfig"]["defaults"].get("noValue"):
        yield "panel-no-value", "does not say what no data means"
    letters = [target["refId"] for target in panel["targets"]]
    if not letters or len(set(letters)) != len(letters):
        yield "panel-targets", "has no query, or two with one letter"
    yield from _units(panel)
    yield from _links(panel)
    for target in panel["targets"]:
        if not target["legendFormat"]:
            yield "target-legend", f"{target['refId']} has no legend"
        for rule, text in _expression(target["expr"], document):
            yield rule, f"{target['refId']}: {text}"


def _overridden(panel: dict, name: str) -> list:
    """Return the values that the overrides of a panel give to the property `name`."""
    overrides = panel["fieldConfig"]["overrides"]
    return [p["value"] for override in overrides for p in override["properties"] if p["id"] == name]


def _units(panel: dict) -> Iterator[tuple[str, str]]:
    for unit in [panel["fieldConfig"]["defaults"].get("unit", ""), *_overridden(panel, "unit")]:
        if unit not in UNITS and not OWN_UNIT.fullmatch(unit):
            yield "panel-units", f"{unit!r} is not a unit of Grafana"


def _links(panel: dict) -> Iterator[tuple[str, str]]:
    for link in (link for links in _overridden(panel, "links") for link in links):
        uid = re.match(r"/d/([\w-]+)\?", link["url"])
        if uid is None or uid[1] not in UIDS or "${__url_time_range}" not in link["url"]:
            yield "links", f"{link['url']} leads nowhere, or loses the time"


def _names(document: dict) -> set[str]:
    return {variable["name"] for variable in variables_of(document)}


def _expression(expr: str, document: dict, skip: set[str] = frozenset()) -> Iterator[tuple[str, str]]:
    """Yield the problems of one expression; variables in `skip` need no matcher."""
    try:
        plan = parse(expr.replace("$__rate_interval", RATE_STAND_IN))
    except PromQLError as error:
        yield "target-promql", str(error)
        return
    inside_rate: set[int] = set()
    for node in walk(plan.root):
        if isinstance(node, Call) and node.name in ON_COUNTERS:
            inside_rate.update(id(below) for below in walk(node))
        yield from _operation(node)
    for node in walk(plan.root):
        if isinstance(node, Selector):
            yield from _selector(node, document, skip, counted=id(node) in inside_rate)


def _operation(node) -> Iterator[tuple[str, str]]:
    if isinstance(node, Call) and node.name in ("rate", "irate", "increase"):
        window = node.args[0]
        if not isinstance(window, Window) or window.range != RATE_MS:
            yield "target-rate-interval", f"{node.name} over a fixed window"
    labels = node.labels if isinstance(node, Aggregate) and not node.without else ()
    if isinstance(node, Binary) and node.matching.on:
        labels = node.matching.labels
    if "host" in labels and CLUSTER not in labels:
        yield "cluster", "machines of one name in two clusters are taken for one"
    if isinstance(node, Subquery):
        yield "target-rate-interval", "a subquery has a fixed step"
    if isinstance(node, Binary) and node.op == "/" and constant(node.right) is None:
        right = node.right
        if not (isinstance(right, Binary) and right.op == ">" and constant(right.right) == 0):
            yield "guarded-ratio", "a division by something that may be 0"


def _selector(node: Selector, document: dict, skip: set[str], *, counted: bool) -> Iterator[tuple[str, str]]:
    name = node.name or ""
    family = re.sub(r"_(bucket|count|sum)$", "", name)
    metric = METRICS.get(name) or METRICS.get(family)
    if metric is None and name != "ALERTS":
        yield "vocabulary", f"{name} is not a series of gpuwatch"
        return
    labels = (CLUSTER, *(metric.labels if metric is not None else LABELS_OF_ALERTS))
    matched = {(m.name, m.op, m.value) for m in node.matchers}
    for variable in _names(document) - skip:
        if variable in labels and (variable, "=~", f"${variable}") not in matched:
            yield "target-required-matchers", f"{name} has no matcher for {variable}"
    if metric is not None and metric.kind != "gauge" and not counted:
        yield "target-counter", f"{name} is a counter and is shown as it is"
    for label, _, value in matched:
        if value.startswith("$") and label != value[1:]:
            yield "target-required-matchers", f"{name} compares {label} with {value}"


def main() -> int:
    paths = [Path(name) for name in sys.argv[1:]] or sorted((ROOT / "dashboards").glob("*.json"))
    found = [
        f"{path.name}: {text}" for path in paths for text in problems(json.loads(path.read_text(encoding="utf-8")))
    ]
    print("\n".join([*found, f"{len(paths)} dashboards, {len(found)} problems"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
