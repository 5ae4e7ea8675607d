"""Which launch flags a version has, and which are traps."""

from __future__ import annotations

import pytest

from gpuwatch.engines.flag_names import is_listed, misnamed_flag
from gpuwatch.engines.flag_versions import (  # the tables themselves are checked below
    _SPANS,
    _TRAPS,
    available,
    flag_problems,
    risky_flags,
    show,
    unknown_flag,
)
from gpuwatch.engines.flags import FLAGS


@pytest.mark.parametrize(
    ("version", "flag", "words"),
    [
        ("0.6.0", "quantization-param-path", None),  # a flag of vLLM at that time, and of SGLang now
        ("0.8.4", "override-neuron-config", None),  # was one as well, and reads like one of today
        ("0.8.4", "mem-fraction-static", "is a flag of SGLang; no version of vLLM has it"),
        ("0.32.0", "quantization-param-path", "is a flag of SGLang, not of vLLM"),
        ("", "quantization-param-path", "is a flag of SGLang, not of vLLM"),
        ("0.31.0", "gpu-memory-utilisation", "vLLM has no --gpu-memory-utilisation"),
    ],
)
def test_what_an_older_version_had_is_not_judged_by_the_newest_list(version, flag, words):
    problem = misnamed_flag("vllm", version, flag)
    assert words is None if problem is None else words is not None and words in problem.text


@pytest.mark.parametrize(
    ("engine", "version", "flag", "instead"),
    [
        ("vllm", "0.33.0", "max-model-length", "--max-model-len"),
        ("vllm", "0.33.0", "num-scheduler-steps", ""),
        ("vllm", "0.33.0", "disable-log-requests", ""),  # and not the flag that does the opposite
        ("sglang", "0.5.23", "enable-mla", ""),  # which looks like --enable-lora and is something else
        ("sglang", "0.5.23", "chunk-prefill-size", "--chunked-prefill-size"),
    ],
)
def test_a_name_that_the_version_does_not_have_is_answered_only_with_what_does_the_same(engine, version, flag, instead):
    problem = misnamed_flag(engine, version, flag)
    assert problem is not None
    assert problem.instead == instead


@pytest.mark.parametrize("flag", ["hf-overrides.rope_scaling", "compilation-config.level", "enable-auto-tool-choice"])
def test_settings_behind_a_dot_and_flags_of_the_list_are_no_faults(flag):
    assert misnamed_flag("vllm", "0.33.0", flag) is None


@pytest.mark.parametrize(
    ("engine", "version", "flags"),
    [
        (
            "vllm",
            "0.8.5",
            """worker-use-ray max-seq-len-to-capture use-v2-block-manager enable-lora-bias num-scheduler-steps
            max-num-partial-prefills max-long-partial-prefills guided-decoding-backend disable-log-requests
            enable-reasoning lora-extra-vocab-size override-pooler-config speculative-disable-mqa-scorer""",
        ),
        (
            "sglang",
            "0.4.6",
            """tokenizer-path disable-mla enable-mla cuda-graph-bs speculative-num-steps enable-ep-moe
            max-prefill-num-token disable-flashinfer torchao-config ds-channel-config-path schedule-heuristic""",
        ),
    ],
)
def test_flags_that_only_earlier_versions_had_are_no_slips_of_others(engine, version, flags):
    assert [flag for flag in flags.split() if misnamed_flag(engine, version, flag) is not None] == []


@pytest.mark.parametrize(
    ("engine", "version", "slip", "instead"),
    [
        ("vllm", "0.8.5", "max-modl-len", "--max-model-len"),
        ("vllm", "0.6.3", "tensor-paralel-size", "--tensor-parallel-size"),
        ("sglang", "0.4.6", "mem-fraction-statik", "--mem-fraction-static"),
    ],
)
def test_a_slip_is_found_in_a_version_whose_flags_are_not_all_known(engine, version, slip, instead):
    problem = misnamed_flag(engine, version, slip)
    assert problem is not None
    assert problem.instead == instead
    assert not is_listed(engine, slip)
    assert is_listed(engine, instead.removeprefix("--"))


