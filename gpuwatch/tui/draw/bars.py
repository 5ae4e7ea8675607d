"""Bars, sparklines and charts made of characters."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.tui.text import Line, Span

LEVELS = " ▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉█"
PEAK = "╎"


def _ratio(amount: float | None, total: float) -> float:
    """Return `amount` of `total` between 0 and 1, whatever the numbers; what is not a number is 0."""
    if amount is None or math.isnan(amount) or not total > 0:
        return 0.0
    if math.isinf(amount) or math.isinf(total):
        return 1.0 if amount > 0 and math.isinf(amount) else 0.0
    return min(max(amount / total, 0.0), 1.0)


def meter(ratio: float | None, width: int, tone: str) -> Line:
    """Return a bar ``▕████▌   ▏`` of `width` cells in all, in eighths of a cell; an unknown ratio is an empty bar."""
    inner = width - 2
    if inner < 1:
        return ((" " * max(width, 0), ""),)
    if ratio is None or math.isnan(ratio):
        return (("▕", "rule"), ("·" * inner, "faint"), ("▏", "rule"))
    eighths = round(_ratio(ratio, 1.0) * inner * 8)
    if ratio > 0:
        eighths = max(eighths, 1)
    full, rest = divmod(eighths, 8)
    body = "█" * full + (_EIGHTHS[rest] if rest else "")
    return (("▕", "rule"), (body, tone), (" " * (inner - len(body)), ""), ("▏", "rule"))


def cells(amounts: Sequence[float], total: float, width: int) -> list[int]:
    """Divide `width` cells among `amounts` of `total` by the largest remainder; never more than `width` in all.

    The cells of all amounts together are the rounded share of their sum, so that the border between used and free
    does not depend on how the used part is divided. Amounts beyond the total share the whole width.
    """
    if width <= 0:
        return [0] * len(amounts)
    ratios = [_ratio(amount, total) for amount in amounts]
    scale = width / max(sum(ratios), 1.0)
    shares = [ratio * scale for ratio in ratios]
    want = min(width, round(sum(shares)))
    whole = [int(share) for share in shares]
    by_rest = sorted(range(len(shares)), key=lambda i: whole[i] - shares[i])
    for i in by_rest[: max(want - sum(whole), 0)]:
        whole[i] += 1
    return whole


def stacked(parts: Sequence[tuple[str, str, float]], total: float, peak: float | None, width: int) -> Line:
    """Return a ledger bar of `width` cells: `parts` are (glyph, tone, bytes), the rest is free.

    `peak` (bytes) is marked where it lies in the free part.
    """
    inner = width - 2
    if inner < 1:
        return ((" " * max(width, 0), ""),)
    used = cells([amount for _, _, amount in parts], total, inner)
    spans: list[Span] = [("▕", "rule")]
    spans += [(glyph * n, tone) for (glyph, tone, _), n in zip(parts, used, strict=True) if n]
    filled = sum(used)
    free = inner - filled
    known = peak is not None and not math.isnan(peak) and total > 0
    mark = min(int(_ratio(peak, total) * inner), inner - 1) - filled if known else -1
    if 0 <= mark < free:
        spans += [("·" * mark, "faint"), (PEAK, "peak"), ("·" * (free - mark - 1), "faint")]
    else:
        spans.append(("·" * free, "faint"))
    spans.append(("▏", "rule"))
    return tuple(span for span in spans if span[0])


def _top(values: Sequence[float | None], top: float | None) -> float:
    """Return the top of the scale: `top` where it is one, else the largest value, else 1."""
    if top is not None and math.isfinite(top) and top > 0:
        return top
    return max((v for v in values if v is not None and math.isfinite(v) and v > 0), default=1.0)


def sparkline(values: Sequence[float | None], width: int, top: float | None = None) -> str:
    """Return the last `width` values as one row of blocks on a scale from 0 to `top` (the largest by default).

    0 is the lowest block; a tick without a value is a space.
    """
    if width <= 0:
        return ""
    shown = list(values)[-width:]
    high = _top(shown, top)
    out = []
    for value in shown:
        if value is None or math.isnan(value):
            out.append(" ")
        else:
            out.append(LEVELS[1 + round(_ratio(value, high) * 7)])
    return "".join(out).rjust(width)


def chart(values: Sequence[float | None], width: int, height: int, top: float | None = None) -> list[str]:
    """Return the last `width` values as `height` rows of blocks, the highest row first."""
    if width <= 0:
        return [""] * max(height, 0)
    shown = list(values)[-width:]
    high = _top(shown, top)
    rows = [[" "] * (width - len(shown)) for _ in range(height)]
    for value in shown:
        missing = value is None or math.isnan(value)
        eighths = 0 if missing else max(1, round(_ratio(value, high) * height * 8))
        for row in range(height):
            level = min(max(eighths - (height - 1 - row) * 8, 0), 8)
            rows[row].append(LEVELS[level])
    return ["".join(row) for row in rows]
