"""A log as a source: counters, events, facts, config series and lines, from real files."""

# ruff: noqa: E501  # lines of logs are as long as they are

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path

import pytest

from gpuwatch.clock import ManualClock
from gpuwatch.engines.events import EVENTS
from gpuwatch.model import Reason, label, name_of
from gpuwatch.series import METRICS
from gpuwatch.sources.logs.book import match_server, server_of
from gpuwatch.sources.logs.commands import StdinInput
from gpuwatch.sources.logs.lines import LogLimits
from gpuwatch.sources.logs.source import LogSource

FIXTURES = Path(__file__).parents[2] / "fixtures" / "logs"
SERVER = "127.0.0.1:8106"
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.14 GiB of "
    "which 1.00 GiB is free. Process 1 has 78.00 GiB memory in use. Of the allocated memory 60.00 GiB is allocated by "
    "PyTorch, and 17.00 GiB is reserved by PyTorch but unallocated.\n"
)
GIB = 2**30
# The captured logs were written on 29 November; the clock of the tests stands a day later in the same year.
NOW = round(time.mktime((2025, 11, 30, 12, 0, 0, 0, 0, -1)) * 1000)


@pytest.fixture
def clock():
    return ManualClock(NOW)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "server.log"


@pytest.fixture
def source(path, clock):
    made = []

    def start(**options):
        made.append(LogSource(str(path), "node-1", clock, **options))
        return made[-1]

    yield start
    for each in made:
        each.close()


