"""Whose end it was: another week's, another program's, another container's, or one that somebody asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuwatch.sources.files.read import read_file
from tests.unit.diagnosis.incidents import Verdict

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"
KILLED = (LOGS / "vllm_0_31_0_killed.log").read_text(encoding="utf-8")
"""Its engine is gone on the 29th of November at 15:47:27."""
OLD = (LOGS / "vllm_0_10_2_killed.log").read_text(encoding="utf-8")
GONE = (
    "(APIServer pid=8) INFO 11-29 15:39:50 [api_server.py:1896] vLLM API server version 0.11.0\n"
    "{asked}"
    "(APIServer pid=8) ERROR 11-29 15:43:11 [core_client.py:562] Engine core proc EngineCore_DP0 died unexpectedly, "
    "shutting down client.\n"
)
CGROUP = (
    "Nov 29 15:47:20 h kernel: oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg={group},"
    "task_memcg={group},task={name},pid=999,uid=0\n"
    "Nov 29 15:47:20 h kernel: Memory cgroup out of memory: Killed process 999 ({name}) total-vm:90000000kB, "
    "anon-rss:60000000kB, file-rss:0kB, shmem-rss:0kB, UID:0\n"
)
DESCRIBED = """\
Name:  serve-0
Containers:
  vllm:
    Image:         vllm/vllm-openai:v0.31.0
    Last State:     Terminated
      Reason:       OOMKilled
      Exit Code:    137
      Started:      {began}
      Finished:     {ended}
    Limits:
      memory:  64Gi
"""
INSPECTED = """\
[
    {{
        "State": {{
            "OOMKilled": true,
            "ExitCode": 137,
            "FinishedAt": "{ended}"
        }},
        "Config": {{
            "Image": "vllm/vllm-openai:v0.31.0"
        }}
    }}
]
"""
AS_YAML = """\
apiVersion: v1
kind: Pod
status:
  containerStatuses:
  - image: vllm/vllm-openai:v0.31.0
    lastState:
      terminated:
        exitCode: 137
        finishedAt: "{ended}"
        reason: OOMKilled
    name: vllm
"""
INIT = """\
Name:  serve-0
Init Containers:
  fetch:
    Image:  curlimages/curl
    State:          {state}
      Reason:       OOMKilled
      Exit Code:    137
    Limits:
      memory:  256Mi
Containers:
  main:
    Image:  registry/own:1
    State:          {engine}
    Limits:
      memory:          64Gi
      nvidia.com/gpu:  1
