"""Kills, hardware, launches, pages and load, in other formats than the cases; look-alikes get other answers."""

# ruff: noqa: E501  # lines of logs are as long as they are

from __future__ import annotations

import pytest

from gpuwatch.diagnosis.xid_table import TABLE, is_hardware
from tests.unit.diagnosis.incidents import CASES, Verdict, judge_log

LOGS = CASES.parent / "logs"
VLLM = """\
(APIServer pid=11) INFO 03-04 08:00:00 [api_server.py:1893] vLLM API server version 0.24.0
(APIServer pid=11) INFO 03-04 08:00:00 [utils.py:266] non-default args: {'model': '/srv/m', 'max_model_len': 8192, 'tensor_parallel_size': 2, 'gpu_memory_utilization': 0.9, 'max_num_seqs': 64}
(EngineCore pid=12) INFO 03-04 08:01:00 [kv_cache_utils.py:1374] GPU KV cache size: 400,000 tokens
(APIServer pid=11) INFO:     Application startup complete.
"""


def stats(
    minute: int, second: int, running: int, waiting: int, pool: float, *, prompt: float = 0.0, generated: float = 900.0
) -> str:
    return (
        f"(APIServer pid=11) INFO 03-04 08:{minute:02}:{second:02} [loggers.py:259] Engine 000: Avg prompt throughput: {prompt} tokens/s, "
        f"Avg generation throughput: {generated} tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: {pool}%, "
        "Prefix cache hit rate: 12.0%\n"
    )


