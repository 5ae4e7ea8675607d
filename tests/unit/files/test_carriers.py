"""Whatever carries a log, it says the same: exports, parts of lines, and prefixes that nobody described."""

from __future__ import annotations

import csv
import io
import json
from datetime import datetime, timedelta, timezone

import pytest

from gpuwatch.sources.files.carriers import plain
from gpuwatch.sources.files.read import read_file

SGLANG = """\
[2026-03-02 08:00:00] server_args=ServerArgs(model_path='org/some-7b', mem_fraction_static=0.88, tp_size=2, chunked_prefill_size=4096)
[2026-03-02 08:00:21 TP0] Memory pool end. avail mem=6.10 GB
[2026-03-02 08:00:30 TP0] max_total_num_tokens=812345, chunked_prefill_size=4096, max_prefill_tokens=16384, context_len=16384
[2026-03-02 08:04:10 TP1] Prefill batch. #new-seq: 3, #new-token: 4096, #cached-token: 8, token usage: 0.31, #running-req: 9, #queue-req: 2
[2026-03-02 08:04:11 TP1] Scheduler hit an exception: Traceback (most recent call last):
  File "/opt/sglang/python/sglang/srt/layers/logits_processor.py", line 210, in forward
    scores = torch.nn.functional.log_softmax(every, dim=-1)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.50 GiB. GPU 1 has a total capacity of 79.11 GiB of which 1.25 GiB is free.
"""  # noqa: E501  # lines of logs are as long as they are
VLLM = """\
(APIServer pid=1) INFO 03-02 08:00:00 [utils.py:299] vLLM API server version 0.13.0
(APIServer pid=1) INFO 03-02 08:00:00 [utils.py:233] non-default args: {'model': '/models/x', 'max_model_len': 65536}
(EngineCore_DP0 pid=80) INFO 03-02 08:00:20 [gpu_model_runner.py:2600] Starting to load model /models/x...
(EngineCore_DP0 pid=80) INFO 03-02 08:00:40 [gpu_worker.py:298] Available KV cache memory: 3.20 GiB
(EngineCore_DP0 pid=80) ERROR 03-02 08:00:41 [core.py:708] EngineCore failed to start.
(EngineCore_DP0 pid=80) Traceback (most recent call last):
(EngineCore_DP0 pid=80)   File "/opt/vllm/v1/core/kv_cache_utils.py", line 70, in check_enough_kv_cache_memory
(EngineCore_DP0 pid=80) ValueError: To serve at least one request with the models's max seq len (65536), (8.00 GiB KV cache is needed, which is larger than the available KV cache memory (3.20 GiB). Based on the available memory, the estimated maximum model length is 26208. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.
"""  # noqa: E501  # as above
BEGUN = datetime(2026, 3, 2, 8, 0, 0, tzinfo=timezone.utc)
PREFIXES = {
    "a host and a colon": lambda at, _: "gpu-07: ",
    "brackets with a host": lambda at, _: "[gpu-07] ",
    "a number and a name between bars": lambda at, _: "0|engine  | ",
    "the task of a service": lambda at, _: "llm_engine.1.x7ab29qk0zzz@node-3    | ",
    "pod, container and time": lambda at, now: f"llm-5c7d-q2x8f engine {now:%Y-%m-%dT%H:%M:%S}.{at:09}Z ",
    "a time and labels": lambda at, now: (
        f'{now:%Y-%m-%dT%H:%M:%S}Z {{app="llm", namespace="prod", pod="llm-{at % 2}"}} '
    ),
    "a time, a tab": lambda at, now: f"{now:%Y-%m-%dT%H:%M:%S}.000Z\t",
    "a time, a level that changes, the place": lambda at, now: (
        f"{now:%Y-%m-%d %H:%M:%S}.123 | {('INFO    ', 'ERROR   ')[at > 5]} | runner:pump:{40 + at} - "
    ),
    "a logger": lambda at, now: f"{now:%Y-%m-%dT%H:%M:%S}+08:00 - some.worker - INFO - ",
    "a time of a year": lambda at, now: f"{now:%b %d %H:%M:%S} ",
    "seconds since the boot, a unit": lambda at, _: f"[ {1200 + at}.{at:06}] gpu-07 engine[42]: ",
    "braces of a workflow": lambda at, now: f"[{now:%Y-%m-%d, %H:%M:%S} UTC] {{subprocess.py:93}} INFO - ",
    "a task and a process": lambda at, _: "(serve-a1, rank=0, pid=913) ",
    "a name in lower case": lambda at, _: "engine ",
    "one space": lambda at, _: " ",
    "colours": lambda at, _: "\x1b[36mllm-0\x1b[0m \x1b[32mengine\x1b[0m ",
    "colours about a bar": lambda at, _: "\x1b[33mllm-a-1b\x1b[0m ~> \x1b[1mmain\x1b[0m ~> ",
    "line numbers": lambda at, _: f"{at + 1:6}  ",
}