"""


def judged(folder: Path, **files: str) -> Verdict:
    return Verdict(folder, {f"{name}.txt": text for name, text in files.items()})


class TestContainers:
    @pytest.mark.parametrize(
        "pod",
        [
            DESCRIBED.format(began="Fri, 20 Nov 2026 15:40:00 +0000", ended="Fri, 20 Nov 2026 15:45:00 +0000"),
            AS_YAML.format(ended="2026-11-20T15:45:00Z"),
            INSPECTED.format(ended="2026-11-20T15:45:00.123456789Z"),
        ],
    )
    def test_a_kill_that_the_pod_remembers_of_another_week_explains_no_end_of_today(self, tmp_path, pod):
        verdict = judged(tmp_path, pod=pod, log=KILLED)
        assert verdict.ids[0] == "worker_died"
        assert verdict["worker_died"].caused_by is None
        assert verdict["k8s_oomkilled"].severity == "warning"
        assert "9 days before" in verdict.said("k8s_oomkilled")

    def test_a_kill_at_the_time_of_the_end_explains_it(self, tmp_path):
        pod = DESCRIBED.format(began="Sun, 29 Nov 2026 15:40:00 +0000", ended="Sun, 29 Nov 2026 15:47:26 +0000")
        verdict = judged(tmp_path, pod=pod, log=KILLED)
        assert verdict.ids[:2] == ["k8s_oomkilled", "worker_died"]
        assert verdict["worker_died"].caused_by == "k8s_oomkilled"
        assert "Not ruled out" not in verdict.said("worker_died")

    def test_an_init_container_that_is_killed_keeps_the_engine_from_starting(self, tmp_path):
        pod = INIT.format(state="Terminated", engine="Waiting\n      Reason:       PodInitializing")
        finding = judged(tmp_path, pod=pod)["k8s_oomkilled"]
        assert finding.severity == "critical"
        assert "is not started before it" in finding.cause

    def test_an_init_container_that_was_killed_once_is_told_beside_an_engine_that_runs(self, tmp_path):
        pod = INIT.format(state="Terminated", engine="Running").replace("    State:          T", "    Last State:  T")
        assert judged(tmp_path, pod=pod)["k8s_oomkilled"].severity == "info"

    def test_a_container_with_gpus_is_the_engines_whatever_its_name(self, tmp_path):
        pod = INIT.format(state="Terminated", engine="Running").replace("Init Containers:", "Containers:")
        finding = judged(tmp_path, pod=pod)["k8s_oomkilled"]
        assert finding.severity == "info"
        assert "not the engine's" in finding.cause


class TestPrograms:
    @pytest.mark.parametrize("group", ["/system.slice/airflow-worker.service", "/system.slice/batch.service/worker"])
    def test_a_kill_within_the_limit_of_another_service_ended_nothing_of_the_engine(self, tmp_path, group):
        verdict = judged(tmp_path, dmesg=CGROUP.format(group=group, name="python3"), log=KILLED)
        assert verdict.ids[0] == "worker_died"
        assert "lack of memory" not in verdict["worker_died"].cause
        assert verdict["host_memory_oversubscribed"].severity == "info"
        assert "not the engine:" in verdict["host_memory_oversubscribed"].cause

    @pytest.mark.parametrize(
        ("group", "name"),
        [
            ("/system.slice/vllm-main.service", "python3"),
            ("/system.slice/docker-0a1b.scope", "python3"),
            ("/user.slice/user-1000.slice/session-3.scope", "python3"),
            ("/system.slice/containerd.service/pods", "python3"),
            ("/system.slice/models.service", "VLLM::EngineCor"),
        ],
    )
    def test_a_kill_in_a_cgroup_that_may_be_the_engines_explains_its_end(self, tmp_path, group, name):
        verdict = judged(tmp_path, dmesg=CGROUP.format(group=group, name=name), log=KILLED)
        assert verdict["worker_died"].caused_by == "host_memory_oversubscribed"

    def test_another_unit_that_was_killed_is_not_the_end_of_an_engine_that_has_its_own(self, tmp_path):
        journal = (
            "Nov 29 15:47:20 h systemd[1]: airflow-worker.service: Main process exited, code=killed, status=9/KILL\n"
        )
        verdict = judged(tmp_path, journal=journal, log=KILLED)
        assert "airflow" not in verdict.said("worker_died")
        assert "was gone without an error" in verdict["worker_died"].cause

    @pytest.mark.parametrize(
        ("code", "id_"), [(94, "xid_hardware"), (31, "xid_software"), (13, "xid_software"), (45, "xid_software")]
    )
    def test_an_xid_of_another_program_explains_no_end_of_the_engine(self, tmp_path, code, id_):
        line = "Nov 29 15:47:26 h kernel: NVRM: Xid (PCI:0000:3b:00): {code}, pid=888, name={name}, more\n"
        verdict = judged(tmp_path, dmesg=line.format(code=code, name="trainer"), log=KILLED)
        assert verdict.ids[0] == "worker_died"
        assert verdict["worker_died"].caused_by is None
        assert "the driver names trainer (pid 888)" in verdict.said(id_)
        assert verdict[id_].severity != "critical"
        for name in ("VLLM::EngineCor", "python3", "nvidia-cuda-mps", "<unknown>"):
            own = line.format(code=code, name=name)
            assert "the driver names" not in judged(tmp_path, dmesg=own, log=KILLED).said(id_)

    def test_an_xid_without_a_program_does_not_rule_another_one_out(self, tmp_path):
        line = "Nov 29 15:47:26 h kernel: NVRM: Xid (PCI:0000:3b:00): 94, Contained: SM (0x1)\n"
        assert "Not ruled out: that it was another program's" in judged(tmp_path, dmesg=line, log=KILLED).said(
            "xid_hardware"
        )

    def test_a_card_that_fell_off_the_bus_ends_every_program(self, tmp_path):
        line = "Nov 29 15:47:26 h kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=888, name=trainer, GPU has fallen off\n"
        verdict = judged(tmp_path, dmesg=line, log=KILLED)
        assert verdict["worker_died"].caused_by == "xid_hardware"

    SMI = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 570.86.15              Driver Version: 570.86.15      CUDA Version: 12.8     |
|-----------------------------------------+------------------------+----------------------+
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:19:00.0 Off |                    0 |
| {fan}   36C    P0            {power} /  700W |   72000MiB /  81559MiB |      0%      Default |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA H100 80GB HBM3          On  |   00000000:3B:00.0 Off |                    {ecc} |
| N/A   37C    P0            121W /  700W |   72000MiB /  81559MiB |      0%      Default |
+-----------------------------------------+------------------------+----------------------+
"""
    DEAD = """\
|   2  ERR!                           On  |   00000000:5D:00.0 Off |                 ERR! |
|ERR!  ERR! ERR!             N/A /  ERR!  |     ERR! / ERR!        |    ERR!      ERR!    |
+-----------------------------------------+------------------------+----------------------+
"""

    def test_errors_that_a_table_counts_name_the_card_and_no_row_that_nobody_saw(self, tmp_path):
        verdict = judged(tmp_path, smi=self.SMI.format(fan="N/A", power="120W", ecc=2))
        assert verdict.ids == ["xid_hardware"]
        assert "GPU 1 (00000000:3B:00.0) counts 2 uncorrected ECC errors" in verdict["xid_hardware"].cause
        assert "replaced again" not in verdict["xid_hardware"].cause

    def test_a_card_of_which_nothing_but_errors_is_read_is_lost_and_not_by_another_card_s_errors(self, tmp_path):
        verdict = judged(tmp_path, smi=self.SMI.format(fan="N/A", power="120W", ecc=2) + self.DEAD)
        assert "GPU 2" in verdict["gpu_lost"].cause
        assert verdict["gpu_lost"].caused_by is None

    def test_a_card_that_dmon_shows_held_by_heat_is_throttled_and_its_group_waits_for_it(self, tmp_path):
        dmon = (
            "# gpu    pwr  gtemp     sm    mem   mclk   pclk  pviol  tviol\n"
            "# Idx      W      C      %      %    MHz    MHz      %   bool\n"
            "    0    694     66     99     60   2619   1755      0      0\n"
            "    1    350     91     99     60   2619    900      0      1\n"
        )
        verdict = judged(tmp_path, dmon=2 * dmon)
        assert verdict.ids == ["throttling", "tp_straggler"]
        assert "GPU 1 lowers its clocks because it is hot" in verdict["throttling"].cause
        assert verdict["tp_straggler"].caused_by == "throttling"
        cool = judged(tmp_path, dmon=2 * dmon.replace("0      1\n", "0      0\n"))
        assert cool.ids == ["tp_straggler"]

    def test_a_sensor_that_fails_is_no_lost_card(self, tmp_path):
        assert judged(tmp_path, smi=self.SMI.format(fan="ERR!", power="ERR!", ecc=0)).ids == []

    def test_a_row_that_waits_for_a_reset_is_told_as_that(self, tmp_path):
        query = (
            "==============NVSMI LOG==============\n\nAttached GPUs : 1\nGPU 00000000:19:00.0\n"
            "    Product Name                          : NVIDIA H100 80GB HBM3\n    Remapped Rows\n"
            "        Pending                           : {}\n        Remapping Failure Occurred        : {}\n"
        )
        cause = judged(tmp_path, q=query.format("Yes", "No"))["xid_hardware"].cause
        assert "a remapped row of GPU 0 (00000000:19:00.0) waits for a reset" in cause
        cause = judged(tmp_path, q=query.format("No", "Yes"))["xid_hardware"].cause
        assert "a row of GPU 0 (00000000:19:00.0) could not be remapped" in cause