class TestKills:
    DIED = "(EngineCore pid=12) ERROR 03-04 08:05:00 [multiproc_executor.py:300] Worker proc VllmWorker-1 died unexpectedly (exit code: {}), shutting down executor.\n"

    @pytest.mark.parametrize(
        ("code", "words"),
        [("-9", "by SIGKILL"), ("-11", "by SIGSEGV"), ("137", "by SIGKILL"), ("1", "with exit code 1")],
    )
    def test_a_worker_names_its_signal(self, code, words, tmp_path):
        verdict = judge_log(tmp_path, VLLM + self.DIED.format(code))
        assert verdict.ids[0] == "worker_died"
        assert words in verdict["worker_died"].cause

    def test_without_the_kernel_log_the_killer_is_asked_for(self, tmp_path):
        verdict = judge_log(tmp_path, VLLM + self.DIED.format("-9"))
        assert "somebody or something killed it" in verdict["worker_died"].cause
        assert ["dmesg" in each.missing for each in verdict.not_enough] == [True]

    def test_the_kernel_log_names_the_killer_and_the_limit(self, tmp_path):
        dmesg = (
            "[ 5000.100000] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/user.slice,task=VLLM::Worker_TP,pid=1301,uid=0\n"
            "[ 5000.200000] Out of memory: Killed process 1301 (VLLM::Worker_TP) total-vm:90000000kB, anon-rss:41943040kB, file-rss:0kB\n"
        )
        verdict = judge_log(tmp_path, VLLM + self.DIED.format("-9"), dmesg=dmesg)
        assert verdict.ids[0] == "host_memory_oversubscribed"
        assert verdict["worker_died"].caused_by == "host_memory_oversubscribed"
        assert "the whole host ran out of memory; it held 40.0 GiB" in verdict["host_memory_oversubscribed"].cause
        assert verdict.not_enough == ()

    def test_a_limit_of_a_cgroup_is_not_the_whole_host(self, tmp_path):
        dmesg = (
            "[ 5000.1] x\n[ 5000.100000] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/system.slice/vllm.service,task_memcg=/system.slice/vllm.service,task=python3,pid=77,uid=0\n"
            "[ 5000.200000] Memory cgroup out of memory: Killed process 77 (python3) total-vm:9000kB, anon-rss:1048576kB\n"
        )
        verdict = Verdict(tmp_path, {"dmesg.txt": dmesg})
        assert verdict.ids == ["host_memory_oversubscribed"]
        assert "its cgroup's limit was reached" in verdict["host_memory_oversubscribed"].cause

    def test_an_innocent_victim_is_not_called_the_culprit(self, tmp_path):
        verdict = Verdict(
            tmp_path,
            {
                "dmesg.txt": "[ 5000.200000] Out of memory: Killed process 900 (postgres) total-vm:9000kB, anon-rss:104857kB\n"
            },
        )
        assert "The victim is not the engine" in verdict["host_memory_oversubscribed"].cause

    def test_kubernetes_says_who_it_was(self, tmp_path):
        described = (
            "Name:         vllm-0\nNamespace:    llm\nContainers:\n  vllm:\n    State:          Running\n    Last State:     Terminated\n"
            "      Reason:       OOMKilled\n      Exit Code:    137\n    Limits:\n      cpu:     16\n      memory:  64Gi\n"
        )
        verdict = judge_log(tmp_path, VLLM.splitlines(keepends=True)[0], kubectl=described)
        assert verdict.ids[0] == "k8s_oomkilled"

    def test_a_container_that_was_not_killed_for_memory_is_not_said_to_be(self, tmp_path):
        inspected = '[\n  {\n    "State": {\n      "Status": "exited",\n      "OOMKilled": false,\n      "ExitCode": 0\n    }\n  }\n]\n'
        assert Verdict(tmp_path, {"inspect.json": inspected}).ids == []

    def test_137_alone_is_a_kill_by_somebody(self, tmp_path):
        listed = 'CONTAINER ID   IMAGE              COMMAND   CREATED       STATUS                       NAMES\n0a1b2c3d4e5f   vllm/vllm-openai   "x"       2 hours ago   Exited (137) 5 minutes ago   vllm\n'
        assert judge_log(tmp_path, VLLM, docker=listed).ids[0] == "worker_died"

    def test_an_eviction_is_none_of_the_kills(self, tmp_path):
        described = "Name:  vllm-0\nStatus:  Failed\nReason:  Evicted\nMessage:  The node was low on resource: ephemeral-storage. Container vllm was using 100Gi, request is 0.\n"
        verdict = Verdict(tmp_path, {"describe.txt": described})
        assert verdict.ids == ["k8s_evicted"]
        assert "ephemeral-storage" in verdict["k8s_evicted"].cause

    def test_a_segmentation_fault_is_a_crash_and_no_kill(self, tmp_path):
        verdict = judge_log(tmp_path, VLLM + "!!!!!!! Segfault encountered !!!!!!!\n")
        assert "by SIGSEGV: a crash of native code" in verdict["worker_died"].cause

    def test_an_engine_that_was_gone_without_a_word(self, tmp_path):
        log = (
            VLLM
            + "(APIServer pid=11) ERROR 03-04 08:05:00 [core_client.py:600] Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.\n"
        )
        assert "was gone without an error of its own" in judge_log(tmp_path, log)["worker_died"].cause

    def test_an_engine_that_raised_something_unknown_asks_for_the_lines_above(self, tmp_path):
        log = VLLM + "(EngineCore pid=12) ERROR 03-04 08:05:00 [core.py:900] EngineCore encountered a fatal error.\n"
        verdict = judge_log(tmp_path, log)
        assert verdict.ids == []
        assert [each.id for each in verdict.not_enough] == ["worker_died"]

    def test_a_worker_that_stopped_with_a_refused_start_is_no_death(self, tmp_path):
        log = VLLM.splitlines(keepends=True)[0] + (
            "ValueError: To serve at least one request with the model's max seq len (8192), (4.0 GiB KV cache is needed, which is larger than the available KV cache memory (1.0 GiB).\n"
            "(EngineCore pid=12) ERROR 03-04 08:05:00 [multiproc_executor.py:300] Worker proc VllmWorker-0 died unexpectedly (exit code: None), shutting down executor.\n"
        )
        assert judge_log(tmp_path, log).ids == ["max_model_len_exceeds_kv"]

    def test_ray_has_a_newer_wording(self, tmp_path):
        line = "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\nMemory on the node (IP: 192.0.2.9, ID: ab) where the task was running was 240.1GB / 251.8GB (0.953), which exceeds the memory usage threshold of 0.95.\n"
        assert judge_log(tmp_path, line).ids[0] == "ray_host_oom"

    @pytest.mark.parametrize(("swap", "firm"), [("48.00", ["host_memory_oversubscribed"]), ("40.00", [])])
    def test_swap_space_above_70_percent_of_the_host(self, swap, firm, tmp_path):
        line = f"WARNING 03-04 08:00:05 config.py:700] Possibly too large swap space. {swap} GiB out of the 62.50 GiB total CPU memory is allocated for the swap space.\n"
        verdict = judge_log(tmp_path, VLLM.replace("0.24.0", "0.6.0") + line)
        assert verdict.firm == firm
        assert "host_memory_oversubscribed" in verdict.ids

    def test_host_memory_that_does_not_reach_for_all_ranks_is_never_answered_with_none(self, tmp_path):
        log = VLLM.replace("tensor_parallel_size': 2", "tensor_parallel_size': 8") + "max_local_cpu_size: 1.0\n"
        memory = "MemTotal:        8388608 kB\nMemFree:         1000000 kB\nMemAvailable:    2000000 kB\n"
        verdict = judge_log(tmp_path, log, meminfo=memory)
        assert verdict.move("host_memory_oversubscribed", "LMCACHE_MAX_LOCAL_CPU_SIZE") == ("1", "1")

    def test_shared_memory_that_ran_out_outside_nccl(self, tmp_path):
        line = "OSError: [Errno 28] No space left on device: '/dev/shm/psm_1a2b3c'\n"
        assert judge_log(tmp_path, VLLM + line).ids == ["host_shm_exhaustion"]


