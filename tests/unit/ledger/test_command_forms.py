"""Forms of a launch command that the engines' argument parsers refuse.

Expected: what the parsers of vLLM 0.32.0, SGLang 0.5.23 and 0.4.6 say of the same words.
"""

from __future__ import annotations

import shlex

import pytest

from gpuwatch.engines.flag_forms import arity
from gpuwatch.ledger.command import read_command
from gpuwatch.ledger.command_forms import mended_forms

NEWEST = {"vllm": (0, 32, 0), "sglang": (0, 5, 23)}


def formed(engine, text, version=None):
    forms = mended_forms(engine, version or NEWEST[engine], shlex.split(text))
    return shlex.join(forms.words), [problem.flag for problem in forms.problems], forms.loose


@pytest.mark.parametrize(
    ("engine", "text", "expected", "flags"),
    [
        ("vllm", "m --enable-chunked-prefill False", "m --no-enable-chunked-prefill", ["enable-chunked-prefill"]),
        ("vllm", "m --enable_chunked_prefill=True", "m --enable-chunked-prefill", ["enable-chunked-prefill"]),
        ("vllm", "m --enforce-eager True -tp 2", "m --enforce-eager -tp 2", ["enforce-eager"]),
        ("vllm", "m --no-enforce-eager false", "m --enforce-eager", ["no-enforce-eager"]),
        ("vllm", "m --headless false", "m", ["headless"]),
        ("sglang", "--trust-remote-code true", "--trust-remote-code", ["trust-remote-code"]),
        ("sglang", "--enable-metrics=false --tp 2", "--tp 2", ["enable-metrics"]),
        ("sglang", "--dllm-fdfo false", "--no-dllm-fdfo", ["dllm-fdfo"]),
        ("sglang", "--no-enable-metrics --tp 2", "--tp 2", ["no-enable-metrics"]),
    ],
)
def test_a_switch_takes_no_value(engine, text, expected, flags):
    assert formed(engine, text) == (expected, flags, [])


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ((0, 8, 4), "m --enable-chunked-prefill False"),  # takes it as a word
        ((0, 9, 0), "m --no-enable-chunked-prefill"),
    ],
)
def test_the_switch_that_took_true_and_false_in_earlier_versions_keeps_them_there(version, expected):
    assert formed("vllm", "m --enable-chunked-prefill False", version)[0] == expected


def test_a_switch_that_an_earlier_version_cannot_turn_off_is_left_out():
    assert formed("vllm", "m --enforce-eager False", (0, 8, 4))[0] == "m"
    assert formed("vllm", "m --enable-prefix-caching False", (0, 8, 4))[0] == "m --no-enable-prefix-caching"


@pytest.mark.parametrize(
    ("engine", "text", "expected"),
    [
        ("vllm", "m --dtype bf16", "m --dtype bfloat16"),
        ("vllm", "m --dtype=fp8", "m --dtype=auto"),
        ("sglang", "--dtype FP16", "--dtype float16"),
        ("vllm", "m --max-num-seqs 1k", "m --max-num-seqs 1000"),
        ("vllm", "m --max-num-seqs=1K", "m --max-num-seqs=1024"),
        ("vllm", "m --max-lora-rank 50", "m --max-lora-rank 64"),
        ("vllm", "m --max-lora-rank 257", "m --max-lora-rank 320"),
        ("vllm", "m --limit-mm-per-prompt image=5,video=1", """m --limit-mm-per-prompt '{"image": 5, "video": 1}'"""),
        ("sglang", "--max-running-requests 1k", "--max-running-requests 1000"),
        ("sglang", "--context-length 32K", "--context-length 32768"),
    ],
)
def test_a_value_that_the_parser_refuses_becomes_the_one_that_was_meant(engine, text, expected):
    words, flags, _ = formed(engine, text)
    assert (words, len(flags)) == (expected, 1)


@pytest.mark.parametrize(
    ("engine", "version", "text"),
    [
        ("vllm", (0, 32, 0), "m --max-model-len 16k --max-num-batched-tokens 8K --kv-cache-memory-bytes 4G"),
        ("vllm", (0, 32, 0), "m --max-lora-rank 320 --dtype half -q int4 --no-enable-prefix-caching"),
        ("vllm", (0, 8, 4), "m --limit-mm-per-prompt image=5,video=1"),
        ("sglang", (0, 5, 23), "--context-length 32k --max-total-tokens 1M --max-prefill-tokens 16Ki"),
        ("sglang", (0, 5, 10), "--context-length 32K --quantization int4"),  # not known of that version
        ("sglang", (0, 5, 23), "--lora-strict-loading --no-lora-strict-loading --cuda-graph-bs-decode 1 2 4"),
        ("vllm", (0, 32, 0), "m --served-model-name a b --api-key x y --cudagraph-capture-sizes 1 2 -O 3 -cc.mode=3"),
        ("vllm", (0, 32, 0), "m --hf-overrides.rope_scaling.factor 4 --my-own-flag a b"),
    ],
)
def test_what_the_version_takes_or_may_take_stays_as_it_is(engine, version, text):
    assert formed(engine, text, version) == (text, [], [])


