"""Colours: every tone of a `Line`, for dark and light screens, and for terminals without colour.

Colour is never the only carrier: every bar segment, state and severity has its own glyph.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from rich.style import Style

if TYPE_CHECKING:
    from collections.abc import Mapping

DARK: Mapping[str, str] = {
    "": "#c9d3df",
    "bg": "#0e131a",
    "select": "#1c2a3c",
    "bar": "#17202b",
    "bright": "#f2f6fa bold",
    "dim": "#8391a3",
    "faint": "#4a5768",
    "rule": "#3d4b5e",
    "title": "#8fc1f0 bold",
    "title.focus": "#ffffff bold",
    "rule.focus": "#8fc1f0",
    "label": "#8c9bad",
    "ok": "#7fd08a",
    "warn": "#f0bd4f",
    "crit": "#ff7b72 bold",
    "info": "#74b9ff",
    "stale": "#66758a",
    "spark": "#74b9ff",
    "spark.good": "#7fd08a",
    "spark.warn": "#f0bd4f",
    "advice": "#9be8a5 bold",
    "peak": "#ffffff bold",
    "hit": "#f0bd4f bold",
    "key": "#f2f6fa bold",
    "banner": "#0e131a on #f0bd4f bold",
    "spark.area": "#2c5580",
    "spark.good.area": "#2f6338",
    "spark.warn.area": "#7a5f22",
    "bar.kv_used.area": "#7d5724",
    "bar.weights": "#5c96f2",
    "bar.kv_used": "#f0a94f",
    "bar.kv_free": "#8a6a3a",
    "bar.work": "#c08cf5",
    "bar.rest": "#62c4b2",
    "bar.other": "#ee82b4",
    "bar.unexplained": "#d8c27a",
}

LIGHT: Mapping[str, str] = {
    "": "#27313d",
    "bg": "#fbfcfd",
    "select": "#dce9f7",
    "bar": "#e9eef4",
    "bright": "#05090e bold",
    "dim": "#5b6876",
    "faint": "#aab4c0",
    "rule": "#b4bfcc",
    "title": "#0b5aa8 bold",
    "title.focus": "#000000 bold",
    "rule.focus": "#0b5aa8",
    "label": "#5b6876",
    "ok": "#1a7f37",
    "warn": "#8f5a00",
    "crit": "#c1121f bold",
    "info": "#0b62b8",
    "stale": "#8b96a3",
    "spark": "#0b62b8",
    "spark.good": "#1a7f37",
    "spark.warn": "#8f5a00",
    "advice": "#116329 bold",
    "peak": "#000000 bold",
    "hit": "#8f5a00 bold",
    "key": "#05090e bold",
    "banner": "#ffffff on #8f5a00 bold",
    "spark.area": "#a9cbef",
    "spark.good.area": "#a8d8b3",
    "spark.warn.area": "#e3cb94",
    "bar.kv_used.area": "#f0cda0",
    "bar.weights": "#1f6feb",
    "bar.kv_used": "#c76a00",
    "bar.kv_free": "#d9b98a",
    "bar.work": "#8250df",
    "bar.rest": "#12806f",
    "bar.other": "#bf3989",
    "bar.unexplained": "#8a7420",
}

PLAIN: Mapping[str, str] = {
    "": "none",
    "select": "reverse",
    "bright": "bold",
    "dim": "none",
    "title": "bold",
    "title.focus": "bold underline",
    "crit": "bold",
    "warn": "bold",
    "advice": "bold",
    "peak": "bold",
    "hit": "bold",
    "key": "bold",
    "banner": "reverse bold",
}
"""Without colour: weight and reverse only."""

_PALETTES = {"dark": DARK, "light": LIGHT, "plain": PLAIN}


@lru_cache(maxsize=512)
def style(palette: str, tone: str, base: str = "") -> Style:
    """Return the Rich style of a tone; `base` is the background tone of the line (``select``, ``bar`` or empty)."""
    colours = _PALETTES[palette]
    text = Style.parse(colours.get(tone, colours[""]))
    if palette == "plain":
        return text + Style(reverse=True) if base == "select" else text
    return Style(bgcolor=colours[base or "bg"]) + text
