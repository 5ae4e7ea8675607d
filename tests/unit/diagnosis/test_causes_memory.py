"""GPU memory that ran out, in other formats and versions than the cases: step, cause, and the value of the advice."""

# ruff: noqa: E501  # lines of logs are as long as they are

from __future__ import annotations

import pytest

from tests.unit.diagnosis.incidents import judge_log

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 1 has a total capacity of 79.11 GiB of which "
    "{free} is free. Including non-PyTorch memory, this process has {own} memory in use. Of the allocated memory {alloc} is "
    "allocated by PyTorch, and {spare} is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try "
    "setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)


def oom(asked="512.00 MiB", free="100.00 MiB", own="78.50 GiB", alloc="77.00 GiB", spare="200.00 MiB"):
    return OOM.format(asked=asked, free=free, own=own, alloc=alloc, spare=spare)


def trace(*functions: str, error: str) -> str:
    frames = [
        f'  File "/opt/vllm/v1/worker/gpu_model_runner.py", line {at}, in {name}\n    x = f()'
        for at, name in enumerate(functions, 100)
    ]
    return "\n".join(["Traceback (most recent call last):", *frames, error])


START = """\
INFO 02-01 10:00:00 [api_server.py:100] vLLM API server version 0.11.0
INFO 02-01 10:00:00 [utils.py:200] non-default args: {'model': '/srv/m', 'max_model_len': 32768, 'gpu_memory_utilization': 0.95, 'max_num_batched_tokens': 16384, 'max_num_seqs': 512}
INFO 02-01 10:00:30 [gpu_model_runner.py:2600] Model loading took 30.0000 GiB and 20.000000 seconds
"""
POOL = "INFO 02-01 10:01:00 [kv_cache_utils.py:1087] GPU KV cache size: 300,000 tokens\n"
READY = "INFO:     Application startup complete.\n"
V0 = """\
INFO 02-01 10:00:00 api_server.py:600] vLLM API server version 0.6.5
INFO 02-01 10:00:00 api_server.py:601] args: Namespace(model='/srv/m', gpu_memory_utilization=0.9, max_num_seqs=256, enable_lora={lora}, speculative_model={draft})
INFO 02-01 10:00:20 model_runner.py:1077] Loading model weights took 14.9888 GB
INFO 02-01 10:00:30 gpu_executor.py:76] # GPU blocks: 5000, # CPU blocks: 2048
"""


