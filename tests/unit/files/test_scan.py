"""A large log is read for the few lines that matter: none of them is missed, and there are never many."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.engines.logs import PATTERNS, classify, literals, numeric_literals
from gpuwatch.sources.files.lines import parts_of
from gpuwatch.sources.files.scan import FIRST, Scanner
from gpuwatch.sources.files.shapes import NUMBERS

ACCESS = 'INFO:     10.0.{}.7:{} - "POST /v1/completions HTTP/1.1" 200 OK'
STATS = (
    "INFO 11-29 10:00:00 [loggers.py:271] Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: "
    "20.0 tokens/s, Running: {} reqs, Waiting: {} reqs, GPU KV cache usage: {}%, Prefix cache hit rate: 1.0%"
)
OOM = (
    "ERROR 11-29 10:00:01 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} GiB. GPU 0 has "
    "a total capacity of 79.14 GiB of which 1.02 GiB is free."
)


def scan(text, size=1 << 20):
    scanner = Scanner()
    data = text.encode() if isinstance(text, str) else text
    for start in range(0, len(data), size):
        scanner.feed(data[start : start + size])
    return scanner.finish(), scanner


def messages(hits):
    return [parts_of(hit.data)[-1] for hit in hits]


def test_the_lines_that_say_something_come_out_with_their_numbers():
    lines = [ACCESS.format(number % 250, number) for number in range(3000)]
    lines[700], lines[2500] = OOM.format(2), OOM.format(3)
    hits, scanner = scan("\n".join(lines))
    assert [(hit.number, hit.data.decode()) for hit in hits] == [(701, OOM.format(2)), (2501, OOM.format(3))]
    assert scanner.lines == 3000


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
@pytest.mark.parametrize("least", [1, 1 << 18])
def test_where_a_block_ends_does_not_matter(size, least, monkeypatch):
    monkeypatch.setattr("gpuwatch.sources.files.scan._LEAST", least)
    text = "\n".join([ACCESS.format(1, 2), OOM.format(2), "", ACCESS.format(3, 4), OOM.format(4)]) + "\n"
    hits, scanner = scan(text, size)
    assert [hit.number for hit in hits] == [2, 5]
    assert scanner.lines == 5


def test_a_last_line_without_an_end_is_a_line():
    hits, scanner = scan("one\n" + OOM.format(2))
    assert [hit.number for hit in hits] == [2]
    assert scanner.lines == 2


def test_every_literal_of_the_tables_survives_what_is_taken_out_of_a_line():
    rest = set(numeric_literals())
    for pattern in PATTERNS:
        for needle in pattern.needles:
            line = f"7.x{needle}y8".encode()
            for deleted in (NUMBERS, NUMBERS + b"abcdef"):
                assert needle.encode() in rest or literals(deleted).search(line.translate(None, deleted)), needle


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=60), min_size=1, max_size=30),
    st.integers(1, 200),
)
def test_the_scan_finds_what_reading_every_line_finds(lines, size):
    lines = [*lines, OOM.format(2), *lines]
    text = "\n".join(lines)
    hits, scanner = scan(text, size)
    every = []
    for number, line in enumerate(lines, 1):
        found = classify(line)
        if found is not None and found.pattern.kind != "ignore" and line.startswith("ERROR"):
            every.append(number)
    # The message of the line is recognised behind its prefix.
    assert len(lines) // 2 + 1 in {hit.number for hit in hits}
    assert set(every) <= {hit.number for hit in hits}
    assert scanner.lines == text.count("\n") + bool(lines[-1])


def test_of_a_line_that_comes_very_often_the_first_and_the_last_are_kept_and_all_are_counted():
    lines = [OOM.format(number % 60) for number in range(20_000)]
    hits, scanner = scan("\n".join(lines))
    numbers = [hit.number for hit in hits]
    assert numbers[: FIRST["event"]] == list(range(1, FIRST["event"] + 1))
    assert numbers[-1] == 20_000
    assert len(numbers) < 3 * FIRST["event"]
    assert scanner.groups["torch_oom"].count == 20_000


def test_of_many_statistics_lines_those_with_the_extremes_are_kept():
    lines = [STATS.format(4, 0, 20.5)] * 8_000
    lines[3_000:3_004] = [STATS.format(4, 37, 20.5)] * 4
    lines[5_000:5_004] = [STATS.format(1, 0, 20.5)] * 4
    lines[7_000:7_004] = [STATS.format(4, 0, 99.5)] * 4
    hits, scanner = scan("\n".join(lines), 1 << 17)
    kept = {hit.number: hit.data.decode() for hit in hits}
    assert {1, 8_000} <= set(kept)
    for place in (3_000, 5_000, 7_000):
        assert lines[place] in [kept.get(number) for number in range(place + 1, place + 5)]
    assert all(lines[number - 1] == line for number, line in kept.items())
    assert len(kept) < 1500
    assert scanner.groups["stats"].count == 8_000


def test_the_frames_above_a_rare_error_are_kept_although_frames_are_frequent():
    frame = '(EngineCore pid=7) ERROR 11-29 10:00:00 [core.py:1]   File "/vllm/v1/worker/w.py", line {}, in {}'
    lines = [frame.format(number, "execute_model") for number in range(3000)]
    lines += [frame.format(1, "profile_run"), OOM.format(2)]
    lines += [frame.format(number, "execute_model") for number in range(3000)]
    hits, _ = scan("\n".join(lines), 1 << 16)
    assert {3001, 3002} <= {hit.number for hit in hits}


def test_text_of_a_request_is_no_event_however_it_is_broken_into_lines():
    text = "\n".join(
        [
            "INFO 11-29 10:00:00 [logger.py:42] Received request cmpl-1: prompt: 'Why do I get",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of",
            "and what is that?', params: SamplingParams(n=1)",
            OOM.format(3),
        ]
    )
    hits, _ = scan(text)
    assert [hit.number for hit in hits] == [4]


def test_an_error_below_a_traceback_is_an_event_although_its_source_lines_open_brackets():
    text = """\
