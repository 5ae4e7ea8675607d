"""The smallest Textual application that fills the screen: the floor of a first frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import App
from textual.widgets import Static

if TYPE_CHECKING:
    from textual.app import ComposeResult


class OneWidget(App[None]):
    """One widget with one line per row of the terminal."""

    def compose(self) -> ComposeResult:
        """Make the widget."""
        yield Static("\n".join(f"row {row}" for row in range(1, 46)))


if __name__ == "__main__":
    OneWidget().run()
