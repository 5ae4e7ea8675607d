"""Advice that an engine takes: flags of its version, values that fit, and none where a flag has no effect."""

# ruff: noqa: E501  # lines of logs are as long as they are

from __future__ import annotations

import pytest

from gpuwatch.engines.flag_versions import unknown_flag
from tests.unit.diagnosis.incidents import Verdict, judge_log

GIB = 1 << 30
SERVER = "(APIServer pid=7) INFO 04-02 09:00:00 [api.py:1] vLLM API server version {}\n"
ARGS = "(APIServer pid=7) INFO 04-02 09:00:01 [utils.py:1] non-default args: {}\n"
LOADING = "(EngineCore pid=9) INFO 04-02 09:00:05 [gpu_model_runner.py:1] Starting to load model org/m...\n"
LOADED = "(EngineCore pid=9) INFO 04-02 09:01:05 [gpu_model_runner.py:2] Model loading took 20.0 GiB memory and 9.5 seconds\n"
POOL = "(EngineCore pid=9) INFO 04-02 09:01:20 [kv_cache_utils.py:1] GPU KV cache size: 100,000 tokens\n"
READY = "(APIServer pid=7) INFO:     Application startup complete.\n"
STATS = (
    "(APIServer pid=7) INFO 04-02 09:05:00 [loggers.py:1] Engine 000: Avg prompt throughput: 9.0 tokens/s, Avg "
    "generation throughput: 900.0 tokens/s, Running: {} reqs, Waiting: 0 reqs, GPU KV cache usage: 40.0%, Prefix cache "
    "hit rate: 0.0%\n"
)


def oom(asked, free, own="76.00 GiB", alloc="75.00 GiB", others=""):
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of 80.00 GiB "
        f"of which {free} is free.{others} Including non-PyTorch memory, this process has {own} memory in use. Of the "
        f"allocated memory {alloc} is allocated by PyTorch, and 50.00 MiB is reserved by PyTorch but unallocated.\n"
    )


def trace(*frames, error):
    lines = [f'  File "/opt/engine/{file}", line 7, in {name}\n    x = f()' for file, name in frames]
    return "\n".join(["Traceback (most recent call last):", *lines, error])


def flags(verdict, id_):
    return [advice.flag for advice in verdict[id_].advice]


class TestGraphSizes:
    FAILED = trace(("v1/worker/gpu_model_runner.py", "capture_model"), error=oom("1.00 GiB", "500.00 MiB"))
    SIZES = '{"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32]}'

    @pytest.mark.parametrize("version", ["0.8.5", "0.9.2", "0.10.2", "0.11.0"])
    def test_before_there_was_a_flag_of_its_own_they_are_a_part_of_another(self, version, tmp_path):
        verdict = judge_log(tmp_path, SERVER.format(version) + POOL + self.FAILED)
        assert verdict.move("cudagraph_memory", "--compilation-config") == (None, self.SIZES)
        assert "--cudagraph-capture-sizes" not in flags(verdict, "cudagraph_memory")

    @pytest.mark.parametrize("version", ["0.11.1", "0.32.0"])
    def test_the_flag_is_told_where_the_version_has_it(self, version, tmp_path):
        verdict = judge_log(tmp_path, SERVER.format(version) + POOL + self.FAILED)
        assert verdict.move("cudagraph_memory", "--cudagraph-capture-sizes") == (None, "1 2 4 8 16 32")

    def test_frames_of_v0_without_a_version_have_neither(self, tmp_path):
        frames = (("vllm/worker/worker.py", "initialize_cache"), ("vllm/worker/model_runner.py", "capture_model"))
        log = "INFO 03-03 10:00:00 [worker.py:2] no version here\n" + trace(*frames, error=oom("1.00 GiB", "9.00 MiB"))
        verdict = judge_log(tmp_path, log)
        assert verdict.move("cudagraph_memory", "--max-num-seqs") == (None, "64")
        assert not {"--cudagraph-capture-sizes", "--compilation-config"} & set(flags(verdict, "cudagraph_memory"))

    @pytest.mark.parametrize(("version", "known"), [("0.6.3", False), ("0.11.0", False), ("0.11.1", True), ("", True)])
    def test_a_command_with_the_flag_is_judged_by_its_version(self, version, known, tmp_path):
        image = f"vllm/vllm-openai:v{version}" if version else "vllm/vllm-openai"
        verdict = Verdict(tmp_path, {"run.sh": f"docker run {image} --model m --cudagraph-capture-sizes 1 2 4\n"})
        assert verdict.ids == ([] if known else ["flag_unknown"])


