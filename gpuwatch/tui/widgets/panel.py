"""A scrolling list of styled lines: the widget that every part of the screen is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from textual.binding import Binding
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from gpuwatch.tui.palette import style
from gpuwatch.tui.text import pad

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from textual import events
    from textual.binding import BindingType

    from gpuwatch.tui.text import Line, Row

CURSOR = "▸"


class Panel(ScrollView, can_focus=True, inherit_bindings=False):
    """Lines between a fixed head and foot. Rows with a key can be selected; several rows may share one.

    `show` compares with what is on screen and repaints only lines that changed. With ``tail=True`` the panel
    stays at its end while nobody scrolls away from it.
    """

    DEFAULT_CSS = """
    Panel { overflow-x: hidden; overflow-y: auto; scrollbar-size-vertical: 1; height: 1fr; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "step(-1)", show=False),
        Binding("down,j", "step(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home,g", "edge(-1)", show=False),
        Binding("end,G", "edge(1)", show=False),
        Binding("enter", "pick", show=False),
    ]

    class Moved(Message):
        """Another thing was selected."""

        def __init__(self, panel: Panel) -> None:
            super().__init__()
            self.panel = panel

        @property
        def control(self) -> Panel:
            """The panel."""
            return self.panel

    class Picked(Moved):
        """The selected thing was opened with enter or a click."""

    def __init__(self, *, tail: bool = False, id: str | None = None) -> None:  # noqa: A002  # Textual's own name
        super().__init__(id=id)
        self._tail = tail
        self._head: Sequence[Line] = ()
        self._foot: Sequence[Line] = ()
        self._rows: Sequence[Row] = ()
        self._keys: list[Hashable] = []
        self._chosen = False
        self.selected: Hashable | None = None

    @property
    def line_count(self) -> int:
        """The number of lines, head and foot included."""
        return len(self._head) + len(self._rows) + len(self._foot)

    def show(self, rows: Sequence[Row], head: Sequence[Line] = (), foot: Sequence[Line] = ()) -> None:
        """Set the lines; what was selected stays so, or what took its place is. Before anybody chose, the first is."""
        before = self._visible()
        at_end = self.scroll_offset.y >= self.max_scroll_y
        old_keys, old_selected = self._keys, self.selected
        self._head, self._rows, self._foot = head, rows, foot
        self._keys = list(dict.fromkeys(key for key, _ in rows if key is not None))
        if self.selected not in self._keys:
            place = old_keys.index(self.selected) if self.selected in old_keys else 0
            follow = self._keys[min(place, len(self._keys) - 1)] if self._keys else None
            self.selected = None if self._tail else follow
        elif not self._chosen:
            self.selected = None if self._tail else self._keys[0]
        if self.virtual_size.height != self.line_count:
            self.virtual_size = Size(1, self.line_count)
            if self._tail and at_end:
                self.scroll_to(y=self.line_count, animate=False, immediate=True)
        self._repaint(before)
        if self.selected != old_selected:
            self.post_message(self.Moved(self))

    def select(self, key: Hashable) -> None:
        """Select a thing and bring it into sight; before the first lines it is remembered for them."""
        self._chosen = True
        if not self._keys:
            self.selected = key
        if key in self._keys and key != self.selected:
            before = self._visible()
            self.selected = key
            self._reveal()
            self._repaint(before)
            self.post_message(self.Moved(self))

    def step(self, by: int) -> None:
        """Select the next or previous thing, around the end."""
        if self._keys:
            place = self._keys.index(self.selected) if self.selected in self._keys else -1 if by > 0 else 0
            self.select(self._keys[(place + by) % len(self._keys)])

    def action_step(self, by: int) -> None:
        """Move the selection by one thing, or scroll where there is nothing to select."""
        if not self._keys:
            self.scroll_relative(y=by, animate=False)
            return
        if self.selected not in self._keys:
            self.select(self._keys[-1 if by < 0 or self._tail else 0])
            return
        place = self._keys.index(self.selected) + by
        if 0 <= place < len(self._keys):
            self.select(self._keys[place])
        else:
            self.scroll_relative(y=by, animate=False)

    def action_page(self, by: int) -> None:
        """Scroll by a page; the selection follows."""
        height = max(self.size.height - len(self._head) - len(self._foot) - 1, 1)
        self.scroll_relative(y=by * height, animate=False)
        if self._keys:
            place = self._keys.index(self.selected) if self.selected in self._keys else 0
            self.select(self._keys[min(max(place + by * height, 0), len(self._keys) - 1)])

    def action_edge(self, by: int) -> None:
        """Go to the first or the last line."""
        if self._tail and by > 0:
            before = self._visible()
            self.selected, self._chosen = None, False
            self._repaint(before)
            self.post_message(self.Moved(self))
        elif self._keys:
            self.select(self._keys[0 if by < 0 else -1])
        self.scroll_to(y=0 if by < 0 else self.line_count, animate=False)

    def action_pick(self) -> None:
        """Open the selected thing."""
        if self.selected is not None:
            self.post_message(self.Picked(self))

    def on_click(self, event: events.Click) -> None:
        """Select what was clicked; open it when it was selected already."""
        body = event.y - len(self._head)
        index = body + self.scroll_offset.y
        if body < 0 or event.y >= self.size.height - len(self._foot) or index >= len(self._rows):
            return
        key = self._rows[index][0]
        if key is None:
            return
        if key == self.selected:
            self.action_pick()
        else:
            self.select(key)

    def watch_has_focus(self, _has_focus: bool) -> None:
        """Show or hide the cursor."""
        super().watch_has_focus(_has_focus)
        self.refresh()

    def on_resize(self) -> None:
        """Keep the selection, or the end of a tail, in sight."""
        if self._tail and self.selected is None:
            self.scroll_to(y=self.line_count, animate=False, immediate=True)
        else:
            self._reveal()

    def _reveal(self) -> None:
        """Scroll so that the selected rows are in sight."""
        places = [i for i, (key, _) in enumerate(self._rows) if key == self.selected and key is not None]
        height = self.size.height - len(self._head) - len(self._foot)
        if not places or height <= 0:
            return
        top = self.scroll_offset.y
        if places[0] < top or places[-1] - places[0] >= height:
            self.scroll_to(y=places[0], animate=False, immediate=True)
        elif places[-1] >= top + height:
            self.scroll_to(y=places[-1] - height + 1, animate=False, immediate=True)

    def _line_at(self, y: int) -> tuple[Line, bool, bool]:
        """Return (line, selected, first of the selected rows) at a row of the widget."""
        height = self.size.height
        if y < len(self._head):
            return self._head[y], False, False
        if self._foot and y >= min(height, self.line_count) - len(self._foot):
            index = y - (min(height, self.line_count) - len(self._foot))
            return (self._foot[index], False, False) if index < len(self._foot) else ((), False, False)
        index = y - len(self._head) + self.scroll_offset.y
        if index >= len(self._rows):
            return (), False, False
        key, line = self._rows[index]
        chosen = key is not None and key == self.selected and self.has_focus
        return line, chosen, chosen and (index == 0 or self._rows[index - 1][0] != key)

    def _visible(self) -> list[tuple[Line, bool, bool]]:
        """Return what is on screen now."""
        return [self._line_at(y) for y in range(self.size.height)]

    def _repaint(self, before: list[tuple[Line, bool, bool]]) -> None:
        """Repaint the lines that differ from `before`."""
        after = self._visible()
        if len(before) != len(after):
            self.refresh()
            return
        regions = [Region(0, y, self.size.width, 1) for y, line in enumerate(after) if line != before[y]]
        if regions:
            self.refresh(*regions)

    def render_line(self, y: int) -> Strip:
        """Return one line of the widget."""
        width = self.size.width
        line, chosen, first = self._line_at(y)
        palette: str = getattr(self.app, "palette", "dark")
        base = "select" if chosen else ""
        if first and line and line[0][0][:1] == " ":
            line = ((CURSOR, "key"), (line[0][0][1:], line[0][1]), *line[1:])
        if self.has_focus and y < len(self._head) and self._head:
            line = tuple((text, _FOCUSED.get(tone, tone)) for text, tone in line)
        segments = [Segment(text, style(palette, tone, base)) for text, tone in pad(line, width)]
        return Strip(segments, width)


_FOCUSED = {"title": "title.focus", "rule": "rule.focus"}