class TestOnRequest:
    @pytest.mark.parametrize(
        "asked",
        [
            "^C(APIServer pid=8) INFO 11-29 15:43:10 [launcher.py:99] Shutting down FastAPI HTTP server.\n",
            "(APIServer pid=8) INFO 11-29 15:43:10 [launcher.py:126] [shutdown] API server: shutdown triggered\n",
            "(EngineCore_DP0 pid=9) ERROR 11-29 15:43:10 [core.py:710] KeyboardInterrupt\n",
            "(EngineCore_DP0 pid=9) INFO 11-29 15:43:10 [core.py:600] EngineCore received signal 15\n",
        ],
    )
    def test_an_end_after_a_request_to_end_is_no_kill(self, tmp_path, asked):
        verdict = judged(tmp_path, log=GONE.format(asked=asked))
        assert verdict.ids == ["worker_died"]
        assert verdict["worker_died"].severity == "info"
        assert "asked to end" in verdict["worker_died"].cause
        assert "1 s later" in verdict["worker_died"].cause
        assert verdict.not_enough == ()

    def test_the_same_words_long_before_or_after_the_end_ask_for_nothing(self, tmp_path):
        early = "(APIServer pid=8) INFO 11-29 15:20:10 [launcher.py:99] Shutting down FastAPI HTTP server.\n"
        late = early.replace("15:20", "15:43")
        assert judged(tmp_path, log=GONE.format(asked=early))["worker_died"].severity == "critical"
        assert judged(tmp_path, log=GONE.format(asked="") + late)["worker_died"].severity == "critical"

    @pytest.mark.parametrize("log", [KILLED, OLD], ids=["0.31", "0.10"])
    def test_a_server_that_puts_away_what_is_left_after_a_kill_was_not_asked(self, tmp_path, log):
        assert judged(tmp_path, log=log)["worker_died"].severity == "critical"

    def test_a_kill_for_lack_of_memory_is_told_although_the_server_was_asked(self, tmp_path):
        asked = "(APIServer pid=8) INFO 11-29 15:43:10 [launcher.py:99] Shutting down FastAPI HTTP server.\n"
        dmesg = (
            "Nov 29 15:43:11 h kernel: Out of memory: Killed process 9 (VLLM::EngineCor) total-vm:9000000kB, "
            "anon-rss:8000000kB, file-rss:0kB, shmem-rss:0kB, UID:0\n"
        )
        assert judged(tmp_path, log=GONE.format(asked=asked), dmesg=dmesg)["worker_died"].severity == "critical"

    def test_a_unit_that_did_not_end_in_time_names_the_setting(self, tmp_path):
        journal = (
            "Nov 29 15:47:20 h systemd[1]: Stopping vllm.service - Models...\n"
            "Nov 29 15:48:50 h systemd[1]: vllm.service: State 'stop-sigterm' timed out. Killing.\n"
            "Nov 29 15:48:50 h systemd[1]: vllm.service: Main process exited, code=killed, status=9/KILL\n"
        )
        finding = judged(tmp_path, journal=journal)["worker_died"]
        assert finding.severity == "info"
        assert "killed 90 s later" in finding.cause
        assert finding.advice[-1].flag == "TimeoutStopSec"

    def test_the_stop_of_another_unit_asks_the_engine_for_nothing(self, tmp_path):
        journal = "Nov 29 15:47:20 h systemd[1]: Stopping airflow-worker.service - Jobs...\n"
        assert judged(tmp_path, journal=journal, log=KILLED)["worker_died"].severity == "critical"


