"""Which machine of a fleet the feed should look at while the person goes from page to page."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from gpuwatch.tui.feed import Actions
    from gpuwatch.tui.screens.base import View

OF_ALL = ("fleet", "findings", "rules")
"""Pages that are about all machines where they are opened from the table."""


def step(
    actions: Actions, views: Mapping[str, View], shown: str, wanted: str, key: Hashable | None, *, focused: bool
) -> tuple[Hashable | None, Callable[[], None] | None]:
    """Return what is to be selected in the page `wanted`, and what to tell the feed on the way from `shown`.

    A page of one machine is that of the machine selected in the table, unless the feed is `focused` on one; back at
    the table it is all of them again.
    """
    focus = actions.focus
    if focus is None or wanted == shown:
        return key, None
    if wanted == "fleet":
        return key, lambda: focus(None)
    machine = getattr(views.get("fleet"), "selected", None)
    if wanted in OF_ALL or machine is None or (focused and shown != "fleet"):
        return key, None
    return None, lambda: focus(machine)
