"""What a start asked for and did not get: its line names the reason, and so does the finding."""

# ruff: noqa: E501  # lines of logs are as long as they are

from __future__ import annotations

import pytest

from tests.unit.diagnosis.incidents import judge_log

VLLM = "(APIServer pid=1) INFO 05-05 12:20:00 [utils.py:299] vLLM API server version 0.19.1\n"
V0 = "INFO 09-03 12:00:00 api_server.py:459] vLLM API server version 0.5.5\n"
CORE = "(EngineCore pid=104) ERROR 05-05 12:22:59 [core.py:1138] "
ENDED = "(EngineCore pid=104) ERROR 05-05 12:23:00 [core.py:1146] EngineCore failed to start.\n"
UP = VLLM + "(APIServer pid=1) INFO:     Application startup complete.\n"
STATS = (
    "(APIServer pid=1) INFO 05-05 12:{}:00 [loggers.py:236] Engine 000: Avg prompt throughput: 9.0 tokens/s, Avg "
    "generation throughput: 9.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%, Prefix cache hit "
    "rate: 1.0%\n"
)
ARGS = "[2026-02-01 10:00:00] server_args=ServerArgs(model_path='/srv/m/one'{})\n"
HIT = "[2026-02-01 10:00:30 TP1] Scheduler hit an exception: Traceback (most recent call last):\n"
QUIT = "\n[2026-02-01 10:00:31] Received sigquit from a child process. It usually means the child failed.\n"


def sglang(error: str, args: str = "") -> str:
    return ARGS.format(args) + HIT + error + "\n" + QUIT


def vllm(error: str) -> str:
    return VLLM + CORE + error + "\n" + ENDED


def missing(verdict) -> str:
    return " ".join(each.missing for each in verdict.not_enough)


class TestDriver:
    @pytest.mark.parametrize(
        ("error", "words"),
        [
            (
                "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
                "fabric",
            ),
            ("torch.AcceleratorError: CUDA error: system not yet initialized", "fabric"),
            ("RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.", "could not be started"),
            ("RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment", "not say why"),
            ("torch.AcceleratorError: CUDA error: the provided PTX was compiled with an unsupported toolchain.", "222"),
            ("AssertionError: Torch not compiled with CUDA enabled", "without CUDA"),
            ("RuntimeError: NVRTC error: nvrtc: error: invalid value for --gpu-architecture (-arch)", "compiler"),
            ("RuntimeError: ptxas fatal   : Value 'sm_103a' is not defined for option 'gpu-name'", "(sm_103a)"),
            ("RuntimeError: Triton Error [CUDA]: device kernel image is invalid", "another card"),
            ("ImportError: libcuda.so.1: cannot open shared object file: No such file or directory", "container"),
        ],
    )
    @pytest.mark.parametrize("wrap", [vllm, sglang])
    def test_the_words_of_cuda_say_what_is_missing(self, tmp_path, wrap, error, words):
        verdict = judge_log(tmp_path, wrap(error))
        assert verdict.ids == ["driver_too_old"]
        assert words in verdict["driver_too_old"].cause
        assert error in verdict["driver_too_old"].evidence[0].text

    def test_an_import_that_is_only_tried_is_no_failure(self, tmp_path):
        tried = (
            "WARNING 05-05 12:20:01 [_custom_ops.py:20] Failed to import from vllm._C with ImportError('libcuda.so.1: "
            "cannot open shared object file: No such file or directory')\n"
        )
        verdict = judge_log(tmp_path, VLLM + tried + UP + STATS.format(30))
        assert verdict.ids == []


