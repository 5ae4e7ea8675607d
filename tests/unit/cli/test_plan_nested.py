"""Flags of a launch command that hold an object: dotted settings, lost quotes, flags that became fields of another."""

from __future__ import annotations

import json
import shlex

import pytest

from gpuwatch.cli import main
from gpuwatch.cli.plan_command import read_launch
from gpuwatch.ledger.nested import folded

START = "vllm serve Qwen/Qwen3-8B"
YARN = {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}
DOTTED = (
    "--hf-overrides.rope_scaling.rope_type=yarn --hf_overrides.rope_scaling.factor 4 "
    "--hf-overrides.rope_scaling.original_max_position_embeddings=32768"
)


def planned(capsys, command, *arguments):
    assert main(["plan", "--from-command", command, "--gpu-memory", "79.3", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def flag_of(plan, name):
    """The value of a flag in the repaired command, as JSON."""
    words = shlex.split(plan["command"])
    return json.loads(words[words.index(f"--{name}") + 1])


def test_dotted_settings_are_one_object_as_vllm_reads_them():
    # What vLLM 0.32's own parser makes of these words.
    words = "m --a.b.c 1 --a.b.d=x --a.e+ y --a.e+=z,w --f.size 32k --gpu-memory-utilization 0.5 --g=1.5"
    assert folded("vllm", words.split()) == [
        "m", "--gpu-memory-utilization", "0.5", "--g=1.5",
        "--a", '{"b": {"c": 1, "d": "x"}, "e": ["y", "z", "w"]}', "--f", '{"size": 32000}',
    ]  # fmt: skip
    assert folded("sglang", words.split()) == words.split()


def test_dotted_settings_are_counted_like_the_object_that_they_make(capsys):
    plan = planned(capsys, f"{START} --hf-overrides.num_hidden_layers=10")
    assert plan["kv"]["bytes_per_token"] == 2 * 10 * 8 * 128 * 2
    assert (plan["flags"], plan["command"]) == ([], f"{START} --hf-overrides.num_hidden_layers=10")


@pytest.mark.parametrize("given", [DOTTED, f"--hf-overrides '{json.dumps({'rope_scaling': YARN})}'"])
def test_a_length_that_yarn_reaches_is_declared_and_not_given_up(capsys, given):
    text = f"{START} --max-model-len 131072 {given}"
    plan = planned(capsys, text)
    assert "--max-model-len 131072" in plan["command"]
    assert flag_of(plan, "hf-overrides") == {"rope_scaling": YARN, "max_position_embeddings": 131_072}
    assert (plan["serves"], planned(capsys, plan["command"])["serves"]) == (False, True)
    early = planned(capsys, text, "--engine-version", "0.20.0")  # takes the factor times the original length
    assert (early["serves"], early["flags"]) == (True, [])


def test_a_length_beyond_what_yarn_reaches_is_shortened(capsys):
    plan = planned(capsys, f"{START} --max-model-len 200000 {DOTTED}")
    assert "--max-model-len 40960" in plan["command"]


@pytest.mark.parametrize(("engine", "version"), [("vllm", "0.8.5"), ("sglang", "0.5.23")])
def test_dotted_settings_become_an_object_where_the_engine_takes_none(capsys, engine, version):
    if engine == "vllm":
        plan = planned(capsys, f"{START} {DOTTED} --port 1", "--engine-version", version)
        assert plan["command"] == f"{START} --hf-overrides '{json.dumps({'rope_scaling': YARN})}' --port 1"
    else:
        told = "sglang serve --model-path Qwen/Qwen3-8B --json-model-override-args.num_hidden_layers 10"
        plan = planned(capsys, told)
        assert flag_of(plan, "json-model-override-args") == {"num_hidden_layers": 10}
    assert ["came with vLLM 0.9.0" in fault["problem"] for fault in plan["flags"]] == [True]


@pytest.mark.parametrize(
    "lost",
    [
        "{rope_type:yarn,factor:4,original_max_position_embeddings:32768}",
        "{'rope_type': 'yarn', 'factor': 4, 'original_max_position_embeddings': 32768}",
        "{rope_type: yarn, factor: 4, original_max_position_embeddings: 32768}",
    ],
)
def test_lost_quotes_are_put_back(capsys, lost):
    text = f'{START} --rope-scaling "{lost}"'
    plan = planned(capsys, text, "--engine-version", "0.10.0")
    assert flag_of(plan, "rope-scaling") == YARN
    assert [fault["flag"] for fault in plan["flags"]] == ["--rope-scaling"]
    assert plan["kv"]["context"] == 131_072
    moved = planned(capsys, text)
    assert flag_of(moved, "hf-overrides") == {"rope_scaling": YARN, "max_position_embeddings": 131_072}
    assert "--rope-scaling" not in moved["command"]


def test_lost_quotes_of_objects_in_objects_are_put_back(capsys):
    plan = planned(capsys, f"{START} --hf-overrides '{{rope_scaling:{{rope_type:yarn,factor:4}},tie:true}}'")
    assert flag_of(plan, "hf-overrides") == {"rope_scaling": {"rope_type": "yarn", "factor": 4}, "tie": True}


def test_a_value_that_nobody_can_read_is_left_out_where_its_flag_is_gone(capsys):
    plan = planned(capsys, f"{START} --rope-scaling yarn-4 --port 1")
    assert plan["command"] == f"{START} --port 1"
    (fault,) = plan["flags"]
    assert "its value cannot be carried over to --hf-overrides" in fault["problem"]
    assert fault["replacement"] is None


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ("--speculative-model X --num-speculative-tokens 5", {"model": "X", "num_speculative_tokens": 5}),
        (
            "--speculative_model=X --num-speculative-tokens=5 -spec-draft-tp 1 --speculative-max-model-len 2k",
            {"model": "X", "num_speculative_tokens": 5, "draft_tensor_parallel_size": 1, "max_model_len": 2000},
        ),
        (
            "--speculative-model '[ngram]' --num-speculative-tokens 4 --ngram-prompt-lookup-max 3",
            {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3},
        ),
        (
            """--speculative-config '{"method": "mtp"}' --num-speculative-tokens 2""",
            {"method": "mtp", "num_speculative_tokens": 2},
        ),
    ],
)
@pytest.mark.parametrize("version", ["0.33.0", "0.12.0"])
def test_flags_of_drafting_become_fields_of_its_settings(capsys, given, fields, version):
    plan = planned(capsys, f"{START} {given} --port 1", "--engine-version", version)
    assert flag_of(plan, "speculative-config") == fields
    assert shlex.split(plan["command"])[:3] == START.split()
    assert "--port 1" in plan["command"]
    assert len(shlex.split(plan["command"])) == 7
    assert planned(capsys, plan["command"], "--engine-version", version)["flags"] == []


def test_versions_with_the_flags_of_drafting_keep_them(capsys):
    text = f"{START} --speculative-model X --num-speculative-tokens 5"
    assert planned(capsys, text, "--engine-version", "0.8.2")["command"] == text


def test_drafted_tokens_without_a_model_that_drafts_are_left_out(capsys):
    plan = planned(capsys, f"{START} --num-speculative-tokens 5")
    assert plan["command"] == START


def test_dotted_settings_of_drafting_are_read():
    command = read_launch(f"{START} --speculative-config.method ngram --speculative-config.num_speculative_tokens 3")
    assert command.command.drafted == 3
