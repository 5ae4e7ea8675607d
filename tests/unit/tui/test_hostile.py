"""Foreign text is data: it injects neither markup nor terminal control sequences, in any view."""

from __future__ import annotations

import unicodedata

import pytest

from tests.unit.tui import scenes

FORBIDDEN = ("Cc", "Cf", "Cs", "Co")


@pytest.mark.parametrize("size", [(80, 24), (140, 45)])
async def test_no_view_lets_control_characters_through(screen, size):
    async with screen(*size) as s:
        await s.push(scenes.hostile(), scenes.hostile(scenes.START + 61_000))
        for key in "1234567":
            await s.press(key, "down", "enter")
            for strip in s.app.screen._compositor.render_strips():
                assert strip.cell_length == size[0]
                bad = [char for char in strip.text if unicodedata.category(char) in FORBIDDEN]
                assert bad == [], (key, strip.text)


async def test_markup_in_names_and_lines_is_shown_as_it_is(screen):
    async with screen(140, 45) as s:
        await s.push(scenes.hostile())
        assert "[bold red]evil[/]" in s.text()
        assert "vLLM [red]0.32[/red]" in s.text()
        await s.press("5")
        assert "[link=file:///etc/passwd]click[/link]" in s.text()
        assert "·[31mred·[0m ·]0;owned· [bold red]markup[/]" in s.text()
        for strip in s.app.screen._compositor.render_strips():
            for segment in strip:
                assert segment.style is None or (segment.style.link is None and not segment.style.blink)


async def test_hostile_words_in_the_filter_and_in_errors_are_data(screen):
    def past(time):
        raise LookupError("\x1b[2J[bold]gone[/bold]")

    async with screen(140, 45, past=past) as s:
        await s.push(scenes.hostile(scenes.START + 90_000))
        await s.press("left")
        assert "·[2J[bold]gone[/bold]" in s.footer()
        await s.press("slash", "[", "b", "]")
        assert "with “[b]”" in s.text()


async def test_what_was_looked_for_is_data_too(screen):
    async with screen(80, 24) as s:
        await s.push(scenes.empty(looked_for=((scenes.ESCAPES, scenes.ESCAPES),)))
        assert "·[31mred" in s.text()
        assert "\x1b" not in s.text()
