"""What a finding says agrees with every line of the files, with its own advice, and with what an engine accepts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.diagnosis.incidents import Verdict

START = (
    "(EngineCore_DP0 pid=9) INFO 11-29 15:40:00 [core.py:76] Initializing a V1 LLM engine (v0.11.0) with config: "
    "model='x', max_seq_len=8192, tensor_parallel_size=1\n"
)
POOL = (
    "(EngineCore_DP0 pid=9) INFO 11-29 15:40:08 [gpu_worker.py:298] Available KV cache memory: 5.00 GiB\n"
    "(EngineCore_DP0 pid=9) INFO 11-29 15:40:18 [kv_cache_utils.py:1087] GPU KV cache size: 40,960 tokens\n"
    "(APIServer pid=8) INFO:     Application startup complete.\n"
)
OOM = (
    "(EngineCore_DP0 pid=9) ERROR 11-29 15:50:10 [core.py:700] torch.OutOfMemoryError: CUDA out of memory. Tried to "
    "allocate {asked}. GPU 0 has a total capacity of 23.64 GiB of which 100.00 MiB is free. Process 4242 has {others} "
    "GiB memory in use. Including non-PyTorch memory, this process has {own} GiB memory in use. Of the allocated "
    "memory 15.00 GiB is allocated by PyTorch, and 60.00 MiB is reserved by PyTorch but unallocated.\n"
)
SMI = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 570.86.15              Driver Version: 570.86.15      CUDA Version: 12.8     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|=========================================+========================+======================|
|   0  NVIDIA GeForce RTX 4090        On  |   00000000:01:00.0 Off |                  Off |
|  0%   45C    P8             20W /  450W |    3700MiB /  24564MiB |      0%      Default |
+-----------------------------------------+------------------------+----------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|=========================================================================================|
|    0   N/A  N/A            4242      C   /usr/bin/ollama                        3600MiB |
+-----------------------------------------------------------------------------------------+
"""
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}


def judged(folder: Path, log: str = "", flags: str = "", **others: str) -> Verdict:
    files = {"server.log": log} if log else {}
    return Verdict(folder, {**files, **{f"{name}.txt": text for name, text in others.items()}}, flags)


def oom(asked: str = "224.00 MiB", others: str = "3.60", own: str = "19.90") -> str:
    return START + POOL + OOM.format(asked=asked, others=others, own=own)


class TestNeighbours:
    def test_a_request_within_the_share_of_the_engine_is_answered_with_who_holds_the_rest(self, tmp_path):
        # 0.9 of 23.64 GiB are 21.3; the engine has 19.9 and asks for 0.2 more.
        finding = judged(tmp_path, oom(), smi=SMI)["gpu_out_of_memory"]
        assert finding.severity == "critical"
        assert "ollama (pid 4242, 3.5 GiB)" in finding.cause
        assert "21.3 GiB" in finding.cause
        assert "stop the other process" in finding.advice[0].text

    def test_without_nvidia_smi_the_process_is_named_by_its_pid(self, tmp_path):
        assert "pid 4242, 3.6 GiB" in judged(tmp_path, oom())["gpu_out_of_memory"].cause

    def test_a_request_beyond_the_share_is_the_engines_and_the_others_are_not_ruled_out(self, tmp_path):
        said = judged(tmp_path, oom(asked="2.00 GiB")).said("prefill_activation_oom")
        assert "Not ruled out: other processes: they hold 3.6 GiB" in said
        assert "without them it would have been there" in said
        assert "stop the other processes" in said

    def test_less_of_others_than_was_missing_is_ruled_out(self, tmp_path):
        said = judged(tmp_path, oom(asked="2.00 GiB", others="0.60", own="22.90")).said("prefill_activation_oom")
        assert "Ruled out: other processes" in said

    def test_a_small_neighbour_whose_memory_would_have_been_enough_is_not_ruled_out(self, tmp_path):
        said = judged(tmp_path, oom(others="0.60", own="22.90")).said("prefill_activation_oom")
        assert "Not ruled out: other processes: they hold 614 MiB, more than the 124 MiB that were missing" in said

    def test_a_start_beside_another_program_names_it(self, tmp_path):
        line = (
            "(EngineCore_DP0 pid=1) ERROR 11-29 15:40:10 [core.py:700] ValueError: Free memory on device (20.00/23.64 "
            "GiB) on startup is less than desired GPU memory utilization (0.9, 21.28 GiB). Decrease GPU memory "
            "utilization or reduce GPU memory used by other processes.\n"
        )
        assert "ollama (pid 4242, 3.5 GiB)" in judged(tmp_path, START + line, smi=SMI)["startup_gpu_shared"].cause


RETRACTED = """\
[2026-11-29 10:01:10] Decode batch. #running-req: 10, #token: 29900, token usage: 0.99, cuda graph: True, \
gen throughput (token/s): 60.00, #queue-req: {queue}, \n\
[2026-11-29 10:01:30] KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_tokens_gained: 4000, \
#new_token_ratio: 0.7000 -> 1.0000
[2026-11-29 10:01:31] Decode batch. #running-req: 9, #token: 29950, token usage: 1.00, cuda graph: True, \
gen throughput (token/s): 300.00, #queue-req: {queue}, \n"""


@pytest.mark.parametrize("queue", [0, 3])
def test_a_retraction_that_the_log_tells_is_not_denied(tmp_path, queue):
    verdict = judged(tmp_path, RETRACTED.format(queue=queue))
    assert verdict.ids == ["kv_pool_saturated"]
    said = verdict.said("kv_pool_saturated")
    assert "1 request was taken out of the batch" in said
    assert "none was retracted" not in said
    assert "Retract requests" in said


