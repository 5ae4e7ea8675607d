"""What the files show decides: the engine they are of, how much was seen, and the values that follow from it."""

from __future__ import annotations

import pytest

from tests.unit.diagnosis.incidents import Verdict

TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked} MiB. GPU 0 has a total capacity of 79.25 "
    "GiB of which 211.00 MiB is free. Process 77 has 79.03 GiB memory in use. Of the allocated memory 77.01 GiB is "
    "allocated by PyTorch, and {spare} MiB is reserved by PyTorch but unallocated."
)
PRIVATE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 160.00 MiB. GPU 0 has a total capacity of 47.53 GiB "
    "of which 92.69 MiB is free. Process 1822 has 47.40 GiB memory in use. Of the allocated memory 45.92 GiB is "
    "allocated by PyTorch, with 512.00 MiB allocated in private pools (e.g., CUDA Graphs), and 30.11 MiB is reserved "
    "by PyTorch but unallocated."
)
VLLM_START = "INFO 06-12 22:10:00 [api_server.py:1287] vLLM API server version {version}\n"
PREEMPTED = (
    "WARNING 08-10 {time} scheduler.py:1089] Sequence group cmpl-{n} is preempted by PreemptionMode.RECOMPUTE mode "
    "because there is not enough KV cache space. total_num_cumulative_preemption={n}\n"
)
STATS = (
    "INFO 08-10 {time} metrics.py:406] Avg prompt throughput: 10.2 tokens/s, Avg generation throughput: 410.2 "
    "tokens/s, Running: 60 reqs, Swapped: 0 reqs, Pending: {wait} reqs, GPU KV cache usage: {kv}%.\n"
)
V0 = "INFO 08-10 10:00:00 api_server.py:339] vLLM API server version 0.5.4\n"
HEAD_CUT = """\
[2025-06-01 08:01:02 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=4.23 GB
[2025-06-01 08:01:05 TP0] Scheduler hit an exception: Traceback (most recent call last):
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 594.00 MiB. GPU 0 has a total capacity of 79.11 GiB of \
which 302.88 MiB is free.
Exception: Capture CUDA graph failed: CUDA out of memory. Tried to allocate 594.00 MiB.
"""


def judged(folder, text: str, name: str = "a.log") -> Verdict:
    return Verdict(folder, {name: text})


def test_a_log_of_sglang_without_its_head_gets_flags_of_sglang_and_one_finding(tmp_path):
    verdict = judged(tmp_path, HEAD_CUT)
    assert verdict.ids == ["cudagraph_memory"]
    flags = {advice.flag for advice in verdict["cudagraph_memory"].advice}
    assert flags == {"--mem-fraction-static", "--cuda-graph-max-bs", "--disable-cuda-graph"}
    assert "594 MiB (303 MiB free)" in verdict["cudagraph_memory"].cause


def test_the_figures_in_the_line_of_a_failed_capture_are_read(tmp_path):
    line = (
        "Exception: Capture CUDA graph failed: CUDA out of memory. "
        + TORCH.format(asked=594, spare=102).partition(". ")[2]
    )
    assert "594 MiB (211 MiB free)" in judged(tmp_path, line + "\n")["cudagraph_memory"].cause


@pytest.mark.parametrize("text", [PRIVATE, "ERROR 07-10 12:01:36 [core.py:586] " + PRIVATE])
def test_private_pools_do_not_tell_serving_from_capturing(tmp_path, text):
    verdict = judged(tmp_path, text + "\n")
    assert verdict.ids == ["gpu_out_of_memory"]
    assert verdict["gpu_out_of_memory"].confidence == 0.5
    assert [each.id for each in verdict.not_enough] == ["prefill_activation_oom"]


FRAME = (
    'ERROR 07-10 12:01:36 [core.py:586]   File \\"/usr/lib/vllm/v1/worker/gpu_model_runner.py\\", line 2277, in {step}'
)