def test_a_slip_of_a_flag_that_the_version_does_not_have_is_none():
    assert misnamed_flag("vllm", "0.8.5", "kv-offloading-siz") is None  # a beginning of a later flag
    assert misnamed_flag("vllm", "0.8.5", "kv-ofloading-size") is None


def test_a_flag_that_an_older_version_has_refused_is_answered_with_the_nearest_name():
    problem = misnamed_flag("vllm", "0.8.4", "gpu-memory-utilisation", refused=True)
    assert problem is not None
    assert problem.instead == "--gpu-memory-utilization"


@pytest.mark.parametrize(
    ("engine", "version", "flag", "instead"),
    [
        ("vllm", "0.32.0", "chunked-prefill-size", "--max-num-batched-tokens"),
        ("vllm", "0.18.0", "swap-space", ""),
        ("vllm", "0.12.0", "rope-scaling", "--hf-overrides"),
        ("vllm", "0.10.1", "kv-cache-memory-bytes", "--gpu-memory-utilization"),
        ("sglang", "0.5.20", "cuda-graph-max-bs", "--cuda-graph-max-bs-decode"),
    ],
)
def test_a_flag_that_a_version_does_not_have_is_named_with_what_takes_its_place(engine, version, flag, instead):
    problem = unknown_flag(engine, version, flag)
    assert problem is not None
    assert (problem.kind, problem.instead) == ("unknown", instead)
    assert f"--{flag}" in problem.text


@pytest.mark.parametrize(
    ("engine", "last_without", "first_with", "flag"),
    [
        ("vllm", "0.30.0", "0.31.0", "max-num-active-seqs"),
        ("vllm", "0.28.0", "0.29.0", "max-num-queued-tokens"),
        ("vllm", "0.23.0", "0.24.0", "prefill-schedule-interval"),
        ("vllm", "0.23.0", "0.24.0", "watermark"),
        ("vllm", "0.18.0", "0.19.0", "kv-cache-dtype-skip-layers"),
        ("vllm", "0.25.0", "0.26.0", "prefix-match-unit"),
        ("vllm", "0.28.0", "0.29.0", "prefix-cache-retention-interval"),
        ("vllm", "0.8.3", "0.8.4", "prefix-caching-hash-algo"),
        ("vllm", "0.11.0", "0.11.1", "dcp-kv-cache-interleave-size"),
        ("vllm", "0.11.2", "0.12.0", "cp-kv-cache-interleave-size"),
        ("vllm", "0.10.0", "0.10.1", "mamba-cache-dtype"),
        ("vllm", "0.11.0", "0.11.1", "mamba-block-size"),
        ("vllm", "0.15.0", "0.16.0", "mamba-cache-mode"),
        ("vllm", "0.11.2", "0.12.0", "kv-cache-metrics-sample"),
        ("vllm", "0.30.0", "0.31.0", "device-memory-utilization"),
        ("vllm", "0.6.4", "0.6.5", "kv-transfer-config"),
        ("vllm", "0.27.0", "0.26.0", "max-long-partial-prefills"),
        ("sglang", "0.5.8", "0.5.9", "attn-cp-size"),
        ("sglang", "0.5.21", "0.5.22", "enable-kv-cache-sharding"),
        ("sglang", "0.5.13", "0.5.11", "collect-tokens-histogram"),
    ],
)
def test_a_flag_is_told_from_one_of_another_version_by_its_name_alone(engine, last_without, first_with, flag):
    problem = misnamed_flag(engine, last_without, flag)
    assert problem is not None
    assert f"does not have --{flag}" in problem.text
    assert misnamed_flag(engine, first_with, flag) is None


