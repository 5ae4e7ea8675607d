"""The application through its keys, with scripted snapshots, at small, middle and large sizes."""

from __future__ import annotations

import base64
import threading
import time
from dataclasses import replace

import pytest

from gpuwatch.snapshot import Recording
from gpuwatch.tui.feed import Actions
from gpuwatch.tui.widgets.panel import Panel
from gpuwatch.units import GIB
from tests.unit.tui import scenes

SIZES = [(80, 24), (140, 45), (200, 60)]
VIEW_TITLES = {
    "1": "─ Findings",
    "2": "used GiB",
    "3": "vLLM 0.32",
    "4": "evidence",
    "5": "─ Logs",
    "6": "─ Ledger",
    "7": "value / threshold",
}


def all_actions(calls):
    def note(name):
        return lambda *args: calls.append((name, *args)) or f"{name}.out"

    names = ("start_recording", "stop_recording", "acknowledge", "silence", "demo", "write_report", "seek", "pause",
             "speed", "set_rule_detail")  # fmt: skip
    return Actions(**{name: note(name) for name in names})


@pytest.mark.parametrize("size", SIZES)
async def test_every_view_opens_at_every_size_and_fills_it_exactly(screen, size):
    async with screen(*size) as s:
        await s.push(scenes.storm(), scenes.storm(scenes.START + 61_000))
        for key, title in VIEW_TITLES.items():
            await s.press(key)
            lines = s.lines()
            assert title in s.text(), key
            assert len(lines) == size[1]
            assert "gpuwatch  node-07" in lines[0]
            assert "help" in lines[-1]


async def test_the_first_frame_says_that_it_is_starting_and_then_what_was_found(screen):
    async with screen(80, 24) as s:
        assert "starting" in s.lines()[0]
        assert "looking for GPUs and engines…" in s.text()
        for key in VIEW_TITLES:
            await s.press(key)
        await s.press("1")
        await s.push(scenes.storm())
        assert "looking for" not in s.text()
        assert "● live 1.0 s  " in s.lines()[0]


@pytest.mark.parametrize("size", SIZES)
async def test_the_overview_answers_whether_it_is_healthy_and_why_not(screen, size):
    async with screen(*size) as s:
        await s.push(scenes.storm())
        text = s.text()
        for part in (
            "2 GPUs · 1 engine · log ✓",
            "H100 80G",
            "74.1",
            "4,990 of 5,120 tokens",
            "13 (capacity)",
            "155 tok/s",
            "TTFT p50 18 s",
            "queue p95 38 s",
            "1 critical",
            "kv_preemption_storm",
            "26 evictions in 60 s",
            "--num-gpu-blocks-override 40",
            "↳ ▲ queue_growth",
            "22:14",
        ):
            assert part in text, part


async def test_a_large_screen_shows_charts_and_the_end_of_the_log_too(screen):
    async with screen(200, 60) as s:
        await s.push(*(scenes.storm(scenes.START + 60_000 + i * 1000) for i in range(3)))
        assert "generation 1" in s.text()
        assert "─ Log ─" in s.text()
        assert "▶22:13:47 WARN  preemption:" in s.text()


async def test_a_healthy_machine_has_no_findings_and_says_so(screen):
    async with screen(80, 24) as s:
        await s.push(scenes.calm())
        assert "✓ no findings: 7 rules evaluated, all quiet" in s.text()
        assert "prefix hits 42 %" in s.text()


async def test_an_empty_machine_says_what_was_looked_for_and_d_starts_the_demo(screen):
    calls = []
    async with screen(80, 24, all_actions(calls)) as s:
        await s.push(scenes.empty())
        assert "no GPU and no engine found on this machine" in s.text()
        assert "libnvidia-ml.so.1 was not found" in s.text()
        assert "none of 212 processes is one" in s.text()
        assert s.footer().startswith(" d demo")
        await s.press("d")
        await s.settle(lambda: calls == [("demo",)], "the demo")
        await s.push(scenes.demo())
        for key in VIEW_TITLES:
            await s.press(key)
            assert "DEMO: recorded run, simulated GPUs" in s.lines()[1]
        assert "d demo" not in s.footer()