class TestCollectives:
    def test_an_error_of_nccl_without_a_reason_asks_for_it(self, tmp_path):
        line = "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)\n"
        verdict = judge_log(tmp_path, VLLM + line)
        assert verdict.ids == []
        assert ["NCCL_DEBUG=INFO" in each.missing for each in verdict.not_enough] == [True]

    TIMEOUT = "[rank1]:[E304 08:10:00.100 ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000) ran for 600020 milliseconds before timing out.\n"

    @pytest.mark.parametrize(
        ("seq", "named"),
        [
            (1, ["NCCL_P2P_DISABLE", "", "NCCL_SOCKET_IFNAME"]),
            (4, ["NCCL_P2P_DISABLE", "", "NCCL_SOCKET_IFNAME"]),
            (5, ["", "", "--disable-custom-all-reduce"]),
            (88000, ["", "", "--disable-custom-all-reduce"]),
        ],
    )
    def test_the_number_of_the_operation_separates_forming_from_serving(self, seq, named, tmp_path):
        verdict = judge_log(tmp_path, VLLM + self.TIMEOUT.format(seq))
        assert verdict.ids[0] == "nccl_hang"
        assert [advice.flag for advice in verdict["nccl_hang"].advice] == named

    def test_where_the_custom_kernel_is_off_it_is_not_blamed(self, tmp_path):
        log = VLLM.replace("'max_num_seqs'", "'disable_custom_all_reduce': True, 'max_num_seqs'") + self.TIMEOUT.format(
            88000
        )
        assert "custom all-reduce kernel" not in judge_log(tmp_path, log)["nccl_hang"].cause

    @pytest.mark.parametrize("code", [94, 61, 158])
    def test_a_failing_gpu_explains_the_hang(self, code, tmp_path):
        dmesg = f"[ 9000.100000] NVRM: Xid (PCI:0000:9c:00): {code}, pid=1301, name=VLLM::Worker_TP, Ch 00000010\n"
        verdict = judge_log(tmp_path, VLLM + self.TIMEOUT.format(88000), dmesg=dmesg)
        assert any(f": {code}, pid=1301" in evidence.text for evidence in verdict["nccl_hang"].evidence)
        assert verdict.ids[0] == "xid_hardware"
        assert verdict["nccl_hang"].caused_by == "xid_hardware"

    def test_clients_that_never_joined_are_no_collective(self, tmp_path):
        line = (
            "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.\n"
        )
        assert "Only 1 of 2 processes joined" in judge_log(tmp_path, line)["nccl_hang"].cause

    def test_one_slow_broadcast_while_compiling_is_nothing(self, tmp_path):
        log = (
            VLLM.splitlines(keepends=True)[0]
            + (
                "(EngineCore pid=12) INFO 03-04 08:00:50 [shm_broadcast.py:466] No available shared memory broadcast block found in 60 seconds. This typically happens when some processes are hanging or doing some time-consuming work (e.g. compilation).\n"
            )
            + "".join(VLLM.splitlines(keepends=True)[2:])
        )
        assert judge_log(tmp_path, log).ids == []

    def test_sglang_says_it_with_a_watchdog(self, tmp_path):
        log = "[2026-03-04 08:00:00] server_args=ServerArgs(model_path='/srv/m', tp_size=2)\n[2026-03-04 08:30:00 TP1] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n"
        assert judge_log(tmp_path, log).ids == ["engine_stalled"]


