"""Memory that ran out beside or while the engine serves: what asked for it, who else holds it, and what it takes."""

# ruff: noqa: E501  # lines of logs are as long as they are

from __future__ import annotations

import pytest

from tests.unit.diagnosis.incidents import Verdict, judge_log

SGLANG = "[2026-02-01 10:00:00] server_args=ServerArgs(model_path='/srv/m', tp_size=1, mem_fraction_static=0.9, chunked_prefill_size=8192, max_running_requests=2000)\n[2026-02-01 10:02:00] The server is fired up and ready to roll!\n"
DECODE = "[2026-02-01 11:00:00 TP0] Decode batch, #running-req: {n}, #token: 90000, token usage: 0.50, cuda graph: False, gen throughput (token/s): 7000.00, #queue-req: 3\n"
PREFILL = "[2026-02-01 11:00:01 TP0] Prefill batch, #new-seq: 2, #new-token: 6000, #cached-token: 0, token usage: 0.31, #running-req: 4, #queue-req: 0\n"
VLLM = """\
INFO 02-01 10:00:00 [api_server.py:100] vLLM API server version 0.11.0
INFO 02-01 10:00:00 [utils.py:200] non-default args: {'model': '/srv/m', 'gpu_memory_utilization': 0.9, 'max_num_batched_tokens': 16384, 'max_num_seqs': 512}
INFO:     Application startup complete.
"""


def oom(
    asked="1.50 GiB",
    free="500.00 MiB",
    rest="Including non-PyTorch memory, this process has 78.60 GiB memory in use.",
    alloc="76.00 GiB",
    spare="100.00 MiB",
):
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of 79.10 GiB of which {free} is free. "
        f"{rest} Of the allocated memory {alloc} is allocated by PyTorch, and {spare} is reserved by PyTorch but unallocated.\n"
    )


def trace(*frames: tuple[str, str], error: str) -> str:
    lines = [f'  File "/opt/engine/{file}", line 7, in {name}\n    x = f()' for file, name in frames]
    return "\n".join(["Traceback (most recent call last):", *lines, error])


class TestSampler:
    STACK = (("model_executor/model_runner.py", "forward"), ("layers/sampler.py", "forward"))

    def test_its_rows_are_the_running_requests_and_fewer_of_them_are_the_answer(self, tmp_path):
        log = SGLANG + DECODE.format(n=800) + trace(*self.STACK, error=oom("400.00 MiB", "250.00 MiB"))
        verdict = judge_log(tmp_path, log)
        # 400 MiB / 4 bytes / 800 rows = 131,072 words. 250 of 400 MiB hold 500 rows, 496 as a multiple of 8.
        assert verdict.ids[0] == "gpu_out_of_memory"
        assert "800 rows of 131,072" in verdict["gpu_out_of_memory"].cause
        assert verdict.move("gpu_out_of_memory", "--max-running-requests") == ("2000", "496")
        assert all(advice.flag != "--chunked-prefill-size" for advice in verdict["gpu_out_of_memory"].advice)

    def test_rows_that_no_vocabulary_explains_are_not_made_up(self, tmp_path):
        log = SGLANG + DECODE.format(n=100) + trace(*self.STACK, error=oom("400.00 MiB", "250.00 MiB"))
        verdict = judge_log(tmp_path, log)
        # 400 MiB over 100 rows would be a vocabulary of a million: 100 ran before, and nothing else is known.
        assert "rows of" not in verdict["gpu_out_of_memory"].cause.partition(":")[2]
        assert verdict.move("gpu_out_of_memory", "--max-running-requests") == ("2000", "100")

    def test_the_vocabulary_of_the_model_tells_the_rows(self, tmp_path):
        config = '{"architectures": ["A"], "model_type": "a", "num_hidden_layers": 2, "vocab_size": 65536}'
        log = SGLANG + DECODE.format(n=100) + trace(*self.STACK, error=oom("400.00 MiB", "200.00 MiB"))
        verdict = Verdict(tmp_path, {"a.log": log, "config.json": config})
        # 400 MiB / 4 / 65,536 = 1,600 rows, half of which fit.
        assert verdict.move("gpu_out_of_memory", "--max-running-requests") == ("2000", "800")

    def test_vllm_has_another_flag_for_it(self, tmp_path):
        stack = (
            ("v1/worker/gpu_model_runner.py", "execute_model"),
            ("v1/sample/ops/topk_topp_sampler.py", "forward_native"),
        )
        verdict = judge_log(tmp_path, VLLM + trace(*stack, error=oom()))
        assert verdict.move("gpu_out_of_memory", "--max-num-seqs") == ("512", "256")

    def test_the_profile_and_the_logits_of_prompts_pass_through_it_as_well(self, tmp_path):
        start = VLLM.rpartition("INFO:")[0]
        profiled = (
            ("gpu_worker.py", "profile_run"),
            ("gpu_model_runner.py", "_dummy_sampler_run"),
            ("sample/sampler.py", "forward"),
        )
        assert judge_log(tmp_path, start + trace(*profiled, error=oom())).ids[0] == "sampler_warmup_oom"
        prompt = (("gpu_model_runner.py", "_get_prompt_logprobs_dict"), ("sample/sampler.py", "compute_logprobs"))
        verdict = judge_log(tmp_path, VLLM + trace(*prompt, error=oom()))
        assert "traceback is in the logits" in verdict["prefill_activation_oom"].cause