async def test_the_demo_key_is_not_there_without_a_demo_or_with_something_to_watch(screen):
    calls = []
    async with screen(80, 24) as s:
        await s.push(scenes.empty())
        assert "press d" not in s.text()
        assert "d demo" not in s.footer()
    async with screen(80, 24, all_actions(calls)) as s:
        await s.push(scenes.storm())
        await s.press("d")
        assert "d demo" not in s.footer()
        assert calls == []


async def test_sixteen_gpus_take_a_line_each_and_scroll_on_a_small_screen(screen):
    async with screen(80, 24) as s:
        await s.push(scenes.sixteen())
        text = s.text()
        assert "16 GPUs" in text
        assert " 0 H100 80G ▕" in text
        assert " 15 H100 80G" not in text
        assert "kv_preemption_storm" in text
        s.app.query_one("#view-overview #gpus", Panel).focus()
        await s.press("end")
        assert "▸15 H100 80G ▕" in s.text()
        assert "GPU 15  █ weights" in s.text()
    async with screen(140, 45) as s:
        await s.push(scenes.sixteen())
        assert all(f" {i} H100 80G ▕" in s.text() for i in range(16))


async def test_a_hung_gpu_is_named_and_does_not_hide_the_others(screen):
    async with screen(80, 24) as s:
        await s.push(scenes.troubled())
        assert "✗ GPU 1 has not answered for 12 s" in s.text()
        assert "✗ GPU 2 is lost: GPU has fallen off the bus" in s.text()
        await s.press("2", "down", "down", "down")
        assert "memory used          n/a (not supported)" in s.text()


async def test_figures_of_an_engine_that_is_gone_are_shown_with_their_age(screen):
    async with screen(80, 24) as s:
        await s.push(*(scenes.fading(scenes.START + 60_000 + i * 1000) for i in (28, 29, 35, 41)))
        assert "✗ no answer for 12 s: unreachable: connection refused, figures 12 s old" in s.text()
        assert "4,990 of 5,120 tokens" in s.text()
        assert ":8000 ✗" in s.lines()[0]


async def test_two_ranks_are_two_rows(screen):
    async with screen(80, 24) as s:
        await s.push(scenes.two_ranks())
        rows = [line.split() for line in s.lines() if line.startswith((" dp0", " dp1"))]
        assert [row[:3] for row in rows[:2]] == [["dp0", "97", "%"], ["dp1", "31", "%"]]
        await s.press("3")
        assert "dp0 KV pool 97 %" in s.text()
        assert "dp1 KV pool 31 %" in s.text()


async def test_e_goes_through_the_engines(screen):
    async with screen(140, 45) as s:
        await s.push(scenes.several_engines())
        seen = []
        for _ in range(4):
            await s.press("e")
            seen.append(s.lines()[1].split("(")[-1].split(")")[0])
        assert seen == ["1 of 3", "2 of 3", "3 of 3", "1 of 3"]
        assert "e next engine" in s.footer()


async def test_enter_opens_what_is_selected(screen):
    async with screen(140, 45) as s:
        await s.push(scenes.storm())
        await s.press("down", "enter")
        assert "4 findings" in s.footer()
        assert "─ queue_growth ─" in s.text()
        await s.press("escape", "shift+tab", "enter")
        assert "settings and facts" in s.text()
        await s.press("escape")
        s.app.query_one("#view-overview #gpus", Panel).focus()
        await s.press("down", "enter")
        assert "─ GPU 1  H100 80G ─" in s.text()
        assert scenes.uuid(1) in s.text()


async def test_tab_walks_through_the_lists_of_a_view(screen):
    async with screen(140, 45) as s:
        await s.push(scenes.storm())
        order = []
        for _ in range(3):
            order.append(s.app.focused.id)
            await s.press("tab")
        assert order == ["findings", "gpus", "engines"]