@pytest.mark.parametrize(
    ("engine", "version", "flag", "known"),
    [
        ("vllm", "0.8.5", "reasoning-parser", True),  # in 0.8.4 and in 0.32
        ("vllm", "0.6.3", "reasoning-parser", False),
        ("vllm", "0.6.3", "served-model-name", True),
        ("vllm", "0.8.5", "enable-log-requests", False),
        ("vllm", "0.33.0", "enable-log-requests", True),
        ("vllm", "0.8.5", "device", False),  # a flag of that version, and the beginning of two of today
        ("vllm", "0.11.0", "tensor-par", True),
        ("vllm", "0.11.0", "no-enable-prefix-caching", True),
        ("sglang", "0.4.6", "enable-ep-moe", True),
        ("sglang", "0.4.9", "enable-ep-moe", False),
        ("sglang", "0.4.6", "enable-lora", False),  # 0.4.6.post5 may have it
        ("sglang", "0.5.3", "tp", True),
    ],
)
def test_a_name_counts_as_listed_only_in_versions_that_are_known_to_have_it(engine, version, flag, known):
    assert is_listed(engine, flag, version) is known


@pytest.mark.parametrize("flag", ["pp-size", "pp", "enable-lora", "max-queued-requests", "moe-a2a-backend"])
def test_what_an_earlier_list_of_sglang_does_not_have_is_no_flag_of_still_earlier_versions(flag):
    problem = misnamed_flag("sglang", "0.4.5", flag)
    assert problem is not None
    assert problem.text == f"SGLang 0.4.5 does not have --{flag}, which came with a later version"
    assert misnamed_flag("sglang", "0.4.6", flag) is None
    assert misnamed_flag("sglang", "0.4.5", "tp") is None


@pytest.mark.parametrize(
    ("engine", "version", "flag", "instead"),
    [
        ("vllm", "0.32.0", "max-num", ""),
        ("vllm", "0.32.0", "data-parallel", ""),
        ("vllm", "0.32.0", "device", ""),
        ("sglang", "0.5.23", "pp", "--pp-size"),
        ("sglang", "0.5.23", "context", ""),
        ("sglang", "0.5.23", "cuda-graph-bs", ""),
        ("sglang", "0.5.23", "speculative-draft", ""),
        ("sglang", "0.5.23", "disable-flashinfer", ""),
    ],
)
def test_the_beginning_of_several_flags_is_ambiguous(engine, version, flag, instead):
    problem = misnamed_flag(engine, version, flag)
    assert problem is not None
    assert problem.text.startswith(f"--{flag} is ambiguous: it is the beginning of --{flag}-")
    assert problem.instead == instead


@pytest.mark.parametrize(
    ("engine", "flag"),
    [
        ("vllm", "max-num-se"),
        ("vllm", "tensor"),
        ("vllm", "no-enable-mfu-metr"),
        ("vllm", "no-kv-cache-metr"),
        ("sglang", "tp"),
        ("sglang", "dp"),
        ("sglang", "ep"),
        ("sglang", "no-mm-enable-dp-encode"),
    ],
)
def test_the_beginning_of_one_flag_is_taken(engine, flag):
    assert misnamed_flag(engine, {"vllm": "0.32.0", "sglang": "0.5.23"}[engine], flag) is None


@pytest.mark.parametrize(
    ("engine", "version", "flag"),
    [
        ("vllm", "0.17.1", "swap-space"),
        ("vllm", "0.32.0", "kv-offloading-size"),
        ("vllm", "0.32.0", "max-num-seqs"),
        ("vllm", "0.1.dev5", "swap-space"),
        ("vllm", "", "preemption-mode"),
        ("sglang", "0.5.23", "chunked-prefill-size"),
        ("other", "1.0", "swap-space"),
    ],
)
def test_a_flag_that_exists_or_is_not_known_is_no_problem(engine, version, flag):
    assert unknown_flag(engine, version, flag) is None


