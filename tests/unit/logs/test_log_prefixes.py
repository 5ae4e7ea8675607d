"""Prefixes come off in every version's form, and tell process, rank, level and time."""

# ruff: noqa: E501  # lines of logs are as long as they are

from __future__ import annotations

import time
from datetime import datetime, timezone

import pytest

from gpuwatch.engines.log_prefixes import strip_prefix, time_of


@pytest.mark.parametrize(
    ("line", "level", "proc", "ranks", "message"),
    [
        ("INFO 01-11 15:51:02 llm_engine.py:70] Initializing", "INFO", "", (), "Initializing"),
        ("WARNING 06-26 07:12:07 [profiling.py:245] short", "WARNING", "", (), "short"),
        ("(VllmWorkerProcess pid=191) WARNING 02-22 22:09:01 custom_all_reduce.py:136] Custom", "WARNING", "VllmWorkerProcess", (), "Custom"),
        ("(VllmWorker rank=0 pid=247) INFO 06-07 20:33:02 [gpu_worker.py:1] x", "INFO", "VllmWorker rank=0", (), "x"),
        ("(VllmWorker PP0_TP1 pid=7) INFO 06-07 20:33:02 [gpu_worker.py:1] x", "INFO", "VllmWorker PP0_TP1", ("PP0", "TP1"), "x"),
        ("(EngineCore_DP0 pid=17374) ERROR 09-28 15:47:24 [core.py:718] ValueError: y", "ERROR", "EngineCore_DP0", ("DP0",), "ValueError: y"),
        ("(Worker_TP1 pid=448) INFO 08-14 14:07:22 [gpu_worker.py:563] z", "INFO", "Worker_TP1", ("TP1",), "z"),
        ("(Worker_DP0_PP0_PCP0_TP1_DCP0_EP1 pid=4) INFO 08-14 14:07:22 [a.py:1] z", "INFO", "Worker_DP0_PP0_PCP0_TP1_DCP0_EP1", ("DP0", "PP0", "PCP0", "TP1", "DCP0", "EP1"), "z"),
        ("(Worker pid=4340) (APIServer pid=3296) INFO 11-29 15:47:27 [a.py:1] Parent", "INFO", "APIServer", (), "Parent"),
        ("(APIServer pid=30233) INFO 11-29 15:43:50 [api_utils.py:347] ", "INFO", "APIServer", (), ""),
        ("(APIServer pid=30233) INFO 11-29 15:43:50 [api_utils.py:347]", "INFO", "APIServer", (), ""),
        ("(APIServer pid=11869) ValueError: naked", "", "APIServer", (), "ValueError: naked"),
        ("(APIServer pid=9) INFO:     127.0.0.1:1 - GET", "INFO", "APIServer", (), "127.0.0.1:1 - GET"),
        ("[03-04 08:05:09] Exit code: -9", "", "", (), "Exit code: -9"),
        ("[03-04 08:05:09 TP1] Load weight begin", "", "", ("TP1",), "Load weight begin"),
        ("INFO 10-13 09:06:25 [v1/executor/multiproc_executor.py:558] Parent", "INFO", "", (), "Parent"),
        ("(RayWorkerWrapper pid=1463574, ip=192.0.2.2) INFO 03-27 10:29:01 [worker.py:267] m", "INFO", "RayWorkerWrapper", (), "m"),
        ("[2026-05-24 03:51:44 TP0] Decode batch", "", "", ("TP0",), "Decode batch"),
        ("[2026-05-24 03:51:44.123 DP1 PP0 TP3 EP3] Load", "", "", ("DP1", "PP0", "TP3", "EP3"), "Load"),
        ("[2025-10-13 09:06:25] node:3663:4044 [0] NCCL WARN x", "", "", (), "node:3663:4044 [0] NCCL WARN x"),
        ("[TP0] Decode batch. #running", "", "", ("TP0",), "Decode batch. #running"),
        ("[rank1]: torch.OutOfMemoryError: x", "", "", ("TP1",), "torch.OutOfMemoryError: x"),
        ("2024-06-28T06:11:52.685300953Z (LLMRayActor pid=20770) INFO 06-28 06:11:45 x.py:45] # GPU", "INFO", "LLMRayActor", (), "# GPU"),
        ("[2026-02-24T20:21:58Z] (EngineCore_DP0 pid=6940) ValueError: Free", "", "EngineCore_DP0", ("DP0",), "ValueError: Free"),
        ("2025-11-29T15:43:50.123456+0100 gpu-1 vllm[123]: INFO 11-29 15:43:50 [a.py:1] m", "INFO", "", (), "m"),
        ("2025-11-29T15:43:50+0000 host kernel: NVRM: Xid (PCI:0000:01:00): 79", "", "", (), "NVRM: Xid (PCI:0000:01:00): 79"),
        ("Nov 29 15:43:50 gpu-1 kernel: NVRM: Xid", "", "", (), "NVRM: Xid"),
        ("[93297.027938] NVRM: Xid (PCI:0000:43:00): 13", "", "", (), "NVRM: Xid (PCI:0000:43:00): 13"),
        ("vllm-1  | ERROR 11-18 18:07:28 engine.py:366] ValueError: No", "ERROR", "", (), "ValueError: No"),
        ("[pod/vllm-0/vllm] INFO 11-18 18:07:28 [a.py:1] x", "INFO", "", (), "x"),
        ("llm-0 engine (EngineCore_DP0 pid=9) ERROR 11-02 10:11:00 [core.py:7] boom", "ERROR", "EngineCore_DP0", ("DP0",), "boom"),
        ("llm-7d9f4-x2x8k engine [2026-03-11 09:00:01 TP1] Load", "", "", ("TP1",), "Load"),
        ('serving llm-0 engine   File "a.py", line 3, in forward', "", "", (), '  File "a.py", line 3, in forward'),
        ("llm-0 engine torch.OutOfMemoryError: CUDA out of memory", "", "", (), "torch.OutOfMemoryError: CUDA out of memory"),
        ("two-part words are prose", "", "", (), "two-part words are prose"),
        ("3: (Worker_TP1 pid=4) INFO 11-02 10:11:00 [a.py:1] x", "INFO", "Worker_TP1", ("TP1",), "x"),
        ("12: torch.OutOfMemoryError: y", "", "", (), "torch.OutOfMemoryError: y"),
        ("12: rows were read", "", "", (), "12: rows were read"),
        ("<14>1 2026-03-11T09:12:00.123Z node sglang 42 - - [2026-03-11 09:00:01 TP0] Load", "", "", ("TP0",), "Load"),
        ('<14>1 2026-03-11T09:12:00+01:00 node app - ID7 [meta seq="1"] INFO 11-02 10:11:00 [a.py:1] x', "INFO", "", (), "x"),
        ("<4>[93297.027938] NVRM: Xid (PCI:0000:43:00): 13", "", "", (), "NVRM: Xid (PCI:0000:43:00): 13"),
        ("[1,0]<stderr>:INFO 11-02 10:11:00 [a.py:1] x", "INFO", "", (), "x"),
        ('{"asctime": "2026-09-01 10:00:00", "levelname": "ERROR", "processName": "EngineCore_DP1", "process": 5, "message": "boom"}', "ERROR", "EngineCore_DP1", ("DP1",), "boom"),
        ('{"log":"INFO 11-29 10:00:00 [a.py:1] boom\\n","stream":"stderr","time":"2026-11-29T10:00:00.1Z"}', "INFO", "", (), "boom"),
        ('{"level":"warn","msg":"no memory","ts":"2026-11-29T10:00:00Z"}', "WARN", "", (), "no memory"),
        ('{"MESSAGE":"(Worker_TP1 pid=4) ERROR 11-29 10:00:00 [a.py:1] x","_PID":"4"}', "ERROR", "Worker_TP1", ("TP1",), "x"),
        ("2026-11-29T10:00:00.123456789Z stderr F (EngineCore pid=4) ERROR 11-29 10:00:00 [a.py:1] x", "ERROR", "EngineCore", (), "x"),
        ("[Sun Nov 29 15:43:50 2026] NVRM: Xid (PCI:0000:01:00): 79", "", "", (), "NVRM: Xid (PCI:0000:01:00): 79"),
        ("Nov 29 15:43:50.123456 gpu-1 kernel: NVRM: Xid", "", "", (), "NVRM: Xid"),
        ("Sun 2026-11-29 15:43:50 UTC gpu-1 vllm[7]: INFO 11-29 15:43:50 [a.py:1] m", "INFO", "", (), "m"),
        ("2026-11-29 15:43:50,881 ERROR services.py:1169 -- Failed", "ERROR", "", (), "Failed"),
        ("2026-11-29 15:43:50,881 - my.app - WARNING - Slow", "WARNING", "", (), "Slow"),
        ('{"model": "x"}', "", "", (), '{"model": "x"}'),
        ("[bold red]not a prefix[/bold red]", "", "", (), "[bold red]not a prefix[/bold red]"),
        ("2026-02-24T20:21:58Z torch.OutOfMemoryError CUDA: out", "", "", (), "torch.OutOfMemoryError CUDA: out"),
        ("    raise ValueError(", "", "", (), "    raise ValueError("),
        ("", "", "", (), ""),
    ],
)  # fmt: skip
def test_a_prefix_comes_off(line, level, proc, ranks, message):
    found = strip_prefix(line)
    assert (found.level, found.proc, found.ranks, found.message) == (level, proc, ranks, message)