async def test_the_mouse_selects_opens_and_changes_views(screen):
    async with screen(140, 45) as s:
        await s.push(scenes.storm())
        y = next(i for i, line in enumerate(s.lines()) if "gpu_headroom_low" in line)
        await s.pilot.click(offset=(20, y))
        await s.pilot.pause()
        assert s.lines()[y].startswith("▸▲")
        await s.pilot.click(offset=(20, y))
        await s.pilot.pause()
        assert "─ gpu_headroom_low ─" in s.text()
        await s.pilot.click(offset=(s.footer().index("7 rules") + 1, 44))
        await s.pilot.pause()
        assert "value / threshold" in s.text()


async def test_the_selection_stays_on_its_finding_when_the_list_changes(screen):
    storm = scenes.storm_findings()
    async with screen(140, 45) as s:
        await s.push(scenes.storm(findings=storm[3:]))
        await s.press("4", "home")
        assert "─ gpu_headroom_low ─" in s.text()
        await s.push(scenes.storm(scenes.START + 61_000))
        assert "─ gpu_headroom_low ─" in s.text()
        await s.push(scenes.storm(scenes.START + 62_000, findings=storm[:3]))
        assert "─ throughput_collapse ─" in s.text()


async def test_before_anybody_chose_the_worst_finding_is_in_sight_also_when_the_first_one_is_over(screen):
    storm, labels = scenes.storm_findings(), {"host": "node-1"}
    over = replace(storm[3], state="resolved", until=scenes.START + 61_000)
    new = [
        replace(storm[0], id=f"new_{i}", title=f"new trouble {i}", since=scenes.START, labels=labels) for i in range(4)
    ]
    async with screen(80, 24) as s:
        await s.push(scenes.storm(findings=storm[3:]))
        assert "gpu_headroom_low" in s.text()
        await s.push(scenes.storm(scenes.START + 61_000, findings=(*new, over)))
        panel = s.app.screen.query_one("#findings", Panel)
        assert panel.scroll_offset.y == 0
        assert panel.selected == new[0].key
        assert "new_0" in s.text()
        await s.press("down")
        await s.push(scenes.storm(scenes.START + 62_000, findings=(new[0], *new[2:], new[1], over)))
        assert panel.selected == new[1].key


async def test_space_pauses_what_is_shown_and_nothing_is_lost(screen):
    async with screen(140, 45) as s:
        await s.push(scenes.storm())
        await s.press("space")
        await s.push(*(scenes.calm(scenes.START + 60_000 + i * 1000) for i in range(1, 13)))
        assert "‖ paused -12 s" in s.lines()[0]
        assert "kv_preemption_storm" in s.text()
        assert "resume" in s.footer()
        await s.press("space")
        assert "● live 1.0 s" in s.lines()[0]
        assert "no findings" in s.text()
        rank = ("node-07", "127.0.0.1:8000", "tiny-llama", "")
        assert len(s.app._model.history.trace(rank, "kv_usage", scenes.START + 10**6, 99)) == 13


async def test_the_arrows_walk_back_in_time_and_forth_again(screen):
    def past(time):
        return scenes.calm(time) if time < scenes.START + 90_000 else scenes.storm(time)

    async with screen(140, 45, past=past) as s:
        await s.push(scenes.storm(scenes.START + 100_000))
        await s.press("left")
        assert s.feed.asked == [scenes.START + 95_000]
        assert "‖ paused -5 s" in s.lines()[0]
        assert s.lines()[0].rstrip().endswith("22:14:55")
        await s.press("left", "left")
        assert "no findings" in s.text()
        await s.press("shift+left")
        assert s.feed.asked[-1] == scenes.START + 25_000
        assert "┃" in s.lines()[-2]
        await s.press("right")
        assert s.feed.asked[-1] == scenes.START + 30_000
        await s.push(scenes.storm(scenes.START + 101_000))
        assert "‖ paused -1 min 11 s" in s.lines()[0]
        await s.press("shift+right", "shift+right")
        assert "● live" in s.lines()[0]


