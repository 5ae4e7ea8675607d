"""Lines that a terminal broke, and records of JSON that hold several lines, say what they said before."""

from __future__ import annotations

import json
import textwrap

import pytest

from gpuwatch.sources.files.read import read_file

FREE = (
    "(EngineCore pid=4) ERROR 11-29 10:00:00 [core.py:1] ValueError: Free memory on device cuda:0 (4.07/23.55 GiB) on "
    "startup is less than desired GPU memory utilization (0.8, 18.84 GiB). Decrease GPU memory utilization."
)
OOM = (
    "[2026-05-01 10:00:00 TP0] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
    "total capacity of 79.14 GiB of which 1.02 GiB is free."
)
NEXT = "INFO 11-29 10:00:01 [core.py:9] Waiting for engine core process"


def events(tmp_path, text):
    path = tmp_path / "paste.log"
    path.write_text(text)
    return read_file(str(path), 1_780_000_000_000).events


def broken(line, width):
    return "\n".join(line[start : start + width] for start in range(0, len(line), width))


@pytest.mark.parametrize("width", [80, 100, 119, 160])
def test_a_line_that_was_broken_at_any_width_is_read_as_a_whole(tmp_path, width):
    found = [each for each in events(tmp_path, f"one\n{broken(FREE, width)}\n{NEXT}\n") if each.event != "exception"]
    assert [(each.event, each.line) for each in found] == [("free_memory_below_budget", 2)]
    assert found[0].field("free") == "4.07"
    assert found[0].field("req") == "18.84"


@pytest.mark.parametrize("width", range(101, 140, 6))
def test_a_literal_that_was_broken_itself_is_found(tmp_path, width):
    assert "free_memory_below_budget" in {each.event for each in events(tmp_path, broken(FREE, width) + "\n")}


TOO_LONG = (
    "ValueError: The model's max seq len (16384) is larger than the maximum number of tokens that can be stored in KV "
    "cache (9216). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
)


@pytest.mark.parametrize("width", [60, 72, 80, 94, 110])
def test_a_line_that_a_page_broke_at_its_blanks_is_read_as_a_whole(tmp_path, width):
    # The blank at which a line of prose is broken is not copied with it.
    text = "\n".join(textwrap.wrap(TOO_LONG, width))
    found = [each for each in events(tmp_path, f"one\n{text}\n{NEXT}\n") if each.event != "exception"]
    assert [(each.event, each.line, each.field("cap")) for each in found] == [("max_model_len_exceeds_kv", 2, "9216")]


@pytest.mark.parametrize("width", [70, 77, 82])
def test_a_literal_that_was_broken_at_a_blank_is_found(tmp_path, width):
    # "Free memory on device" are the characters 64 to 84.
    text = "\n".join(textwrap.wrap(FREE, width, break_on_hyphens=False))
    assert "free_memory_below_budget" in {each.event for each in events(tmp_path, text + "\n")}


def test_figures_behind_the_break_are_those_of_the_line(tmp_path):
    found = [each for each in events(tmp_path, broken(OOM, 130)) if each.event == "torch_oom"]
    assert len(found) == 1
    assert found[0].field("tot") == "79.14 GiB"
    assert found[0].field("free") == "1.02 GiB"


def test_lines_with_beginnings_of_their_own_are_not_put_together(tmp_path):
    cut = FREE[: FREE.index(" GiB) on")]
    rest = FREE[len(cut) :]
    found = events(tmp_path, f"{cut}\nINFO 11-29 10:00:01 [core.py:9]{rest}\n")
    assert "free_memory_below_budget" not in {each.event for each in found}


NCCL = (
    "gpu-a:17:93 [1] include/shmutils.h:72 NCCL WARN Error: failed to extend /dev/shm/nccl-AbCdEf to 33030532 bytes",
    "gpu-a:17:93 [1] misc/shmutils.cc:87 NCCL WARN Call to posix_fallocate failed : No space left on device",
)


def test_lines_that_begin_with_the_same_mark_are_two_lines(tmp_path):
    found = events(tmp_path, "one\n" + "\n".join(NCCL) + "\n")
    assert [(each.event, each.line) for each in found] == [("nccl_shm_failed", 2), ("nccl_shm_failed", 3)]
    assert [each.text for each in found] == list(NCCL)


TRACE = 'Traceback (most recent call last):\n  File "worker.py", line 9, in load_model\n    raise ValueError(\n'


@pytest.mark.parametrize("key", ["exc_info", "exc_text", "exception", "stack_trace", "traceback"])
def test_the_traceback_in_a_record_is_read_with_the_time_of_the_record(tmp_path, key):
    text = FREE.partition("] ")[2]
    row = {"asctime": "2026-02-03 10:00:00,123", "levelname": "ERROR", "message": "EngineCore failed to start."}
    found = events(tmp_path, json.dumps({**row, key: TRACE + text}) + "\n")
    assert {"engine_start_failed", "free_memory_below_budget", "traceback_step"} <= {each.event for each in found}
    assert {each.line for each in found} == {1}
    assert len({each.time for each in found}) == 1
    assert found[0].time
    shown = next(each.text for each in found if each.event == "free_memory_below_budget")
    assert shown.startswith("ValueError: Free memory on device")


def test_a_traceback_in_the_message_or_in_a_member_of_a_member_is_read_as_well(tmp_path):
    text = TRACE + FREE.partition("] ")[2]
    for row in ({"message": "Failed\n" + text}, {"message": "Failed", "error": {"stack_trace": text}}):
        found = events(tmp_path, json.dumps({"time": "2026-02-03T10:00:00Z", **row}) + "\n")
        assert "free_memory_below_budget" in {each.event for each in found}


def test_what_a_client_wrote_into_a_record_is_not_shown(tmp_path):
    row = {"message": "Failed", "exc_info": "Traceback\nValueError: Free memory on device prompt: 'my secret'"}
    assert "my secret" not in " ".join(each.text for each in events(tmp_path, json.dumps(row)))