def test_a_decode_step_is_not_answered_with_a_smaller_chunk(tmp_path):
    log = SGLANG + DECODE.format(n=300) + trace(("model_runner.py", "forward_decode"), error=oom())
    verdict = judge_log(tmp_path, log)
    assert verdict.ids[0] == "gpu_out_of_memory"
    assert verdict.move("gpu_out_of_memory", "--max-running-requests") == ("2000", "300")


def test_a_large_tensor_outside_the_logits_is_the_chunks(tmp_path):
    log = SGLANG + PREFILL + trace(("model_runner.py", "forward_extend"), ("models/m.py", "forward"), error=oom())
    verdict = judge_log(tmp_path, log)
    found = verdict["prefill_activation_oom"]
    # The step had 6,000 tokens: the largest power of two within half of them.
    assert found.advice[0].flag == "--chunked-prefill-size"
    assert found.advice[0].proposed == "2048"
    assert "logprob" not in found.cause + "".join(advice.text for advice in found.advice)
    assert "Ruled out: logits of a whole prompt" in verdict.said("prefill_activation_oom")


def test_without_a_traceback_logits_are_named_last_and_in_the_engines_words(tmp_path):
    found = judge_log(tmp_path, SGLANG + oom())["prefill_activation_oom"]
    assert found.advice[0].flag == "--chunked-prefill-size"
    assert "return_logprob" in found.cause
    assert "prompt_logprobs" not in found.cause


class TestOthers:
    BOTH = "Process 31 has 6.00 GiB memory in use. Process 32 has 72.50 GiB memory in use."

    def test_a_process_whose_memory_would_have_been_enough_is_named(self, tmp_path):
        log = VLLM + trace(
            ("gpu_model_runner.py", "execute_model"), error=oom("800.00 MiB", "600.00 MiB", self.BOTH, "72.00 GiB")
        )
        found = judge_log(tmp_path, log)["prefill_activation_oom"]
        assert "pid 31, 6.0 GiB" in found.cause
        assert "pid 32" not in found.cause

    def test_those_that_hold_most_of_the_card_come_before_fragments(self, tmp_path):
        rest = "Including non-PyTorch memory, this process has 9.00 GiB memory in use. Process 31 has 69.50 GiB memory in use."
        log = VLLM + trace(
            ("gpu_model_runner.py", "execute_model"), error=oom("1.40 GiB", "600.00 MiB", rest, "6.00 GiB", "1.60 GiB")
        )
        verdict = judge_log(tmp_path, log)
        assert verdict.ids[0] == "gpu_out_of_memory"
        assert "Other processes hold 69.5 GiB of the 79.1 GiB" in verdict["gpu_out_of_memory"].cause

    @pytest.mark.parametrize(
        ("profile", "seen"),
        [
            (
                "Memory profiling results: total_gpu_memory=40.00GiB initial_memory_usage=30.00GiB peak_torch_memory=2.00GiB memory_usage_post_profile=31.00GiB non_torch_memory=30.50GiB kv_cache_size=-20.50GiB gpu_memory_utilization=0.30",
                "30.0 GiB of 40.0 GiB were in use before",
            ),
            (
                "the current vLLM instance can use total_gpu_memory (40.00GiB) x gpu_memory_utilization (0.30) = 12.00GiB\nINFO 02-01 10:00:09 worker.py:240] model weights take 1.00GiB; non_torch_memory takes 30.50GiB; PyTorch activation peak memory takes 1.00GiB; the rest of the memory reserved for KV Cache is -20.50GiB.",
                "30.5 GiB of 40.0 GiB were held outside torch",
            ),
        ],
    )
    def test_memory_that_no_engine_has_outside_torch_is_theirs(self, profile, seen, tmp_path):
        log = f"INFO 02-01 10:00:08 worker.py:232] {profile}\nERROR 02-01 10:00:10 engine.py:366] ValueError: No available memory for the cache blocks.\n"
        verdict = judge_log(tmp_path, log)
        assert verdict.ids[0] == "startup_gpu_shared"
        assert seen in verdict["startup_gpu_shared"].cause
        # 20.5 GiB are missing, and one for the pool: 21.5 of 40 are 0.54 beside 0.3.
        assert verdict.move("startup_gpu_shared", "--gpu-memory-utilization") == ("0.3", "0.84")


