"""The table of the scenarios: which finding came, how many seconds after the cause, and whether it was the first.

Each scenario adds its line; the lines of a run are printed at its end and kept in the cache folder.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass

from follow import Follow, View
from vllm_server import CACHE

TABLE = CACHE / "detected.json"
GRACE_SECONDS = 10.0
"""What a machine that does other things at the same time may add to a promised time."""
HEADINGS = ("id", "scenario", "fired on", "seconds", "limit", "first finding", "right")


@dataclass(frozen=True, slots=True)
class Detected:
    """One finding of one scenario. `seconds` from the cause to its appearance, `limit` what is promised.

    `right`: it was the first finding of the list when it appeared, or the first one is named as its cause.
    """

    id: str
    scenario: str
    fired_on: str
    seconds: float
    limit: float
    first: str
    right: bool

    def cells(self) -> tuple[str, ...]:
        """Return the line as text."""
        return (
            self.id, self.scenario, self.fired_on, f"{self.seconds:.1f}", f"{self.limit:g}", self.first,
            "yes" if self.right else "no",
        )  # fmt: skip


_LINES: list[Detected] = []


def detect(
    follow: Follow, wanted: str, where: tuple[str, str], since: float, limit: float, *, begun: float | None = None
) -> View:
    """Wait for `wanted`, whose cause was seen at `since` (seconds since the epoch), and add a line to the table.

    `where` names the scenario and the server. With `begun` it may be said before its cause was seen from outside, from
    then on.

    Raises:
        AssertionError: it did not come within `limit` seconds and some grace.
    """
    view = follow.wait_for(wanted, since + limit + GRACE_SECONDS - time.time(), since if begun is None else begun)
    first = view.firing()[0]
    right = first in (wanted, view.finding(wanted)["caused_by"])
    _LINES.append(Detected(wanted, *where, view.time - since, limit, first, right))
    return view


def lines() -> list[Detected]:
    """Return the lines of this run."""
    return list(_LINES)


def text(rows: list[Detected]) -> str:
    """Return the table as aligned text."""
    cells = [HEADINGS, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADINGS))]
    ruled = [cells[0], tuple("-" * width for width in widths), *cells[1:]]
    aligned = ["  ".join(c.ljust(width) for c, width in zip(line, widths, strict=True)).rstrip() for line in ruled]
    return "\n".join(aligned) + "\n"


def save() -> str:
    """Lay the lines of this run over those of earlier ones in the cache folder, and return the whole table."""
    kept = [Detected(**row) for row in json.loads(TABLE.read_text())] if TABLE.exists() else []
    fresh = {(row.id, row.scenario) for row in _LINES}
    rows = sorted([*(row for row in kept if (row.id, row.scenario) not in fresh), *_LINES], key=lambda r: r.id)
    TABLE.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    table = text(rows)
    TABLE.with_suffix(".txt").write_text(table)
    return table