def test_counts_of_earlier_versions_of_sglang_are_plain_digits():
    assert formed("sglang", "--context-length 32k", (0, 4, 6))[0] == "--context-length 32000"


def test_a_method_of_quantisation_that_sglang_does_not_have_is_refused_with_those_that_it_has():
    with pytest.raises(ValueError, match=r"--quantization is 'int4'; allowed: .*awq, .*w8a8_int8$"):
        formed("sglang", "--quantization int4")


def test_a_rank_beyond_all_is_refused_with_those_that_there_are():
    with pytest.raises(ValueError, match=r"--max-lora-rank is 999; allowed: 1, 8, .*320, 512$"):
        formed("vllm", "m --max-lora-rank 999")


def test_the_count_of_a_flag_that_the_version_does_not_have_is_not_judged():
    assert formed("vllm", "m --chunked-prefill-size 1k")[1] == []


def test_names_of_sglangs_flags_have_no_underscores():
    words, flags, _ = formed("sglang", "--model_path m --mem_fraction_static=0.8 --tp-size=2 --trust_remote_code")
    assert words == "--model-path m --mem-fraction-static=0.8 --tp-size=2 --trust-remote-code"
    assert flags == ["model-path", "mem-fraction-static", "trust-remote-code"]
    assert formed("vllm", "m --max_num_seqs 4")[1] == []


@pytest.mark.parametrize(
    ("text", "words", "loose"),
    [
        ("m stray", "m", ["stray"]),
        ("m --seed 4 stray --enforce-eager more", "m --seed 4 --enforce-eager", ["stray", "more"]),
        ("--model m stray -tp 2 words", "--model m -tp 2", ["stray", "words"]),
        ("--port 8000 m", "m --port 8000", []),
        ("--enforce-eager m stray", "m --enforce-eager", ["stray"]),
        ("m ' ' --seed 4 ` --enforce-eager ^", "m --seed 4 --enforce-eager", [" ", "`", "^"]),
    ],
)  # fmt: skip
def test_words_that_belong_to_no_flag_are_told_from_the_model(text, words, loose):
    assert formed("vllm", text) == (words, [], loose)


def test_what_a_shell_or_a_template_puts_words_in_place_of_is_not_judged():
    for text in ("m $MORE ...", "m --seed 4 {{ .flags }} x", "m --enforce-eager [OPTIONS]"):
        words = shlex.split(text)
        assert mended_forms("vllm", NEWEST["vllm"], words).words == words


def test_sglangs_own_suffixes_are_read_as_it_reads_them():
    command = read_command(
        "sglang", shlex.split("--context-length 32Ki --max-total-tokens=1.5M --chunked-prefill-size 8192")
    )
    assert command.numbers == {"context": 32_768, "max_total_tokens": 1_500_000, "chunk": 8192}


@pytest.mark.parametrize(
    ("engine", "flag", "words"),
    [
        ("vllm", "enable-lora", "none"),
        ("vllm", "no-enable-lora", "none"),
        ("vllm", "disable-access-log-for-endpoints", "one"),
        ("vllm", "served-model-name", "several"),
        ("sglang", "served-model-name", "one"),
        ("sglang", "lora-paths", "several"),
        ("vllm", "swap-space", "one"),
        ("vllm", "worker-use-ray", None),
    ],
)
def test_flags_take_as_many_words_as_their_parser_says(engine, flag, words):
    assert arity(engine, flag) == words


@pytest.mark.parametrize(
    ("version", "kv_type", "noted"),
    [("0.20.0", "int8_per_token_head", True), ("0.32.0", "int8_per_token_head", False), ("0.20.0", "fp8", False)],
)
def test_a_kv_type_whose_first_version_nobody_knows_is_not_checked(version, kv_type, noted):
    notes = read_command("vllm", ["m", "--kv-cache-dtype", kv_type]).unread(version)
    assert notes == ([f"not checked: whether vllm {version} takes --kv-cache-dtype {kv_type}"] if noted else [])


def test_a_kv_type_that_is_newer_than_the_version_is_replaced():
    (problem,) = read_command("vllm", ["m", "--kv-cache-dtype", "int8_per_token_head"]).problems("0.8.5")
    assert (problem.flag, problem.proposed) == ("kv-cache-dtype", "fp8")
