"""The rank that the others waited for: what a barrier says of who did not come is where the reason stands."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import moments
from gpuwatch.diagnosis.causes.view import FRAMES_BEFORE

if TYPE_CHECKING:
    from gpuwatch.diagnosis.causes.view import View
    from gpuwatch.model import LogEvent


def others(view: View, end: LogEvent) -> str:
    """Return which ranks a barrier near an end missed, and where it says so; nothing where none does."""
    near = [
        each
        for each in view.events("rank_missed")
        if each.source == end.source
        and abs(each.line - end.line) <= FRAMES_BEFORE
        and moments.together(each, end) is not False
    ]
    # Rank 0 knows who did not come; the others only know that rank 0 gave up or was gone.
    near.sort(key=lambda each: not each.field("late"))
    if not near:
        return ""
    told = near[0]
    where = f"[{PurePath(told.source).name}:{told.line}]"
    late = told.field("late").strip()
    if not late:
        return (
            f"rank {told.field('by')} came to a barrier at which rank {told.field('zero')} failed or was gone: its log "
            f"lines say why {where}"
        )
    ranks, whose = (f"ranks {late}", "these ranks") if "," in late else (f"rank {late}", "that rank")
    return f"{ranks} did not come to a barrier: the log lines of {whose} say why {where}"
