"""What a file is, is seen from its content; pastes of several kinds are read as all of them."""

# ruff: noqa: E501  # lines of logs are as long as they are

from __future__ import annotations

import gzip
import json
import os
from datetime import datetime
from pathlib import Path

import pytest

from gpuwatch.model import name_of
from gpuwatch.sources.files.read import read_file

FIXTURES = Path(__file__).parents[2] / "fixtures"
LOGS = FIXTURES / "logs"
PAGES = FIXTURES / "pages"

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.82 GiB. GPU 0 has a total capacity of 79.14 GiB "
    "of which 3.02 GiB is free."
)
XID = "NVRM: Xid (PCI:0000:01:00): 79, pid=1234, name=python3, GPU has fallen off the bus."


@pytest.fixture
def read(tmp_path):
    def take(text, name="file.txt", modified=None):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        if modified is not None:
            os.utime(path, (modified, modified))
        return read_file(str(path), local(2026, 11, 29, 12))

    return take


def local(*moment):
    return round(datetime(*moment).astimezone().timestamp() * 1000)


def events(text):
    return [(event.event, event.line) for event in text.events]


def facts(text):
    return {fact.key: fact.value for fact in text.facts}


@pytest.mark.parametrize(
    ("text", "kind", "engine"),
    [
        ("INFO 11-29 10:00:00 [a.py:1] Starting up\n", "engine_log", "vllm"),
        ("(EngineCore pid=7) INFO 11-29 10:00:00 [a.py:1] Starting up\n", "engine_log", "vllm"),
        ("[2026-05-24 03:51:44 TP0] Starting up\n", "engine_log", "sglang"),
        (OOM + "\n", "engine_log", ""),
        ("ValueError: No available memory for the cache blocks.\n", "engine_log", "vllm"),
        (XID + "\n", "dmesg", ""),
        ("[    0.000000] Linux version 6.8.0\n[   12.345678] usb 1-1: new device\n", "dmesg", ""),
        ("Nov 29 15:43:50 gpu-1 kernel: usb 1-1: new device\n", "dmesg", ""),
        ("Name: vllm-0\nNamespace:    default\nContainers:\n  vllm:\n    Last State:  Terminated\n", "kubernetes", ""),
        ("VLLM_USE_V1=0\nNCCL_DEBUG=INFO\n", "flags", ""),
        ("vllm serve m --max-num-seqs 8\n", "flags", "vllm"),
        ("memory.used [MiB]\n100 MiB\n", "nvidia_smi", ""),
        ("It was the best of times.\n" * 100, "unknown", ""),
        ('10.0.0.1 - - [29/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 612 "-" "x"\n' * 100, "unknown", ""),
        ('{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2}', "model_config", ""),
    ],
)
def test_the_kind_is_seen_from_the_content(read, text, kind, engine):
    taken = read(text)
    assert (taken.kind, taken.engine) == (kind, engine)
    assert bool(taken.note) == (kind == "unknown")


@pytest.mark.parametrize(
    ("name", "engine"),
    [("vllm-0.32.0-storm.txt", "vllm"), ("vllm-0.6.4-v0.txt", "vllm"), ("sglang-0.5.23-two-ranks.txt", "sglang")],
)
def test_a_saved_page_gives_the_series_of_its_engine(name, engine):
    text = read_file(str(PAGES / name), 0)
    assert (text.kind, text.engine) == ("metrics", engine)
    assert facts(text)["page.engine"] == engine
    names = {name_of(labels) for labels, _, _ in text.samples}
    assert {"gpuwatch_engine_requests_running", "gpuwatch_engine_kv_cache_usage_ratio"} <= names
    assert {time for _, _, time in text.samples} == {0}


def test_a_page_without_an_engine_says_so(read):
    text = read(
        'python_info{implementation="CPython",major="3",minor="11"} 1.0\nprocess_virtual_memory_bytes 1.3e+09\n'
    )
    assert text.kind == "metrics"
    assert facts(text)["page.engine"] == ""
    assert facts(text)["page.names"] == "process_virtual_memory_bytes python_info"


def test_several_pages_in_one_file_are_read_in_their_order(read):
    page = '# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0",model_name="m"} %d.0\n'
    text = read(page % 3 + "10:00:05\n" + page % 5 + page % 9)
    course = [v for labels, v, _ in text.samples if name_of(labels) == "gpuwatch_engine_requests_running"]
    assert course == [3, 5, 9]


