"""Narrowing an expression to some series: matchers are added to each selector of ours, and to nothing else."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from gpuwatch.promql.lexical import TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatch.promql.values import Querier, RangeSeries, Vector

_OURS = re.compile(r"gpuwatch_\w+|ALERTS(_FOR_STATE)?")


def scoped(expr: str, matchers: Iterable[tuple[str, str]]) -> str:
    """Return `expr` with (label, value) `matchers` added to every selector of ``gpuwatch_*`` and ``ALERTS*``.

    An empty value matches series without the label. Names inside strings, braces and label lists are left alone.
    """
    added = ",".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in matchers)
    if not added:
        return expr
    tokens = [(found.lastgroup, found[0]) for found in TOKEN.finditer(expr)]
    out: list[str] = []
    depth = 0
    for place, (kind, word) in enumerate(tokens):
        out.append(word)
        if kind == "symbol":
            depth += (word == "{") - (word == "}")
        if kind != "word" or depth or not _OURS.fullmatch(word):
            continue
        after = [text for sort, text in tokens[place + 1 :] if sort != "space"][:2]
        if after[:1] != ["{"]:
            out.append("{" + added + "}")
        else:
            at = next(n for n, token in enumerate(tokens[place:], place) if token[1] == "{")
            tokens[at] = ("symbol", "{" + added + ("" if after[1:] == ["}"] else ","))
            depth += 1
    return "".join(out)


class Scoped:
    """A querier whose every question is narrowed by `matchers`."""

    def __init__(self, querier: Querier, matchers: Iterable[tuple[str, str]]) -> None:
        self._querier = querier
        self._matchers = tuple(matchers)

    def instant(self, expr: str, time: int) -> Vector:
        """Evaluate `expr`, narrowed, at `time` (milliseconds)."""
        return self._querier.instant(scoped(expr, self._matchers), time)

    def range(self, expr: str, start: int, end: int, step: int) -> tuple[RangeSeries, ...]:
        """Evaluate `expr`, narrowed, at start, start + step, … up to `end` (milliseconds)."""
        return self._querier.range(scoped(expr, self._matchers), start, end, step)