INFO 11-29 10:00:00 [llm.py:1] starting
Traceback (most recent call last):
  File "/app/run.py", line 3, in main
    outputs = llm.generate(prompts=[
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""
    hits, _ = scan(text)
    assert [(hit.number, hit.time) for hit in hits if b"Tried" in hit.data] == [(5, "11-29 10:00:00")]


def test_one_line_of_many_megabytes_is_searched_in_bounded_memory():
    filler = b"lorem ipsum dolor sit amet 12345 " * 400_000
    scanner = Scanner()
    tracemalloc.start()
    for start in range(0, len(filler), 1 << 20):
        scanner.feed(filler[start : start + (1 << 20)])
    scanner.feed(b" CUDA out of memory. Tried to allocate 2.00 GiB.\n" + OOM.format(3).encode())
    hits = scanner.finish()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [hit.number for hit in hits] == [1, 2]
    assert b"Tried to allocate 2.00 GiB" in hits[0].data
    assert scanner.lines == 2
    assert peak < 40 << 20


@pytest.mark.parametrize(("place", "found"), [(0, [1, 2]), (20, [2])])
def test_of_a_line_that_goes_on_for_ever_the_middle_is_not_read(place, found):
    parts = [b"z" * (1 << 20)] * 24
    parts[place] = b" CUDA out of memory. Tried to allocate 2.00 GiB. " + parts[place]
    scanner = Scanner()
    for part in (*parts, b"\n" + OOM.format(3).encode()):
        scanner.feed(part)
    assert [hit.number for hit in scanner.finish()] == found
    assert scanner.lines == 2


def test_lines_that_only_look_like_something_stop_costing_time():
    lines = [f"INFO 11-29 10:00:00 [a.py:1] Using model {number} for nothing" for number in range(5000)]
    hits, scanner = scan("\n".join(lines))
    assert hits == []
    assert len(scanner._misses) == 1
    assert not scanner._shapes.interesting


def test_progress_that_overwrote_itself_is_several_lines_of_which_each_is_read():
    text = "Loading: 50%\rLoading: 99%\r" + OOM.format(2)
    hits, _ = scan(text)
    assert [hit.number for hit in hits] == [1]
    assert parts_of(hits[0].data)[-1] == OOM.format(2)


def test_quoted_and_indented_pastes_lose_their_marks():
    assert parts_of(b"> > INFO 11-29 10:00:00 [a.py:1] x") == ["INFO 11-29 10:00:00 [a.py:1] x"]
    assert parts_of(b"    INFO 11-29 10:00:00 [a.py:1] x") == ["INFO 11-29 10:00:00 [a.py:1] x"]
    assert parts_of(b"`INFO 11-29 10:00:00 [a.py:1] x`") == ["INFO 11-29 10:00:00 [a.py:1] x"]
    assert parts_of(b"    raise ValueError(") == ["    raise ValueError("]