def test_processes_that_share_a_page_are_counted(read):
    rows = "".join(f'vllm:kv_cache_usage_perc{{engine="0",model_name="m",pid="{pid}"}} 0.0\n' for pid in (5, 6, 7))
    assert facts(read(rows))["page.pids"] == 3


@pytest.mark.parametrize(
    ("name", "version", "told"),
    [
        ("vllm_0_31_0_killed.log", "0.31.0", {"max_model_len": 4096, "kv.blocks": 40, "kv.tokens": 5120}),
        ("vllm_0_10_2_killed.log", "0.10.2", {"max_model_len": 4096, "kv.blocks": 40}),
    ],
)
def test_a_real_log_gives_version_limits_and_death(name, version, told):
    text = read_file(str(LOGS / name), local(2026, 11, 29, 16))
    assert (text.kind, text.engine, text.version) == ("engine_log", "vllm", version)
    assert told.items() <= facts(text).items()
    assert "engine_dead" in {event.event for event in text.events}
    assert "stats" in {event.event for event in text.events}
    assert {event.server for event in text.events} == {facts(text)["server.url"].removeprefix("http://")}


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "(EngineCore_DP0 pid=7) ERROR 11-29 10:00:00 [core.py:718] ",
        "(VllmWorkerProcess pid=191) ERROR 11-29 10:00:00 multiproc_worker_utils.py:238] ",
        "(RayWorkerWrapper pid=14, ip=192.0.2.2) ERROR 11-29 10:00:00 [w.py:2] ",
        "[2026-11-29 10:00:00 TP1] ",
        "[rank1]: ",
        "2026-11-29T10:00:00.123456789Z stderr F ERROR 11-29 10:00:00 [core.py:718] ",
        "Nov 29 10:00:00 gpu-1 vllm[4711]: ERROR 11-29 10:00:00 [core.py:718] ",
        "vllm-1  | ERROR 11-29 10:00:00 [core.py:718] ",
        "[pod/vllm-0/vllm] ERROR 11-29 10:00:00 [core.py:718] ",
        "\x1b[1;36m(EngineCore_DP0 pid=7)\x1b[0;0m \x1b[31mERROR\x1b[0m 11-29 10:00:00 [core.py:718] ",
        "> ",
        "    ",
    ],
)
def test_an_error_is_recognised_behind_every_prefix(read, prefix):
    text = read(f"{prefix}{OOM}\n")
    assert [(event.event, event.line, event.field("req")) for event in text.events] == [("torch_oom", 1, "3.82 GiB")]


def test_lines_in_the_json_of_a_collector_are_read(read):
    docker = json.dumps(
        {"log": f"ERROR 11-29 10:00:00 [core.py:718] {OOM}\n", "stream": "stderr", "time": "2026-11-29T10:00:00.5Z"}
    )
    journal = json.dumps({"MESSAGE": XID, "SYSLOG_IDENTIFIER": "kernel"})
    text = read(f"{docker}\n{journal}\n")
    assert events(text) == [("torch_oom", 1), ("xid", 2)]
    assert text.events[0].time == 1_795_946_400_500


def test_a_paste_of_an_issue_is_read_as_all_that_it_holds(read):
    text = read(
        "I run this:\n```\nvllm serve m --tensor-parallel-size 2 --api-key sk-verysecretverysecret\n```\nand get\n```text\n"
        f"(EngineCore_DP0 pid=7) ERROR 11-29 10:00:00 [core.py:718] {OOM}\n```\n`nvidia-smi` says\n```\n"
        "|   0  NVIDIA RTX A5000               On  |   00000000:41:00.0 Off |                  Off |\n"
        "| 30%   44C    P2             61W /  230W |   19948MiB /  24564MiB |      0%      Default |\n```\nand dmesg\n"
        f"[93297.027938] {XID}\nwith\n"
        'config.json:\n{\n  "architectures": ["LlamaForCausalLM"],\n  "model_type": "llama",\n  "num_key_value_heads": 8\n}\n'
    )
    told = facts(text)
    assert told["tp"] == 2
    assert "verysecret" not in str(text)
    assert {("torch_oom", 7), ("xid", 15)} <= set(events(text))
    assert {name_of(labels) for labels, _, _ in text.samples} >= {"gpuwatch_gpu_memory_used_bytes"}
    assert text.config["num_key_value_heads"] == 8