@pytest.mark.parametrize(
    ("steps", "want"),
    [
        (("run_busy_loop", "execute_model", "forward"), "prefill_activation_oom"),
        (("execute_model", "_get_prompt_logprobs_dict"), "prefill_activation_oom"),
        (("determine_available_memory", "profile_run", "_dummy_run"), "prefill_activation_oom"),
        (("determine_available_memory", "profile_run", "_dummy_sampler_run"), "sampler_warmup_oom"),
        (("determine_available_memory", "profile_run", "get_multimodal_embeddings"), "mm_profiling_memory"),
        (("execute_model", "_execute_mm_encoder"), "prefill_activation_oom"),
        (("compile_or_warm_up_model", "capture_model"), "cudagraph_memory"),
        (("load_model", "load_weights"), "weights_oom"),
        (("execute_model", "set_active_loras", "activate_adapter"), "lora_memory"),
        (("execute_model", "propose_draft_token_ids"), "spec_decode_memory"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else value,
)
def test_the_step_in_the_traceback_decides(steps, want, tmp_path):
    verdict = judge_log(tmp_path, START + POOL + READY + trace(*steps, error=oom()))
    assert verdict.ids[0] == want


@pytest.mark.parametrize(
    ("before", "want"),
    [
        (START, "prefill_activation_oom"),
        # No line of a capture, and none of a request: the one and the other may have been lost.
        (START + POOL, "gpu_out_of_memory"),
        (
            START
            + POOL
            + "INFO 02-01 10:01:05 [gpu_model_runner.py:3] Graph capturing finished in 5 secs, took 0.60 GiB\n"
            + READY,
            "prefill_activation_oom",
        ),
        ("", "gpu_out_of_memory"),
    ],
    ids=["weights are loaded", "the pool is sized", "requests are taken", "nothing is known"],
)
def test_without_a_traceback_the_order_of_lines_decides(before, want, tmp_path):
    assert judge_log(tmp_path, before + oom()).ids[0] == want


def test_what_came_after_the_pool_is_left_open_and_answered_with_room_beside_it(tmp_path):
    finding = judge_log(tmp_path, START + POOL + oom("3.00 GiB", "1.00 GiB"))["gpu_out_of_memory"]
    assert "after the KV pool was made, in a step that the files do not show" in finding.cause
    assert finding.confidence <= 0.5
    # 2 GiB missing and 0.5 kept of 79.11 GiB are 0.04.
    assert ("--gpu-memory-utilization", "0.91") in [(each.flag, str(each.proposed)) for each in finding.advice]


def test_a_line_alone_says_what_would_tell_the_causes_apart(tmp_path):
    verdict = judge_log(tmp_path, oom())
    assert verdict["gpu_out_of_memory"].confidence <= 0.5
    assert ["profile_run" in each.missing for each in verdict.not_enough] == [True]


def test_a_run_time_peak_is_answered_with_a_chunk_and_a_fraction_from_the_figures(tmp_path):
    verdict = judge_log(
        tmp_path, START + POOL + READY + trace("execute_model", "forward", error=oom("3.00 GiB", "1.00 GiB"))
    )
    # 16,384 tokens are budgeted: the power of two at half of them; 2 GiB missing and 0.5 kept of 79.11 GiB are 0.04.
    assert verdict.move("prefill_activation_oom", "--max-num-batched-tokens") == ("16384", "8192")
    assert verdict.move("prefill_activation_oom", "--gpu-memory-utilization") == ("0.95", "0.91")


def test_a_profile_that_does_not_fit_is_never_answered_with_the_fraction(tmp_path):
    verdict = judge_log(tmp_path, START + trace("profile_run", "forward", error=oom()))
    assert [advice.flag for advice in verdict["prefill_activation_oom"].advice] == [
        "--max-num-batched-tokens", "--max-num-seqs", "--tensor-parallel-size",
    ]  # fmt: skip
    assert "Ruled out: the memory fraction" in verdict.said("prefill_activation_oom")


def test_graphs_are_answered_with_a_lower_fraction(tmp_path):
    verdict = judge_log(tmp_path, START + POOL + trace("capture_model", error=oom("64.00 MiB", "10.00 MiB")))
    # At least 1 GiB (0.5 missing at least, 0.5 kept) of 79.11 GiB: 0.02.
    assert verdict.move("cudagraph_memory", "--gpu-memory-utilization") == ("0.95", "0.93")
    assert "0.95 of 79.1 GiB leaves 4.0 GiB" in verdict["cudagraph_memory"].cause


@pytest.mark.parametrize(
    ("asked", "spare", "want"),
    [
        ("1.50 GiB", "1.60 GiB", "allocator_fragmentation"),
        ("1.50 GiB", "1.40 GiB", "prefill_activation_oom"),
        ("20.00 MiB", "900.00 MiB", "prefill_activation_oom"),
        ("20.00 MiB", "1.10 GiB", "allocator_fragmentation"),
    ],
)
def test_fragmentation_needs_more_in_reserve_than_was_asked_and_a_gib(asked, spare, want, tmp_path):
    log = START + POOL + READY + trace("execute_model", error=oom(asked, "10.00 MiB", spare=spare))
    assert judge_log(tmp_path, log).ids[0] == want


def test_the_hint_of_torch_is_no_fragmentation(tmp_path):
    verdict = judge_log(tmp_path, START + POOL + READY + trace("execute_model", error=oom()))
    assert "allocator_fragmentation" not in verdict.ids
    assert "Ruled out: fragmentation: 200 MiB" in verdict.said("prefill_activation_oom")


@pytest.mark.parametrize(("held", "want"), [("9.00 GiB", "startup_gpu_shared"), ("7.00 GiB", "weights_oom")])
def test_weights_beside_a_tenth_of_the_card_that_others_hold_are_a_shared_card(held, want, tmp_path):
    line = oom().replace("Including", f"Process 4242 has {held} memory in use. Including")
    verdict = judge_log(tmp_path, START + trace("load_model", error=line))
    assert verdict.ids[0] == want
    if want == "startup_gpu_shared":
        assert "Other processes hold 9.0 GiB of GPU 1" in verdict[want].cause


def test_the_message_of_torch_1_is_read(tmp_path):
    line = (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 256.00 MiB (GPU 0; 23.69 GiB total capacity; 22.00 GiB "
        "already allocated; 100.00 MiB free; 22.40 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try "
        "setting max_split_size_mb to avoid fragmentation."
    )
    said = judge_log(tmp_path, START + POOL + READY + line).said("prefill_activation_oom")
    assert "256 MiB (100 MiB free)" in said
    assert "fragmentation: 410 MiB are reserved" in said


def test_rocm_says_it_with_another_word(tmp_path):
    log = START + POOL + READY + trace("execute_model", error=oom().replace("CUDA out", "HIP out"))
    assert judge_log(tmp_path, log).ids[0] == "prefill_activation_oom"


class TestV0:
    def test_adapters_are_named_where_the_version_does_not_count_them(self, tmp_path):
        log = V0.format(lora=True, draft=None) + trace("initialize_cache", "capture_model", error=oom())
        assert judge_log(tmp_path, log).ids[0] == "lora_memory"

    def test_without_adapters_it_is_the_graphs(self, tmp_path):
        log = V0.format(lora=False, draft=None) + trace("initialize_cache", "capture_model", error=oom())
        assert judge_log(tmp_path, log).ids[0] == "cudagraph_memory"

    def test_a_version_that_counts_adapters_does_not_blame_them(self, tmp_path):
        log = V0.replace("0.6.5", "0.9.0").format(lora=True, draft=None) + trace("capture_model", error=oom())
        assert judge_log(tmp_path, log).ids[0] == "cudagraph_memory"

    def test_a_draft_model_is_named_where_it_is_not_counted(self, tmp_path):
        log = V0.format(lora=False, draft="'/srv/draft'") + trace("capture_model", error=oom())
        assert judge_log(tmp_path, log).ids[0] == "spec_decode_memory"

    def test_a_draft_model_does_not_explain_an_error_while_serving(self, tmp_path):
        log = V0.format(lora=False, draft="'/srv/draft'") + READY + trace("execute_model", "forward", error=oom())
        assert judge_log(tmp_path, log).ids[0] == "prefill_activation_oom"


class TestSglang:
    ARGS = "[2026-02-01 10:00:00] server_args=ServerArgs(model_path='/srv/m', mem_fraction_static=0.9, chunked_prefill_size=8192, tp_size=1, context_length=32768)\n"

    def test_graphs_are_answered_with_its_own_flags(self, tmp_path):
        log = (
            self.ARGS
            + "[2026-02-01 10:01:00 TP0] Capture cuda graph failed: CUDA out of memory. Tried to allocate 30.00 MiB.\nPossible solutions:\n"
        )
        finding = judge_log(tmp_path, log)["cudagraph_memory"]
        assert "--mem-fraction-static" in [advice.flag for advice in finding.advice]
        assert "--disable-cuda-graph" in [advice.flag for advice in finding.advice]

    def test_a_step_that_does_not_fit_is_answered_with_its_chunk(self, tmp_path):
        frames = trace("event_loop_overlap", "forward_extend", error=oom("1.00 GiB"))
        log = self.ARGS + "[2026-02-01 10:02:00] The server is fired up and ready to roll!\n" + frames
        verdict = judge_log(tmp_path, log)
        assert verdict.move("prefill_activation_oom", "--chunked-prefill-size") == ("8192", "4096")

    def test_weights_that_leave_nothing_are_answered_with_the_fraction_it_needs(self, tmp_path):
        log = self.ARGS + (
            "[2026-02-01 10:01:00 TP0] RuntimeError: Loaded weights leave no GPU memory for the KV cache under "
            "--mem-fraction-static=0.7. Raise --mem-fraction-static above 0.81 (minimum viable = 1 - available/pre = 0.79)\n"
        )
        verdict = judge_log(tmp_path, log)
        assert verdict.move("no_kv_blocks", "--mem-fraction-static") == ("0.7", "0.83")

    def test_a_pool_that_fails_by_pages(self, tmp_path):
        log = (
            self.ARGS
            + "[2026-02-01 10:02:00 TP0] Prefill out of memory. Try to lower your batch size.\nTry to allocate 4096 tokens.\n"
        )
        assert judge_log(tmp_path, log).ids[0] == "sglang_kv_alloc_failure"


class TestSizing:
    def test_no_blocks_with_a_profile_says_how_much_is_missing(self, tmp_path):
        log = (
            "INFO 02-01 10:00:00 api_server.py:600] vLLM API server version 0.7.3\n"
            "INFO 02-01 10:00:20 worker.py:267] the current vLLM instance can use total_gpu_memory (80.00GiB) x gpu_memory_utilization (0.50) = 40.00GiB\n"
            "INFO 02-01 10:00:20 worker.py:267] model weights take 38.00GiB; non_torch_memory takes 1.00GiB; PyTorch activation peak memory takes 3.00GiB; the rest of the memory reserved for KV Cache is -2.00GiB.\n"
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.\n"
        )
        verdict = judge_log(tmp_path, log)
        # 42 GiB and one of pool against 40 of budget: 3 GiB of 80 are 0.0375, rounded up.
        assert verdict.move("no_kv_blocks", "--gpu-memory-utilization") == ("0.5", "0.54")
        assert verdict.not_enough == ()

    def test_the_context_that_fits_is_worked_out_where_the_line_does_not_say_it(self, tmp_path):
        line = (
            "ValueError: To serve at least one request with the models's max seq len (32768), (4.00 GB KV cache is needed, which is "
            "larger than the available KV cache memory (2.21 GB). Try increasing `gpu_memory_utilization` or decreasing `max_model_len`"
        )
        # 32,768 x 2.21 / 4 is 18,104.3; whole blocks of 16.
        assert judge_log(tmp_path, line).move("max_model_len_exceeds_kv", "--max-model-len") == ("32768", "18096")

    def test_more_memory_for_the_context_is_a_fraction(self, tmp_path):
        log = START + (
            "INFO 02-01 10:01:00 [gpu_worker.py:300] Free memory on device (79.0/79.11 GiB) on startup. Desired GPU memory utilization is (0.5, 39.5 GiB). "
            "Actual usage is 30.0 GiB for weight, 2.0 GiB for peak activation, 0.5 GiB for non-torch memory, and 0.5 GiB for CUDAGraph memory.\n"
            "ValueError: To serve at least one request with the models's max seq len (32768), (8.00 GiB KV cache is needed, which is larger than the "
            "available KV cache memory (6.50 GiB). Based on the available memory, the estimated maximum model length is 26624.\n"
        )
        verdict = judge_log(tmp_path, log)
        # 1.5 of 79.11 GiB are 0.019: 0.5 becomes 0.52.
        assert verdict.move("max_model_len_exceeds_kv", "--gpu-memory-utilization") == ("0.5", "0.52")
        assert verdict.move("max_model_len_exceeds_kv", "--max-model-len") == ("32768", "26624")

    def test_a_fraction_beyond_the_card_is_not_proposed(self, tmp_path):
        log = (
            START
            + POOL
            + (
                "ValueError: To serve at least one request with the models's max seq len (32768), (30.00 GiB KV cache is needed, which is larger than the "
                "available KV cache memory (6.50 GiB).\n"
            )
        )
        log = log.replace(
            "10:01:00 [kv",
            "10:01:00 [x.py:1] the current vLLM instance can use total_gpu_memory (79.11GiB) x gpu_memory_utilization (0.95) = 75.15GiB\nINFO 02-01 10:01:00 [kv",
        )
        assert "which it does not have" in judge_log(tmp_path, log).said("max_model_len_exceeds_kv")

    @pytest.mark.parametrize(
        ("free", "words"), [("69.00", "no other tenant"), ("60.00", "were in use when the engine started")]
    )
    def test_a_few_hundred_mib_are_contexts_and_more_is_a_process(self, free, words, tmp_path):
        line = (
            f"ValueError: Free memory on device cuda:0 ({free}/79.11 GiB) on startup is less than desired GPU memory utilization (0.875, 69.22 GiB). "
            "Decrease GPU memory utilization or reduce GPU memory used by other processes."
        )
        assert words in judge_log(tmp_path, line)["startup_gpu_shared"].cause

    def test_memory_that_another_process_took_while_measuring(self, tmp_path):
        line = "AssertionError: Error in memory profiling. Initial free memory 70.00 GiB, current free memory 75.50 GiB. This happens when"
        assert "gave back 5.50 GiB" in judge_log(tmp_path, line)["startup_gpu_shared"].cause

    def test_a_limit_on_the_pool_is_lifted_first(self, tmp_path):
        log = START + (
            "INFO 02-01 10:01:00 [kv_cache_utils.py:900] Overriding num_gpu_blocks=9000 with num_gpu_blocks_override=500\n"
            "ValueError: To serve at least one request with the models's max seq len (32768), (4.00 GiB KV cache is needed, which is larger than the "
            "available KV cache memory (1.00 GiB). Based on the available memory, the estimated maximum model length is 8000.\n"
        )
        first = judge_log(tmp_path, log)["max_model_len_exceeds_kv"].advice[0]
        assert (first.flag, first.current, first.proposed) == ("--num-gpu-blocks-override", "500", "9000")


def test_a_start_that_failed_first_and_then_succeeded_is_still_told_in_a_post_mortem(tmp_path):
    failed = (
        START
        + "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.\n"
    )
    assert judge_log(tmp_path, failed + START + POOL + READY).ids[0] == "no_kv_blocks"


def test_two_ranks_that_print_the_same_error_are_one_finding(tmp_path):
    one = trace("execute_model", "forward", error=oom())
    ranks = "\n".join(
        f"(Worker_TP{rank} pid={700 + rank}) ERROR 02-01 10:02:00 [x.py:1] {row}"
        for row in one.splitlines()
        for rank in (0, 1)
    )
    verdict = judge_log(tmp_path, START + POOL + READY + ranks)
    assert verdict.ids == ["prefill_activation_oom"]