@pytest.mark.parametrize(
    "form", ['{{"labels": {{}}, "line": "{}"}}', ' {{\n  "textPayload": "{}",\n  "severity": "ERROR"\n }},']
)
def test_a_log_inside_the_records_of_a_collector_is_read_like_the_log_itself(tmp_path, form):
    lines = [
        "INFO 07-10 12:00:00 [api_server.py:1395] vLLM API server version 0.9.2",
        FRAME.format(step="capture_model"),
    ]
    lines.append("ERROR 07-10 12:01:36 [core.py:586] " + PRIVATE)
    verdict = judged(tmp_path, "\n".join(form.format(line) for line in lines) + "\n", "export.json")
    assert verdict.ids == ["cudagraph_memory"]
    # 0.9 is the default of 0.9.2; 512 MiB for graphs and 512 MiB beside them are 2.1 % of 47.53 GiB, that is 3 %.
    assert verdict.move("cudagraph_memory", "--gpu-memory-utilization") == (None, "0.87")


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ('ERROR 05-02 11:00:30 [core.py:396]   File "/x/vllm/layers/linear.py", line 176, in create_weights\n', 0.85),
        ("", 0.65),
    ],
)
def test_memory_that_ran_out_while_weights_were_loaded_is_weights(tmp_path, frames, why):
    begun = "INFO 05-02 11:00:10 [gpu_model_runner.py:1329] Starting to load model org/m...\n"
    text = VLLM_START.format(version="0.8.5") + begun + frames
    verdict = judged(tmp_path, text + "ERROR 05-02 11:00:30 [core.py:396] " + TORCH.format(asked=448, spare=12) + "\n")
    assert verdict.ids == ["weights_oom"]
    assert verdict["weights_oom"].confidence == why


@pytest.mark.parametrize(
    ("spare", "said"),
    [(12, "Ruled out: fragmentation: 12 MiB"), (610, "Not ruled out: fragmentation: 610 MiB")],
)
def test_fragmentation_is_ruled_out_only_by_less_than_was_asked_for(tmp_path, spare, said):
    finding = judged(tmp_path, TORCH.format(asked=384, spare=spare) + "\n")["gpu_out_of_memory"]
    (evidence,) = [each.text for each in finding.evidence if "fragmentation" in each.text]
    assert evidence.startswith(said)


@pytest.mark.parametrize(
    ("lines", "want"),
    [
        ([PREEMPTED.format(time="10:01:00", n=1), STATS.format(time="10:01:05", wait=0, kv=89.3)], "kv_pool_saturated"),
        ([PREEMPTED.format(time="10:01:00", n=1), STATS.format(time="11:41:05", wait=9, kv=99.3)], "kv_pool_saturated"),
        ([PREEMPTED.format(time="10:01:00", n=1), PREEMPTED.format(time="14:01:00", n=51)], "kv_pool_saturated"),
        (
            [PREEMPTED.format(time="10:01:00", n=1), STATS.format(time="10:01:05", wait=9, kv=99.3)],
            "kv_preemption_storm",
        ),
        ([PREEMPTED.format(time="10:01:00", n=1), PREEMPTED.format(time="10:02:00", n=51)], "kv_preemption_storm"),
    ],
)
def test_preemptions_are_a_storm_when_they_are_many_or_the_full_pool_has_a_queue(tmp_path, lines, want):
    assert judged(tmp_path, V0 + "".join(lines)).ids == [want]


@pytest.mark.parametrize(
    "text",
    ["Error: listen EADDRINUSE: address already in use :::3000\n", "OSError: [Errno 98] Address already in use\n"],
)
def test_a_port_is_taken_for_an_engine_only_where_something_shows_one(tmp_path, text):
    verdict = judged(tmp_path, text)
    assert verdict.ids == []
    assert [each.id for each in verdict.not_enough] == ["port_in_use"]
    other = Verdict(tmp_path, {"a.log": text}, "vllm serve org/m --port 3000")
    assert other["port_in_use"].confidence == 0.7
    assert judged(tmp_path, VLLM_START.format(version="0.8.5") + text)["port_in_use"].confidence == 0.96


@pytest.mark.parametrize(
    "text",
    [
        'alice: my vllm died with "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."\n',
        'bob: yes, mine said "ValueError: No available memory for the cache blocks. Try increasing it", elsewhere\n',
        "FAILED tests/test_x.py::test_port - OSError: [Errno 98] Address already in use\n",
    ],
)
def test_what_people_quote_and_what_tests_report_is_no_incident(tmp_path, text):
    verdict = judged(tmp_path, text)
    assert (verdict.ids, verdict.not_enough) == ([], ())


