"""Keys and signs."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.screen import ModalScreen

from gpuwatch.tui.draw.common import columns, unkeyed
from gpuwatch.tui.text import rule, width_of, wrap
from gpuwatch.tui.view.ledger import FREE, KINDS
from gpuwatch.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.events import Resize

    from gpuwatch.tui.text import Line


def _entry(sign: str, tone: str, what: str, width: int) -> list[Line]:
    """Return a key or sign with what it means, on as many lines as that takes."""
    lines = wrap(what, max(width - 20, 20))
    return [
        columns([("" if i else sign, 16, "<", tone), (line, width_of(line), "<", "")]) for i, line in enumerate(lines)
    ]


class Help(ModalScreen[None]):
    """What every key does and every sign means; `keys` are those that work now."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q", "dismiss", show=False)]

    DEFAULT_CSS = """
    Help { align: center middle; background: $background; }
    Help Panel { width: 1fr; height: 1fr; }
    """

    def __init__(self, keys: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._keys = keys

    def compose(self) -> ComposeResult:
        """Make the panel."""
        yield Panel()

    def on_resize(self, event: Resize) -> None:
        """Fill the page."""
        width = event.size.width - 1
        keys = [line for key, what in self._keys for line in _entry(key, "key", what, width)]
        looks = [(look.glyph, look.tone, f"{look.label}: {look.meaning}") for look in (*KINDS.values(), FREE)]
        signs = [line for sign, tone, what in (*looks, *_SIGNS) for line in _entry(sign, tone, what, width)]
        lines: list[Line] = [*keys, (), rule((("Signs", "title"),), width), *signs]
        self.query_one(Panel).show(unkeyed(lines), [rule((("Help", "title"),), width, (("escape closes", "dim"),))])

    async def action_dismiss(self, result: None = None) -> None:
        """Close the page."""
        self.dismiss(result)


_SIGNS = (
    ("╎", "peak", "highest memory use of the last minute"),
    ("●", "crit", "critical: requests fail or throughput collapses now"),
    ("▲", "warn", "warning: it will, or capacity is wasted"),
    ("○", "info", "info: worth knowing"),
    ("↳", "dim", "a symptom of the finding above"),
    ("…", "dim", "pending: true, but not for long enough yet"),
    ("✓", "ok", "fine, over, or acknowledged"),
    ("✗", "crit", "does not answer, lost or failed"),
    ("?", "warn", "cannot be judged: something is missing"),
    ("◌", "info", "no data yet"),
    ("▶", "hit", "a log line that was recognised"),
    ("n/a", "dim", "not available; never a zero"),
)