class TestNoPool:
    LOG = (
        "INFO 02-01 10:00:00 [api_server.py:100] vLLM API server version 0.11.0\n"
        "INFO 02-01 10:00:00 [utils.py:200] non-default args: {'model': '/srv/m', 'gpu_memory_utilization': 0.7}\n"
        "(EngineCore_DP0 pid=9) INFO 02-01 10:00:40 [gpu_worker.py:298] Available KV cache memory: -%s GiB\n"
        "(EngineCore_DP0 pid=9) ERROR 02-01 10:00:41 [core.py:708] ValueError: No available memory for the cache blocks.\n"
    )
    SMI = "index, name, memory.total [MiB], memory.used [MiB]\n0, NVIDIA L40S, 40960 MiB, 3 MiB\n"

    def test_a_card_that_nvidia_smi_shows_empty_gives_the_share(self, tmp_path):
        verdict = Verdict(tmp_path, {"a.log": self.LOG % "3.00", "smi.txt": self.SMI})
        # 3 GiB and one for the pool of 40 are 0.1.
        assert verdict.move("no_kv_blocks", "--gpu-memory-utilization") == ("0.7", "0.8")
        assert "left for the pool: -3.00 GiB" in verdict.said("no_kv_blocks")
        assert "if it is free" not in verdict["no_kv_blocks"].advice[0].text

    def test_more_than_the_card_has_is_answered_with_more_cards(self, tmp_path):
        verdict = Verdict(tmp_path, {"a.log": self.LOG % "14.00", "smi.txt": self.SMI})
        first, second = verdict["no_kv_blocks"].advice[:2]
        assert (first.flag, first.proposed) == ("--tensor-parallel-size", "2")
        # 15 of 40 GiB beside 0.7 are 1.075.
        assert "would take 108% of the card, which it does not have" in second.text

    @pytest.mark.parametrize(("short", "want"), [("4.00", "0.9"), ("18.00", "0.95"), ("30.00", None)])
    def test_an_unknown_card_is_taken_to_be_a_usual_one(self, short, want, tmp_path):
        # 4 GiB are 0.2 of 20 GiB; 18 are 0.25 of 72 GiB, and 0.2 of 90; 30 would take a card of 120 GiB.
        verdict = judge_log(tmp_path, self.LOG % short)
        assert verdict.move("no_kv_blocks", "--gpu-memory-utilization") == ("0.7", want)


def test_an_older_sglang_tells_the_least_fraction_by_its_free_memory(tmp_path):
    log = (
        "[2026-02-01 10:00:00] server_args=ServerArgs(model_path='/srv/m', tp_size=1, mem_fraction_static=0.6)\n"
        "[2026-02-01 10:00:10 TP0] Load weight begin. avail mem=40.00 GB\n"
        "[2026-02-01 10:01:00 TP0] Load weight end. type=M, dtype=torch.bfloat16, avail mem=12.00 GB, mem usage=28.00 GB.\n"
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n"
    )
    # 1 - 12 / 40 = 0.7, and 0.02 for a first pool.
    assert judge_log(tmp_path, log).move("no_kv_blocks", "--mem-fraction-static") == ("0.6", "0.72")