@pytest.mark.parametrize(
    ("engine", "version", "flags", "expected"),
    [
        ("vllm", "0.32.0", {"gpu-memory-utilization": 0.98}, [("gpu-memory-utilization", "0.98", "0.92")]),
        ("vllm", "0.32.0", {"gpu-memory-utilization": 0.95}, []),
        (
            "vllm",
            "0.32.0",
            {"gpu-memory-utilization": 0.5, "kv-cache-memory-bytes": 10},
            [("gpu-memory-utilization", "0.5", "")],
        ),
        ("vllm", "0.16.0", {"swap-space": 8.0}, [("swap-space", "8", "")]),
        ("vllm", "0.9.0", {"swap-space": 8.0}, []),
        ("vllm", "0.10.2", {"preemption-mode": "swap"}, [("preemption-mode", "swap", "")]),
        ("vllm", "0.7.3", {"preemption-mode": "swap"}, []),
        ("sglang", "0.4.1", {"kv-cache-dtype": "fp8_e4m3"}, [("kv-cache-dtype", "fp8_e4m3", "fp8_e5m2")]),
        ("sglang", "0.4.2", {"kv-cache-dtype": "fp8_e4m3"}, []),
        ("sglang", "0.5.3", {"kv-cache-dtype": "bf16"}, [("kv-cache-dtype", "bf16", "auto")]),
        ("sglang", "0.5.4", {"kv-cache-dtype": "bf16"}, []),
        ("sglang", "0.5.23", {"kv-cache-dtype": "fp4_e2m1"}, [("kv-cache-dtype", "fp4_e2m1", "nvfp4")]),
        ("sglang", "0.5.23", {"kv-cache-dtype": "mxfp8"}, []),
        ("vllm", "0.9.0", {"swap-space": 32.0}, [("swap-space", "32", "4")]),
        (
            "vllm",
            "0.20.0",
            {"scheduler-reserve-full-isl": False},
            [("scheduler-reserve-full-isl", "false", "true")],
        ),
        ("vllm", "0.20.0", {"scheduler-reserve-full-isl": True}, []),
        ("vllm", "unknown", {"gpu-memory-utilization": 0.98}, []),
        ("sglang", "0.5.23", {"chunked-prefill-size": -1}, [("chunked-prefill-size", "-1", "8192")]),
        ("sglang", "0.5.23", {"mem-fraction-static": 0.93}, [("mem-fraction-static", "0.93", "0.88")]),
        ("sglang", "0.5.23", {"mem-fraction-static": 0.9}, []),
        ("sglang", "0.5.23", {"kv-cache-dtype": "fp8"}, [("kv-cache-dtype", "fp8", "fp8_e4m3")]),
        ("sglang", "0.5.23", {"kv-cache-dtype": "fp8_e5m2"}, []),
    ],
)
def test_a_trap_depends_on_version_and_value(engine, version, flags, expected):
    found = risky_flags(engine, version, flags)
    assert [(problem.flag, problem.value, problem.proposed) for problem in found] == expected


def test_both_kinds_come_together_unknown_ones_first():
    found = flag_problems("vllm", "0.32.0", {"cpu-offload-gb": 4.0, "swap-space": 4.0})
    assert [(problem.flag, problem.kind) for problem in found] == [
        ("swap-space", "unknown"),
        ("cpu-offload-gb", "risky"),
    ]


def test_a_flag_is_available_only_where_that_is_certain():
    assert available("vllm", (0, 19, 0), "scheduler-reserve-full-isl")
    assert not available("vllm", (0, 18, 1), "scheduler-reserve-full-isl")
    assert not available("vllm", None, "scheduler-reserve-full-isl")
    assert not available("vllm", (0, 19, 0), "no-such-flag")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_every_flag_of_the_tables_is_read_from_command_lines_too(engine):
    names = {*_SPANS[engine], *(trap.flag for trap in _TRAPS[engine])}
    assert len(names) > 5
    assert names <= {flag.name for flag in FLAGS[engine].values()}


def test_values_are_shown_as_they_are_typed():
    assert [show(value) for value in (True, False, 0.9, 16, "auto")] == ["true", "false", "0.9", "16", "auto"]


@pytest.mark.parametrize(
    ("engine", "version", "flag"),
    [("vllm", "0.32.0", "no-headless"), ("vllm", "0.32.0", "no-seed"), ("sglang", "0.5.23", "no-enable-metrics")],
)
def test_a_flag_without_a_form_that_turns_it_off_is_not_turned_off(engine, version, flag):
    problem = misnamed_flag(engine, version, flag)
    assert problem is not None
    assert f"has no --{flag}" in problem.text