def append(path, text):
    with path.open("ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)


def value(batch, name, **labels):
    found = [
        number
        for key, number in zip(batch.keys, batch.values, strict=True)
        if name_of(key) == name and all(label(key, k) == v for k, v in labels.items())
    ]
    assert len(found) <= 1
    return found[0] if found else None


def count(batch, event):
    return value(batch, "gpuwatch_log_events_total", event=event)


def facts(*batches):
    return {fact.key: fact.value for batch in batches for fact in batch.facts}


def test_every_event_is_counted_from_zero_at_the_first_tick(path, source):
    append(path, "")
    batch = source().poll()
    assert batch.up
    assert batch.target == f"log:{path}"
    found = {label(key, "event") for key in batch.keys if name_of(key) == "gpuwatch_log_events_total"}
    assert found == set(EVENTS)
    assert set(batch.values) == {0.0}


def test_all_series_are_in_the_vocabulary_with_their_labels(path, source):
    append(path, (FIXTURES / "vllm_0_31_0_killed.log").read_bytes())
    log = source(since=0)
    append(path, OOM)
    log.poll()
    batch = log.poll()
    assert len({*batch.keys}) == len(batch.keys) == len(batch.values)
    for key in batch.keys:
        metric = METRICS[name_of(key)]
        assert {name for name, _ in key} - {"__name__"} <= set(metric.labels)


def test_the_set_of_series_is_the_same_object_while_it_is_unchanged(path, source):
    append(path, "INFO hello\n")
    log = source()
    first = log.poll().keys
    append(path, "EngineCore failed to start.\n")
    assert log.poll().keys is first


def test_an_old_log_gives_facts_and_lines_but_nothing_happens_now(path, source):
    append(path, (FIXTURES / "vllm_0_31_0_killed.log").read_bytes())
    log = source()
    batches = [log.poll() for _ in range(3)]
    found = facts(*batches)
    assert found["version"] == "0.31.0"
    assert found["kv.tokens"] == 5120
    assert found["kv.blocks_profiled"] == 4096
    assert (
        "engine core exited unexpectedly" in found["past.engine_dead"] or "EngineDeadError" in found["past.engine_dead"]
    )
    assert [batch.events for batch in batches] == [(), (), ()]
    assert {count(batch, "engine_dead") for batch in batches} == {0.0}
    assert value(batches[-1], "gpuwatch_log_lines_total") == 0.0
    assert [line.event for line in batches[0].lines if line.event] == ["engine_dead", "engine_dead"]
    # The time of an old line is its own: 29 November 15:47:27, in the zone of this machine.
    dead = next(line for line in batches[0].lines if line.event)
    assert dead.time == round(time.mktime((2025, 11, 29, 15, 47, 27, 0, 0, -1)) * 1000)


def test_lines_of_a_server_that_started_after_us_count_although_its_log_is_found_late(path, source):
    append(path, (FIXTURES / "vllm_0_31_0_too_long.log").read_bytes())
    since = round(time.mktime((2025, 11, 29, 15, 0, 0, 0, 0, -1)) * 1000)
    log = source(since=since)
    first, second = log.poll(), log.poll()
    assert count(first, "max_model_len_exceeds_kv") == 0.0
    assert count(second, "max_model_len_exceeds_kv") == 2.0
    assert count(second, "worker_stopped") == 1.0
    assert count(second, "worker_dead") == 0.0
    event = next(event for event in first.events if event.event == "max_model_len_exceeds_kv")
    assert (event.field("mml"), event.field("fit"), event.server) == ("1048576", "524160", "127.0.0.1:8105")


def test_an_old_line_with_a_time_of_another_zone_in_the_future_is_old_all_the_same(path, source):
    append(path, "INFO 11-30 14:00:00 [a.py:1] EngineCore failed to start.\n")
    log = source(since=0)
    assert [count(log.poll(), "engine_start_failed") for _ in range(2)] == [0.0, 0.0]


def test_a_new_line_is_counted_and_told_at_once(path, source):
    append(path, "INFO start\n")
    log = source(server=SERVER)
    log.poll()
    append(path, "(EngineCore pid=5) ERROR 11-30 11:59:59 [core.py:1] EngineCore encountered a fatal error.\n")
    batch = log.poll()
    assert count(batch, "engine_dead") == 1.0
    assert value(batch, "gpuwatch_log_lines_total") == 1.0
    (event,) = batch.events
    assert (event.event, event.line, event.time, event.server) == ("engine_dead", 2, NOW, SERVER)
    assert batch.lines[-1].level == "ERROR"
    assert batch.lines[-1].event == "engine_dead"


def test_an_out_of_memory_error_leaves_its_sizes_as_gauges(path, source):
    append(path, OOM)
    log = source()
    assert value(log.poll(), "gpuwatch_log_oom_requested_bytes") is None
    append(path, OOM)
    batch = log.poll()
    assert value(batch, "gpuwatch_log_oom_requested_bytes") == 2.0 * GIB
    assert value(batch, "gpuwatch_log_oom_free_bytes") == 1.0 * GIB
    assert value(batch, "gpuwatch_log_oom_reserved_unallocated_bytes") == 17.0 * GIB
    assert count(batch, "torch_oom") == 1.0


def test_ray_counts_the_lines_it_left_out(path, source):
    append(path, "")
    log = source()
    log.poll()
    append(
        path,
        "(RayWorkerWrapper pid=1, ip=192.0.2.2) ERROR 03-27 10:29:01 [w.py:1] EngineCore failed to start. [repeated 3x across cluster]\n",
    )
    assert count(log.poll(), "engine_start_failed") == 4.0


def test_the_log_itself_says_whose_it_is_and_how_the_engine_was_set_up(path, source):
    append(path, (FIXTURES / "vllm_0_31_0_killed.log").read_bytes())
    log = source()
    batch = log.poll()
    assert log.server == SERVER
    assert {fact.server for fact in batch.facts} == {SERVER}
    known = facts(batch)
    expected = {
        "max_num_seqs": 16,
        "max_model_len": 4096,
        "tp": 1,
        "pp": 1,
        "dp": 1,
        "kv.blocks_profiled": 4096,
        "kv.bytes": GIB / 4096 * 40,
        "max_concurrency": 1.25,
    }
    assert {key: known[key] for key in expected} == expected


def test_a_watched_engine_keeps_its_name(path, source):
    append(path, (FIXTURES / "vllm_0_31_0_killed.log").read_bytes())
    log = source(servers=lambda: ("other:8106", "localhost:8106"))
    log.poll()
    assert log.server == "localhost:8106"


def test_an_event_in_the_tick_in_which_the_server_becomes_known_is_a_step_of_the_new_series(path, source):
    append(path, "")
    log = source()
    log.poll()
    append(path, "Uvicorn running on http://0.0.0.0:30000 (Press CTRL+C to quit)\nScheduler hit an exception: x\n")
    seen = [
        value(log.poll(), "gpuwatch_log_events_total", event="engine_dead", server="127.0.0.1:30000") for _ in range(2)
    ]
    assert seen == [0.0, 1.0]


def test_a_restart_forgets_what_the_earlier_run_said(path, source):
    append(path, (FIXTURES / "vllm_0_31_0_killed.log").read_bytes())
    log = source()
    log.poll()
    append(
        path,
        "(APIServer pid=1) INFO 11-30 12:00:00 [a.py:1]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0\n"
        "(APIServer pid=1) INFO 11-30 12:00:00 [a.py:1] non-default args: {'port': 8106, 'max_num_seqs': 2}\n"
        "(Worker pid=3) INFO 11-30 12:00:09 [gpu_worker.py:1] Available KV cache memory: 2.0 GiB\n",
    )
    batch = log.poll()
    assert facts(batch) == {
        "started": "banner_version",
        "engine": "vllm",
        "version": "0.32.0",
        "flag.port": 8106,
        "flag.max-num-seqs": 2,
        "max_num_seqs": 2,
        "kv.bytes": 2 * GIB,
    }


def test_of_what_each_rank_prints_the_tightest_rank_counts_and_each_is_kept(path, source):
    append(
        path,
        "(Worker_TP0 pid=1) INFO 11-30 11:00:00 [m.py:1] Model loading took 10.0 GiB memory and 3.0 seconds\n"
        "(Worker_TP1 pid=2) INFO 11-30 11:00:00 [m.py:1] Model loading took 12.0 GiB memory and 2.0 seconds\n"
        "(Worker_TP1 pid=2) INFO 11-30 11:00:00 [m.py:1] Available KV cache memory: 20.0 GiB\n"
        "(Worker_TP0 pid=1) INFO 11-30 11:00:00 [m.py:1] Available KV cache memory: 22.0 GiB\n",
    )
    found = facts(source().poll())
    assert found["weights.bytes"] == 12 * GIB
    assert found["weights.bytes.TP0"] == 10 * GIB
    assert found["kv.bytes"] == 20 * GIB
    assert found["kv.bytes.TP0"] == 22 * GIB


def test_bad_bytes_and_endless_lines_are_counted_and_shown_as_text(path, source):
    append(path, "")
    log = source(limits=LogLimits(line=100))
    log.poll()
    append(path, b"latin \xe9\xe8 bytes\n" + b"z" * 300 + b"\nreal \xef\xbf\xbd replacement\nfine\n")
    batch = log.poll()
    assert value(batch, "gpuwatch_log_unreadable_lines_total") == 2.0
    assert value(batch, "gpuwatch_log_lines_total") == 4.0
    assert [line.text for line in batch.lines][:2] == ["latin \ufffd\ufffd bytes", "z" * 100]


def test_lines_are_shown_without_codes_prompts_and_keys_and_of_bounded_length(path, source):
    append(path, "")
    log = source(limits=LogLimits(text=60))
    log.poll()
    append(
        path,
        "\x1b[31m[red]alarm[/red]\x1b[0m\n"
        "INFO 11-30 12:00:00 [l.py:1] Received request cmpl-1: prompt: 'TOPSECRET', params: x\n"
        "INFO 11-30 12:00:00 [l.py:1] non-default args: {'api_key': ['TOPSECRET'], 'port': 8000}\n"
        "vllm: error: unrecognized arguments: --apikey TOPSECRET\n" + "w" * 200 + "\n",
    )
    batch = log.poll()
    assert batch.lines[0].text == "[red]alarm[/red]"
    assert max(len(line.text) for line in batch.lines) == 60
    assert batch.lines[-1].text.endswith("…")
    append(path, "INFO 11-30 12:00:00 [l.py:1] Starting to load model s3://id:TOPSECRET@bucket/m...\n")
    assert "TOPSECRET" not in repr((batch, log.poll()))
    assert batch.events[0].event == "unknown_flag"


def test_progress_bars_are_lines_and_the_message_behind_them_is_read(path, source):
    append(path, "")
    log = source()
    log.poll()
    append(path, "Loading:  0%|\rLoading: 50%|\rEngineCore failed to start.\r\n")
    batch = log.poll()
    assert count(batch, "engine_start_failed") == 1.0
    assert value(batch, "gpuwatch_log_unreadable_lines_total") == 0.0


def test_polls_of_the_page_do_not_fill_the_screen(path, source):
    append(path, "")
    log = source()
    log.poll()
    append(
        path,
        'INFO:     127.0.0.1:50234 - "GET /metrics HTTP/1.1" 200 OK\n'
        'INFO:     127.0.0.1:50234 - "GET /metrics HTTP/1.1" 500 Internal Server Error\n'
        'INFO:     127.0.0.1:50234 - "POST /v1/completions HTTP/1.1" 200 OK\n',
    )
    batch = log.poll()
    assert len(batch.lines) == 2
    assert value(batch, "gpuwatch_log_lines_total") == 3.0


def test_a_flood_of_lines_keeps_the_newest_and_counts_all(path, source):
    append(path, "")
    log = source(limits=LogLimits(shown=5))
    log.poll()
    append(path, "".join(f"line {number}\n" for number in range(1000)) + "EngineCore failed to start.\n" * 300)
    batch = log.poll()
    assert len(batch.lines) == 5
    assert len(batch.events) == 200
    assert count(batch, "engine_start_failed") == 300.0
    assert value(batch, "gpuwatch_log_lines_total") == 1300.0


def test_a_missing_file_is_a_state_and_not_an_end(path, source):
    log = source()
    batch = log.poll()
    assert (batch.up, batch.reason) == (False, Reason.NOT_FOUND)
    assert str(path) in batch.detail
    append(path, "EngineCore failed to start.\n")
    assert [count(log.poll(), "engine_start_failed") for _ in range(2)] == [0.0, 1.0]


def test_closing_twice_is_safe_and_final(path, source):
    append(path, "x\n")
    log = source()
    log.poll()
    log.close()
    log.close()
    batch = log.poll()
    assert (batch.up, batch.detail) == (False, f"{path}: closed")


def test_closing_from_another_thread_while_lines_pour_in_is_safe(path, source):
    append(path, "x\n" * 200_000)
    log = source()
    failures = []

    def poll():
        try:
            while log.poll().up:
                pass
        except Exception as error:  # noqa: BLE001  # whatever it is, it must not happen
            failures.append(error)

    thread = threading.Thread(target=poll)
    thread.start()
    log.poll()
    log.close()
    thread.join(30)
    assert not thread.is_alive()
    assert failures == []


def test_a_disk_that_fails_is_a_state_and_the_log_is_opened_again(path, source, monkeypatch):
    append(path, "x\n")
    log = source()
    log.poll()

    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    batch = log.poll()
    assert (batch.up, batch.reason, batch.detail) == (False, Reason.FAILED, f"{path}: Input/output error")
    monkeypatch.undo()
    assert log.poll().up


@pytest.mark.parametrize(
    ("found", "want"),
    [
        ({"server.url": "http://0.0.0.0:8000"}, "127.0.0.1:8000"),
        ({"server.url": "http://[::]:8000"}, "127.0.0.1:8000"),
        ({"server.url": "https://gpu-1.example:8443"}, "gpu-1.example:8443"),
        ({"server.url": "http://[2001:db8::1]:8000"}, "[2001:db8::1]:8000"),
        ({"flag.port": 9000, "flag.host": "10.0.0.5"}, "10.0.0.5:9000"),
        ({"flag.port": 9000}, "127.0.0.1:9000"),
        ({"server.url": "unix:/tmp/s", "flag.port": 9000}, "127.0.0.1:9000"),
        ({"server.url": "http://host:99999"}, ""),
        ({"server.url": "unix:/tmp/s"}, ""),
        ({}, ""),
    ],
)
def test_the_address_of_a_server_comes_from_its_own_words(found, want):
    assert server_of(found) == want


def test_names_of_this_machine_with_one_port_mean_the_same_server():
    assert match_server("127.0.0.1:8000", ("localhost:8000", "127.0.0.1:8001")) == "localhost:8000"
    assert match_server("127.0.0.1:8000", ("127.0.0.1:8000", "localhost:8000")) == "127.0.0.1:8000"
    assert match_server("10.0.0.5:8000", ("127.0.0.1:8000",)) == "10.0.0.5:8000"
    assert match_server("127.0.0.1:8000", ("10.0.0.5:8000",)) == "127.0.0.1:8000"


def test_standard_input_is_read_as_it_comes_and_its_end_is_no_failure(clock):
    reader, writer = os.pipe()
    stdin = StdinInput(clock, LogLimits(), reader)
    assert stdin.read() == []
    os.write(writer, b"one\ntw")
    assert [line.data for line in stdin.read()] == [b"one"]
    clock.advance(3)
    assert [line.data for line in stdin.read()] == [b"tw"]
    os.write(writer, b"three")
    os.close(writer)
    got = list(itertools.chain.from_iterable(stdin.read() for _ in range(3)))
    assert [line.data for line in got] == [b"three"]
    assert stdin.note == "standard input has ended"
    os.close(reader)


def test_a_source_on_standard_input_is_called_stdin(clock):
    assert LogSource("-", "node-1", clock).target == "log:stdin"


PREFIX = "(APIServer pid=9) INFO 11-29 18:10:03 [logger.py:40] "


@pytest.mark.parametrize(
    "outer", ["", "2026-11-29T18:10:03.123Z ", "Nov 29 18:10:03 host vllm[7]: ", "(APIServer pid=9) "]
)
def test_the_further_lines_of_a_prompt_are_cut_out_too(path, source, outer):
    append(path, "")
    log = source()
    log.poll()
    body = [
        f"{outer}{PREFIX.removeprefix(outer)}Received request cmpl-1: prompt: 'TOPSECRET one",
        f"{outer}TOPSECRET two",
        f"{outer}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. TOPSECRET three",
        f"{outer}",
        f"{outer}TOPSECRET four', params: None",
        f"{outer}{PREFIX.removeprefix(outer)}Started",
        f"{outer}a line of its own",
    ]
    append(path, "\n".join(body) + "\n")
    batch = log.poll()
    texts = [line.text for line in batch.lines]
    assert len(texts) == 3
    assert texts[0].endswith("Received request cmpl-1: <redacted>")
    assert texts[2].endswith("a line of its own")
    assert "TOPSECRET" not in repr(batch)
    assert count(log.poll(), "torch_oom") == 0


def test_a_traceback_behind_an_open_prompt_is_shown_and_its_cause_counted(path, source):
    append(path, "")
    log = source()
    log.poll()
    append(path, 'Received request cmpl-1: prompt: \'TOPSECRET\nTraceback (most recent call last):\n  File "x"\n' + OOM)
    batch = log.poll()
    assert [line.text[:20] for line in batch.lines][1:3] == ["Traceback (most rece", '  File "x"']
    assert count(log.poll(), "torch_oom") == 1


def test_a_prompt_without_an_end_does_not_hide_the_log_for_good(path, source):
    append(path, "prompt: 'TOPSECRET\n" + "x\n" * 500 + "an engine without prefixes\n")
    batch = source().poll()
    assert [line.text for line in batch.lines] == ["prompt: <redacted>", "an engine without prefixes"]