class TestHardware:
    @pytest.mark.parametrize(
        ("code", "want"),
        [(code, "xid_hardware" if is_hardware(str(code)) else "xid_software") for code in TABLE],
    )  # fmt: skip
    def test_xids_by_class(self, code, want, tmp_path):
        line = f"[ 1234.567890] NVRM: Xid (PCI:0000:3b:00): {code}, pid=4242, name=python3, Ch 00000010\n"
        assert Verdict(tmp_path, {"dmesg.txt": line}).ids[0] == want

    def test_a_row_of_a_journal_is_read_as_well(self, tmp_path):
        line = "Mar 04 08:10:00 node7 kernel: NVRM: Xid (PCI:0000:3b:00): 31, pid=4242, name=python3, Ch 00000010, intr 00000000. MMU Fault: ENGINE GRAPHICS\n"
        verdict = Verdict(tmp_path, {"journal.txt": line})
        assert verdict.ids == ["xid_software"]

    def test_a_line_of_the_driver_without_an_xid_is_a_lost_gpu(self, tmp_path):
        line = "[ 1234.567890] NVRM: GPU at PCI:0000:01:00: GPU-11111111-2222-3333-4444-555555555555\n[ 1234.567891] NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.\n"
        assert Verdict(tmp_path, {"dmesg.txt": line}).ids == ["gpu_lost"]

    def test_nvidia_smi_that_cannot_open_a_gpu(self, tmp_path):
        line = "Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error\n"
        assert Verdict(tmp_path, {"smi.txt": line}).ids == ["gpu_lost"]

    @pytest.mark.parametrize(
        ("line", "words"),
        [("Failed to initialize NVML: Driver/library version mismatch\n", "of different versions"),
         ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", "does not answer")],
    )  # fmt: skip
    def test_a_driver_that_does_not_answer(self, line, words, tmp_path):
        assert words in Verdict(tmp_path, {"smi.txt": line})["driver_unresponsive"].cause

    def test_remapping_that_failed(self, tmp_path):
        text = "==============NVSMI LOG==============\nGPU 00000000:3B:00.0\n    Remapped Rows\n        Correctable Error                 : 0\n        Uncorrectable Error               : 8\n        Pending                           : Yes\n        Remapping Failure Occurred        : Yes\n"
        assert Verdict(tmp_path, {"query.txt": text}).ids[0] == "xid_hardware"

    def test_illegal_access_without_a_kernel_log(self, tmp_path):
        log = (
            VLLM
            + "(EngineCore pid=12) ERROR 03-04 08:05:00 [core.py:900] RuntimeError: CUDA error: an illegal memory access was encountered\n"
        )
        assert judge_log(tmp_path, log).ids == ["xid_software"]

    CAP = "timestamp, index, power.draw [W], enforced.power.limit [W]\n"

    @pytest.mark.parametrize(("slow", "found"), [(890.0, ["throttling"]), (910.0, [])])
    def test_a_lower_power_limit_counts_where_it_costs_a_tenth(self, slow, found, tmp_path):
        log = VLLM + stats(10, 0, 4, 0, 10.0, generated=1000.0) + stats(10, 10, 4, 0, 10.0, generated=1000.0)
        late = stats(10, 0, 4, 0, 10.0, generated=slow).replace("03-04", "03-05")
        rows = (
            self.CAP
            + "2026/03/04 08:10:05.000, 0, 349.00 W, 350.00 W\n2026/03/05 08:10:05.000, 0, 249.50 W, 250.00 W\n"
        )
        assert judge_log(tmp_path, log + late, smi=rows).ids == found


class TestLaunch:
    @pytest.mark.parametrize(
        ("command", "flag", "proposed"),
        [
            ("vllm serve m --mem-fraction-static 0.8", "--mem-fraction-static", "--gpu-memory-utilization"),
            ("vllm serve m --context-length 4096", "--context-length", "--max-model-len"),
            (
                "python -m sglang.launch_server --model-path m --max-model-len 4096",
                "--max-model-len",
                "--context-length",
            ),
            (
                "vllm serve m --max-num-batched-token 4096 --gpu-memory-utilisation 0.8",
                "--gpu-memory-utilisation",
                "--gpu-memory-utilization",
            ),
            ("vllm serve m --chunked-prefill-size 8192", "--chunked-prefill-size", "--max-num-batched-tokens"),
        ],
    )
    def test_a_flag_of_the_other_engine_or_a_misspelt_one(self, command, flag, proposed, tmp_path):
        verdict = Verdict(tmp_path, {}, command)
        assert verdict.ids == ["flag_unknown"]
        assert verdict.move("flag_unknown", flag)[1] == proposed

    @pytest.mark.parametrize(
        "command",
        [
            "vllm serve m --tensor-parallel-size 2 -tp 2 --max-model-len 16k --kv-cache-memory 5000000000 --no-enable-prefix-caching",
            "vllm serve m --max-log-len 100 --use-v2-block-manager",
            'vllm serve m --hf-overrides \'{"rope_scaling": {"--x": 1}}\' --override-generation-config \'{"a": 1}\'',
            "python -m sglang.launch_server --model-path m --tp 4 --mem-fraction-static 0.8 --enable-dp-attention",
            "docker run --gpus all --ipc=host -p 8000:8000 vllm/vllm-openai:v0.11.0 --model m",
        ],
    )
    def test_flags_that_some_version_takes_are_left_alone(self, command, tmp_path):
        assert Verdict(tmp_path, {}, command).ids == []

    def test_a_flag_that_was_removed_is_judged_with_the_version(self, tmp_path):
        command = "vllm serve m --swap-space 8"
        assert Verdict(tmp_path, {}, command).ids == []
        assert judge_log(tmp_path, VLLM, command).ids == ["flag_unknown"]
        assert "flag_unknown" not in judge_log(tmp_path, VLLM.replace("0.24.0", "0.9.0"), command).ids

    def test_a_trap_of_a_value(self, tmp_path):
        verdict = judge_log(tmp_path, VLLM, "vllm serve m --gpu-memory-utilization 0.98")
        assert verdict.ids == ["flag_risky"]
        assert judge_log(tmp_path, VLLM, "vllm serve m --gpu-memory-utilization 0.95").ids == []

    def test_a_value_that_argparse_refused(self, tmp_path):
        line = "launch_server.py: error: argument --kv-cache-dtype: invalid choice: 'fp8' (choose from 'auto', 'fp8_e5m2', 'fp8_e4m3')\n"
        verdict = judge_log(tmp_path, line)
        assert "fp8_e4m3" in verdict.said("flag_unknown")

    def test_a_port_that_is_taken_while_the_other_server_answers(self, tmp_path):
        log = (
            "[2026-03-04 08:00:00] server_args=ServerArgs(model_path='/srv/m', port=30000)\n"
            "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): address already in use\n"
            "[2026-03-04 08:00:09] The server is fired up and ready to roll!\n"
        )
        verdict = judge_log(tmp_path, log)
        assert verdict.move("port_in_use", "--port") == ("30000", "30001")
        assert "that other server" in verdict["port_in_use"].cause

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            (
                "OSError: /srv/none is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
                "neither a folder",
            ),
            ("OSError: /srv/half does not appear to have a file named config.json. Checkout", "has no config.json"),
            ("huggingface_hub.errors.GatedRepoError: 403 Client Error.", "The hub refuses"),
            (
                "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub",
                "cannot be reached",
            ),
            ("huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error.", "neither a folder"),
        ],
    )
    def test_a_model_that_is_not_there(self, line, words, tmp_path):
        assert words in judge_log(tmp_path, VLLM.splitlines(keepends=True)[0] + line + "\n")["model_not_found"].cause

    @pytest.mark.parametrize(
        ("line", "move"),
        [
            ("ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla V100-SXM2-32GB GPU has compute capability 7.0. You can use float16 instead by explicitly setting the `dtype` flag in CLI, for example: --dtype=half.", "half"),
            ("ValueError: torch.bfloat16 is not supported for quantization method awq. Supported dtypes: [torch.float16]", "half"),
            ("ValueError: The model type 'gemma2' does not support float16. Reason: Numerical instability.", "bfloat16"),
        ],
    )  # fmt: skip
    def test_a_type_that_the_gpu_has_not(self, line, move, tmp_path):
        verdict = judge_log(tmp_path, line)
        assert verdict.ids == ["dtype_unsupported"]
        assert verdict.move("dtype_unsupported", "--dtype")[1] == move

    @pytest.mark.parametrize(
        "line",
        [
            "RuntimeError: The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver",
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            "RuntimeError: No CUDA GPUs are available",
        ],
    )
    def test_a_driver_a_build_or_a_gpu_that_is_missing(self, line, tmp_path):
        verdict = judge_log(tmp_path, line)
        assert verdict.ids == ["driver_too_old"]
        assert "12.2" in verdict["driver_too_old"].cause or "12020" not in line


