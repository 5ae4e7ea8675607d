"""Asking a Prometheus what the panels of a dashboard ask, with the variables as they are when it opens."""

from __future__ import annotations

import re
from dataclasses import dataclass

from prometheus_server import PrometheusServer

STEP = 15
RATE_INTERVAL = "60s"
"""Grafana's ``$__rate_interval`` for a scrape interval of 15 s: four of them."""


def panels_of(document: dict) -> list[dict]:
    """Return the panels of a dashboard, those of collapsed rows too."""
    found = []
    for panel in document["panels"]:
        found += [panel] if panel["type"] != "row" else panel.get("panels", [])
    return found


def filled(expr: str, document: dict, chosen: dict[str, str] | None = None) -> str:
    """Return `expr` with Grafana's variables replaced; what is not `chosen` is "All".

    Grafana leaves ``$1``, a group of a ``label_replace``, as it is. Any other name must be a variable.
    """
    values = {v["name"]: v.get("allValue", "") for v in document["templating"]["list"] if v["type"] == "query"}
    values.update(chosen or {})
    text = expr.replace("$__rate_interval", RATE_INTERVAL)
    return re.sub(r"\$([A-Za-z_]\w*)", lambda found: values[found[1]], text)


@dataclass(frozen=True)
class Line:
    """One series of a panel: its name in the legend, labels, times (s) and values; `query` is its letter."""

    query: str
    name: str
    labels: dict[str, str]
    times: list[float]
    values: list[float]


def legend(pattern: str, labels: dict[str, str]) -> str:
    """Return the name that Grafana gives a series; without a pattern its labels."""
    if pattern == "__auto":
        return ", ".join(f"{key}={value}" for key, value in labels.items() if key != "__name__")
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), pattern).strip()


def answer(server: PrometheusServer, expr: str, start: float, end: float, step: int = STEP) -> list[dict]:
    """Return what ``/api/v1/query_range`` says; an error is an assertion."""
    said = server.get("/api/v1/query_range", query=expr, start=f"{start:.3f}", end=f"{end:.3f}", step=str(step))
    assert said["status"] == "success", (expr, said)
    return said["data"]["result"]


def now(server: PrometheusServer, expr: str, time: float) -> list[dict]:
    """Return what ``/api/v1/query`` says at one moment, in the form of a range."""
    said = server.get("/api/v1/query", query=expr, time=f"{time:.3f}")
    assert said["status"] == "success", (expr, said)
    return [{"metric": one["metric"], "values": [one["value"]]} for one in said["data"]["result"]]


def lines_of(
    server: PrometheusServer,
    document: dict,
    panel: dict,
    start: float,
    end: float,
    *,
    chosen: dict[str, str] | None = None,
) -> list[Line]:
    """Return all series of a panel over a range, or at `end` where it asks for one moment."""
    found = []
    for target in panel["targets"]:
        expr = filled(target["expr"], document, chosen)
        for one in now(server, expr, end) if target["instant"] else answer(server, expr, start, end):
            times, values = zip(*one["values"], strict=True)
            numbers = [float(value) for value in values]
            name = legend(target["legendFormat"], one["metric"])
            found.append(Line(target["refId"], name, one["metric"], list(times), numbers))
    return found