def test_the_process_id_and_rays_repetitions_are_kept():
    found = strip_prefix(
        "(RayWorkerWrapper pid=14, ip=192.0.2.2) INFO 03-27 10:29:01 [w.py:2] m [repeated 30x across cluster]"
    )
    assert (found.pid, found.repeat, found.message) == (14, 30, "m")


def test_the_outermost_time_wins_and_only_it_is_absolute():
    both = strip_prefix("2024-06-28T06:11:52.685300953Z INFO 06-28 08:11:45 x.py:45] m")
    assert (both.time, both.absolute) == ("2024-06-28T06:11:52.685300953Z", True)
    local = strip_prefix("INFO 06-28 08:11:45 x.py:45] m")
    assert (local.time, local.absolute) == ("06-28 08:11:45", False)


@pytest.fixture
def two_hours_east(monkeypatch):
    monkeypatch.setenv("TZ", "XXX-2")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at(*moment: int) -> int:
    return round(datetime(*moment, tzinfo=timezone.utc).timestamp() * 1000)


@pytest.mark.usefixtures("two_hours_east")
def test_times_are_read_with_their_zone_or_as_local_time():
    near = at(2026, 1, 1, 12, 0, 0)
    assert time_of("2024-06-28T06:11:52.685300953Z", near) == at(2024, 6, 28, 6, 11, 52) + 685
    assert time_of("2025-11-29T15:43:50+0100", near) == at(2025, 11, 29, 14, 43, 50)
    assert time_of("2025-11-29T15:43:50-05:30", near) == at(2025, 11, 29, 21, 13, 50)
    assert time_of("2025-11-29 15:43:50", near) == at(2025, 11, 29, 13, 43, 50)
    assert time_of("2025-11-29 15:43:50,562", near) == at(2025, 11, 29, 13, 43, 50)
    assert time_of("Tue Nov 25 15:43:50 2025", near) == at(2025, 11, 25, 13, 43, 50)


@pytest.mark.usefixtures("two_hours_east")
def test_a_time_without_a_year_is_the_nearest_one():
    assert time_of("12-31 23:00:00", at(2026, 1, 1, 0, 0, 0)) == at(2025, 12, 31, 21, 0, 0)
    assert time_of("01-01 01:00:00", at(2025, 12, 31, 23, 30, 0)) == at(2025, 12, 31, 23, 0, 0)
    assert time_of("Nov 29 15:43:50", at(2025, 11, 30, 0, 0, 0)) == at(2025, 11, 29, 13, 43, 50)
    assert time_of("02-29 10:00:00", at(2024, 3, 1, 0, 0, 0)) == at(2024, 2, 29, 8, 0, 0)


@pytest.mark.parametrize("text", ["", "03:51:54", "99-99 99:99:99", "2025-13-40 00:00:00", "rubbish"])
def test_what_is_no_date_has_no_time(text):
    assert time_of(text, at(2026, 1, 1)) is None