async def test_a_past_that_is_not_known_is_said_and_the_screen_goes_on(screen):
    def past(time):
        raise LookupError("only the last 15 minutes are kept")

    async with screen(140, 45, past=past) as s:
        await s.push(scenes.storm(scenes.START + 100_000))
        await s.press("left")
        assert "the past could not be read: only the last 15 minutes are kept" in s.footer()
        await s.press("space")
        await s.push(scenes.storm(scenes.START + 101_000))
        assert "● live" in s.lines()[0]


async def test_a_feed_that_never_answers_is_given_up(screen):
    async with screen(140, 45) as s:
        await s.push(scenes.storm(scenes.START + 100_000))
        await s.press("left")
        s.clock.advance(6)
        s.app._beat()
        await s.pilot.pause()
        assert "no answer within 5 s" in s.footer()


async def test_a_silent_feed_is_said(screen):
    async with screen(80, 24) as s:
        await s.push(scenes.storm())
        s.clock.advance(8)
        s.app._beat()
        await s.pilot.pause()
        assert "✗ no data for 8 s" in s.lines()[0]
        await s.push(scenes.storm(scenes.START + 69_000))
        assert "● live 1.0 s" in s.lines()[0]


async def test_r_starts_and_stops_a_recording(screen):
    calls = []
    async with screen(140, 45, all_actions(calls)) as s:
        await s.push(scenes.storm())
        assert "r record" in s.footer()
        await s.press("r")
        await s.settle(lambda: "recording to start_recording.out" in s.footer(), "the notice")
        await s.push(scenes.storm(scenes.START + 61_000, recording=Recording("x.rec", 2048)))
        assert "rec ● 2 KiB" in s.lines()[0]
        await s.press("r")
        await s.settle(lambda: ("stop_recording",) in calls, "stopping")
        assert calls == [("start_recording", None), ("stop_recording",)]


async def test_a_failed_action_says_why_and_the_screen_goes_on(screen):
    def fail(path):
        raise OSError("no space left on device")

    async with screen(140, 45, Actions(start_recording=fail, stop_recording=lambda: None)) as s:
        await s.push(scenes.storm())
        await s.press("r")
        await s.settle(lambda: "that did not work: no space left on device" in s.footer(), "the notice")
        s.clock.advance(6)
        await s.push(scenes.storm(scenes.START + 61_000))
        assert "r record" in s.footer()


async def test_an_action_that_hangs_does_not_hold_the_screen(screen):
    release = threading.Event()
    async with screen(140, 45, Actions(write_report=lambda: release.wait(30))) as s:
        await s.push(scenes.storm())
        await s.press("w")
        await s.push(scenes.calm(scenes.START + 61_000))
        assert "no findings" in s.text()
        release.set()


async def test_acknowledge_silence_and_copy_are_about_the_finding_under_the_cursor(screen):
    calls = []
    async with screen(140, 45, all_actions(calls)) as s:
        await s.push(scenes.storm())
        storm, growth, _, headroom = (finding.key for finding in scenes.storm_findings())
        await s.press("down", "a")
        await s.settle(lambda: "acknowledged queue_growth" in s.footer(), "the notice")
        assert "✓ acknowledged" in next(line for line in s.lines() if "queue_growth" in line)
        await s.press("4", "home", "s")
        await s.settle(lambda: "silenced kv_preemption_storm for 1 h" in s.footer(), "the notice")
        listed = [line for line in s.lines()[2:6] if "22:1" in line]
        assert "gpu_headroom_low" in listed[0]
        assert "silenced" in listed[1]
        assert calls == [("acknowledge", growth), ("silence", storm, 3600.0)]
        await s.press("home", "y")
        assert "copied gpu_headroom_low" in s.footer()
        assert s.app.clipboard.startswith("warning: gpu_headroom_low: the next peak will not fit (GPU 0)")
        assert headroom not in [call[1] for call in calls]


async def test_copying_writes_the_clipboard_sequence_of_terminals(screen):
    written = []
    async with screen(140, 45) as s:
        await s.push(scenes.hostile())
        s.app._driver.write = written.append
        await s.press("y")
        del s.app._driver.write
    payload = next(text for text in written if text.startswith("\x1b]52;c;"))
    text = base64.b64decode(payload.removeprefix("\x1b]52;c;").removesuffix("\a")).decode()
    assert text.startswith("critical: kv_preemption_storm")
    assert not any(ord(char) < 32 and char != "\n" for char in text)


