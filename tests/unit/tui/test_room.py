"""Little room, many things: what stays in sight, what is said to be left out, and that nothing is cut for no reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwatch.diagnosis.finding import NotEnough
from gpuwatch.snapshot import SourceState
from gpuwatch.tui.draw import engines as draw_engines
from gpuwatch.tui.draw import findings as draw_findings
from gpuwatch.tui.draw import frame
from gpuwatch.tui.history import History
from gpuwatch.tui.screens.overview import share
from gpuwatch.tui.text import line_width, plain
from gpuwatch.tui.view.build import build
from gpuwatch.tui.view.engines import engines
from gpuwatch.tui.view.model import Quiet
from gpuwatch.tui.view.table import in_number_order
from tests.unit.tui import scenes


def model_of(snapshot):
    return build(snapshot, History(), Quiet(), live=True)


@pytest.mark.parametrize("size", [(140, 45), (200, 60)])
async def test_eight_gpus_stay_in_sight_beside_many_findings_of_which_the_first_is_open(screen, size):
    async with screen(*size) as s:
        await s.push(scenes.many_findings())
        text = s.text()
        assert all(f" {index} H100 80G" in text for index in range(8))
        assert "GPUs ─" in text  # all are in sight: no number
        assert "5:0 H100 80G MIG" in text
        assert "26 evictions in 60 s" in text
        assert "KV pool 97 % full for 58 s" in text
        assert "--max-num-seqs 16 → 2" in text
        assert all(f"finding_{number} " in text for number in range(1, 9))
        assert "GPU 0 peaked at" not in text  # the others are one line each


async def test_on_a_small_screen_what_is_left_out_is_counted(screen):
    async with screen(80, 24) as s:
        await s.push(scenes.many_findings())
        text = s.text()
        assert "─ GPUs 6 of 10 ─" in text
        assert "26 evictions in 60 s" in text
        assert "… 8 more (key 4)" in text
        assert "--num-gpu-blocks-override 40" in text


async def test_a_single_finding_that_is_taller_than_its_room_still_scrolls(screen):
    async with screen(80, 24) as s:
        await s.push(scenes.many_findings(number=1))
        assert "more (key 4)" not in s.text()


async def test_what_is_down_is_in_the_header_of_a_narrow_screen_before_what_is_fine(screen):
    async with screen(80, 24) as s:
        await s.push(scenes.many_findings())
        assert "8 GPUs · 10 engines · 5 sources ✗" in s.lines()[0]
    async with screen(140, 45) as s:
        await s.push(scenes.many_findings())
        assert "8 GPUs · 10 engines · 5 sources ✗ · log ✓" in s.lines()[0]


def test_the_others_get_a_line_each_and_of_what_has_no_room_the_number_is_said():
    model = model_of(scenes.many_findings())
    lines = [plain(line) for _, line in draw_findings.overview(model, 139, 10)]
    assert len(lines) == 10
    assert sum("finding_" in line for line in lines) == 5
    assert lines[-1] == " … 3 more (key 4)"


@pytest.mark.parametrize("room", [-1, 0, 1])
def test_no_room_at_all_is_no_error(room):
    for snapshot in (scenes.calm(), scenes.many_findings(), scenes.storm()):
        model = model_of(snapshot)
        assert draw_findings.overview(model, 80, room)
        one = replace(model, findings=model.findings[:1])
        assert draw_findings.overview(one, 80, room)


def test_what_is_left_of_the_room_goes_to_the_named_sections_first():
    wants = {"findings": (6, 40), "engines": (7, 12), "gpus": (6, 10)}
    assert share(30, wants, ("gpus", "engines")) == {"findings": 8, "engines": 12, "gpus": 10}
    assert share(21, wants, ("gpus", "engines")) == {"findings": 6, "engines": 7, "gpus": 8}
    assert share(30, wants) == {"findings": 17, "engines": 7, "gpus": 6}


def test_the_last_column_of_a_table_of_engines_is_whole():
    model = model_of(scenes.many_findings())
    for width in range(60, 200):
        header, rows = draw_engines.table(model.engines, width)
        for line in (header, *(line for engine, line in rows if engine.ranks)):
            assert "…" not in plain(line), (width, plain(line))
            assert line_width(line) <= width


async def test_no_line_of_the_ledger_ends_in_a_lonely_ellipsis(screen):
    async with screen(80, 24) as s:
        await s.push(scenes.predicted())
        await s.press("6")
        assert not any(line.rstrip().endswith("  …") for line in s.lines())


def test_a_mig_device_follows_its_card_and_is_no_gpu_of_its_own():
    model = model_of(scenes.many_findings())
    assert [gpu.index for gpu in model.gpus] == ["0", "1", "2", "3", "4", "5", "5:0", "5:1", "6", "7"]
    assert "8 GPUs" in plain(frame.header(model, 140)[0])
    assert sorted(["b", "10", "5:1", "5", "5:0", "9"], key=in_number_order) == ["5", "5:0", "5:1", "9", "10", "b"]


def test_what_could_not_be_judged_says_of_whom():
    lacking = tuple(
        NotEnough("prefix_cache_collapse", "the engine does not answer", {"server": f"127.0.0.1:{port}"})
        for port in (8000, 8001)
    )
    snapshot = scenes.calm(not_enough=(*lacking, NotEnough("tp_imbalance", "needs x", {"uuid": scenes.uuid(1)})))
    text = "\n".join(plain(line) for line in draw_findings.not_judged(snapshot, 100))
    assert "? cannot tell: :8000: the engine does not answer" in text
    assert "? cannot tell: :8001: the engine does not answer" in text
    assert "? cannot tell: GPU 1: needs x" in text


@pytest.mark.parametrize(
    ("reason", "detail", "age", "said"),
    [
        ("unauthorized", "HTTP 401 from http://127.0.0.1:8609/metrics: give token", None,
         "no metrics: not authorised: HTTP 401: give token"),
        ("not_metrics", "the page http://127.0.0.1:8609/metrics is a web page (HTML), not metrics", 4.0,
         "no metrics for 4 s: not a metrics page: the page is a web page (HTML), not metrics"),
        ("not_found", "no /metrics at http://127.0.0.1:8609 (HTTP 404); vLLM has it by default", None,
         "no metrics: not found: no /metrics (HTTP 404); vLLM has it by default"),
        ("unauthorized", "HTTP 401 from http://[::1]:8609/metrics: give token", None,
         "no metrics: not authorised: HTTP 401: give token"),
        ("unreachable", "connection refused: nothing listens at 127.0.0.1:8609", None,
         "has not answered yet: unreachable: connection refused: nothing listens at 127.0.0.1:8609"),
    ],
)  # fmt: skip
def test_an_engine_that_answers_with_something_else_is_not_called_silent(reason, detail, age, said):
    server = "127.0.0.1:8609"
    state = SourceState("engine", f"engine:{server}", up=False, reason=reason, detail=detail, age=age, server=server)
    (engine,) = engines(scenes.snapshot(scenes.Scene(), sources=(state,)))
    assert engine.problem == said


@pytest.mark.parametrize("width", [80, 140])
async def test_help_and_hints_are_wrapped_and_not_cut(screen, width):
    async with screen(width, 24) as s:
        await s.push(replace(scenes.demo(), lines=()))
        await s.press("5")
        text = " ".join(s.text().split())
        assert "what the log told is in the findings and in the engine's facts" in text
        await s.press("question_mark")
        seen = s.text()
        await s.press("end")
        seen += s.text()
        assert "page up, page down, home, end" in " ".join(seen.split())
        assert not any(line.rstrip().endswith("…") for line in seen.splitlines())


async def test_a_machine_where_nobody_looks_says_so_and_why_nvml_is_silent(screen):
    tried = (("engines", "not looked for: discovery = false in the configuration; give one with --engine"),)
    async with screen(80, 24) as s:
        await s.push(scenes.empty(looked_for=tried))
        assert "NVML: no driver: libnvidia-ml.so.1 was not found" in " ".join(s.text().split())
        assert "not looked for: discovery = false" in s.text()
        assert "gpuwatch tui --engine http://HOST:PORT  an engine that was not found" in s.text()
        assert "…" not in s.text()
        await s.push(replace(scenes.empty(looked_for=tried), sources=()))
        assert "not looked for: gpus = false in the configuration" in " ".join(s.text().split())