class TestCard:
    def test_the_capabilities_are_told_as_people_write_them(self, tmp_path):
        verdict = judge_log(
            tmp_path,
            vllm(
                "RuntimeError: ('Quantization scheme is not supported for ', 'the current GPU. Min capability: 89. ', "
                "'Current capability: 80.')"
            ),
        )
        assert verdict.ids == ["dtype_unsupported"]
        assert "capability 8.0, 8.9 is needed" in verdict["dtype_unsupported"].cause

    @pytest.mark.parametrize(
        ("version", "flag", "backend"),
        [
            ("0.19.1", "--attention-backend", "TRITON_ATTN"),
            ("0.11.0", "VLLM_ATTENTION_BACKEND", "TRITON_ATTN"),
            ("0.8.5", "VLLM_ATTENTION_BACKEND", "XFORMERS"),
        ],
    )
    def test_flash_attention_on_an_old_card_names_a_backend_that_the_version_takes(
        self, tmp_path, version, flag, backend
    ):
        log = vllm("RuntimeError: FlashAttention only supports Ampere GPUs or newer.").replace("0.19.1", version)
        assert judge_log(tmp_path, log).move("dtype_unsupported", flag) == (None, backend)

    def test_a_version_of_flash_attention_that_is_not_taken_is_harmless(self, tmp_path):
        line = (
            "(EngineCore pid=104) ERROR 05-05 12:22:59 [fa_utils.py:273] Cannot use FA version 2 is not supported due to "
            "FA2 is only supported on devices with compute capability >= 8\n"
        )
        verdict = judge_log(tmp_path, VLLM + line + UP + STATS.format(30))
        assert verdict.ids == []
        assert missing(verdict) == ""

    @pytest.mark.parametrize("marks", ["`", ""])
    @pytest.mark.parametrize("wrap", [vllm, sglang])
    def test_a_quantisation_that_is_not_the_checkpoints_is_left_out(self, tmp_path, wrap, marks):
        verdict = judge_log(
            tmp_path,
            wrap(
                "ValueError: Quantization method specified in the model config (fp8) does not match the quantization "
                f"method specified in the {marks}quantization{marks} argument (gptq_marlin)."
            ),
        )
        assert verdict.move("dtype_unsupported", "--quantization") == ("gptq_marlin", "(leave it out)")
        assert "quantised as fp8" in verdict["dtype_unsupported"].cause

    def test_a_method_that_is_not_known_wants_another_version(self, tmp_path):
        verdict = judge_log(tmp_path, vllm("ValueError: Unknown quantization method: mxfp9. Must be one of ['awq']."))
        assert verdict.ids == ["dtype_unsupported"]
        assert "(0.19.1) does not know the quantisation mxfp9" in verdict["dtype_unsupported"].cause

    def test_an_fp8_cache_on_a_card_without_the_type_is_taken_back(self, tmp_path):
        error = "ValueError(\"type fp8e4nv not supported in this architecture. The supported fp8 dtypes are ('fp8e4b15', 'fp8e5')\")"
        log = VLLM + (
            "(APIServer pid=1) INFO 05-05 12:20:00 [utils.py:233] non-default args: {'kv_cache_dtype': 'fp8'}\n"
        )
        verdict = judge_log(tmp_path, log + CORE + error + "\n" + ENDED)
        assert verdict.move("dtype_unsupported", "--kv-cache-dtype") == ("fp8", "auto")


