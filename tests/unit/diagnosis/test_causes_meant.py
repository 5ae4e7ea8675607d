"""What a line only quotes is no event, and no finding says more than its files show."""

# ruff: noqa: E501  # lines of logs are as long as they are

from __future__ import annotations

import pytest

from gpuwatch.engines.logs import classify
from gpuwatch.sources.files.read import read_file
from tests.unit.diagnosis.incidents import NOW, Verdict

START = "(APIServer pid=7) INFO 05-06 09:00:00 [api_server.py:1839] vLLM API server version 0.11.0\n"
REFUSED = (
    "(EngineCore pid=31) ERROR 03-04 08:00:09 [core.py:708] ValueError: Free memory on device cuda:0 (9.10/44.52 GiB) on startup is "
    "less than desired GPU memory utilization (0.9, 40.07 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.\n"
)


def judged(folder, log, **others):
    return Verdict(folder, {"server.log": log, **{f"{name}.txt": text for name, text in others.items()}})


def words(verdict):
    """Return every word of the findings that a reader sees."""
    found = [
        [finding.cause, *(item.text or "" for item in (*finding.evidence, *finding.advice))]
        for finding in verdict.findings
    ]
    return " ".join(part for parts in found for part in parts)


SAID = (
    "Watchdog timeout (self.watchdog_timeout=300)",
    "RuntimeError: Failed to infer device type",
    "NVRM: Xid (PCI:0000:17:00): 48, x",
)


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize(
    "line",
    [
        "[2026-03-04 08:00:00] Receive: obj=GenerateReqInput(rid='7', text='dear bot: {}', image_data=None)",
        "[2026-03-04 08:00:00 TP0] Finish: obj=GenerateReqInput(rid='7', text='x'), out={{'text': 'so {}'}}",
        '{{"timestamp": "2026-03-04T08:00:00Z", "event": "request.finished", "rid": "7", "out": {{"text": "so {}"}}}}',
        """ERROR 03-04 08:00:00 [tool_parser.py:9] Error parsing tool call: '{{"name": "sh", "arguments": "grep {}"}}'""",
        '10.1.1.9 - - [04/Mar/2026:08:00:00 +0000] "POST /v1/completions HTTP/1.1" 400 99 "-" "curl" {}',
        'On Monday we saw "{}" on another host, which was replaced.',
        "| `{}` | what to do then |",
    ],
)
def test_what_somebody_wrote_happened_nowhere_and_is_not_shown(tmp_path, line, said):
    verdict = judged(tmp_path, line.format(said) + "\n")
    assert [finding.id for finding in verdict.findings] == []


@pytest.mark.parametrize(
    "message",
    [
        "NVRM: Xid (PCI:0000:17:00): 48, pid=1, name=python3, DBE",
        '{"level": "error", "message": "CUDA error: an illegal memory access was encountered"',
        'Exception raised with message "CUDA error: device-side assert triggered"',
        "ValueError: ```</b> No available memory for the cache blocks.",
    ],
)
def test_what_a_program_says_stays_an_event(message):
    match = classify(message)
    assert match is not None
    assert match.pattern.kind == "event"


def smi(name):
    return (
        "+----------------------------------+\n| NVIDIA-SMI 570.1    Driver Version: 570.1    CUDA Version: 12.8 |\n"
        "| Processes:                                                                              |\n"
        f"|    0   N/A  N/A          4711      C   {name}                     35600MiB |\n"
        "+-----------------------------------------------------------------------------------------+\n"
    )


class TestHolders:
    def test_an_engine_that_nothing_shows_to_be_left_over_may_be_a_server_that_works(self, tmp_path):
        found = judged(tmp_path, REFUSED, smi=smi("VLLM::EngineCore"))["startup_gpu_shared"]
        assert "outlived" not in found.cause
        assert not any("end the left-over" in item.text for item in found.advice)
        assert not any("run before" in (item.text or "") for item in found.evidence)

    def test_a_process_whose_parent_is_gone_is_left_over(self, tmp_path):
        rows = "$ ps -eo pid,ppid,etime,args\n  4711       1    01:00 VLLM::EngineCore\n"
        found = judged(tmp_path, REFUSED, ps=rows)["startup_gpu_shared"]
        assert "outlived their server." in found.cause


def test_request_slots_are_not_answered_with_memory(tmp_path):
    found = judged(
        tmp_path,
        "[2026-03-04 08:00:00 TP0] Decode batch. #running-req: 6, #token: 90, token usage: 0.02, cuda graph: True, gen throughput (token/s): 9.0, #queue-req: 0, \n"
        "RuntimeError: alloc_req_slots runs out of memory. Please set a smaller number for `--max-running-requests`. self.req_to_token_pool.available_size()=2, num_reqs=5, \n",
    )["sglang_kv_alloc_failure"]
    assert "2 of 5 rows" in found.cause
    assert [item.flag for item in found.advice] == ["--max-running-requests", ""]
    assert any("the KV pool: it is used to 2%" in (item.text or "") for item in found.evidence)