async def test_keys_without_an_action_are_not_offered(screen):
    async with screen(200, 60) as s:
        await s.push(scenes.storm())
        for text in ("record", "ack", "silence", "report", "demo"):
            assert text not in s.footer()
        await s.press("r", "a", "s", "w", "d")
        assert "copy" in s.footer()
        await s.press("question_mark")
        assert "walk back and forth" in s.text()
        assert "start and stop a recording" not in s.text()
        await s.press("escape")
        assert "kv_preemption_storm" in s.text()


async def test_help_lists_keys_and_signs(screen):
    async with screen(80, 24, all_actions([])) as s:
        await s.push(scenes.storm())
        await s.press("question_mark")
        assert "start and stop a recording" in s.text()
        await s.press("end")
        assert "not available; never a zero" in s.text()
        await s.press("question_mark")
        assert "─ Findings" in s.text()


async def test_logs_follow_their_end_until_a_line_is_selected(screen):
    async with screen(80, 24) as s:
        await s.push(scenes.storm(lines=scenes.log_lines(number=60)))
        await s.press("5")
        assert s.lines()[-2].startswith(" 22:14:19")
        await s.push(scenes.storm(scenes.START + 61_000, lines=scenes.log_lines(number=61)[1:]))
        assert s.lines()[-2].startswith(" 22:14:20")
        await s.press("up", "up")
        assert "─ line ─" in s.text()
        assert "vllm.log:159  " not in s.text()
        assert "vllm.log:159 22:14:19" in s.text()
        await s.push(scenes.storm(scenes.START + 62_000, lines=scenes.log_lines(number=80)[20:]))
        assert "vllm.log:159 22:14:19" in s.text()
        await s.press("end")
        assert "─ line ─" not in s.text()
        assert s.lines()[-2].startswith(" 22:14:39")


async def test_slash_filters_the_logs_while_typing(screen):
    async with screen(140, 45) as s:
        await s.push(scenes.storm())
        await s.press("slash")
        await s.press(*"preempt", "space", *"kv")
        assert "─ Logs  6 of 30 lines  with “preempt kv”" in s.text()
        assert "POST /v1/completions" not in s.text()
        await s.press("enter")
        assert "6 of 30" in s.text()
        await s.press("3", "5")
        assert "6 of 30" in s.text()
        await s.press("escape")
        assert "─ Logs  30 lines" in s.text()
        await s.press("h")
        assert "only ▶" in s.text()
        assert "h all lines" in s.footer()
        await s.press("escape", "escape")
        assert "─ Findings" in s.text()


async def test_digits_and_letters_typed_into_the_filter_are_text(screen):
    async with screen(140, 45) as s:
        await s.push(scenes.storm())
        await s.press("5", "slash", "1", "q", "space", "d")
        assert "with “1q d”" in s.text()
        assert "no line matches" in s.text()
        assert s.app.is_running


async def test_without_a_log_the_view_says_how_to_name_one(screen):
    async with screen(80, 24) as s:
        sources = tuple(source for source in scenes.sources() if source.kind != "log")
        await s.push(scenes.storm(lines=(), sources=sources))
        await s.press("5")
        assert "no log is being read: name one with --log FILE" in s.text()


async def test_the_rules_view_asks_for_readings_only_while_it_is_open(screen):
    calls = []
    async with screen(140, 45, all_actions(calls)) as s:
        await s.push(scenes.storm())
        await s.press("7")
        await s.settle(lambda: calls == [("set_rule_detail", True)], "asking")
        assert "? cannot evaluate" in s.text()
        assert "needs gpuwatch_engine_prefix_cache_hits_total" in s.text()
        assert "many-to-many matching not allowed" in s.text()
        assert "gpuwatch itself: CPU 2.1 % of a core" in s.text()
        await s.press("1")
        await s.settle(lambda: calls[1:] == [("set_rule_detail", False)], "stopping")


