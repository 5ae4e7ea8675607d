"""Log lines: time, level, source, text; recognised lines carry a mark."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from gpuwatch.engines.log_prefixes import strip_prefix
from gpuwatch.tui.draw.common import labelled
from gpuwatch.tui.text import clean, crop, fit
from gpuwatch.tui.view.logs import level_tone
from gpuwatch.units import clock

if TYPE_CHECKING:
    from gpuwatch.model import LogLine
    from gpuwatch.tui.text import Line

HIT = "▶"
_LEVELS = {"WARNING": "WARN", "CRITICAL": "CRIT"}


@lru_cache(maxsize=4096)
def log_line(line: LogLine, width: int, source_width: int) -> Line:
    """Return one line of a log in `width` cells; `source_width` is 0 where all lines have one source.

    What engines and collectors print before the message (process, level, time, file) is left out, but for the rank.
    """
    tone = level_tone(line)
    mark = (HIT, "hit") if line.event else (" ", "")
    level = _LEVELS.get(line.level.upper(), clean(line.level).upper()[:5])
    source = ((fit(clean(line.source), source_width) + " ", "dim"),) if source_width else ()
    event = ((f"{clean(line.event)}: ", "hit"),) if line.event else ()
    return crop(
        (
            mark,
            (f"{clock(line.time)} ", "dim"),
            (fit(level, 6), tone or "dim"),
            *source,
            *event,
            (_message(clean(line.text)), "" if tone == "warn" else tone),
        ),
        width,
    )


def _message(text: str) -> str:
    """Return a line without its prefix; the whole line where nothing else is in it."""
    found = strip_prefix(text)
    ranks = f"{' '.join(found.ranks)} " if found.ranks else ""
    again = f" [{found.repeat} times more]" if found.repeat else ""
    return f"{ranks}{found.message}{again}" if found.message.strip() else text


def source_width(lines: list[LogLine]) -> int:
    """Return the width of the source column: none for a single source."""
    sources = {line.source for line in lines}
    return min(max(map(len, sources)), 20) if len(sources) > 1 else 0


def details(line: LogLine, width: int) -> list[Line]:
    """Return a line in full, with where it was read and what it was recognised as."""
    lines = labelled("read at", f"{clean(line.source)}:{line.line}  {clock(line.time)}", width, "dim")
    if line.event:
        lines += labelled("means", clean(line.event), width, "hit")
    return lines + labelled("text", clean(line.text), width, level_tone(line))
