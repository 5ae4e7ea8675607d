"""Launch flags in every spelling, and the sizes in them."""

# ruff: noqa: E501  # lines of logs are as long as they are

from __future__ import annotations

import pytest

from gpuwatch.engines.facts import FACTS
from gpuwatch.engines.flags import FLAGS, flag_facts, parse_flags
from gpuwatch.engines.sizes import bytes_of, bytes_of_gib, count_of


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        ("--max-num-seqs 16", {"max-num-seqs": "16"}),
        ("--max-num-seqs=16", {"max-num-seqs": "16"}),
        ("--max_num_seqs 16", {"max-num-seqs": "16"}),
        ("-tp 2 -pp 4", {"tensor-parallel-size": "2", "pipeline-parallel-size": "4"}),
        ("--max-model-len -1", {"max-model-len": "-1"}),
        ("--max-model-len --port 8001", {"port": "8001"}),
        ("--device-memory-utilization 0.8", {"gpu-memory-utilization": "0.8"}),
        ("--enable-prefix-caching", {"enable-prefix-caching": "true"}),
        ("--no-enable-prefix-caching", {"enable-prefix-caching": "false"}),
        ("--enable-prefix-caching False", {"enable-prefix-caching": "false"}),
        ("--enable-prefix-caching=true", {"enable-prefix-caching": "true"}),
        ("--api-key s3cr3t s3cr3t2", {"api-key": "set"}),
        ("--api-key=s3cr3t", {"api-key": "set"}),
        ("--port 1 --port 2", {"port": "2"}),
        ('--compilation-config {"level":3} --unknown x --config f.yaml', {"config": "f.yaml"}),
        ("", {}),
    ],
)
def test_a_vllm_command_line_is_read(arguments, want):
    assert parse_flags("vllm", arguments.split()) == want


def test_a_sglang_command_line_is_read():
    words = (
        "--model-path m --tp 4 --mem-fraction-static=0.9 --enable-metrics --disable-radix-cache --context-length 65536"
    )
    assert parse_flags("sglang", words.split()) == {
        "model-path": "m",
        "tp-size": "4",
        "mem-fraction-static": "0.9",
        "enable-metrics": "true",
        "disable-radix-cache": "true",
        "context-length": "65536",
    }


def test_flags_become_facts_of_their_type():
    assert flag_facts(
        "vllm", {"max_model_len": "16k", "gpu_memory_utilization": "0.9", "enforce_eager": "True", "seed": "0"}
    ) == {
        "flag.max-model-len": 16_000,
        "max_model_len": 16_000,
        "flag.gpu-memory-utilization": 0.9,
        "memory_fraction": 0.9,
        "flag.enforce-eager": True,
        "enforce_eager": True,
    }
    assert flag_facts("sglang", {"disable-radix-cache": "true", "api-key": "x"}) == {
        "flag.disable-radix-cache": True,
        "prefix_caching": False,
        "flag.api-key": "set",
    }


def test_what_is_not_set_or_left_to_the_engine_is_no_fact():
    assert flag_facts("vllm", {"max_model_len": "None", "max_num_seqs": ""}) == {}
    assert flag_facts("vllm", {"max_model_len": "auto"}) == {"flag.max-model-len": "auto"}
    assert flag_facts("sglang", {"chunked_prefill_size": "-1"}) == {"flag.chunked-prefill-size": -1}


def test_every_flag_sets_a_known_fact():
    facts = {flag.fact for table in FLAGS.values() for flag in table.values() if flag.fact}
    assert facts <= set(FACTS)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("75.34 GiB", 80_895_709_020),
        ("18.97 MiB", 19_891_487),
        ("448.00 KiB", 458_752),
        ("512 bytes", 512),
        ("1.5GB", 1_610_612_736),
        ("1,024 MiB", 1_073_741_824),
        ("12 parsecs", None),
        ("much", None),
    ],
)
def test_sizes_are_powers_of_1024(text, want):
    assert bytes_of(text) == want


def test_a_number_of_gib_is_bytes_and_less_than_nothing_is_none():
    assert bytes_of_gib("6.5") == 6_979_321_856
    assert bytes_of_gib("-0.3") is None


@pytest.mark.parametrize(
    ("text", "want"),
    [("8192", 8192), ("16k", 16_000), ("16K", 16_384), ("1.5m", 1_500_000), ("1.5M", None), ("-1", -1), ("auto", None), ("0.5", None),
     ("32_768", 32_768), ("1_000_000", 1_000_000), ("32_", None), ("3__2", None), ("32_768k", None), ("1_000.5", None)],
)  # fmt: skip
def test_counts_are_read_as_the_engine_reads_them(text, want):
    assert count_of(text) == want