async def test_the_ledger_divides_each_gpu_and_names_what_is_not_stated(screen):
    async with screen(140, 45) as s:
        await s.push(scenes.storm())
        await s.press("6")
        text = s.text()
        for line in (
            "█ weights               16.0 GiB   20 %",
            "c context+comms          2.4 GiB    3 %",
            "? unexplained            512 MiB    1 %",
            "· free                   5.0 GiB    6 %",
        ):
            assert line in text, line
        scene = scenes.Scene()
        scene.gpu(0)
        scene.server(weights=None, graph_bytes=None)
        await s.push(scenes.snapshot(scene, scenes.START + 61_000))
        assert "not stated: weights, CUDA graphs" in s.text()


async def test_a_replay_is_controlled_instead_of_the_screen(screen):
    calls = []
    async with screen(140, 45, all_actions(calls)) as s:
        await s.push(scenes.demo())
        await s.press("left", "plus", "minus", "space")
        await s.settle(lambda: len(calls) == 4, "the actions")
        assert calls == [("seek", 67.0), ("speed", 2.0), ("speed", 1.0), ("pause", True)]
        assert "paused" in s.lines()[0]
        s.clock.advance(60)
        s.app._beat()
        await s.pilot.pause()
        assert "no data" not in s.lines()[0]
        assert s.feed.asked == []
        await s.press("r")
        assert "record" not in s.footer()


async def test_jumps_in_a_replay_add_up_until_the_next_tick_is_shown(screen):
    calls = []
    async with screen(140, 45, all_actions(calls)) as s:
        await s.push(scenes.demo())
        await s.press("right", "right", "shift+right", "left")
        await s.settle(lambda: len(calls) == 4, "the actions")
        assert sorted(calls) == [("seek", 77.0), ("seek", 82.0), ("seek", 137.0), ("seek", 142.0)]
        await s.push(scenes.demo())
        await s.press("ctrl+left", "ctrl+right")
        await s.settle(lambda: len(calls) == 6, "the actions")
        assert sorted(calls[4:]) == [("seek", 0.0), ("seek", 300.0)]


async def test_only_lines_that_changed_are_painted_again(screen):
    async with screen(140, 45) as s:
        await s.push(scenes.calm(), scenes.calm(scenes.START + 61_000))
        panel = s.app.query_one("#view-overview #gpus", Panel)
        painted = []
        original = panel.render_line
        panel.render_line = lambda y: painted.append(y) or original(y)
        await s.push(scenes.calm(scenes.START + 62_000))
        assert painted == []


async def test_a_burst_of_snapshots_is_one_update_with_the_newest(screen):
    async with screen(140, 45) as s:
        drawn = []
        original = s.app._draw
        s.app._draw = lambda: drawn.append(1) or original()
        for second in range(100):
            s.feed.push(scenes.calm(scenes.START + 60_000 + second * 1000))
        await s.pilot.pause()
        assert len(drawn) == 1
        assert s.lines()[0].rstrip().endswith("22:15:59")


async def test_resizing_draws_for_the_new_size(screen):
    async with screen(80, 24) as s:
        await s.push(scenes.storm())
        await s.pilot.resize_terminal(200, 60)
        await s.pilot.pause()
        assert len(s.lines()) == 60
        assert "bandwidth  62 %" in s.text()
        await s.pilot.resize_terminal(60, 15)
        await s.pilot.pause()
        assert "kv_preemption_storm" in s.text()


async def test_t_changes_between_dark_and_light_and_the_terminal_is_asked_first(screen, monkeypatch):
    monkeypatch.setenv("COLORFGBG", "0;15")
    async with screen(80, 24) as s:
        await s.push(scenes.storm())
        assert s.app.palette == "light"
        await s.press("t")
        assert s.app.palette == "dark"
        background = {
            segment.style.bgcolor.triplet.hex
            for strip in s.app.screen._compositor.render_strips()
            for segment in strip
            if segment.style
        }
        assert "#0e131a" in background
        assert "#fbfcfd" not in background