class TestFiles:
    @pytest.mark.parametrize(
        ("error", "words"),
        [
            ("RuntimeError: Cannot find any model weights with `/srv/m/one`", "/srv/m/one has no file of weights"),
            ("FileNotFoundError: [Errno 2] No such file or directory: '/srv/m/one/config.json'", "There is no /srv/m/one"),
            ("ValueError: Unrecognized model in /srv/m/one. Should have a `model_type` key in its config.json", "model_type"),
            ("ValueError: No supported config format found in /srv/m/one", "/srv/m/one has no config.json"),
            ("OSError: Incorrect path_or_model_id: '/srv/m/one'. Please provide either the path", "/srv/m/one is neither"),
            ("OSError: [Errno 28] No space left on device: '/c/huggingface/hub/models--a--b/blobs/1.incomplete'", "full"),
            ("RuntimeError: Data processing error: CAS service error : IO Error: No space left on device (os error 28)", "full"),
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("wrap", [vllm, sglang])
    def test_a_model_whose_files_are_not_there(self, tmp_path, wrap, error, words):
        verdict = judge_log(tmp_path, wrap(error))
        assert verdict.ids == ["model_not_found"]
        assert words in verdict["model_not_found"].cause

    def test_weights_in_another_format_than_the_one_asked_for(self, tmp_path):
        log = sglang("RuntimeError: Cannot find any model weights with `/srv/m/one`", ", load_format='safetensors'")
        assert judge_log(tmp_path, log).move("model_not_found", "--load-format") == ("safetensors", "auto")

    @pytest.mark.parametrize(
        "error",
        [
            "FileNotFoundError: [Errno 2] No such file or directory: '/srv/a/config.json'",
            "AssertionError: 25 is not divisible by 4",
        ],
    )
    def test_what_a_server_survives_is_no_failed_start(self, tmp_path, error):
        log = UP + STATS.format(30) + f"(APIServer pid=1) {error}\n" + STATS.format(31) + STATS.format(32)
        assert judge_log(tmp_path, log).firm == []

    def test_a_file_without_which_a_start_goes_on_is_no_failure(self, tmp_path):
        tried = (
            "(APIServer pid=1) FileNotFoundError: [Errno 2] No such file or directory: '/srv/m/one/tokenizer.json'\n"
        )
        ready = "(APIServer pid=1) INFO:     Application startup complete.\n"
        assert judge_log(tmp_path, VLLM + tried + ready + STATS.format(30)).firm == []

    def test_a_crash_loop_on_its_second_try_is_told(self, tmp_path):
        failed = VLLM + "(APIServer pid=1) OSError: Incorrect path_or_model_id: '/srv/m/one'. Please\n"
        verdict = judge_log(tmp_path, UP + STATS.format(30) + failed)
        assert verdict.ids == ["model_not_found"]
        assert verdict["model_not_found"].evidence[0].line == 5


class TestRanks:
    def test_a_size_that_the_ranks_do_not_divide_names_one_that_they_do(self, tmp_path):
        # The greatest common divisor of 18 and 4 is 2; 4 GPUs make 2 stages of 2.
        verdict = judge_log(tmp_path, vllm("AssertionError: 18 is not divisible by 4"))
        assert verdict.ids == ["flag_unknown"]
        assert verdict.move("flag_unknown", "--tensor-parallel-size") == ("4", "2")
        assert verdict.move("flag_unknown", "--pipeline-parallel-size") == (None, "2")

    def test_replicas_that_do_not_divide_the_ranks(self, tmp_path):
        # 8 ranks, 3 replicas: 2 is the largest number up to 3 that divides 8; 9 is the next multiple of 3.
        log = sglang("AssertionError: tp_size must be divisible by dp_size", ", tp_size=8, dp_size=3")
        verdict = judge_log(tmp_path, log)
        assert verdict.move("flag_unknown", "--dp-size") == ("3", "2")
        assert verdict.move("flag_unknown", "--tp-size") == ("8", "9")

    def test_ranks_that_the_nodes_do_not_share_evenly(self, tmp_path):
        log = sglang("AssertionError: tp_size must be divisible by number of nodes", ", tp_size=9, nnodes=2")
        assert judge_log(tmp_path, log).move("flag_unknown", "--tp-size") == ("9", "8")

    def test_a_step_that_is_shorter_than_a_prompt(self, tmp_path):
        log = V0 + "ValueError: max_num_batched_tokens (4096) is smaller than max_model_len (4608). This limits\n"
        verdict = judge_log(tmp_path, log)
        assert verdict.move("flag_unknown", "--max-num-batched-tokens") == ("4096", "4608")
        assert verdict.move("flag_unknown", "--max-model-len") == ("4608", "4096")
        assert verdict["flag_unknown"].advice[0].flag == "--enable-chunked-prefill"

    def test_a_step_that_is_shorter_than_its_sequences(self, tmp_path):
        log = VLLM + (
            "(APIServer pid=1)   Value error, max_num_batched_tokens (64) must be greater than or equal to max_num_seqs "
            "(256). [type=value_error]\n"
        )
        verdict = judge_log(tmp_path, log)
        assert verdict.move("flag_unknown", "--max-num-batched-tokens") == ("64", "256")
        assert verdict.move("flag_unknown", "--max-num-seqs") == ("256", "64")


class TestHost:
    ERROR = (
        "ValueError: Not enough host memory available. Requesting 80.00 GB but only have 100.00 GB free. Please reduce "
        "the size of the hierarchical cache."
    )

    def test_the_ranks_of_a_node_share_what_is_free(self, tmp_path):
        # 8 ranks on 2 nodes: 4 share 100 GB.
        verdict = judge_log(tmp_path, sglang(self.ERROR, ", tp_size=8, nnodes=2, hicache_size=80"))
        assert verdict.ids == ["host_memory_oversubscribed"]
        assert verdict["host_memory_oversubscribed"].severity == "critical"
        assert verdict.move("host_memory_oversubscribed", "--hicache-size") == ("80", "25")

    def test_one_rank_has_all_of_it_and_a_ratio_goes_down_with_it(self, tmp_path):
        # 80 GB are twice the pool, 60 GB are 1.5 times.
        log = sglang(self.ERROR.replace("100.00", "60.00"), ", tp_size=1, hicache_ratio=2.0, hicache_size=0")
        verdict = judge_log(tmp_path, log)
        assert verdict.move("host_memory_oversubscribed", "--hicache-size") == (None, "60")
        assert verdict.move("host_memory_oversubscribed", "--hicache-ratio") == ("2", "1.5")

    @pytest.mark.parametrize(
        "lines",
        [
            (
                "h:9:88 [0] misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-Ab to 33554432 bytes, "
                "error: No space left on device (28)\n"
            ),
            (
                "h:9:88 [0] include/shmutils.h:72 NCCL WARN Error: failed to extend /dev/shm/nccl-Ab to 33554432 bytes\n"
                "h:9:88 [0] misc/shmutils.cc:87 NCCL WARN Call to posix_fallocate failed : No space left on device\n"
            ),
        ],
    )
    def test_a_segment_that_could_not_grow_tells_its_size(self, tmp_path, lines):
        log = VLLM + lines + CORE + "RuntimeError: NCCL error: unhandled system error\n"
        verdict = judge_log(tmp_path, log)
        assert verdict.ids == ["host_shm_exhaustion"]
        assert "/dev/shm is full, and NCCL could not make a segment of 32 MiB" in verdict["host_shm_exhaustion"].cause


class TestGroup:
    @pytest.mark.parametrize(
        ("keys", "ids"), [("/default_pg/0//1//cpu//0/1", ["nccl_hang"]), ("/broadcast_from/0/7", [])]
    )
    def test_a_key_that_nobody_wrote_is_a_group_that_never_formed(self, tmp_path, keys, ids):
        log = vllm(f"torch.distributed.DistStoreError: wait timeout after 300000ms, keys: {keys}")
        verdict = judge_log(tmp_path, log)
        assert verdict.ids == ids
        assert ("waited 300 s" in verdict["nccl_hang"].cause) if ids else ("wait timeout" in missing(verdict))

    def test_the_rank_that_failed_explains_the_one_that_waited_for_it(self, tmp_path):
        log = VLLM + (
            "(Worker_TP0 pid=21) ERROR 05-05 12:20:09 [multiproc_executor.py:783] RuntimeError: Cannot find any model "
            "weights with `/srv/m/one`\n"
            "(Worker_TP1 pid=22) ERROR 05-05 12:30:09 [multiproc_executor.py:783] torch.distributed.DistStoreError: wait "
            "timeout after 600000ms, keys: /default_pg/0//1//cpu//0/1\n"
        )
        verdict = judge_log(tmp_path, log + ENDED)
        assert verdict.ids == ["model_not_found", "nccl_hang"]
        assert verdict["nccl_hang"].caused_by == "model_not_found"

    def test_two_ranks_on_one_card_are_named(self, tmp_path):
        log = (
            "h:5:5 [0] init.cc:943 NCCL WARN Duplicate GPU detected : rank 3 and rank 7 both on CUDA device 1a000\n"
            + CORE
            + "RuntimeError: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)\n"
        )
        verdict = judge_log(tmp_path, log)
        assert verdict.ids == ["nccl_hang"]
        assert "Ranks 3 and 7" in verdict["nccl_hang"].cause
        assert "1a000" in verdict["nccl_hang"].cause

    NETWORK = "RuntimeError: NCCL error: remote process exited or there was a network error\n"
    REFUSED = "b:3:6 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to {} failed : Connection refused\n"

    def test_nodes_that_look_for_each_other_at_home_took_the_wrong_card(self, tmp_path):
        log = (
            "a:5:5 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>\n"
            "b:3:3 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>\n"
            + self.REFUSED.format("172.17.0.1<41237>")
            + CORE
            + self.NETWORK
        )
        verdict = judge_log(tmp_path, log)
        assert verdict.move("nccl_hang", "NCCL_SOCKET_IFNAME") == ("docker0", None)
        assert "NCCL took the wrong network card" in verdict["nccl_hang"].cause
        assert verdict["nccl_hang"].confidence > 0.9

    def test_on_one_node_the_same_address_may_be_right(self, tmp_path):
        log = (
            "b:3:3 [0] NCCL INFO Bootstrap: Using docker0:172.17.0.1<0>\n"
            + self.REFUSED.format("172.17.0.1<41237>")
            + CORE
            + self.NETWORK
        )
        verdict = judge_log(tmp_path, log)
        assert "where the ranks are on several nodes" in verdict["nccl_hang"].cause
        assert verdict["nccl_hang"].confidence == 0.7

    def test_an_address_without_a_way_is_told_with_the_reason(self, tmp_path):
        warned = (
            "n5:24:24 [6] misc/socket.cc:533 NCCL WARN socketPollConnect: Connect to 10.0.0.4<56849> returned "
            "113(No route to host) errno 115(Operation now in progress)\n"
        )
        verdict = judge_log(tmp_path, warned + CORE + self.NETWORK)
        assert "10.0.0.4, port 56849: No route to host" in verdict["nccl_hang"].cause

    def test_a_warning_that_nothing_explains_is_cited_by_file_and_line(self, tmp_path):
        log = (
            VLLM
            + "h:5:5 [0] x.cc:1 NCCL WARN a word that nobody knows\n"
            + CORE
            + "RuntimeError: NCCL error: internal\n"
        )
        assert "a word that nobody knows [server.log:2]" in missing(judge_log(tmp_path, log))


class TestFaults:
    @pytest.mark.parametrize(
        "error",
        [
            "CUDA Error: an illegal memory access was encountered (700) /x/flashinfer/attention/decode.cuh: line 9",
            "RuntimeError: Error in function 'BatchDecode' at /x/decode.cuh:9: an illegal memory access was encountered",
            "RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered",
            "RuntimeError: Failed: CUDA error /x/DeepEP/csrc/deep_ep.cpp:31 'unspecified launch failure'",
        ],
    )
    def test_every_library_s_words_for_a_fault(self, tmp_path, error):
        verdict = judge_log(tmp_path, sglang(error))
        assert verdict.ids == ["xid_software"]
        assert verdict["xid_software"].severity == "critical"

    def test_the_function_that_reported_it_is_named_without_blame(self, tmp_path):
        error = "RuntimeError: Error in function 'BatchDecode' at /x/flashinfer/decode.cuh:9: an illegal memory access was encountered"
        verdict = judge_log(tmp_path, sglang(error))
        assert "reported in BatchDecode, which need not be the kernel at fault" in verdict["xid_software"].cause
        assert verdict.move("xid_software", "--attention-backend") == ("flashinfer", "triton")

    def test_a_gpu_of_amd_has_no_xid(self, tmp_path):
        error = (
            "Memory access fault by GPU node-2 (Agent handle: 0x55d0) on address 0x7f1a00000000. Reason: Page not present "
            "or supervisor privilege."
        )
        said = judge_log(tmp_path, sglang(error)).said("xid_software")
        assert "GPU node-2 at 0x7f1a00000000 (Page not present or supervisor privilege)" in said
        assert "amdgpu" in said
        assert "Xid" not in said


class TestWords:
    def test_a_workspace_is_told_with_the_size_that_it_needs(self, tmp_path):
        # 500 MiB are asked and 384 left: 116 MiB more than 384 are 500, rounded up to 512 MiB = 536,870,912 bytes.
        error = (
            "RuntimeError: Error in function 'aligned_alloc' at /x/allocator.h:49: Buffer overflow when allocating memory "
            "for batch_prefill_tmp_v with size 524288000 and alignment 16, but only 402653184 bytes available in "
            "AlignedAllocator. Increase the workspace buffer size."
        )
        said = missing(judge_log(tmp_path, sglang(error)))
        assert "by 116 MiB" in said
        assert "SGLANG_FLASHINFER_WORKSPACE_SIZE=536870912 (512 MiB" in said

    @pytest.mark.parametrize(
        ("error", "words"),
        [
            ("RuntimeError: can't start new thread", "pids limit"),
            (
                "requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/x",
                "HF_TOKEN",
            ),
            ("KeyError: 'layers.0.self_attn.qkv_proj.weight_scale'", "newer version"),
        ],
    )
    def test_an_error_that_names_no_cause_is_quoted_with_what_it_means(self, tmp_path, error, words):
        said = missing(judge_log(tmp_path, vllm(error)))
        assert f"{error} [server.log:2]; " in said
        assert words in said

    def test_a_card_that_another_process_keeps_is_quoted_whole(self, tmp_path):
        said = missing(
            judge_log(tmp_path, vllm("RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"))
        )
        assert "CUDA-capable device(s) is/are busy or unavailable [server.log:2]" in said
        assert "exclusive mode" in said

    def test_an_error_of_a_class_in_small_letters_is_quoted_with_what_ucx_said(self, tmp_path):
        ucx = "[1754890927.298391] [pod-0:270  :0]    ib_mlx5dv_md.c:1100 UCX  ERROR mlx5_7: failed to modify to RTR: No such device\n"
        log = VLLM + ucx + CORE + "nixl._bindings.nixlBackendError: NIXL_ERR_BACKEND\n" + ENDED
        said = missing(judge_log(tmp_path, log))
        assert "nixl._bindings.nixlBackendError: NIXL_ERR_BACKEND [server.log:3]" in said
        assert "mlx5_7: failed to modify to RTR: No such device [server.log:2]" in said
