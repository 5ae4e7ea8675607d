"""Reading a snapshot: answers by the thing they are about, and why a value is absent."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, TypeAlias

from gpuwatch.model import NAME
from gpuwatch.queries import QUERIES
from gpuwatch.tui.view.reasons import REASONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuwatch.model import Absence
    from gpuwatch.snapshot import Snapshot

Key: TypeAlias = tuple[str, ...]

GPU_KEY = ("host", "uuid")
SERVER_KEY = ("host", "server")
RANK_KEY = ("host", "server", "model_name", "dp_rank")

_METRIC = re.compile(r"gpuwatch_\w+")


def metric_of(query: str) -> str:
    """Return the name of the first series that a catalogue query reads."""
    match = _METRIC.search(QUERIES[query].template)
    return match.group() if match else ""


def collect(snapshot: Snapshot, queries: Iterable[str], key: Key) -> dict[Key, dict[str, float]]:
    """Return the answers of `queries` by the values of the labels in `key`; NaN counts as absent."""
    table: dict[Key, dict[str, float]] = {}
    for query in queries:
        for labels, value in snapshot.answer(query).samples:
            if not math.isnan(value):
                own = dict(labels)
                table.setdefault(tuple(own.get(name, "") for name in key), {})[query] = value
    return table


def collect_by(snapshot: Snapshot, query: str, key: Key, label: str) -> dict[Key, tuple[tuple[str, float], ...]]:
    """Return one answer by `key`, each a tuple of (value of `label`, value), largest first."""
    table: dict[Key, list[tuple[str, float]]] = {}
    for labels, value in snapshot.answer(query).samples:
        if not math.isnan(value):
            own = dict(labels)
            table.setdefault(tuple(own.get(name, "") for name in key), []).append((own.get(label, ""), value))
    return {thing: tuple(sorted(found, key=lambda item: (-item[1], item[0]))) for thing, found in table.items()}


def texts(snapshot: Snapshot, query: str, key: Key) -> dict[Key, dict[str, str]]:
    """Return the labels of an info query by `key`."""
    table: dict[Key, dict[str, str]] = {}
    for labels, _ in snapshot.answer(query).samples:
        own = dict(labels)
        table[tuple(own.get(name, "") for name in key)] = own
    return table


def reason_text(absence: Absence) -> str:
    """Return why something is absent: the plain words, and the detail where there is one."""
    words = REASONS.get(absence.reason.value, absence.reason.value)
    return f"{words}: {absence.detail}" if absence.detail else words


def absences(snapshot: Snapshot, label: str) -> dict[tuple[str, str], Absence]:
    """Return the absences by (value of `label` or empty for all, metric name or empty for everything)."""
    table: dict[tuple[str, str], Absence] = {}
    for absence in snapshot.absent:
        own = dict(absence.labels)
        table.setdefault((own.get(label, ""), own.get(NAME, "")), absence)
    return table


def why_absent(table: Mapping[tuple[str, str], Absence], thing: str, query: str) -> str:
    """Return why `query` has no value for `thing`, in plain words; empty when nobody said."""
    metric = metric_of(query)
    for key in ((thing, metric), ("", metric), (thing, "")):
        if key in table:
            return REASONS.get(table[key].reason.value, table[key].reason.value)
    return ""


_PROPER = {"kv": "KV", "ttft": "TTFT", "itl": "ITL", "cpu": "CPU", "pcie": "PCIe", "sm": "SM", "gpu": ""}


def figure_name(query: str) -> str:
    """Return how a catalogue query is called on screen: ``ttft_p95`` is ``TTFT p95``."""
    return " ".join(filter(None, (_PROPER.get(word, word) for word in query.split("_"))))


def in_number_order(text: str) -> tuple[int, int, str]:
    """Sort key: numbers by value, a part such as ``5:0`` after its whole, before everything else."""
    whole, _, part = text.partition(":")
    return (0, int(whole), part) if whole.isascii() and whole.isdigit() else (1, 0, text)
