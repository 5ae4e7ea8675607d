"""What could not be judged in a recording: throughout, and at its end only."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuwatch.diagnosis.finding import NotEnough

FAILS = "the rule fails: "


class Unjudged:
    """Takes in what could not be judged at each tick. A finding is judged at a tick where nothing of it is missing."""

    def __init__(self) -> None:
        self._always: set[str] | None = None
        self._last: tuple[NotEnough, ...] = ()

    def saw(self, missing: tuple[NotEnough, ...]) -> None:
        """Take in all that could not be judged at one tick."""
        if missing is self._last and self._always is not None:
            return
        ids = {item.id for item in missing}
        self._always = ids if self._always is None else self._always & ids
        self._last = missing

    @property
    def throughout(self) -> tuple[NotEnough, ...]:
        """What could not be judged at any tick; a rule that fails at the end is among it."""
        return tuple(item for item in self._last if self._whole(item))

    @property
    def at_end(self) -> tuple[NotEnough, ...]:
        """What was judged before, and could not be at the last tick."""
        return tuple(item for item in self._last if not self._whole(item))

    def _whole(self, item: NotEnough) -> bool:
        return item.id in (self._always or ()) or item.missing.startswith(FAILS)
