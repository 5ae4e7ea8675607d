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
_PER_HOST = re.compile(r"\b(by|on) \(host\b")

CLUSTER = "cluster"
"""The label by which a Prometheus tells clusters apart: machines of the same name in two clusters are two machines."""


def metrics_of(expr: str) -> tuple[str, ...]:
    """Return the names of the series that an expression reads, in order, without repetition."""
    return tuple(dict.fromkeys(found[1] for found in _SELECTOR.finditer(expr)))


def for_panel(template: str, variables: Collection[str]) -> str:
    """Return the expression of a catalogue query for a dashboard with `variables`.

    Every selector gets a matcher for each variable that is a label of its metric. What is told apart by host is told
    apart by cluster, too. Windows of rates become Grafana's ``$__rate_interval``, which grows with the time range, so
    that no event between two points is lost.
    """

    def filtered(found: re.Match[str]) -> str:
        name, inner = found[1], found[2] or ""
        matchers = [f'{label}=~"${label}"' for label in labels_of(name) if label in variables]
        inside = ", ".join(filter(None, [inner.strip(), *matchers]))
        return f"{name}{{{inside}}}" if inside else name

    per_machine = _PER_HOST.sub(rf"\1 ({CLUSTER}, host", template)
    return _SELECTOR.sub(filtered, _FIXED_RATE.sub(rf"\1[{WINDOW}]", per_machine))


def for_table(template: str, variables: Collection[str], by: Sequence[str]) -> str:
    """Return the expression of one column of a table whose rows are told apart by the labels `by`.

    The aggregation takes away every other label, ``__name__`` too: Grafana merges rows only where all labels agree.
    The largest value comes first.
    """
    return f"sort_desc(max by ({', '.join(by)}) ({for_panel(template, variables)}))"


def for_bars(template: str, variables: Collection[str], by: Sequence[str]) -> str:
    """Return the expression of one part of a bar chart, with a bar for each value of the labels `by`.

    The bar is named in the label ``bar``: cluster and host, then the rest.
    """
    machine = ", ".join(f'"{label}"' for label in by if label in (CLUSTER, "host"))
    rest = ", ".join(f'"{label}"' for label in ("machine", *(one for one in by if one not in (CLUSTER, "host"))))
    named = f'label_join({for_panel(template, variables)}, "machine", " ", {machine})'
    return f'sum by (bar) (label_join({named}, "bar", " gpu ", {rest}))'


def labels_of(name: str) -> tuple[str, ...]:
    """Return `CLUSTER` and a metric's labels by the vocabulary; of ``ALERTS`` those that every shipped rule gives."""
    if name == "ALERTS":
        return (CLUSTER, *_ALERT_LABELS)
    family = re.sub(r"_(bucket|count|sum)$", "", name)
    return (CLUSTER, *METRICS[name if name in METRICS else family].labels)