@pytest.mark.parametrize(("version", "proposed"), [("0.7.3", "image=1,video=0"), ("0.9.0", '{"image": 1, "video": 0}')])
def test_the_limit_of_images_is_written_as_the_version_reads_it(version, proposed, tmp_path):
    stack = (("v1/worker/gpu_model_runner.py", "_execute_mm_encoder"), ("models/vl.py", "_process_image_input"))
    log = SERVER.format(version) + POOL + READY + trace(*stack, error=oom("6.00 GiB", "3.00 GiB"))
    verdict = judge_log(tmp_path, log)
    assert verdict.move("prefill_activation_oom", "--limit-mm-per-prompt") == (None, proposed)
    assert "encoder" in verdict["prefill_activation_oom"].cause
    assert "--max-num-batched-tokens" not in flags(verdict, "prefill_activation_oom")


def test_a_limit_that_the_version_does_not_have_is_not_advised(tmp_path):
    assert unknown_flag("vllm", "0.5.4", "limit-mm-per-prompt") is not None
    log = SERVER.format("0.5.4") + READY + trace(("m.py", "vision_tower"), error=oom("6.00 GiB", "3.00 GiB"))
    assert "--limit-mm-per-prompt" not in flags(judge_log(tmp_path, log), "prefill_activation_oom")


@pytest.mark.parametrize(("version", "proposed"), [("0.4.1", "fp8_e5m2"), ("0.4.6", "fp8_e4m3")])
def test_a_type_that_the_version_does_not_take_is_replaced(version, proposed, tmp_path):
    decode = (
        "[2025-01-10 10:0{}:00] Decode batch. #running-req: 9, #token: 9900, token usage: 0.99, gen throughput "
        "(token/s): 50.00, #queue-req: 7\n"
    )
    log = "[2025-01-10 10:00:00] server_args=ServerArgs(model_path='m', tp_size=1)\n" + "".join(
        decode.format(minute) for minute in range(1, 6)
    )
    command = f"docker run lmsysorg/sglang:v{version} python3 -m sglang.launch_server --model-path m\n"
    verdict = Verdict(tmp_path, {"a.log": log, "run.sh": command})
    assert verdict.move("kv_pool_saturated", "--kv-cache-dtype") == (None, proposed)


