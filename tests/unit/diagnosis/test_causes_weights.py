"""Weights that find no room: while they are read, and after all of them were."""

# ruff: noqa: E501  # lines of logs are as long as they are

from __future__ import annotations

import pytest

from tests.unit.diagnosis.incidents import Verdict, judge_log

START = """\
INFO 05-06 07:00:00 [api_server.py:1400] vLLM API server version 0.15.0
INFO 05-06 07:00:00 [utils.py:233] non-default args: {{'model': '/srv/m', 'tensor_parallel_size': 2{more}}}
INFO 05-06 07:00:20 [gpu_model_runner.py:3700] Starting to load model /srv/m...
"""
READ = "Loading safetensors checkpoint shards: {at}% Completed | {done}/8 [00:09<00:00,  1.10it/s]\n"
FRAME = 'ERROR 05-06 07:00:40 [core.py:900]   File "/opt/vllm/model_executor/{file}", line 112, in {step}\n'
OOM = (
    "ERROR 05-06 07:00:40 [core.py:900] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a "
    "total capacity of 44.40 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process has 43.40 GiB memory in "
    "use. Of the allocated memory 42.90 GiB is allocated by PyTorch, and 30.00 MiB is reserved by PyTorch but unallocated.\n"
)
CONVERTS = FRAME.format(file="model_loader/utils.py", step="process_weights_after_loading")
SLEEPS = ", 'enable_sleep_mode': True"


def start(more: str = "") -> str:
    return START.format(more=more)


@pytest.mark.parametrize(
    "lines",
    [READ.format(at=100, done=8) + CONVERTS, READ.format(at=100, done=8), CONVERTS],
    ids=["both", "the last shard", "the traceback"],
)
def test_weights_that_were_all_read_leave_no_room_for_what_comes_after(lines, tmp_path):
    # 1.5 GiB wanted, 1.0 free: 512 MiB short.
    finding = judge_log(tmp_path, start(SLEEPS) + lines + OOM)["weights_oom"]
    assert "512 MiB are missing" in finding.cause
    assert finding.title == "The weights leave no room for their conversion"
    assert finding.advice[0].flag == "--enable-sleep-mode"
    assert not any("not said that it ended" in item.text for item in finding.evidence)
    assert [item.line for item in finding.evidence if "100% Completed" in item.text] == ([4] if "100%" in lines else [])


@pytest.mark.parametrize(
    "lines",
    [
        READ.format(at=" 88", done=7),
        READ.format(at=100, done=8) + FRAME.format(file="model_loader/base_loader.py", step="load_weights"),
    ],
    ids=["a part", "the traceback says that it reads"],
)
def test_weights_of_which_a_part_was_read_do_not_fit(lines, tmp_path):
    finding = judge_log(tmp_path, start() + lines + OOM)["weights_oom"]
    assert finding.cause.startswith("The weights do not fit on GPU 0")
    assert finding.title == "The weights do not fit"
    assert ("--tensor-parallel-size", "2", "4") in [(each.flag, each.current, each.proposed) for each in finding.advice]


def test_what_sleep_modes_allocator_said_is_told_with_the_figures_that_torch_has(tmp_path):
    cumem = "CUDA Error: out of memory at /build/csrc/cumem_allocator.cpp:137\n"
    verdict = judge_log(tmp_path, start(SLEEPS) + READ.format(at=100, done=8) + cumem + CONVERTS + OOM)
    assert verdict.firm == ["weights_oom"]
    assert verdict["weights_oom"].evidence[0].line == 7
    alone = judge_log(tmp_path, start(SLEEPS) + READ.format(at=100, done=8) + cumem)
    assert alone["weights_oom"].evidence[0].line == 5


@pytest.mark.parametrize(
    ("more", "frames", "words", "flag"),
    [
        ("", "", "quantised checkpoint (8 or 4 bits)", "--quantization"),
        (", 'quantization': 'fp8'", "", "stored quantised", ""),
        (", 'quantization': 'awq'", "", "fewer bits than this one has (awq)", ""),
        ("", FRAME.format(file="layers/quantization/mxfp4.py", step="process_weights_after_loading"), "(mxfp4)", ""),
        ("", CONVERTS, "quantised checkpoint (8 or 4 bits)", "--quantization"),
    ],
)
def test_a_quantised_checkpoint_is_proposed_only_where_it_is_not_one(more, frames, words, flag, tmp_path):
    finding = judge_log(tmp_path, start(more) + frames + OOM)["weights_oom"]
    assert [each.flag for each in finding.advice if words in each.text] == [flag]


CONFIG = """{
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32,
  "num_key_value_heads": 8, "num_hidden_layers": 60, "intermediate_size": 14336, "vocab_size": 32000,
  "max_position_embeddings": 32768, "torch_dtype": "bfloat16", "tie_word_embeddings": false
}
"""
# A layer: 2 x 4096^2 (Q, O), 2 x 4096 x 1024 (K, V), 3 x 4096 x 14336, 2 x 4096 (norms): 218,112,000 parameters.
# 60 of them, 2 x 32000 x 4096 and 4096 are 13,348,868,096, in two bytes each 24.86 GiB.
CARDS = "index, name, memory.total [MiB]\n0, NVIDIA L4, {total} MiB\n1, NVIDIA L4, {total} MiB\n"
COMMAND = "vllm serve /srv/m{more}\n"


def before_start(tmp_path, more: str, total: int, log: str = "") -> Verdict:
    files = {"run.sh": COMMAND.format(more=more), "config.json": CONFIG, "smi.csv": CARDS.format(total=total)}
    return Verdict(tmp_path, {**files, **({"server.log": log} if log else {})})


def test_weights_that_are_larger_than_a_card_are_seen_before_the_start(tmp_path):
    verdict = before_start(tmp_path, " --max-model-len 4096", 24576)
    assert verdict.firm == ["weights_oom"]
    assert "24.9 GiB of them come to each GPU" in verdict["weights_oom"].cause
    assert "the largest card has 24.0 GiB" in verdict["weights_oom"].cause
    # Half of the weights fill 52 % of a card.
    assert verdict.move("weights_oom", "--tensor-parallel-size") == (None, "2")


@pytest.mark.parametrize(
    ("more", "total", "log"),
    [
        ("", 32768, ""),
        (" --tensor-parallel-size 2", 24576, ""),
        (" --pipeline-parallel-size 2", 24576, ""),
        (" --quantization fp8", 24576, ""),
        (" --cpu-offload-gb 10", 24576, ""),
        ("", 24576, "INFO 05-06 07:00:00 [api_server.py:1400] vLLM API server version 0.15.0\n"),
    ],
)
def test_weights_that_fit_or_are_not_those_of_the_configuration_are_not_blamed(more, total, log, tmp_path):
    assert "weights_oom" not in before_start(tmp_path, more, total, log).ids
