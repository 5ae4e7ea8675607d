"""Launch commands: what the ledger reads in them, and how faulty flags are mended."""

from __future__ import annotations

import shlex

import pytest

from gpuwatch.engines.flag_versions import FlagProblem
from gpuwatch.ledger.command import read_command, repaired


def read(text, engine="vllm"):
    return read_command(engine, shlex.split(text))


def mended(text, *problems, engine="vllm", more=None):
    return repaired(read(text, engine), problems, more)


def unknown(flag, instead=""):
    return FlagProblem(flag, "unknown", "", "no such flag", instead)


def wrong(flag, proposed=""):
    return FlagProblem(flag, "risky", "", "wrong value", proposed=proposed)


def test_the_settings_that_memory_depends_on_are_read_in_all_spellings():
    command = read(
        "org/model -tp 2 --pipeline_parallel_size=2 --max-model-len 32768 --max-num-seqs=64 --kv-cache-dtype fp8 "
        "--gpu-memory-utilization 0.85 --enforce-eager --no-enable-prefix-caching --disable-hybrid-kv-cache-manager "
        "-q awq_marlin"
    )
    assert command.model == "org/model"
    assert command.numbers == {"tp": 2, "pp": 2, "context": 32768, "max_num_seqs": 64}
    assert (command.fraction, command.kv_dtype, command.quantisation) == (0.85, "fp8", "awq_marlin")
    assert command.eager
    assert command.prefix_caching is False
    assert not command.hybrid_manager


def test_what_is_not_said_is_left_to_the_engine():
    command = read("--model m")
    assert command.model == "m"
    assert command.numbers == {}
    assert command.fraction is None
    assert command.prefix_caching is None
    assert command.hybrid_manager


def test_sglangs_names_are_read_too():
    command = read(
        "--model-path m --tp 4 --dp-size 2 --enable-dp-attention --mem-fraction-static 0.8 --chunked-prefill-size 4096 "
        "--context-length 1000 --disable-radix-cache --max-total-tokens 5000 --page-size 64",
        "sglang",
    )
    assert command.numbers == {
        "tp": 4, "dp": 2, "chunk": 4096, "context": 1000, "max_total_tokens": 5000, "block_size": 64,
    }  # fmt: skip
    assert command.dp_attention
    assert command.prefix_caching is False
    assert command.fraction == 0.8


@pytest.mark.parametrize(
    ("text", "problems", "expected"),
    [
        ("m --chunked-prefill-size 8192 -tp 2", [unknown("chunked-prefill-size", "--max-num-batched-tokens")],
         "m --max-num-batched-tokens 8192 -tp 2"),
        ("m --chunked-prefill-size=8192", [unknown("chunked-prefill-size", "--max-num-batched-tokens")],
         "m --max-num-batched-tokens=8192"),
        ("m --swap-space 4 --max-model-len 100", [unknown("swap-space")], "m --max-model-len 100"),
        ("m --swap-space=4", [unknown("swap-space", "nothing: it recomputes")], "m"),
        ("m --calculate-kv-scales --max-num-seqs 4", [unknown("calculate-kv-scales")], "m --max-num-seqs 4"),
        ("m --enforce-eager true x", [unknown("enforce-eager")], "m x"),
        ("m --kv-cache-dtype fp8 -tp 2", [wrong("kv-cache-dtype", "fp8_e4m3")], "m --kv-cache-dtype fp8_e4m3 -tp 2"),
        ("m --num-gpu-blocks-override 40", [wrong("num-gpu-blocks-override")], "m"),
        ("m --served-model-name 'two words'", [], "m --served-model-name 'two words'"),
        ("m --max-num-seqs -1", [unknown("max-num-seqs")], "m"),
        ("m", [wrong("max-num-seqs", "16")], "m --max-num-seqs 16"),
    ],
)  # fmt: skip
def test_faults_are_mended_in_place(text, problems, expected):
    assert mended(text, *problems) == expected


def test_a_flag_that_is_set_anew_replaces_the_old_one_and_new_ones_come_last():
    assert mended("m -tp 2 --max-model-len=100", more={"max-model-len": "50", "max-num-seqs": "8"}) == (
        "m -tp 2 --max-model-len 50 --max-num-seqs 8"
    )


def test_unknown_words_are_kept_as_they_are():
    assert mended("m --my-own-flag 'a b' --other") == "m --my-own-flag 'a b' --other"


def test_a_mended_command_has_none_of_its_faults_left():
    command = read("m --chunked-prefill-size 8192 --swap-space 4 --max-model-len 4096")
    again = read(repaired(command, command.problems("0.32.0")))
    assert command.problems("0.32.0")
    assert again.problems("0.32.0") == ()
