"""What a dashboard is made of: rows of panels, each of named queries. `render` makes Grafana's JSON of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

COLUMNS = 24
"""Width of Grafana's grid."""

Kind: TypeAlias = Literal["stat", "timeseries", "table", "barchart", "state-timeline"]
Colour: TypeAlias = Literal["green", "yellow", "orange", "red", "blue", "purple", "text"]


@dataclass(frozen=True, slots=True)
class Limit:
    """A line at the threshold of a rule, read from the rule file: the comparison of `alert` whose left side is `left`.

    `scale` multiplies the rule's number: 1/60 makes a rate of an increase over a minute.
    """

    alert: str
    left: str
    colour: Colour = "red"
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Level:
    """A value from which a stat or a cell has another colour, where no rule has a threshold: one of something bad."""

    value: float
    colour: Colour = "red"


@dataclass(frozen=True, slots=True)
class Series:
    """One query of the catalogue in a panel.

    `legend` names its series with Grafana's ``{{label}}``; in a table it is the heading of the column. `colour` is for
    queries that stand for one thing everywhere, such as a part of the memory. `dashed` draws a reference line, `total`
    adds up what is selected.
    """

    query: str
    legend: str
    colour: str = ""
    dashed: bool = False
    total: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """How a column of a table is shown. `link` is the uid of the dashboard that a click leads to, for the row's things.

    `bar` draws the value as a bar in its cell, `wrap` shows long text on several lines; `width` is in pixels, 0 lets
    Grafana choose.
    """

    name: str
    width: int = 0
    limits: tuple[Limit | Level, ...] = ()
    link: str = ""
    bar: bool = False
    wrap: bool = False
    mapping: tuple[tuple[str, str, Colour], ...] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. The unit is that of its first query unless `unit` says otherwise.

    Args:
        limits: Thresholds, from rules where there is one.
        stacked: Draw the series on top of each other.
        by: Labels that make a row of a table or a bar of a bar chart, in the order of the columns.
        columns: How single columns are shown.
        mapping: Words and colours for values.
        empty: What is shown where there is no data.
        top: Upper end of the axis.
        bottom: Lower end of the axis; None lets Grafana choose.
        sort: Column that a table is sorted by, largest first.
    """

    kind: Kind
    title: str
    description: str
    series: tuple[Series, ...]
    width: int = 8
    height: int = 8
    unit: str = ""
    limits: tuple[Limit | Level, ...] = ()
    stacked: bool = False
    by: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    mapping: tuple[tuple[float, str, Colour], ...] = ()
    empty: str = "no data"
    top: float | None = None
    bottom: float | None = 0
    sort: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A titled group of panels, placed from left to right and wrapped at `COLUMNS`."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable that lists the values of `label`; `source` is the selector that has them."""

    name: str
    label: str
    source: str
    title: str


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard; `uid` never changes, or links to it break."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
    span: str = "now-1h"

    @property
    def filename(self) -> str:
        """The name of its JSON file."""
        return f"{self.uid}.json"


_MACHINE = 'cluster=~"$cluster", host=~"$host"'

CLUSTER = Variable("cluster", "cluster", "gpuwatch_build_info", "Cluster")
HOST = Variable("host", "host", 'gpuwatch_build_info{cluster=~"$cluster"}', "Host")
SERVER = Variable("server", "server", f'gpuwatch_source_up{{source="engine", {_MACHINE}}}', "Engine")
MODEL = Variable(
    "model_name", "model_name", f'gpuwatch_engine_kv_cache_usage_ratio{{{_MACHINE}, server=~"$server"}}', "Model"
)
GPU = Variable("gpu", "gpu", f"gpuwatch_gpu_memory_total_bytes{{{_MACHINE}}}", "GPU")
