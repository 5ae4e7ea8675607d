"""From a query of the catalogue to the expression of a panel: the dashboard's variables and Grafana's rate window."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuwatch.queries import WINDOW
from gpuwatch.series import METRICS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_SELECTOR = re.compile(r"(?<![\w:])(gpuwatch_[a-z0-9_]+|ALERTS)(?:\{([^}]*)\})?(?![\w:])")
_FIXED_RATE = re.compile(r"\b((?:rate|increase)\([^()\[\]]*)\[1m\]")
_ALERT_LABELS = ("host",)


def metrics_of(expr: str) -> tuple[str, ...]:
    """Return the names of the series that an expression reads, in order, without repetition."""
    return tuple(dict.fromkeys(found[1] for found in _SELECTOR.finditer(expr)))


def for_panel(template: str, variables: Collection[str]) -> str:
    """Return the expression of a catalogue query for a dashboard with `variables`.

    Every selector gets a matcher for each variable that is a label of its metric. Windows of rates become Grafana's
    ``$__rate_interval``, which grows with the time range, so that no event between two points is lost.
    """

    def filtered(found: re.Match[str]) -> str:
        name, inner = found[1], found[2] or ""
        matchers = [f'{label}=~"${label}"' for label in labels_of(name) if label in variables]
        inside = ", ".join(filter(None, [inner.strip(), *matchers]))
        return f"{name}{{{inside}}}" if inside else name

    return _SELECTOR.sub(filtered, _FIXED_RATE.sub(rf"\1[{WINDOW}]", template))


def for_table(template: str, variables: Collection[str], by: Sequence[str]) -> str:
    """Return the expression of one column of a table whose rows are told apart by the labels `by`.

    The aggregation takes away every other label, ``__name__`` too: Grafana merges rows only where all labels agree.
    The largest value comes first.
    """
    return f"sort_desc(max by ({', '.join(by)}) ({for_panel(template, variables)}))"


def labels_of(name: str) -> tuple[str, ...]:
    """Return the labels of a metric by the vocabulary; those of ``ALERTS`` that every shipped rule gives."""
    if name == "ALERTS":
        return _ALERT_LABELS
    family = re.sub(r"_(bucket|count|sum)$", "", name)
    return METRICS[name if name in METRICS else family].labels