class TestFixedPool:
    START = SERVER.format("0.20.0") + ARGS.format("{'model': 'm', 'kv_cache_memory_bytes': 64424509440}") + LOADED

    def test_a_pool_that_does_not_fit_is_made_smaller_to_what_there_is_beside_the_weights(self, tmp_path):
        error = oom("1.50 GiB", "1.00 GiB", "78.00 GiB", "77.00 GiB")
        log = self.START + trace(("gpu_model_runner.py", "_allocate_kv_cache_tensors"), error=error)
        verdict = judge_log(tmp_path, log)
        # 77 allocated - 20 of weights + 1 free = 58 GiB; 2.5 GiB of them for a step and graphs: 55.5 of 60.
        assert verdict.move("gpu_out_of_memory", "--kv-cache-memory-bytes") == (str(60 * GIB), str(111 * GIB // 2))
        assert "--gpu-memory-utilization" not in flags(verdict, "gpu_out_of_memory")
        assert "look alike" not in verdict["gpu_out_of_memory"].cause

    def test_a_step_beside_it_asks_for_what_was_missing_and_a_reserve(self, tmp_path):
        stack = (("gpu_model_runner.py", "execute_model"), ("models/m.py", "forward"))
        log = self.START + POOL + READY + trace(*stack, error=oom("2.00 GiB", "1.00 GiB"))
        verdict = judge_log(tmp_path, log)
        # 1 GiB was missing, half a GiB stays free: 58.5 GiB.
        assert verdict.move("prefill_activation_oom", "--kv-cache-memory-bytes") == (str(60 * GIB), str(117 * GIB // 2))
        assert "--gpu-memory-utilization" not in flags(verdict, "prefill_activation_oom")

    def test_a_longer_request_asks_for_a_larger_one(self, tmp_path):
        line = (
            "ValueError: To serve at least one request with the models's max seq len (131072), (70.00 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (60.00 GiB). Based on the available memory, the "
            "estimated maximum model length is 112000.\n"
        )
        verdict = judge_log(tmp_path, self.START + line)
        assert verdict.move("max_model_len_exceeds_kv", "--kv-cache-memory-bytes") == (
            str(60 * GIB),
            str(70 * GIB + GIB // 4),
        )


class TestBatch:
    def test_places_of_a_sort_take_eight_bytes_and_the_batch_that_failed_is_not_proposed(self, tmp_path):
        stack = (("v1/worker/gpu_model_runner.py", "sample_tokens"), ("ops/topk_topp_sampler.py", "apply_top_k_top_p"))
        log = SERVER.format("0.19.0") + ARGS.format("{'model': 'm', 'max_num_seqs': 1024}") + POOL + READY
        # 1,000 rows x 200,000 x 8 bytes = 1,525.88 MiB, half of which was free.
        verdict = judge_log(tmp_path, log + STATS.format(1000) + trace(*stack, error=oom("1525.88 MiB", "762.94 MiB")))
        assert "1,000 rows of 200,000" in verdict["gpu_out_of_memory"].cause
        assert verdict.move("gpu_out_of_memory", "--max-num-seqs") == ("1024", "496")

    @pytest.mark.parametrize(("running", "proposed"), [(250, "120"), (100, "100")])
    def test_a_full_batch_is_the_one_that_failed(self, running, proposed, tmp_path):
        # Full, the half that was free: 125, 120 as a multiple of 8. Far from full, the batch of the line had fitted.
        log = (
            f"[2026-03-01 10:00:00] server_args=ServerArgs(model_path='m', max_running_requests=256)\n"
            f"[2026-03-01 10:05:00] Decode batch. #running-req: {running}, #token: 900, token usage: 0.40, cuda graph: "
            "True, gen throughput (token/s): 50.00, #queue-req: 0, \n"
        )
        log += trace(("model_runner.py", "forward_decode"), error=oom("900.00 MiB", "450.00 MiB"))
        verdict = judge_log(tmp_path, log)
        assert verdict.move("gpu_out_of_memory", "--max-running-requests") == ("256", proposed)


class TestSharedCard:
    HELD = " Process 55 has 60.00 GiB memory in use."

    def test_no_share_helps_while_weights_are_loaded(self, tmp_path):
        log = SERVER.format("0.19.0") + LOADING + oom("900.00 MiB", "100.00 MiB", "19.00 GiB", "18.50 GiB", self.HELD)
        verdict = judge_log(tmp_path, log)
        assert verdict.ids == ["startup_gpu_shared"]
        assert flags(verdict, "startup_gpu_shared") == ["", ""]
        assert "another card" in verdict["startup_gpu_shared"].advice[1].text

    def test_a_share_below_what_the_engine_has_is_none(self, tmp_path):
        log = SERVER.format("0.19.0") + oom("900.00 MiB", "100.00 MiB", "19.00 GiB", "18.50 GiB", self.HELD)
        assert "--gpu-memory-utilization" not in flags(judge_log(tmp_path, log), "startup_gpu_shared")

    def test_a_share_is_told_where_it_leaves_room(self, tmp_path):
        held = " Process 55 has 10.00 GiB memory in use."
        log = SERVER.format("0.19.0") + LOADED + POOL
        frames = (("gpu_model_runner.py", "capture_model"),)
        verdict = judge_log(
            tmp_path, log + trace(*frames, error=oom("500.00 MiB", "100.00 MiB", "69.90 GiB", "69.00 GiB", held))
        )
        # The default 0.9 less (10 + 0.5) / 80 = 13.1 %, rounded up to 14 %: 0.76 x 80 GiB = 60.8 GiB.
        assert verdict.move("startup_gpu_shared", "--gpu-memory-utilization") == (None, "0.76")


class TestLora:
    def test_buffers_are_made_before_there_is_a_pool(self, tmp_path):
        args = ARGS.format("{'model': 'm', 'enable_lora': True, 'max_loras': 8, 'max_lora_rank': 64}")
        stack = (("lora/layers/linear.py", "create_lora_weights"),)
        log = SERVER.format("0.19.0") + args + LOADING + trace(*stack, error=oom("90.00 MiB", "50.00 MiB"))
        verdict = judge_log(tmp_path, log)
        assert verdict.ids == ["lora_memory"]
        assert "beside the weights" in verdict["lora_memory"].cause
        assert verdict.move("lora_memory", "--max-loras") == ("8", "2")
        assert verdict.move("lora_memory", "--max-lora-rank") == ("64", "16")
        assert "--gpu-memory-utilization" not in flags(verdict, "lora_memory")
        assert "pool" not in verdict["lora_memory"].title

    def test_beside_a_pool_they_leave_the_share_as_a_way_out(self, tmp_path):
        log = SERVER.format("0.19.0") + POOL + READY
        log += trace(("worker.py", "execute_model"), ("lora.py", "add_lora"), error=oom("90.00 MiB", "50.00 MiB"))
        assert "--gpu-memory-utilization" in flags(judge_log(tmp_path, log), "lora_memory")


class TestDraft:
    LOG = (
        "[2025-06-01 10:00:00] server_args=ServerArgs(model_path='m', mem_fraction_static=0.8, tp_size=1, "
        "speculative_algorithm='EAGLE', speculative_num_draft_tokens=8)\n"
        "[2025-06-01 10:00:01 TP0] Load weight begin. avail mem=40.00 GB\n"
        "[2025-06-01 10:00:02 TP0] Load weight end. type=LlamaForCausalLM, dtype=torch.float16, avail mem=24.00 GB.\n"
        "{pool}"
        "[2025-06-01 10:00:04 TP0] Load weight begin. avail mem=6.00 GB\n"
        "[2025-06-01 10:00:05 TP0] Load weight end. type=LlamaForCausalLMEagle, dtype=torch.float16, avail mem=4.00 GB.\n"
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n"
    )
    MADE = (
        "[2025-06-01 10:00:03 TP0] KV Cache is allocated. #tokens: 128000, K size: 8.00 GB, V size: 8.00 GB\n"
        "[2025-06-01 10:00:03 TP0] Memory pool end. avail mem=8.00 GB\n"
    )

    def test_a_load_after_the_pool_is_the_drafts_and_the_way_up_is_shut(self, tmp_path):
        verdict = judge_log(tmp_path, self.LOG.format(pool=self.MADE))
        assert verdict.ids == ["spec_decode_memory"]
        assert "the draft's weights take 2.0 GiB" in verdict["spec_decode_memory"].cause
        # (2 + 0.5) of 40 GiB are 6.25 %, rounded up to 7 %.
        assert verdict.move("spec_decode_memory", "--mem-fraction-static") == ("0.8", "0.73")
        # 16 - 2.5 of 16 GiB hold 108,000 of the 128,000 tokens, 107,776 as a multiple of 256.
        assert verdict.move("spec_decode_memory", "--max-total-tokens") == ("128000", "107776")
        assert verdict.move("spec_decode_memory", "--speculative-num-draft-tokens") == ("8", "4")

    def test_two_loads_before_any_pool_are_weights_together(self, tmp_path):
        verdict = judge_log(tmp_path, self.LOG.format(pool=""))
        # 40 before the first, 4 after the last: 0.9 for weights, and 0.02 for a pool.
        assert verdict.ids == ["no_kv_blocks"]
        assert verdict.move("no_kv_blocks", "--mem-fraction-static") == ("0.8", "0.92")

    def test_ranks_that_load_one_after_the_other_are_no_draft(self, tmp_path):
        ranks = "".join(
            f"[2025-06-01 10:00:0{rank} TP{rank}] Load weight begin. avail mem=40.00 GB\n"
            f"[2025-06-01 10:00:0{rank} TP{rank}] Load weight end. type=L, dtype=torch.float16, avail mem=6.00 GB.\n"
            for rank in range(2)
        )
        verdict = judge_log(
            tmp_path, ranks + "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n"
        )
        # 1 - 6 / 40 = 0.85
        assert verdict.move("no_kv_blocks", "--mem-fraction-static")[1] == "0.87"

    def test_what_was_free_before_follows_from_what_the_weights_took(self, tmp_path):
        line = (
            "[2025-06-01 10:00:02 TP0] Load weight end. type=L, dtype=torch.bfloat16, avail mem=20.00 GB, mem "
            "usage=60.00 GB.\n"
        )
        verdict = judge_log(
            tmp_path, line + "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n"
        )
        # 60 of 80
        assert verdict.move("no_kv_blocks", "--mem-fraction-static")[1] == "0.77"


class TestAttentionGroups:
    LINE = "[2025-06-01 10:00:02 TP0] Load weight end. type=DeepseekV3ForCausalLM, dtype=torch.bfloat16, avail mem=20.00 GB\n"

    @pytest.mark.parametrize(
        ("command", "copies", "move"),
        [
            ("--tp-size 8 --dp-size 8 --enable-dp-attention", None, None),
            ("--tp-size 8 --dp-size 2 --enable-dp-attention", "4 times", ("2", "8")),
            ("--tp-size 8", "8 times", ("1", "8")),
            ("--tp-size 4 --dp-size 2", "4 times", ("2", "8")),
        ],
    )
    def test_a_group_of_attention_holds_no_copies_of_another_ones_requests(self, command, copies, move, tmp_path):
        command = f"python -m sglang.launch_server --model-path m {command}"
        verdict = judge_log(tmp_path, self.LINE, flags=command)
        if copies is None:
            assert "kv_head_replication" not in verdict.ids
        else:
            assert copies in verdict["kv_head_replication"].cause
            assert verdict.move("kv_head_replication", "--dp-size") == move
            assert "--decode-context-parallel-size" not in flags(verdict, "kv_head_replication")

    @pytest.mark.parametrize(("second", "copied"), [("DP1 TP1", False), ("DP1 TP0", True)])
    def test_the_names_of_the_ranks_tell_groups_from_replicas(self, second, copied, tmp_path):
        lines = self.LINE.replace("TP0", "DP0 TP0") + self.LINE.replace("TP0", second)
        command = "python -m sglang.launch_server --model-path m --tp-size 2 --dp-size 2"
        assert ("kv_head_replication" in judge_log(tmp_path, lines, flags=command).ids) is copied

    def test_replicas_beside_each_other_become_ranks_of_one(self, tmp_path):
        command = "python -m sglang.launch_server --model-path m --tp-size 4 --dp-size 2"
        assert judge_log(tmp_path, self.LINE, flags=command).move("kv_head_replication", "--tp-size") == ("4", "8")


class TestLogits:
    SGLANG = (
        "[2025-06-01 10:00:00] server_args=ServerArgs(model_path='m', mem_fraction_static=0.85, tp_size=1, "
        "chunked_prefill_size=8192)\n[2025-06-01 10:00:09] The server is fired up and ready to roll!\n"
        "[2025-06-01 10:05:00] Prefill batch. #new-seq: 1, #new-token: 8192, #cached-token: 0, token usage: 0.05, "
        "#running-req: 3, #queue-req: 0\n"
    )

    def test_frames_of_the_logits_processor_name_the_request_first_and_a_chunk_that_fits(self, tmp_path):
        # 8,192 tokens x 131,072 x 4 bytes = 4 GiB; 1.5 GiB hold 3,072 tokens, 2,048 as a power of two.
        stack = (("srt/layers/logits_processor.py", "forward"),)
        verdict = judge_log(tmp_path, self.SGLANG + trace(*stack, error=oom("4.00 GiB", "1.50 GiB")))
        assert "return_logprob" in verdict["prefill_activation_oom"].advice[0].text
        assert verdict.move("prefill_activation_oom", "--chunked-prefill-size") == ("8192", "2048")

    def test_without_frames_the_vocabulary_tells_them(self, tmp_path):
        config = '{"architectures": ["A"], "model_type": "a", "num_hidden_layers": 2, "vocab_size": 131072}'
        files = {"a.log": self.SGLANG + oom("4.00 GiB", "1.50 GiB"), "config.json": config}
        found = Verdict(tmp_path, files)["prefill_activation_oom"]
        assert "return_logprob" in found.advice[0].text
        assert "size of the logits" in found.cause


def test_a_quantisation_without_kernels_is_not_answered_with_a_type(tmp_path):
    line = "ValueError: The quantization method awq is not supported for the current GPU. Minimum capability: 75. Current capability: 70."
    verdict = judge_log(tmp_path, SERVER.format("0.6.0") + line)
    assert verdict.ids == ["dtype_unsupported"]
    assert flags(verdict, "dtype_unsupported") == ["--quantization", ""]


def test_a_prefill_that_finds_too_few_tokens_is_answered_with_figures(tmp_path):
    log = TestLogits.SGLANG + (
        "RuntimeError: Prefill out of memory. Try to lower your batch size.\nTry to allocate 8192 tokens.\n"
        "Available tokens: 5000 (available_size=1000 + evictable_size=4000)\n"
    )
    verdict = judge_log(tmp_path, log)
    assert "tokens tokens" not in verdict.said("sglang_kv_alloc_failure")
    assert verdict.move("sglang_kv_alloc_failure", "--chunked-prefill-size") == ("8192", "4096")
    assert verdict.move("sglang_kv_alloc_failure", "--max-running-requests") == (None, "1")


@pytest.mark.parametrize(
    ("line", "who"),
    [
        ("RuntimeError: Triton Error [CUDA]: out of memory", "Triton"),
        ("RuntimeError: CUDA Error: out of memory at /src/csrc/cumem_allocator.cpp:62", "sleep mode"),
        ("RuntimeError: Failed: CUDA error /src/DeepEP/csrc/deep_ep.cpp:31 'out of memory'", "DeepEP"),
    ],
)
def test_memory_beside_torchs_allocator_is_named_with_who_asked(line, who, tmp_path):
    verdict = judge_log(tmp_path, SERVER.format("0.19.0") + line + "\n")
    assert verdict.ids == ["gpu_out_of_memory"]
    assert who in verdict["gpu_out_of_memory"].cause


def test_heads_that_cannot_be_shared_are_no_flag_that_is_not_known(tmp_path):
    line = "ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (8).\n"
    assert "value" in judge_log(tmp_path, SERVER.format("0.19.0") + line)["flag_unknown"].title