@pytest.mark.parametrize("what", ["unrecognized arguments: --fast", "argument --level: invalid int value: 'x'"])
def test_an_argument_that_another_program_refused_is_no_flag_of_an_engine(tmp_path, what):
    verdict = judged(tmp_path, f"backup.py: error: {what}\n")
    assert verdict.ids == []
    assert [each.id for each in verdict.not_enough] == ["flag_unknown"]
    assert judged(tmp_path, f"api_server.py: error: {what}\n").ids == ["flag_unknown"]


DESCRIBED = """\
Name:             vllm-0
Namespace:        inference
    Last State:     Terminated
      Reason:       {reason}
      Exit Code:    137
      Started:      Tue, 12 Aug 2025 10:01:00 +0000
      Finished:     Tue, 12 Aug 2025 10:04:13 +0000
    Limits:
      memory:          64Gi
    Liveness:   http-get http://:8000/health delay=60s timeout=1s period=10s #success=1 #failure=3
"""
ENDED = "  Normal   Killing     3m    kubelet  Container vllm failed liveness probe, will be restarted\n"
UNHEALTHY = "  Warning  Unhealthy   3m    kubelet  Liveness probe failed: {why}\n"


def test_a_probe_that_ended_a_container_is_the_cause_and_the_start_that_was_seen_sizes_another(tmp_path):
    why = 'Get "http://10.0.3.17:8000/health": dial tcp 10.0.3.17:8000: connect: connection refused'
    verdict = judged(tmp_path, DESCRIBED.format(reason="Error") + UNHEALTHY.format(why=why) + ENDED)
    assert verdict.ids == ["worker_died"]
    finding = verdict["worker_died"]
    assert "193 s after its start: its liveness probe failed, as nothing listened yet" in finding.cause
    # Three times 193 s in tries of 10 s.
    assert verdict.move("worker_died", "startupProbe.failureThreshold") == (None, "58")


@pytest.mark.parametrize(
    ("why", "said", "flag"),
    [
        ("HTTP probe failed with statuscode: 503", "answered 503", ""),
        (
            "context deadline exceeded (Client.Timeout exceeded)",
            "did not answer in time",
            "livenessProbe.timeoutSeconds",
        ),
    ],
)
def test_what_a_probe_met_decides_about_the_change(tmp_path, why, said, flag):
    finding = judged(tmp_path, "LAST SEEN   TYPE   REASON\n" + UNHEALTHY.format(why=why) + ENDED)["worker_died"]
    assert said in finding.cause
    assert finding.advice[0].flag == flag


def test_a_pod_without_a_node_says_what_would_tell_why(tmp_path):
    line = "9m  Warning  FailedScheduling  pod/vllm-1  0/3 nodes are available: 3 Insufficient nvidia.com/gpu.\n"
    verdict = judged(tmp_path, "LAST SEEN   TYPE   REASON\n" + line)
    assert [each.id for each in verdict.not_enough] == ["gpu_lost"]
    assert "3 of 3 nodes" in verdict.not_enough[0].missing


def test_a_container_that_crossed_its_limit_gets_twice_of_it(tmp_path):
    verdict = judged(tmp_path, DESCRIBED.format(reason="OOMKilled"))
    assert verdict.move("k8s_oomkilled", "resources.limits.memory") == ("64Gi", "128Gi")


UNIT = "Mar 11 02:00:00 node systemd[1]: {unit}.service: {what}\n"


def test_a_unit_of_systemd_names_its_killer_or_its_signal(tmp_path):
    oom = UNIT.format(unit="vllm", what="A process of this unit has been killed by the OOM killer.")
    killed = UNIT.format(unit="vllm", what="Main process exited, code=killed, status=9/KILL")
    assert judged(tmp_path, oom + killed).ids == ["host_memory_oversubscribed", "worker_died"]
    crashed = UNIT.format(unit="vllm", what="Main process exited, code=killed, status=11/SEGV")
    assert "SIGSEGV" in judged(tmp_path, crashed)["worker_died"].cause
    other = judged(tmp_path, UNIT.format(unit="nginx", what="Main process exited, code=killed, status=11/SEGV"))
    assert other.ids == []
    assert [each.id for each in other.not_enough] == ["worker_died"]
    ended = UNIT.format(unit="vllm", what="Main process exited, code=killed, status=15/TERM")
    assert judged(tmp_path, ended).ids == []