WATCHDOG = (
    "[rank{rank}]:[E1129 15:43:50.123 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 "
    "milliseconds before timing out.\n"
)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((1, 2), "hangs where it forms"),
        ((88421, 88420), "while serving"),
        ((1, 88421), "several numbers"),
        ((88421, 1), "several numbers"),
    ],
)
def test_a_group_hangs_where_it_forms_only_if_no_rank_got_further(tmp_path, numbers, said):
    log = "".join(WATCHDOG.format(rank=rank, seq=seq) for rank, seq in enumerate(numbers))
    verdict = judged(tmp_path, log)
    assert said in verdict["nccl_hang"].cause
    assert ("nothing was computed" in verdict.said("nccl_hang")) == (said == "hangs where it forms")


@pytest.mark.parametrize(("share", "want"), [("0.97", []), ("0.9", ["0.95"]), ("0.85", ["0.9"])])
def test_more_of_the_card_is_proposed_only_where_there_is_a_value_for_it(tmp_path, share, want):
    log = START + (
        "(EngineCore_DP0 pid=1) INFO 11-29 15:40:05 [gpu_model_runner.py:2653] Model loading took 15.0000 GiB and 10 "
        "seconds\n(EngineCore_DP0 pid=1) INFO 11-29 15:40:08 [gpu_worker.py:298] Available KV cache memory: -1.25 GiB\n"
        "(EngineCore_DP0 pid=1) ERROR 11-29 15:40:10 [core.py:700] ValueError: No available memory for the cache "
        "blocks. Try increasing `gpu_memory_utilization` when initializing the engine.\n"
    )
    verdict = judged(tmp_path, log, f"vllm serve x --gpu-memory-utilization {share}")
    moves = [each for each in verdict["no_kv_blocks"].advice if each.flag == "--gpu-memory-utilization"]
    assert [each.proposed for each in moves] == want


class TestLength:
    LONG = "vllm serve x --max-model-len 262144"

    def test_a_length_that_the_engine_refuses_is_not_told_as_accepted(self, tmp_path):
        verdict = judged(tmp_path, flags=self.LONG, config=json.dumps(CONFIG))
        assert "refuses to start" in verdict["rope_context"].cause
        assert "accepted" not in verdict.said("rope_context")
        first = verdict["rope_context"].advice[0]
        assert (first.flag, first.current, first.proposed) == ("--max-model-len", "262144", "131072")

    @pytest.mark.parametrize("value", ["1", "'1'", "true"])
    def test_with_the_check_lifted_it_is_accepted_and_wrong(self, tmp_path, value):
        flags = f"VLLM_ALLOW_LONG_MAX_MODEL_LEN={value} {self.LONG}"
        verdict = judged(tmp_path, flags=flags, config=json.dumps(CONFIG))
        assert "are accepted" in verdict["rope_context"].cause
        assert "gibberish" in verdict["rope_context"].cause
        assert verdict["rope_context"].advice[0].flag == "--max-model-len"

    def test_the_variable_switched_off_lifts_nothing(self, tmp_path):
        flags = f"VLLM_ALLOW_LONG_MAX_MODEL_LEN=0 {self.LONG}"
        assert "refuses" in judged(tmp_path, flags=flags, config=json.dumps(CONFIG))["rope_context"].cause

    def test_sglang_has_a_variable_and_a_flag_of_its_own(self, tmp_path):
        flags = "python -m sglang.launch_server --model-path x --context-length 262144"
        verdict = judged(tmp_path, flags=flags, config=json.dumps(CONFIG))
        assert "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN" in verdict["rope_context"].cause
        assert verdict["rope_context"].advice[0].flag == "--context-length"


def test_copies_of_kv_heads_are_answered_with_the_same_number_of_cards(tmp_path):
    verdict = judged(tmp_path, flags="vllm serve x -tp 32", config=json.dumps(CONFIG))
    assert verdict.move("kv_head_replication", "--tensor-parallel-size") == ("32", "8")
    assert verdict.move("kv_head_replication", "--data-parallel-size") == ("1", "4")


def test_sglang_counts_data_parallel_attention_within_its_ranks(tmp_path):
    flags = "python -m sglang.launch_server --model-path x --tp 32"
    verdict = judged(tmp_path, flags=flags, config=json.dumps(CONFIG))
    assert verdict.move("kv_head_replication", "--dp-size") == ("1", "4")
    assert "--enable-dp-attention" in verdict.said("kv_head_replication")


class TestCommandOfAnother:
    FLAGS = "vllm serve x --num-gpu-blocks-override 10 --max-num-seqs 7"

    def test_a_command_of_another_engine_than_the_log_is_named_and_left_aside(self, tmp_path):
        verdict = judged(tmp_path, RETRACTED.format(queue=0), self.FLAGS)
        finding = verdict["flag_unknown"]
        assert finding.severity == "info"
        assert "The command starts vLLM and the log is one of SGLang" in finding.cause
        assert "num-gpu-blocks" not in verdict.said("flag_unknown")

    def test_a_command_of_the_same_engine_is_judged(self, tmp_path):
        flags = "python -m sglang.launch_server --model-path x --num-gpu-blocks-override 10"
        finding = judged(tmp_path, RETRACTED.format(queue=0), flags)["flag_unknown"]
        assert finding.severity == "critical"
        assert "--num-gpu-blocks-override" in finding.cause