def told(path, text):
    path.write_text(text)
    found = read_file(str(path), 1_780_000_000_000)
    facts = {(fact.key, fact.value, fact.line) for fact in found.facts}
    events = [(each.event, each.line, each.fields) for each in found.events]
    return found.kind, found.engine, found.version, facts, events


def carried(text, prefix):
    lines = text.splitlines()
    return "".join(f"{prefix(at, BEGUN + timedelta(seconds=at))}{line}\n" for at, line in enumerate(lines))


@pytest.mark.parametrize("log", [SGLANG, VLLM], ids=["sglang", "vllm"])
@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_a_prefix_that_nobody_described_loses_nothing(tmp_path, log, prefix):
    assert told(tmp_path / "carried", carried(log, prefix)) == told(tmp_path / "bare", log)


@pytest.mark.parametrize("log", [SGLANG, VLLM], ids=["sglang", "vllm"])
def test_the_frame_of_a_pane_of_a_terminal_goes_on_both_sides(tmp_path, log):
    width = max(len(line) for line in log.splitlines())
    framed = "".join(f"│ {line:{width}} │\n" for line in log.splitlines())
    assert told(tmp_path / "carried", framed) == told(tmp_path / "bare", log)


def test_a_message_in_the_quotes_of_a_collector_ends_with_them(tmp_path):
    lines = [line.replace('"', '\\"') for line in SGLANG.splitlines()]
    text = "".join(f'[{at}] kube.app: [[{at}.5, {{}}], {{"log"=>"{line}"}}]\n' for at, line in enumerate(lines))
    assert told(tmp_path / "carried", text) == told(tmp_path / "bare", SGLANG)


def test_a_line_without_the_learned_prefix_stays_as_it_is():
    text = carried(VLLM, lambda at, _: "engine ") + "engines are no prefix\n+ engine started\n"
    out = b"".join(plain([text.encode()])).decode()
    assert out == VLLM + "engines are no prefix\n+ engine started\n"


@pytest.mark.parametrize("log", [SGLANG, VLLM], ids=["sglang", "vllm"])
def test_a_log_without_a_carrier_comes_through_untouched_in_its_blocks(log):
    blocks = [log[:97].encode(), log[97:].encode()]
    assert list(plain(blocks)) == blocks


def test_what_an_application_cites_now_and_then_is_no_prefix():
    cited = "".join(f"INFO 03-02 08:00:{at:02} [a.py:1] step {at}\n" for at in range(40))
    cited += "note: it printed [2026-03-02 08:00:21 TP0] Memory pool end.\n"
    assert b"".join(plain([cited.encode()])).decode() == cited


def test_a_prefix_is_learned_across_the_borders_of_blocks(tmp_path):
    text = carried(SGLANG * 3, lambda at, _: f"0|engine-{at}  | ").encode()
    blocks = [text[start : start + 700] for start in range(0, len(text), 700)]
    assert b"".join(plain(blocks)).decode() == SGLANG * 3


@pytest.mark.parametrize("log", [SGLANG, VLLM], ids=["sglang", "vllm"])
@pytest.mark.parametrize("prefix", ["pod, container and time", "a time and labels", "a time, a tab"])
def test_a_log_whose_newest_line_comes_first_is_read_from_its_end(tmp_path, log, prefix):
    text = "".join(reversed(carried(log, PREFIXES[prefix]).splitlines(keepends=True)))
    assert told(tmp_path / "newest", text) == told(tmp_path / "bare", log)
    assert "newest line comes first" in read_file(str(tmp_path / "newest"), 1_780_000_000_000).note


def test_a_log_in_order_and_two_logs_in_the_wrong_order_are_not_turned():
    one = "".join(f"2026-03-02T08:00:{at:02}Z step\n" for at in range(20, 40))
    two = "".join(f"2026-03-02T08:00:{at:02}Z step\n" for at in range(20))
    for text in (one, one + two, one[:100], "a\nb\n"):
        assert b"".join(plain([text.encode()])).decode() == text


# Lines in parts


def in_parts(line, size, stamp="2026-03-02T08:00:00.5Z"):
    pieces = [line[start : start + size] for start in range(0, len(line), size)] or [""]
    return [f"{stamp} stderr {'PF'[piece is pieces[-1]]} {piece}" for piece in pieces]