@pytest.mark.parametrize(
    ("version", "flag", "want"), [("0.8.5", "", "0.95"), ("0.20.1", "", "0.95"), ("0.8.5", "0.5", "0.9")]
)
def test_a_share_that_is_not_set_is_the_default_of_the_version(tmp_path, version, flag, want):
    text = VLLM_START.format(version=version)
    text += "ERROR 05-02 11:01:30 [core.py:396] ValueError: No available memory for the cache blocks.\n"
    command = f"vllm serve org/m --gpu-memory-utilization {flag}" if flag else ""
    verdict = Verdict(tmp_path, {"a.log": text}, command)
    assert verdict.move("no_kv_blocks", "--gpu-memory-utilization") == (flag or None, want)


def test_the_missing_memory_and_a_lower_bound_of_the_card_give_a_share(tmp_path):
    text = VLLM_START.format(version="0.11.0") + (
        "INFO 10-14 09:11:58 [gpu_model_runner.py:2653] Model loading took 27.5189 GiB and 12.8 seconds\n"
        "INFO 10-14 09:12:31 [gpu_worker.py:298] Available KV cache memory: 5.17 GiB\n"
        "ERROR 10-14 09:12:31 [core.py:708] ValueError: To serve at least one request with the models's max seq len "
        "(40960), (6.25 GiB KV cache is needed, which is larger than the available KV cache memory (5.17 GiB). Based "
        "on the available memory, the estimated maximum model length is 33872.\n"
    )
    # The card has at least (27.52 + 5.17) / 0.9 = 36.3 GiB, of which the missing 1.08 GiB are 2.97 %.
    verdict = judged(tmp_path, text)
    assert verdict.move("max_model_len_exceeds_kv", "--gpu-memory-utilization") == (None, "0.93")


def test_memory_that_sglang_leaves_free_goes_to_the_pool_down_to_what_is_wanted_free(tmp_path):
    text = (
        "[2025-09-10 10:00:01] server_args=ServerArgs(model_path='org/m', tp_size=2, mem_fraction_static=0.82, "
        "max_running_requests=256)\n"
        "[2025-09-10 10:00:40 TP0] max_total_num_tokens=91211, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        "max_running_requests=256, context_len=32768, available_gpu_mem={free} GB\n"
        + "".join(
            f"[2025-09-10 10:05:0{at} TP0] KV cache pool is full. Retract requests. #retracted_reqs: 5, "
            "#new_token_ratio: 0.200 -> 0.98\n"
            for at in range(4)
        )
    )
    # 0.18 of the card are outside the share, at least 11.02 GiB; 3.02 / 11.02 of that is 4.9 % of the card.
    found = judged(tmp_path, text.format(free="11.02"))
    assert found.move("sglang_retraction_storm", "--mem-fraction-static") == ("0.82", "0.86")
    assert (
        judged(tmp_path, text.format(free="7.90")).move("sglang_retraction_storm", "--mem-fraction-static")[1] is None
    )


def test_a_number_of_ranks_that_nobody_saw_is_not_proposed(tmp_path):
    line = (
        "(Worker_TP0 pid=300) WARNING 10-14 09:12:00 [custom_all_reduce.py:144] Custom allreduce is disabled because "
        "your platform lacks GPU P2P capability or P2P test failed. To silence this warning, specify it explicitly.\n"
    )
    verdict = judged(tmp_path, VLLM_START.format(version="0.11.0") + line)
    assert verdict.move("tp_pcie_slow", "--tensor-parallel-size") == (None, None)


def test_attention_heads_that_ranks_cannot_share_name_the_numbers_that_fit(tmp_path):
    text = "ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (8).\n"
    verdict = judged(tmp_path, text)
    assert verdict.move("flag_unknown", "--tensor-parallel-size") == ("8", "4")
    assert "1, 2, 4, 7;" in verdict["flag_unknown"].advice[0].text


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("[   77.1] NVRM: API mismatch: the client has the version 550.90.07, but\n", "driver_unresponsive"),
        ("[   77.1] NVRM: GPU 0000:18:00.0: RmInitAdapter failed! (0x62:0xffff:2351)\n", "gpu_lost"),
    ],
)
def test_what_the_kernel_module_refuses_has_a_cause(tmp_path, text, want):
    assert judged(tmp_path, text, "dmesg.txt").ids == [want]


def test_a_compute_capability_is_written_without_the_end_of_its_sentence(tmp_path):
    text = (
        "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has "
        "compute capability 7.5. You can use float16 instead.\n"
    )
    assert "it has compute capability 7.5, 8.0 is needed." in judged(tmp_path, text)["dtype_unsupported"].cause
