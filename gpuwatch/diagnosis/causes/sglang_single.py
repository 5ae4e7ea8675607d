"""One request that fills SGLang's whole pool: its scheduler gives up when nobody is left that could be retracted.

``retract_decode`` of ``srt/managers/schedule_batch.py``, 0.2.15 to 0.5.9; later versions abort the request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import moves
from gpuwatch.diagnosis.causes.course import courses
from gpuwatch.diagnosis.causes.view import Cause, advise, from_fact, number, ruled_out
from gpuwatch.diagnosis.explanation import Explanation, count, logged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import Run, View
    from gpuwatch.diagnosis.finding import Advice
    from gpuwatch.model import LogEvent

ROUND = 1024
"""Lengths are proposed in multiples of this, below the pool: the last page of a request needs room as well."""


def filled(view: View) -> Iterator[Cause]:
    """Judge a scheduler that found no room for the next token of the only request that ran."""
    for event in view.events("sglang_oom"):
        if event.field("alone"):
            yield _filled(view, event)
            return


def _filled(view: View, event: LogEvent) -> Cause:
    run = view.run_of(event)
    pool, longest = run.number("kv.tokens"), run.number("max_model_len")
    before = [
        point for course in courses(view) if course.run is run for point in course.points if _ahead(point.event, event)
    ]
    evidence = [
        logged(event),
        *(logged(point.event) for point in before[-1:]),
        *from_fact(run, "kv.tokens", "the KV pool holds {} tokens", "tokens"),
        *from_fact(run, "max_model_len", "requests of up to {} tokens are accepted", "tokens"),
    ]
    if _window_is_short(event):
        cause = (
            "The sliding-window pool had no room for the next token of the one request that was left; of the full pool "
            f"{count(number(event, 'free') or 0)} tokens were free."
        )
        advice = [
            advise("give the windows a larger part of the pool", "--swa-full-tokens-ratio"),
            *moves.larger_share(run, "or enlarge both pools where memory is left beside them"),
        ]
    elif pool and longest and longest <= pool:
        cause = (
            f"The KV pool of {count(pool)} tokens had no room for the next token of the one request that was left, and "
            f"no request has more than {count(longest)}: the rest is held by nobody who runs. That is a defect of the "
            "engine, not load."
        )
        advice = [
            advise("update SGLang; report the line if the newest version does it too"),
            advise("does it happen without the tree of cached prefixes as well", "--disable-radix-cache"),
        ]
    else:
        size = f" of {count(pool)} tokens" if pool else ""
        cause = (
            f"One request filled the whole KV pool{size}: there was no room for its next token, and no other request "
            "was left that could be taken out."
        )
        cause += f" Requests of up to {count(longest)} tokens are accepted." if pool and longest else ""
        advice = [*_shorter(run, pool), *moves.more_pool(run)]
    evidence.append(ruled_out("too many requests: all but one had been taken out of the batch", event))
    return Cause(
        "sglang_kv_alloc_failure",
        Explanation(cause + " The scheduler ends with it.", 0.9, tuple(evidence), tuple(advice)),
        event.time,
    )


def _ahead(point: LogEvent, event: LogEvent) -> bool:
    return point.source == event.source and point.line < event.line


def _window_is_short(event: LogEvent) -> bool:
    window, free = number(event, "window"), number(event, "free")
    return window is not None and window <= 0 < (free or 0)


def _shorter(run: Run, pool: float | None) -> list[Advice]:
    fits = int(pool - 1) // ROUND * ROUND if pool and pool > ROUND else None
    return moves.shorter(run, fits, "accept no more than the pool can hold")
