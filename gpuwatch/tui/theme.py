"""Textual themes of the palettes, and which one suits the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.theme import Theme

from gpuwatch.tui.palette import DARK, LIGHT

if TYPE_CHECKING:
    from collections.abc import Mapping


def _theme(name: str, colours: Mapping[str, str], *, dark: bool) -> Theme:
    """Return a Textual theme of a palette."""
    return Theme(
        name=name,
        primary=colours["spark"],
        foreground=colours[""],
        background=colours["bg"],
        surface=colours["bg"],
        panel=colours["bar"],
        dark=dark,
        variables={"scrollbar": colours["rule"], "scrollbar-background": colours["bg"]},
    )


THEMES = (_theme("gpuwatch-dark", DARK, dark=True), _theme("gpuwatch-light", LIGHT, dark=False))


def prefers_light(environ: Mapping[str, str]) -> bool:
    """Return whether the terminal says in ``COLORFGBG`` that its background is light (colours 7 and 15)."""
    return environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15")
