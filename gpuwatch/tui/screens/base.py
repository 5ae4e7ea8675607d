"""What every view is: a column of panels that is drawn from a `Model`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.message import Message
from textual.widget import Widget

from gpuwatch.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from collections.abc import Hashable

    from textual.app import ComposeResult
    from textual.events import Resize

    from gpuwatch.tui.draw.frame import KeyHint
    from gpuwatch.tui.view.findings import Row
    from gpuwatch.tui.view.model import Model


class View(Widget):
    """One page of the screen. `draw` fills its panels; it runs only while the view is shown."""

    DEFAULT_CSS = "View { layout: vertical; height: 1fr; width: 1fr; }"

    class Opened(Message):
        """Another view is asked for, with something selected in it."""

        def __init__(self, view: str, key: Hashable | None = None) -> None:
            super().__init__()
            self.view = view
            self.key = key

    class HintsChanged(Message):
        """The keys of the view do something else now."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # Textual's own name
        super().__init__(id=id)
        self.model: Model | None = None

    def show(self, model: Model) -> None:
        """Draw a model, now or as soon as the view has a size."""
        self.model = model
        if self.is_mounted and self.size.width > 0:
            self.draw(model, self.size.width - 1, self.size.height)

    def on_resize(self, event: Resize) -> None:
        """Draw again for the new size."""
        if self.model is not None:
            self.draw(self.model, event.size.width - 1, event.size.height)

    def draw(self, model: Model, width: int, height: int) -> None:
        """Fill the panels for a view of `width` by `height` cells."""
        raise NotImplementedError

    def hints(self) -> list[KeyHint]:
        """Return the keys that only this view has."""
        return []

    def finding(self) -> Row | None:
        """Return the finding that the keys a, s and y are about."""
        if self.model is None or not self.model.findings:
            return None
        return self.model.findings[0]

    def open_at(self, key: Hashable) -> None:
        """Select a thing that was picked in another view."""

    def focus_first(self) -> None:
        """Give the focus to the view's main panel."""
        for panel in self.query(Panel):
            if panel.display:
                panel.focus()
                return

    def set_height(self, panel: Panel, height: int) -> None:
        """Give a panel a fixed number of lines; 0 hides it."""
        panel.display = height > 0
        current = panel.styles.height
        if height > 0 and (current is None or not current.is_cells or current.value != height):
            panel.styles.height = height


class ListAndDetail(View):
    """A list above, the details of its selected entry below."""

    def compose(self) -> ComposeResult:
        """Make the panels."""
        yield Panel(id="list")
        yield Panel(id="detail")

    def open_at(self, key: Hashable) -> None:
        """Select an entry."""
        self.query_one("#list", Panel).select(key)