async def test_no_color_leaves_no_colour_and_loses_nothing(screen, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with screen(140, 45) as s:
        await s.push(scenes.storm())
        for strip in s.app.screen._compositor.render_strips():
            for segment in strip:
                colours = (segment.style.color, segment.style.bgcolor)
                assert all(colour is None or colour.is_default for colour in colours), segment
        assert "▕█" in s.text()
        assert "▸● 22:13:51  kv_preemption_storm" in s.text()


async def test_q_leaves_and_ctrl_c_leaves_at_once_with_130(screen):
    async with screen(80, 24) as s:
        await s.press("q")
        assert s.app.return_code == 0
        assert s.feed.callbacks == [] or not s.app.is_running
    async with screen(80, 24) as s:
        await s.push(scenes.storm())
        await s.press("slash", "x", "ctrl+c")
        assert s.app.return_code == 130
    assert s.feed.callbacks == []


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
@pytest.mark.parametrize("view", VIEW_TITLES)
async def test_every_view_is_left_in_order(screen, view, key):
    calls = []
    async with screen(
        80, 24, Actions(set_rule_detail=lambda wanted: calls.append((wanted, s.feed.callbacks != [])))
    ) as s:
        await s.push(scenes.storm())
        await s.press(view)
        if view == "7":
            await s.settle(lambda: calls == [(True, True)], "the readings of rules")
        await s.press(key)
        assert s.app.return_code == (0 if key == "q" else 130)
    assert s.feed.callbacks == []
    # While the feed is still there; afterwards nobody would know what is asked.
    assert calls == ([(True, True), (False, True)] if view == "7" else [])


async def test_an_action_that_fails_at_the_end_is_not_the_end_of_the_exit(screen):
    def fail(wanted):
        raise RuntimeError("still starting")

    async with screen(80, 24, Actions(set_rule_detail=fail)) as s:
        await s.push(scenes.storm())
        await s.press("7", "q")
        assert s.app.return_code == 0
    assert s.feed.callbacks == []


async def test_the_end_of_a_recording_is_not_a_feed_that_fell_silent(screen):
    error = "x.rec: the end is missing; read up to the last complete tick"
    async with screen(120, 30) as s:
        await s.push(scenes.storm(mode="replay", recording=Recording("x.rec", position=58, length=60)))
        assert "REPLAY: x.rec  58 s of 1 min" in s.lines()[1]
        ended = Recording("x.rec", error=error, position=60, length=60, ended=True)
        await s.push(scenes.storm(mode="replay", recording=ended))
        s.clock.advance(30)
        s.app._beat()
        await s.pilot.pause()
        assert "■ end of the recording" in s.lines()[0]
        assert "1 min of 1 min  ✗ the end is missing; read up to the last complete tick" in s.lines()[1]
        assert "no data for" not in s.text()


async def test_a_recording_without_a_tick_says_so_in_every_view(screen):
    ended = Recording("x.rec", error="holds no complete tick", ended=True)
    async with screen(80, 24) as s:
        await s.push(scenes.snapshot(None, mode="replay", recording=ended, rules=(), sources=()))
        assert "this recording has nothing to show" in s.text()
        assert "looking for" not in s.text()
        for key in VIEW_TITLES:
            await s.press(key)
            assert "holds no complete tick" in s.lines()[1]


PROBLEMS = (
    "/etc/gpuwatch/rules/mine.yml:12: rule A: unknown key 'exprr'; allowed: expr, for",
    "rules/kv.yml:3: rule KvPreemptionStorm: many-to-many matching not allowed",
)


@pytest.mark.parametrize("size", SIZES)
async def test_refused_and_failing_rules_are_said_with_their_place(screen, size):
    async with screen(*size) as s:
        await s.push(scenes.calm(problems=PROBLEMS))
        assert "✗ 2 rule problems (key 7)" in s.text()
        assert "all quiet" not in s.text()
        await s.press("4")
        assert "✗ 2 rule problems (key 7)" in s.text()
        await s.press("7")
        text = " ".join(s.text().split())
        assert "✗ /etc/gpuwatch/rules/mine.yml:12: rule A: unknown key 'exprr'; allowed: expr, for" in text
        assert "✗ rules/kv.yml:3:" in text
        await s.push(scenes.calm(scenes.START + 61_000))
        assert "mine.yml" not in s.text()


async def test_thousands_of_models_in_one_engine_are_counted_and_not_drawn(screen):
    scene = scenes.Scene()
    scene.server()
    for number in range(3000):
        scene.rank(model=f"m{number:04}", dp="0", **scenes.CALM_RANK)
    crowd = scenes.snapshot(scene)
    async with screen(140, 45) as s:
        begun = time.monotonic()
        await s.push(crowd)
        assert "m0000, m0001, m0002, m0003 +60" in s.text()
        assert "DP" not in s.text()
        s.app.query_one("#view-overview #engines", Panel).focus()
        await s.press("end")
        assert "+2,936 more not shown" in s.text()
        for key in VIEW_TITLES:
            await s.press(key)
        assert len(s.app._model.engines[0].ranks) == 64
        # Drawn eight times: far from the minutes that each row of its own took.
        assert time.monotonic() - begun < 60
        await s.press("ctrl+c")
        assert s.app.return_code == 130


@pytest.mark.parametrize(("width", "height"), [(80, 24), (140, 45), (200, 60)])
async def test_the_ledger_shows_measurement_statement_and_prediction_side_by_side(screen, width, height):
    async with screen(width, height) as s:
        await s.push(scenes.predicted())
        await s.press("6")
        text = s.text()
        for line in (
            "measured  share      stated   predicted     differs",
            "█ weights               30.6 GiB   38 %    30.6 GiB    30.5 GiB    +102 MiB",
            "▚ KV pool               36.0 GiB   45 %    36.0 GiB    35.3 GiB    +717 MiB",
            "▒ activations+graphs     5.1 GiB    6 %     5.1 GiB     6.6 GiB    -1.5 GiB",
            "c context+comms          1.9 GiB    2 %         n/a     1.5 GiB    +410 MiB",
            "now 7.2 requests of 40,960 tokens at once",
        ):
            assert line in text, line
        assert all(len(line) <= width for line in s.lines())


async def test_the_ledger_names_the_residual_and_how_it_grew(screen):
    async with screen(200, 60) as s:
        await s.push(scenes.predicted())
        await s.press("6")
        residual = "contexts and communication 1.9 GiB, unexplained 512 MiB (0.6 %); the GPU holds 768 MiB"
        assert f"{residual} more than a minute after its engines began to serve" in s.text()
        assert f"{residual} less than a minute after its engines began to serve" in s.text()


async def test_the_ledger_says_how_much_of_what_an_engine_states_its_processes_do_not_hold(screen):
    async with screen(200, 60) as s:
        await s.push(scenes.predicted())
        await s.press("6")
        assert "missing" not in s.text()
        await s.push(scenes.predicted(missing=20.5 * GIB))
        assert s.text().count("missing  ") == 1
        assert "20.5 GiB of the weights and the KV pool that are stated are not held by" in s.text()


async def test_the_ledger_says_what_two_changes_together_would_buy_on_these_cards(screen):
    async with screen(200, 60) as s:
        await s.push(scenes.predicted())
        await s.press("6")
        # The engine stated a pool of 36 GiB. 0.03 x 79.6 and three quarters of 38.6 B x 1,024 x 151,936 add 6.6 GiB;
        # a request of 40,960 tokens takes 40,960 x 128 KiB = 5 GiB on each of two cards.
        assert "these cards serve 8.5 requests of 40,960 tokens at once" in s.text()
        assert "14.4 --kv-cache-dtype auto → fp8" in s.text()


async def test_the_ledger_says_what_a_prediction_needs(screen):
    async with screen(140, 45) as s:
        await s.push(scenes.storm())
        await s.press("6")
        assert "needs the model's config.json and its launch flags" in s.text()
        assert "█ weights               16.0 GiB   20 %    16.0 GiB         n/a         n/a" in s.text()