class TestPool:
    def test_a_pool_of_sglang_is_enlarged_by_the_share_and_not_by_a_cap(self, tmp_path):
        log = (
            "[2026-02-01 10:00:00] server_args=ServerArgs(model_path='/srv/m', tp_size=1, mem_fraction_static=0.4)\n"
            "[2026-02-01 10:02:00] max_total_num_tokens=5000, chunked_prefill_size=2048, max_prefill_tokens=16384, max_running_requests=64, context_len=131072, available_gpu_mem=16.00 GB\n"
        )
        verdict = judge_log(tmp_path, log)
        # 0.4, and of the other 0.6 the half that is beyond 8 of 16 GiB.
        assert verdict.move("kv_pool_undersized", "--mem-fraction-static") == ("0.4", "0.7")
        assert all(advice.flag != "--max-total-tokens" for advice in verdict["kv_pool_undersized"].advice)

    FAILED = (
        "[2026-02-01 11:00:02 TP0] Prefill out of memory. Try to lower your batch size.\nTry to allocate 4096 tokens.\n"
    )

    def test_room_by_its_own_figures_is_a_defect_of_the_engine(self, tmp_path):
        left = "Available full tokens: 500000 (full_available_size=2000 + full_evictable_size_=498000)\nAvailable mamba: 12 (available_size=2 + component_evictable_size_=10)\n"
        found = judge_log(tmp_path, SGLANG + self.FAILED + left)["sglang_kv_alloc_failure"]
        assert "500,000 full tokens, 12 Mamba states" in found.cause
        assert "defect of the engine" in found.cause
        assert all(advice.flag != "--mem-fraction-static" for advice in found.advice)

    def test_tokens_that_are_spread_over_pages_are_no_room(self, tmp_path):
        # 4,096 tokens, and a page of up to 64 for each of 2,000 requests: 50,000 single tokens may be none of them.
        left = "Available tokens: 50000 (available_size=2000 + evictable_size=48000)\n"
        found = judge_log(tmp_path, SGLANG + self.FAILED + left)["sglang_kv_alloc_failure"]
        assert "whole pages" in found.cause

    def test_the_pool_that_is_short_is_named(self, tmp_path):
        left = "Available full tokens: 50000 (full_available_size=2000 + full_evictable_size_=48000)\nAvailable swa tokens: 700 (swa_available_size=700 + swa_evictable_size_=0)\n"
        verdict = judge_log(tmp_path, SGLANG + self.FAILED + left)
        assert "what is short are swa tokens" in verdict["sglang_kv_alloc_failure"].cause
        assert verdict.move("sglang_kv_alloc_failure", "--max-running-requests") == ("2000", "1000")


class TestLength:
    LOG = "ValueError: To serve at least one request with the models's max seq len (%d), (%s GiB KV cache is needed, which is larger than the available KV cache memory (4.0 GiB). Based on the available memory, the estimated maximum model length is %d.\n"

    @pytest.mark.parametrize(
        ("length", "need", "fits", "flag"),
        [(60000, "6.0", 40000, "--kv-cache-dtype"), (120000, "12.0", 40000, "--tensor-parallel-size")],
    )
    def test_eight_bits_are_proposed_only_where_they_are_enough(self, length, need, fits, flag, tmp_path):
        found = judge_log(tmp_path, VLLM + self.LOG % (length, need, fits))["max_model_len_exceeds_kv"]
        assert found.advice[-1].flag == flag

    def test_no_card_has_what_a_share_of_0_9_would_have_to_become(self, tmp_path):
        found = judge_log(tmp_path, VLLM + self.LOG % (260000, "26.0", 40000))["max_model_len_exceeds_kv"]
        # 22 GiB in 0.07 of a card are 314 GiB.
        assert all(advice.flag != "--gpu-memory-utilization" for advice in found.advice)


class TestShares:
    def test_a_share_that_is_a_known_trap_is_lowered_to_what_the_table_says(self, tmp_path):
        log = VLLM.replace("0.9,", "0.97,") + trace(("gpu_model_runner.py", "execute_model"), error=oom("600.00 MiB"))
        verdict = judge_log(tmp_path, log)
        assert verdict.move("prefill_activation_oom", "--gpu-memory-utilization") == ("0.97", "0.92")
        assert verdict.move("flag_risky", "--gpu-memory-utilization") == ("0.97", "0.92")

    def test_arguments_right_above_the_first_line_of_a_run_are_its(self, tmp_path):
        first, second, rest = VLLM.split("\n", 2)
        log = f"{second}\n{first}\n{rest}" + trace(("gpu_model_runner.py", "execute_model"), error=oom("600.00 MiB"))
        assert judge_log(tmp_path, log).move("prefill_activation_oom", "--max-num-batched-tokens") == ("16384", "8192")

    def test_arguments_that_a_terminal_broke_are_read_to_their_end(self, tmp_path):
        first, second, rest = VLLM.split("\n", 2)
        log = f"{first}\n{second[:100]}\n{second[100:]}\n{rest}" + trace(
            ("gpu_model_runner.py", "execute_model"), error=oom("600.00 MiB")
        )
        assert judge_log(tmp_path, log).move("prefill_activation_oom", "--max-num-batched-tokens") == ("16384", "8192")