class TestLoad:
    def test_a_storm_is_seen_where_the_number_of_open_requests_stays(self, tmp_path):
        log = VLLM + stats(2, 0, 16, 0, 96.0, prompt=900.0) + stats(2, 10, 12, 4, 84.0) + stats(2, 20, 13, 3, 97.0)
        verdict = judge_log(tmp_path, log)
        assert verdict.ids == ["kv_preemption_storm"]
        assert verdict.move("kv_preemption_storm", "--max-num-seqs") == ("64", "12")

    @pytest.mark.parametrize(
        "second",
        [(12, 4, 60.0, 0.0), (12, 4, 84.0, 500.0), (12, 2, 84.0, 0.0), (15, 1, 84.0, 0.0)],
        ids=["pool is free", "prompts are computed", "some have finished", "less than a tenth"],
    )
    def test_a_smaller_batch_alone_is_no_storm(self, second, tmp_path):
        running, waiting, pool, prompt = second
        log = VLLM + stats(2, 0, 16, 0, 96.0) + stats(2, 10, running, waiting, pool, prompt=prompt)
        assert "kv_preemption_storm" not in judge_log(tmp_path, log).ids

    def test_a_full_pool_with_a_queue_is_saturation(self, tmp_path):
        log = VLLM + "".join(stats(2, at, 20, 5 + at // 20, 93.0, prompt=800.0) for at in range(0, 50, 10))
        assert judge_log(tmp_path, log).ids == ["kv_pool_saturated"]

    @pytest.mark.parametrize(("factor", "found"), [(0.19, ["head_of_line"]), (0.21, [])])
    def test_decoding_that_stands_still_behind_a_prompt(self, factor, found, tmp_path):
        log = (
            VLLM
            + stats(2, 0, 20, 0, 12.0, generated=1000.0)
            + stats(2, 10, 21, 8, 20.0, generated=1000.0 * factor)
            + stats(2, 20, 24, 1, 25.0, prompt=9000.0)
        )
        assert judge_log(tmp_path, log).ids == found

    @pytest.mark.parametrize(
        "second", [(21, 4, 20.0), (21, 8, 75.0), (15, 8, 20.0)], ids=["short queue", "pressed pool", "fewer run"]
    )
    def test_slow_decoding_for_another_reason_is_not_blamed_on_a_prompt(self, second, tmp_path):
        running, waiting, pool = second
        log = VLLM + stats(2, 0, 20, 0, 12.0, generated=1000.0) + stats(2, 10, running, waiting, pool, generated=50.0)
        assert "head_of_line" not in judge_log(tmp_path, log).ids

    def test_a_queue_that_only_grows(self, tmp_path):
        log = VLLM + "".join(stats(2, at, 8, at, 40.0, prompt=700.0) for at in range(0, 60, 10))
        verdict = judge_log(tmp_path, log)
        assert verdict.ids == ["queue_growth"]
        assert "from 0 to 50 by 1.0 requests a second" in verdict["queue_growth"].cause

    def test_retractions_need_two_victims(self, tmp_path):
        one = "[2026-03-04 08:00:00 TP0] KV cache pool is full. Retract requests. #retracted_reqs: {}, #new_token_ratio: 0.01 -> 0.4\n"
        assert judge_log(tmp_path, one.format(2)).ids == ["sglang_retraction_storm"]
        assert judge_log(tmp_path, one.format(1)).ids == []

    def test_a_pool_of_sglang_that_is_full_and_queues_is_load(self, tmp_path):
        row = "[2026-03-04 08:00:{:02} TP0] Decode batch. #running-req: 40, #token: 95000, token usage: 0.95, gen throughput (token/s): 900.00, #queue-req: 7\n"
        assert judge_log(tmp_path, "".join(row.format(at) for at in range(5))).ids == ["kv_pool_saturated"]

    def test_replicas_by_their_lines(self, tmp_path):
        rows = "".join(
            stats(2, 0, running, 0, 30.0).replace("Engine 000", f"Engine 00{rank}")
            for rank, running in enumerate((20, 2, 1, 1))
        )
        assert judge_log(tmp_path, VLLM + rows).ids == ["dp_imbalance"]

    def test_replicas_that_differ_a_little_are_not_uneven(self, tmp_path):
        rows = "".join(
            stats(2, 0, running, 0, 30.0).replace("Engine 000", f"Engine 00{rank}")
            for rank, running in enumerate((12, 7, 6, 5))
        )
        assert judge_log(tmp_path, VLLM + rows).ids == []


class TestModel:
    CONFIG = '{{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 32, "max_position_embeddings": 8192, "num_key_value_heads": {}, "rope_scaling": {}}}'

    @pytest.mark.parametrize(
        ("scaling", "length", "found"),
        [("null", 16384, True), ("null", 8192, False), ('{"rope_type": "yarn", "factor": 4.0}', 16384, False)],
    )
    def test_a_context_beyond_the_positions_without_scaling(self, scaling, length, found, tmp_path):
        log = VLLM.replace("8192", str(length))
        verdict = Verdict(tmp_path, {"server.log": log, "config.json": self.CONFIG.format(8, scaling)})
        assert ("rope_context" in verdict.ids) is found

    @pytest.mark.parametrize(("heads", "found"), [(1, True), (2, False), (8, False)])
    def test_heads_fewer_than_ranks_are_told(self, heads, found, tmp_path):
        verdict = Verdict(tmp_path, {"server.log": VLLM, "config.json": self.CONFIG.format(heads, "null")})
        assert ("kv_head_replication" in verdict.ids) is found
        assert verdict.firm == []

    def test_scales_of_one_are_a_warning_and_the_type_alone_is_not(self, tmp_path):
        named = (
            VLLM
            + "(EngineCore pid=12) INFO 03-04 08:00:30 [cache.py:268] Using fp8 data type to store kv cache. It reduces the GPU memory footprint and boosts the performance. Meanwhile, it may cause accuracy drop without a proper scaling factor\n"
        )
        assert judge_log(tmp_path, named).firm == []
        one = (
            named
            + "(EngineCore pid=12) WARNING 03-04 08:00:40 [kv_cache.py:86] Using KV cache scaling factor 1.0 for fp8_e4m3. If this is unintended, verify that k/v_scale scaling factors are properly set in the checkpoint.\n"
        )
        assert judge_log(tmp_path, one).firm == ["fp8_kv_accuracy"]


class TestRealLogs:
    """Logs of real servers; see the README beside them."""

    @pytest.mark.parametrize(
        ("name", "first"),
        [
            ("vllm_0_10_2_beyond_native", "rope_context"),
            ("vllm_0_10_2_killed", "worker_died"),
            ("vllm_0_10_2_port_in_use", "port_in_use"),
            ("vllm_0_10_2_too_long", "max_model_len_exceeds_kv"),
            ("vllm_0_31_0_bad_flag", "flag_unknown"),
            ("vllm_0_31_0_bad_path", "model_not_found"),
            ("vllm_0_31_0_beyond_native", "rope_context"),
            ("vllm_0_31_0_killed", "worker_died"),
            ("vllm_0_31_0_port_in_use", "port_in_use"),
            ("vllm_0_31_0_storm", "kv_preemption_storm"),
            ("vllm_0_31_0_too_long", "max_model_len_exceeds_kv"),
        ],
    )
    def test_a_failure_that_a_real_server_was_driven_into(self, name, first, tmp_path):
        assert judge_log(tmp_path, (LOGS / f"{name}.log").read_text()).ids[0] == first

    @pytest.mark.parametrize("name", ["vllm_0_10_2_healthy", "vllm_0_31_0_healthy", "vllm_0_32_0_dp2"])
    def test_a_healthy_run_has_no_finding_above_info(self, name, tmp_path):
        assert judge_log(tmp_path, (LOGS / f"{name}.log").read_text()).firm == []


class TestCards:
    HEAD = (
        "timestamp, index, utilization.gpu [%], clocks.current.sm [MHz], temperature.gpu, clocks_event_reasons.active\n"
    )

    def rows(self, *cards: tuple[int, int, int, str]) -> str:
        rows = []
        for second in range(3):
            for index, (busy, clock, heat, reason) in enumerate(cards):
                rows.append(f"2026/03/04 08:00:0{second}.000, {index}, {busy} %, {clock} MHz, {heat}, {reason}\n")
        return self.HEAD + "".join(rows)

    @pytest.mark.parametrize(("clock", "found"), [(1450, True), (1470, False)])
    def test_a_card_below_85_percent_of_the_clock_of_the_others_is_the_straggler(self, clock, found, tmp_path):
        rows = self.rows((90, 1720, 60, "0x0"), (90, 1720, 60, "0x0"), (90, clock, 60, "0x0"), (90, 1720, 60, "0x0"))
        assert ("tp_straggler" in Verdict(tmp_path, {"smi.csv": rows}).ids) is found

    def test_an_idle_card_is_no_straggler(self, tmp_path):
        rows = self.rows((90, 1720, 60, "0x0"), (0, 210, 40, "0x1"), (90, 1720, 60, "0x0"))
        assert Verdict(tmp_path, {"smi.csv": rows}).ids == []

    def test_a_hot_card_is_throttled_and_the_straggler_follows_from_it(self, tmp_path):
        rows = self.rows((90, 1720, 60, "0x0"), (90, 1200, 92, "0x20"), (90, 1720, 60, "0x0"))
        verdict = Verdict(tmp_path, {"smi.csv": rows})
        assert verdict.ids == ["throttling", "tp_straggler"]
        assert verdict["tp_straggler"].caused_by == "throttling"
        assert "92 °C" in verdict.said("throttling")


class TestHits:
    @staticmethod
    def course(*rates: float) -> str:
        rows = [
            stats(2, at * 10, 4, 0, 40.0, prompt=500.0).replace("12.0%", f"{rate}%") for at, rate in enumerate(rates)
        ]
        return VLLM + "".join(rows)

    @pytest.mark.parametrize(
        ("rates", "found"),
        [((60.0, 61.0, 40.0, 18.0), True), ((60.0, 61.0, 40.0, 19.0), False), ((29.0, 29.0, 10.0, 1.0), False)],
    )
    def test_a_hit_rate_that_fell_below_a_third_of_a_good_one(self, rates, found, tmp_path):
        assert ("prefix_cache_collapse" in judge_log(tmp_path, self.course(*rates)).ids) is found


class TestHealthy:
    def test_a_busy_healthy_server_has_no_finding(self, tmp_path):
        log = VLLM + "".join(stats(2, at, 30 + at % 7, 0, 40.0 + at / 10, prompt=1500.0) for at in range(0, 60, 10))
        assert judge_log(tmp_path, log).ids == []

    def test_harmless_lines_that_look_bad_are_no_warning(self, tmp_path):
        log = VLLM + (
            "(Worker_TP0 pid=20) WARNING 03-04 08:00:20 [custom_all_reduce.py:154] Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs. To silence this warning, specify disable_custom_all_reduce=True explicitly.\n"
            "WARNING 03-04 08:00:09 cache_engine.py:96] Using 'pin_memory=False' as WSL is detected. This may slow down the performance.\n"
            "(EngineCore pid=12) INFO 03-04 08:00:50 [gpu_worker.py:578] CUDA graph memory profiling is enabled (default since v0.21.0). The current --gpu-memory-utilization=0.9000 is equivalent to --gpu-memory-utilization=0.8848 without CUDA graph memory profiling. To maintain the same effective KV cache size as before, increase --gpu-memory-utilization to 0.9152. To disable, set VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0.\n"
            "(EngineCore pid=12) WARNING 03-04 08:00:10 [system.py:99] Found ulimit of 20000 and failed to automatically increase with error current limit exceeds maximum limit. This can cause fd limit errors like `OSError: [Errno 24] Too many open files`.\n"
        )
        assert judge_log(tmp_path, log).firm == []

    @pytest.mark.parametrize(
        "text", ["", "GET / 200\n" * 50, "It was a dark and stormy night; the rain fell in torrents.\n" * 20]
    )
    def test_other_texts_have_no_finding(self, text, tmp_path):
        verdict = Verdict(tmp_path, {"other.log": text})
        assert (verdict.ids, verdict.not_enough) == ([], ())