STOOD = (
    "(APIServer pid=8) INFO 11-29 15:4{minute}:{second:02d} [loggers.py:127] Engine 000: Avg prompt throughput: {read} "
    "tokens/s, Avg generation throughput: {wrote} tokens/s, Running: 5 reqs, Waiting: 3 reqs, GPU KV cache usage: "
    "{pool}%, Prefix cache hit rate: 0.0%\n"
)


def stood(lines: int, read: str = "0.0", pool: float = 20.0, fills: float = 0.0) -> str:
    return "".join(
        STOOD.format(minute=at // 6, second=at % 6 * 10, read=read, wrote="0.0", pool=round(pool + at * fills, 1))
        for at in range(lines)
    )


class TestStandstill:
    WENT_ON = STOOD.format(minute=9, second=0, read="90.0", wrote="50.0", pool=21.0)

    def test_requests_that_run_without_a_token_for_minutes_are_a_stall(self, tmp_path):
        verdict = judged(tmp_path, log=stood(19))
        assert verdict.ids == ["engine_stalled"]
        assert verdict["engine_stalled"].severity == "critical"
        assert "stood still for 180 s: 5 requests run and 3 wait" in verdict["engine_stalled"].cause

    def test_a_stall_that_ended_is_told_as_that(self, tmp_path):
        finding = judged(tmp_path, log=stood(19) + self.WENT_ON)["engine_stalled"]
        assert finding.severity == "warning"
        assert "It went on afterwards." in finding.cause

    @pytest.mark.parametrize(
        "log", [stood(6), stood(19, fills=0.4), stood(19, read="0.3"), stood(2) + WENT_ON + stood(5)]
    )
    def test_a_short_pause_a_pool_that_fills_or_tokens_that_are_read_are_no_stall(self, tmp_path, log):
        assert "engine_stalled" not in judged(tmp_path, log=log).ids


class TestUnknownErrors:
    def test_the_error_with_which_an_engine_ended_is_quoted(self, tmp_path):
        tag = "(EngineCore_DP0 pid=9) ERROR 11-29 15:41:05 [core.py:708] "
        log = (
            "(APIServer pid=8) INFO 11-29 15:39:50 [api_server.py:1896] vLLM API server version 0.11.0\n"
            f"{tag}EngineCore failed to start.\n{tag}Traceback (most recent call last):\n"
            f"{tag}  File \"/x/a.py\", line 1, in f\n{tag}KeyError: 'layer.7'\n"
            f"{tag}During handling of the above exception, another exception occurred:\n"
            f"{tag}ValueError: no weights for layer 7\n"
            "(APIServer pid=8) RuntimeError: Engine core initialization failed. See root cause above.\n"
            "(APIServer pid=8) TypeError: of another process\n"
        )
        verdict = judged(tmp_path, log=log)
        assert verdict.ids == []
        (lacking,) = verdict.not_enough
        assert lacking.missing.endswith("known here: ValueError: no weights for layer 7 [log.txt:7]")

    def test_a_text_that_holds_nothing_but_exceptions_is_of_no_kind(self, tmp_path):
        path = tmp_path / "notes.txt"
        path.write_text("ValueError: something of another program\n", encoding="utf-8")
        assert read_file(str(path), 0).kind == "unknown"


CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
}