class TestV0:
    GRAPHS = (
        "INFO 02-01 10:00:30 gpu_executor.py:76] # GPU blocks: 5000, # CPU blocks: 2048\n"
        "INFO 02-01 10:00:31 model_runner.py:1024] Capturing the model for CUDA graphs. This may lead to unexpected consequences if the model is not static.\n"
    )

    def test_graphs_follow_the_most_requests(self, tmp_path):
        verdict = Verdict(tmp_path, {"a.log": self.GRAPHS + oom("100.00 MiB")}, "vllm serve m --max-num-seqs 128")
        assert verdict.move("cudagraph_memory", "--max-num-seqs") == ("128", "32")
        assert all(advice.flag != "--cudagraph-capture-sizes" for advice in verdict["cudagraph_memory"].advice)

    def test_a_profile_of_multimodal_inputs_is_named_by_the_line_that_begins_it(self, tmp_path):
        log = (
            "INFO 02-01 10:00:20 model_runner.py:1025] Loading model weights took 10.0000 GB\n"
            "INFO 02-01 10:00:21 enc_dec_model_runner.py:297] Starting profile run for multi-modal models.\n"
            "ERROR 02-01 10:00:31 multiproc_worker_utils.py:233] Exception in worker VllmWorkerProcess while processing method determine_num_available_blocks: CUDA out of memory. "
        )
        log += oom().partition("memory. ")[2]
        flags = "vllm serve m --max-num-seqs 256 --limit-mm-per-prompt image=8"
        verdict = Verdict(tmp_path, {"a.log": log}, flags)
        assert verdict.move("mm_profiling_memory", "--limit-mm-per-prompt")[0] == "image=8"
        assert verdict.move("mm_profiling_memory", "--max-num-seqs") == ("256", "32")
        plain = Verdict(tmp_path, {"a.log": log.replace("for multi-modal models", "")}, flags)
        assert plain.ids[0] == "prefill_activation_oom"
        assert all(advice.flag != "--max-num-batched-tokens" for advice in plain["prefill_activation_oom"].advice)


def test_the_call_into_the_encoder_below_the_last_frame_tells_the_step(tmp_path):
    start = VLLM.rpartition("INFO:")[0].replace("'max_num_seqs'", "'limit_mm_per_prompt': {'image': 6}, 'max_num_seqs'")
    log = f'{start}  File "/opt/vllm/v1/worker/gpu_model_runner.py", line 15, in profile_run\n    encoded = self.model.get_multimodal_embeddings(\n{oom()}'
    verdict = judge_log(tmp_path, log)
    assert verdict.ids[0] == "mm_profiling_memory"
    assert "6" in verdict.move("mm_profiling_memory", "--limit-mm-per-prompt")[0]


class TestSharedMemory:
    LOG = (
        "[2026-02-01 10:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        "Error while creating shared memory segment /dev/shm/nccl-Ab12 (size 4194304), error: No space left on device (28)\n"
    )

    def test_what_df_shows_is_the_size_that_is_not_enough(self, tmp_path):
        files = {
            "a.log": self.LOG,
            "df.txt": "Filesystem Size Used Avail Use% Mounted on\ntmpfs   12G   12G   0 100% /dev/shm\n",
        }
        verdict = Verdict(tmp_path, files)
        found = verdict["host_shm_exhaustion"]
        assert found.severity == "critical"
        assert "100% of its 12.0 GiB are used" in found.cause
        assert verdict.move("host_shm_exhaustion", "--shm-size") == ("12g", "24g")
        assert "sgl_shm_*" in found.advice[0].text

    def test_a_default_size_gets_the_usual_one(self, tmp_path):
        files = {"a.log": self.LOG, "df.txt": "tmpfs   64M   64M   0 100% /dev/shm\n"}
        assert Verdict(tmp_path, files).move("host_shm_exhaustion", "--shm-size") == (None, "10g")


def test_rays_figures_are_taken_from_the_line_that_has_them(tmp_path):
    log = (
        "(raylet) node_manager.cc:3193: 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed\n"
        "Memory on the node (IP: 10.0.0.7, ID: a) where the task (pid=12, memory used=40.50GB) was running was 120.00GB / 125.00GB "
        "(0.96), which exceeds the memory usage threshold of 0.95. Ray killed this worker (ID: 3).\n"
    )
    cause = judge_log(tmp_path, log)["ray_host_oom"].cause
    assert "120 of 125 GB" in cause
    assert "held 40.5" in cause