@pytest.mark.parametrize("size", [40, 150])
def test_parts_of_a_containers_line_are_put_together(tmp_path, size):
    text, last = "", []
    for line in SGLANG.splitlines():
        parts = in_parts(line, size)
        text += "".join(f"{part}\n" for part in parts)
        last.append(text.count("\n"))
    _, _, _, facts, events = told(tmp_path / "parts", text)
    _, _, _, whole, wanted = told(tmp_path / "bare", SGLANG)
    assert events == [(name, last[line - 1], fields) for name, line, fields in wanted]
    assert {(key, value) for key, value, _ in facts} == {(key, value) for key, value, _ in whole}


def test_parts_of_two_streams_do_not_mix():
    text = "2026-03-02T08:00:00Z stderr P one \n2026-03-02T08:00:00Z stdout P eins \n"
    text += "2026-03-02T08:00:01Z stderr F two\n2026-03-02T08:00:01Z stdout F zwei\n"
    want = "\n\n2026-03-02T08:00:00Z stderr F one two\n2026-03-02T08:00:00Z stdout F eins zwei\n"
    assert b"".join(plain([text.encode()])).decode() == want


def test_a_part_whose_end_is_missing_is_not_lost():
    text = "2026-03-02T08:00:00Z stderr F whole\n2026-03-02T08:00:00Z stderr P the beginning\n"
    assert b"the beginning" in b"".join(plain([text.encode()]))


def test_records_of_docker_without_a_line_end_go_on_in_the_next():
    first = '{"log":"Tried to ","stream":"stderr","time":"a"}'
    second = '{"log":"allocate\\n","stream":"stderr","time":"b"}'
    want = '\n{"log":"Tried to allocate\\n","stream":"stderr","time":"b"}\n'
    assert b"".join(plain([f"{first}\n{second}\n".encode()])).decode() == want


# Exports


def test_a_table_with_a_column_of_messages_is_read_by_its_messages(tmp_path):
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(["Date", "Host", "Message"])
    rows.writerows([1772438400000 + at, "gpu-07", line] for at, line in enumerate(SGLANG.splitlines()))
    kind, engine, _, facts, events = told(tmp_path / "export.csv", out.getvalue())
    _, _, _, whole, wanted = told(tmp_path / "bare", SGLANG)
    assert (kind, engine) == ("engine_log", "sglang")
    # The heading is line 1.
    assert events == [(name, line + 1, fields) for name, line, fields in wanted]
    assert {(key, value) for key, value, _ in facts} == {(key, value) for key, value, _ in whole}


def test_a_cell_of_several_lines_keeps_their_numbers():
    text = 'timestamp,message\n1772438400000,"one\ntwo"\n1772438401000,three\n'
    want = "\n2026-03-02T08:00:00.000Z one\n2026-03-02T08:00:00.000Z two\n2026-03-02T08:00:01.000Z three\n"
    assert b"".join(plain([text.encode()])).decode() == want


def streams(lines):
    values = [[str(1_772_438_400_000_000_000 + at), line] for at, line in enumerate(lines)]
    return {"status": "success", "data": {"resultType": "streams", "result": [{"stream": {}, "values": values[::-1]}]}}


def rows(lines):
    return [{"line": line, "timestamp": str(1_772_438_400_000_000_000 + at)} for at, line in enumerate(lines)]


def hits(lines):
    found = [{"@timestamp": f"2026-03-02T08:00:00.{at:03}Z", "message": line} for at, line in enumerate(lines)]
    return {"hits": {"total": {"value": len(lines)}, "hits": [{"_source": each} for each in found]}}


def logged(lines):
    return {"events": [{"timestamp": 1_772_438_400_000 + at, "message": line} for at, line in enumerate(lines)]}


@pytest.mark.parametrize("export", [streams, rows, hits, logged])
def test_an_export_in_one_document_is_read_by_its_records_in_the_order_of_their_times(tmp_path, export):
    kind, engine, _, facts, events = told(tmp_path / "export.json", json.dumps(export(SGLANG.splitlines())))
    _, _, _, whole, wanted = told(tmp_path / "bare", SGLANG)
    assert (kind, engine) == ("engine_log", "sglang")
    assert events == wanted
    assert facts == whole


@pytest.mark.parametrize(
    "text",
    [
        '{"architectures": ["X"], "hidden_size": 64}\n',
        '[{"name": "a", "image": "b"}, {"name": "c", "image": "d"}]\n',
        '{"items": [{"message": "Back-off", "lastTimestamp": "2026-03-02T08:00:00Z"}]}\n',
        '{"half of": [\n',
        "[1, 2\n",
        "some, text\nof two, or three, parts\n",
        '{"labels": {}, "line": "one"}\n{"labels": {}, "line": "two"}\n',
        "",
    ],
)
def test_other_documents_stay_as_they_are(text):
    assert b"".join(plain([text.encode()] if text else [])).decode() == text
