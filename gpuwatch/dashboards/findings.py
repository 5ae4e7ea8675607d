"""Findings: what is active and why, what was, and whether gpuwatch sees everything it should."""

from __future__ import annotations

from gpuwatch.dashboards.model import CLUSTER, HOST, Colour, Column, Dashboard, Panel, Row, Series
from gpuwatch.dashboards.shared import (
    ANY,
    CARD,
    FINDING_ROWS,
    FINDINGS,
    MACHINE,
    SERVED,
    SOME,
    SOURCE_AGE,
    finding_columns,
)
from gpuwatch.dashboards.units import EVENTS

_STATES: tuple[tuple[float, str, Colour], ...] = (
    (1.0, "pending", "yellow"),
    (2.0, "info", "blue"),
    (3.0, "warning", "orange"),
    (4.0, "critical", "red"),
)

_PLACE = MACHINE + "".join(
    f" {{{{{label}}}}}"
    for label in (
        *("server", "model_name", "dp_rank", "gpu", "uuid"),
        *("source", "target", "log", "event", "reason", "xid", "name"),
    )
)
"""Where an alert is: of the labels that alerts have, an alert has a few, and those tell it from the others."""

_ACTIVE = Row(
    "Active",
    (
        Panel(
            "stat",
            "Critical",
            "Requests fail or throughput collapses now.",
            (Series("fleet_critical", "critical"),),
            width=4,
            height=3,
            limits=(ANY,),
            empty="gpuwatch is not scraped",
        ),
        Panel(
            "stat",
            "Warnings",
            "It will fail, or capacity is wasted.",
            (Series("fleet_warnings", "warnings"),),
            width=4,
            height=3,
            limits=(SOME,),
            empty="gpuwatch is not scraped",
        ),
        Panel(
            "stat",
            "Worth knowing",
            "Nothing to do at once.",
            (Series("fleet_infos", "info"),),
            width=4,
            height=3,
            empty="gpuwatch is not scraped",
        ),
        Panel(
            "stat",
            "Alerts firing in Prometheus, by severity",
            "Alerts of the rule files that ship with gpuwatch, as Prometheus evaluates them. Nothing here while "
            "findings are active: the rule files are not loaded.",
            (Series("alerts_firing", "{{severity}}"),),
            width=12,
            height=3,
            empty="none fires, or the rules are not loaded",
        ),
        Panel(
            "table",
            "Findings with cause and the change to make",
            "As gpuwatch explains them. `gpuwatch rules explain FINDING` prints what a finding means and how to "
            "confirm it by hand.",
            (Series("findings", ""),),
            width=24,
            height=9,
            by=FINDING_ROWS,
            columns=finding_columns(),
            empty="no finding, or gpuwatch is not scraped",
        ),
    ),
)

_HISTORY = Row(
    "When",
    (
        Panel(
            "state-timeline",
            "Alerts over time",
            "Each alert of the shipped rules. Pending: its condition holds, but not yet for as long as the rule asks.",
            (Series("alerts", "{{alertname}} " + _PLACE),),
            width=24,
            height=10,
            mapping=_STATES,
            empty="none fires, or the rules are not loaded",
        ),
        Panel(
            "timeseries",
            "Active findings by severity",
            "How many at a time.",
            (Series("fleet_findings", "{{severity}}"),),
            empty="no finding",
        ),
        Panel(
            "timeseries",
            "Recognised log lines",
            "Lines of engine and kernel logs that mean something, by event.",
            (Series("log_events", "{{event}} " + SERVED + " {{log}}"),),
            unit=EVENTS,
            empty="none, or no log is read",
        ),
        Panel(
            "timeseries",
            "Xid errors",
            "Errors that the driver reported, by number.",
            (Series("gpu_xid_rate", f"{CARD} Xid {{{{xid}}}}"),),
            empty="no Xid error",
        ),
    ),
)

_SIGHT = Row(
    "Does gpuwatch see everything?",
    (
        Panel(
            "state-timeline",
            "Sources",
            "Green: the last poll worked. What is not seen cannot be judged, and is not healthy.",
            (Series("source_up", MACHINE + " {{source}} {{target}}"),),
            width=24,
            height=8,
            mapping=((0.0, "fails", "red"), (1.0, "delivers", "green")),
        ),
        Panel(
            "timeseries",
            "Age of the sources",
            "Time since each source last delivered.",
            (Series("source_age", MACHINE + " {{source}} {{target}}"),),
            limits=(SOURCE_AGE,),
        ),
        Panel(
            "timeseries",
            "Failed polls",
            "Polls that gave nothing. `gpuwatch doctor` says why and what to do.",
            (Series("source_failures", MACHINE + " {{source}} {{target}}"),),
            unit=EVENTS,
        ),
        Panel(
            "timeseries",
            "Rules that fail",
            "Evaluations that ended in an error. `gpuwatch rules check` finds most of them before.",
            (Series("rule_failures", MACHINE + " {{rule}}"),),
            unit=EVENTS,
            empty="no rule fails",
        ),
        Panel(
            "timeseries",
            "Time of a tick",
            "Taking in all sources and evaluating all rules.",
            (Series("own_tick", MACHINE),),
        ),
        Panel(
            "timeseries",
            "Memory of gpuwatch",
            "The daemon and its worker.",
            (Series("own_resident", MACHINE),),
        ),
        Panel(
            "table",
            "Versions",
            "The version of gpuwatch on each machine.",
            (Series("build", ""),),
            by=("cluster", "host", "version"),
            columns=(Column("host", 160),),
        ),
    ),
)

DASHBOARD = Dashboard(
    FINDINGS,
    "gpuwatch / findings",
    "Active findings with cause and advice, their history, and the health of every source.",
    (CLUSTER, HOST),
    (_ACTIVE, _HISTORY, _SIGHT),
    "now-6h",
)
