"""Everything about one engine: charts, every figure of its ranks, its settings and facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.queries import BOUNDED, QUERIES
from gpuwatch.tui.draw.bars import chart
from gpuwatch.tui.draw.common import beside, labelled
from gpuwatch.tui.draw.figures import figure
from gpuwatch.tui.text import clean, crop, fit, width_of
from gpuwatch.tui.view.engines import RANK_FIGURES, SERVER_FIGURES
from gpuwatch.units import count, with_unit

if TYPE_CHECKING:
    from gpuwatch.tui.text import Line
    from gpuwatch.tui.view.engines import Engine, Rank
    from gpuwatch.tui.view.model import Model

MOST_CHARTS = 16

_HIDDEN = ("asleep", "prefix_enabled")
"""Figures that are said in words elsewhere."""


_DOCUMENTS = ("model.config",)
"""Facts that are whole documents, for programs only."""


def problem_lines(engine: Engine, width: int) -> list[Line]:
    """Return what is wrong with an engine, wrapped."""
    return labelled("state", f"✗ {engine.problem}", width, "warn") if engine.problem else []


def settings(engine: Engine, width: int) -> list[Line]:
    """Return the settings and facts of an engine, with where each was read."""
    lines = [
        figure(query, engine.get(query), engine.reasons.get(query, ""), width, stale=engine.stale is not None)
        for query in SERVER_FIGURES
    ]
    for fact in engine.facts:
        if fact.key in _DOCUMENTS:
            continue
        where = f"{fact.source}:{fact.line}" if fact.line is not None else fact.source
        value = fact.value
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and float(value).is_integer()
        shown = count(float(value)) if number else str(value)
        lines.append(
            crop(
                (
                    (" ", ""),
                    (fit(clean(fact.key), 34), "label"),
                    (" ", ""),
                    (clean(shown), ""),
                    (f"   {clean(where)}", "dim"),
                ),
                width,
            )
        )
    return lines


def rank_figures(engine: Engine, rank: Rank, width: int) -> list[Line]:
    """Return every figure of a rank with its meaning, or why it is absent; two columns where there is room."""
    stale = engine.stale is not None
    two = width >= 130
    each = width // 2 if two else width
    lines: list[Line] = []
    for query in RANK_FIGURES:
        if query in _HIDDEN:
            continue
        why = rank.reasons.get(query, "")
        value = rank.get(query)
        if query == "prefix_hit_ratio" and rank.get("prefix_enabled") == 0:
            value, why = None, "caching is off"
        lines.append(figure(query, value, why, each - 1, stale=stale))
    half = (len(lines) + 1) // 2
    return beside(lines[:half], lines[half:], each) if two else lines


def chart_blocks(model: Model, rank: Rank, each: int, height: int, name: str = "") -> list[tuple[str, list[str], str]]:
    """Return the charts of a rank as (heading, rows, tone); `name` says in the headings whose they are."""
    return [_chart(model, rank, spec, (each, height), name) for spec in _CHARTS]


def kv_chart_blocks(
    model: Model, engine: Engine, each: int, height: int, most: int = MOST_CHARTS
) -> list[tuple[str, list[str], str]]:
    """Return the charts of the KV pool of the first `most` ranks: they stand beside each other, never combined."""
    return [_chart(model, rank, _CHARTS[0], (each, height), f"dp{rank.dp_rank}") for rank in engine.ranks[:most]]


def _chart(
    model: Model, rank: Rank, spec: tuple[str, str, float | None, str], size_: tuple[int, int], name: str
) -> tuple[str, list[str], str]:
    """Return one chart as (heading, rows, tone)."""
    query, label, top, tone = spec
    each, height = size_
    until = model.snapshot.time if model.snapshot is not None else 0
    values = model.history.trace(rank.key, query, until, each)
    best = max((v for v in values if v is not None), default=None)
    unit = QUERIES[query].unit
    high = "" if top is not None or best is None else f"  max {with_unit(best, unit)}"
    head = f"{f'{name} {label}' if name else label} {_figure(rank, query, unit)}"
    # A heading is not cut in the middle of a figure: the largest value goes where there is no room for it.
    return head + high if width_of(head + high) <= each else head, chart(values, each, height, top), tone


def _figure(rank: Rank, query: str, unit: str) -> str:
    return rank.latency(query) if query in BOUNDED else with_unit(rank.get(query), unit)


_CHARTS = (
    ("kv_usage", "KV pool", 1.0, "bar.kv_used"),
    ("generation_rate", "generation", None, "spark.good"),
    ("waiting", "waiting", None, "spark.warn"),
    ("eviction_rate", "evicted", None, "spark.warn"),
    ("ttft_p95", "TTFT p95", None, "spark"),
    ("prompt_rate", "prompt", None, "spark"),
)
"""(query, name, top of the scale or None for the largest value, tone), the most telling first."""