def test_a_bus_error_points_at_shared_memory_and_belongs_to_the_worker_that_is_gone(tmp_path):
    found = judged(
        tmp_path,
        "ERROR 03-04 08:00:09 [multiproc_executor.py:511] Worker proc VllmWorker-2 died unexpectedly, shutting down executor.\n"
        "Fatal Python error: Bus error\n",
    )["worker_died"]
    assert "VllmWorker-2 ended by SIGBUS" in found.cause
    assert found.advice[0].flag == "--shm-size"


def test_the_port_at_which_ranks_meet_is_not_the_servers(tmp_path):
    found = judged(
        tmp_path,
        START
        + "(EngineCore_DP0 pid=9) ERROR 05-06 09:00:31 [core.py:708] torch.distributed.DistNetworkError: The server socket has failed to "
        "listen on any local network address. port: 29600, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n",
    )["port_in_use"]
    assert found.cause.startswith("Port 29600 is taken: the ranks")
    assert [(item.flag, item.current) for item in found.advice if item.flag] == [("VLLM_PORT", "29600")]


KERNEL = (
    "[Wed Mar  4 08:00:00 2026] memory: usage 33554432kB, limit 33554432kB, failcnt 12\n"
    "[Wed Mar  4 08:00:00 2026] Memory cgroup out of memory: Killed process 99 (VLLM::EngineCor) total-vm:1kB, anon-rss:9437184kB, file-rss:0kB\n"
)


def test_a_limit_is_raised_from_what_it_is_and_the_end_of_an_engine_is_critical(tmp_path):
    found = Verdict(tmp_path, {"dmesg.txt": KERNEL})["host_memory_oversubscribed"]
    assert found.severity == "critical"
    assert ("32Gi", "64Gi") in [(item.current, item.proposed) for item in found.advice]


def test_uneven_experts_are_named_with_the_ranks_that_fit(tmp_path):
    found = judged(
        tmp_path,
        START
        + "AssertionError: n_physical_experts=128 must be divisible by ep_size=6. Adjust num_redundant_experts.\n",
    )["flag_unknown"]
    assert "128 experts cannot be shared by 6 ranks" in found.cause
    assert "4 or 8" in found.advice[0].text
    assert found.advice[1].proposed == "4"  # 132 = 6 x 22


def test_the_number_of_cards_is_not_made_up(tmp_path):
    text = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.\n"
    found = judged(tmp_path, "(EngineCore_DP0 pid=9) ERROR 05-06 09:00:31 [core.py:708] " + text)["no_kv_blocks"]
    assert [(item.current, item.proposed) for item in found.advice if item.flag == "--tensor-parallel-size"] == [
        (None, None)
    ]


def test_the_all_reduce_of_vllm_is_suspected_in_its_own_logs_only(tmp_path):
    line = (
        "[rank1]:[E304 08:00:43.526290891 ProcessGroupNCCL.cpp:1785] [PG ID 2 PG GUID 3 Rank 1] Exception (either an error or timeout) "
        "detected by watchdog at work: 57, last enqueued NCCL work: 57, last completed NCCL work: 56.\n"
    )
    plain = judged(tmp_path, line)["nccl_hang"]
    assert "vLLM" not in plain.cause
    assert "while serving" not in plain.cause
    assert "vLLM's custom all-reduce" in judged(tmp_path, START + line)["nccl_hang"].cause


def test_swap_space_is_not_proposed_where_it_has_no_effect(tmp_path):
    found = judged(
        tmp_path,
        START
        + "ERROR 05-06 09:00:31 [core.py:586] ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n",
    )
    assert "--swap-space" not in [item.flag for item in found["ray_host_oom"].advice]


@pytest.mark.parametrize(("module", "kind"), [("peft/tuner.py", "host"), ("vllm/entrypoints/llm.py", "engine_log")])
def test_the_traceback_of_another_program_is_no_log_of_an_engine(tmp_path, module, kind):
    log = (
        'Traceback (most recent call last):\n  File "/home/a/fit.py", line 3, in <module>\n    main()\n'
        f'  File "/home/a/lib/{module}", line 9, in run\n    go()\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB.\n"
    )
    assert judged(tmp_path, log).ids == ["gpu_out_of_memory"]
    assert read_file(str(tmp_path / "server.log"), NOW).kind == kind