def test_what_each_rank_printed_is_kept_and_the_engines_value_is_the_worst(read):
    line = "(Worker_TP{0} pid={0}) INFO 11-29 10:00:00 [gpu_worker.py:436] Available KV cache memory: {1} GiB\n"
    told = facts(read("".join(line.format(rank, size) for rank, size in enumerate(("13.5", "12.25", "13.5")))))
    assert told["kv.bytes"] == 12.25 * 2**30
    assert told["kv.bytes.TP0"] == told["kv.bytes.TP2"] == 13.5 * 2**30


def test_a_second_start_begins_another_run_of_facts(read):
    start = "INFO 11-29 1{0}:00:00 [api_server.py:1] vLLM API server version 0.3{0}.0\n"
    blocks = "INFO 11-29 10:00:01 [a.py:1] # GPU blocks: 100, # CPU blocks: 0\n"
    text = read(start.format(0) + blocks + start.format(1))
    keys = [(fact.key, fact.value) for fact in text.facts if fact.key in ("started", "version", "kv.blocks")]
    assert keys == [
        ("started", "api_version"),
        ("version", "0.30.0"),
        ("kv.blocks", 100),
        ("started", "api_version"),
        ("version", "0.31.0"),
    ]
    assert text.version == "0.31.0"


def test_a_line_without_a_time_has_that_of_the_line_above(read):
    text = read(f"INFO 11-29 10:00:07 [a.py:1] begin\nTraceback (most recent call last):\n{OOM}\n")
    assert [(event.event, event.time) for event in text.events] == [("torch_oom", local(2026, 11, 29, 10, 0, 7))]
    assert [event.time for event in read(OOM).events] == [0]


def test_a_time_of_day_alone_is_of_the_last_date(read):
    row = "Decode batch. #running-req: 4, #token: 10, token usage: 0.96, gen throughput (token/s): 1.0, #queue-req: 0\n"
    text = read(f"[2026-11-28 10:00:00 TP0] {row}[10:00:30] {row}")
    assert [event.time for event in text.events] == [local(2026, 11, 28, 10, 0, 0), local(2026, 11, 28, 10, 0, 30)]


def test_the_year_of_a_log_is_that_of_the_file(read):
    text = read(f"ERROR 12-31 23:59:59 [a.py:1] {OOM}\n", modified=local(2024, 1, 2) / 1000)
    assert text.events[0].time == local(2023, 12, 31, 23, 59, 59)


def test_very_many_events_are_counted_and_a_few_kept(read):
    text = read(f"ERROR 11-29 10:00:00 [a.py:1] {OOM}\n" * 5000)
    assert facts(text)["count.torch_oom"] == 5000
    assert len(text.events) <= 300
    assert (text.events[0].line, text.events[-1].line) == (1, 5000)


def test_prompts_and_keys_are_in_nothing_that_is_kept(read):
    text = read(
        "INFO 11-29 10:00:00 [logger.py:42] Received request cmpl-1: prompt: 'my private words', params: x\n"
        "INFO 11-29 10:00:00 [utils.py:1] non-default args: {'model': 'm', 'api_key': ['sk-aaaaaaaaaaaaaaaaaaaaaaaa']}\n"
        "ERROR 11-29 10:00:00 [a.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. "
        "Authorization: Bearer abcdefghijklmnopqrstuvwx\n"
    )
    assert events(text) == [("torch_oom", 3)]
    for secret in ("private words", "sk-aaaa", "abcdefghijklmnop"):
        assert secret not in str(text)


def test_what_was_recognised_is_shown_although_it_stands_far_behind_in_a_line(read):
    text = read("x" * 3000 + " " + OOM)
    assert "Tried to allocate 3.82 GiB" in text.events[0].text
    assert len(text.events[0].text) <= 400


def test_a_long_table_is_read_beyond_the_part_that_is_read_whole(read, monkeypatch):
    monkeypatch.setattr("gpuwatch.sources.files.read.WHOLE", 1 << 18)
    row = "2026/05/18 20:30:00.500, 0, NVIDIA GeForce RTX 3090 with a rather long name, 97 %, {} MiB\n"
    count = 10_000
    body = "timestamp, index, name, utilization.gpu [%], memory.used [MiB]\n" + row.format("10000") * count
    text = read(gzip.compress((body + row.format("20000") * 5000).encode()))
    assert text.lines == count + 5001
    used = [v for labels, v, _ in text.samples if name_of(labels) == "gpuwatch_gpu_memory_used_bytes"]
    assert used[0] == 10000 * 2**20
    assert used[-1] == 20000 * 2**20