class TestHeads:
    def test_heads_that_do_not_divide_among_the_ranks_are_foreseen(self, tmp_path):
        verdict = Verdict(tmp_path, {"config.json": json.dumps(CONFIG)}, "vllm serve x -tp 8")
        assert verdict.ids == ["flag_unknown"]
        assert "will not start: 28 attention heads cannot be shared by 8 ranks" in verdict["flag_unknown"].cause
        assert verdict.move("flag_unknown", "--tensor-parallel-size") == ("8", "4")

    @pytest.mark.parametrize("flags", ["vllm serve x -tp 4", "vllm serve x -tp 7", "vllm serve x"])
    def test_heads_that_divide_are_not(self, tmp_path, flags):
        assert Verdict(tmp_path, {"config.json": json.dumps(CONFIG)}, flags).ids == []


class TestLibraries:
    @pytest.mark.parametrize(
        ("words", "who"),
        [
            ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "cuBLAS"),
            ("torch.AcceleratorError: CUDA error: out of memory", "CUDA"),
        ],
    )
    def test_memory_that_a_library_lacked_while_serving_is_no_prefill(self, tmp_path, words, who):
        log = (
            "(APIServer pid=8) INFO 11-29 15:39:50 [api_server.py:1896] vLLM API server version 0.11.0\n"
            "(EngineCore_DP0 pid=9) INFO 11-29 15:40:30 [kv_cache_utils.py:1087] GPU KV cache size: 400,000 tokens\n"
            "(APIServer pid=8) INFO:     Application startup complete.\n"
            f"(EngineCore_DP0 pid=9) ERROR 11-29 15:50:01 [core.py:710] {words}\n"
        )
        finding = judged(tmp_path, log=log)["gpu_out_of_memory"]
        assert finding.cause.startswith(f"{who} found no memory left on the GPU")
        assert [each.flag for each in finding.advice if each.flag] == ["--gpu-memory-utilization"]
