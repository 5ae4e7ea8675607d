"""What ``gpuwatch plan`` says of launches that the engine refuses, and repairs that leave alone what is needed."""

from __future__ import annotations

import json
import shlex

import pytest

from gpuwatch.cli import main
from gpuwatch.cli.plan_output import down

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 32768,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def planned(capsys, *arguments):
    code = main(["plan", *map(str, arguments), "--gpu-memory", "79.3", "--json"])
    return code, json.loads(capsys.readouterr().out)


def launched(capsys, command, *arguments):
    return planned(capsys, "--from-command", command, *arguments)


@pytest.fixture
def llama(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


@pytest.mark.parametrize(
    ("launch", "flag"),
    [("vllm serve {}", "--max-model-len"), ("sglang serve --model-path {}", "--context-length")],
)
def test_a_length_that_the_engine_refuses_fails_and_is_repaired(capsys, llama, launch, flag):
    start = launch.format(llama)
    code, plan = launched(capsys, f"{start} {flag} 65536", "--fail")
    assert (code, plan["verdict"], plan["serves"]) == (1, "fits", False)
    assert plan["command"] == f"{start} {flag} 32768"
    (fault,) = plan["flags"]
    assert (fault["flag"], fault["replacement"]) == (flag, f"{flag} 32768")
    assert launched(capsys, f"{start} {flag} 32768", "--fail")[0] == 0


def test_a_length_that_is_asked_for_without_a_command_is_refused_too(capsys, llama):
    code, plan = planned(capsys, llama, "--context", 65536, "--fail")
    assert (code, plan["serves"]) == (1, False)
    main(["plan", str(llama), "--context", "65536", "--gpu-memory", "79.3"])
    assert "verdict: fits, but 65,536 tokens are beyond the 32,768" in capsys.readouterr().out


def test_a_length_that_is_forced_is_no_fault(capsys, llama):
    command = f"VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 vllm serve {llama} --max-model-len 65536"
    code, plan = launched(capsys, command, "--fail")
    assert (code, plan["flags"], plan["command"]) == (0, [], command)
    assert any("answers degrade without an error" in note for note in plan["notes"])


def test_fields_that_the_command_replaces_are_those_of_the_model(capsys, llama):
    # 2 x 218,112,000 of layers, 2 x 525,336,576 of embedding and head, and 128 bytes of rotations for each position
    settings = json.dumps({"num_hidden_layers": 2, "max_position_embeddings": 131072, "rope_scaling": YARN})
    code, plan = launched(capsys, f"vllm serve {llama} --max-model-len 131072 --hf-overrides {shlex.quote(settings)}")
    assert (code, plan["serves"], plan["flags"]) == (0, True, [])
    weights = plan["per_gpu"][0]["components"]["weights"]
    assert weights == pytest.approx(2 * (2 * 218_112_000 + 2 * 525_336_576) + 131_072 * 256, rel=0.002)
    assert not [note for note in plan["notes"] if "hf-overrides" in note]


def test_yarn_lengthens_by_itself_up_to_the_version_that_stopped_it(capsys, llama):
    settings = shlex.quote(json.dumps({"rope_scaling": YARN}))
    for version, length in (("0.31.0", 131072), ("0.32.0", 32768)):
        _, plan = launched(capsys, f"vllm serve {llama} --hf-overrides {settings}", "--engine-version", version)
        assert plan["kv"]["context"] == length


def test_flags_that_became_fields_of_another_are_nested_in_it(capsys, llama):
    command = (
        f"vllm serve {llama} --rope-scaling {shlex.quote(json.dumps(YARN))} --rope-theta 1e6 --max-model-len 131072 "
        "--hf-overrides '{\"sliding_window\": 4096}'"
    )
    _, plan = launched(capsys, command)
    words = shlex.split(plan["command"])
    assert words.count("--hf-overrides") == 1
    assert json.loads(words[words.index("--hf-overrides") + 1]) == {
        "rope_scaling": YARN,
        "rope_theta": 1e6,
        "sliding_window": 4096,
        "max_position_embeddings": 131072,  # 4 x 32,768
    }
    assert plan["serves"]
    assert not {"--rope-scaling", "--rope-theta"} & set(words)


def test_what_the_model_needs_to_fit_is_not_repaired_away(capsys):
    # 15.3 GiB of weights and 5.6 of KV cache are more than 0.9 x 23.5 with all else
    command = "vllm serve Qwen/Qwen3-8B --cpu-offload-gb 8 --gpu-memory-utilization 0.9 --enforce-eager"
    main(["plan", "--from-command", command, "--gpu-memory", "23.5", "--json"])
    plan = json.loads(capsys.readouterr().out)
    assert (plan["command"], plan["flags"], plan["serves"]) == (command, [], True)
    assert any(note.startswith("--cpu-offload-gb 8 stays: ") for note in plan["notes"])
    _, plan = launched(capsys, command)
    assert plan["command"] == command.replace(" --cpu-offload-gb 8", "")


def test_a_large_share_stays_where_a_smaller_one_holds_no_request(capsys, llama):
    # less 15 GiB of weights, 1.2 of the sampler and 0.5 of graphs, 0.97 x 18.8 leave 1.6 and 0.92 leave 0.6 of 1
    command = f"vllm serve {llama} --max-model-len 8192 --gpu-memory-utilization 0.97"
    main(["plan", "--from-command", command, "--gpu-memory", "18.8", "--json"])
    plan = json.loads(capsys.readouterr().out)
    assert (plan["command"], plan["serves"]) == (command, True)
    assert launched(capsys, command)[1]["command"] == command.replace("0.97", "0.92")


@pytest.mark.parametrize(
    ("start", "refused", "taken"),
    [
        ("vllm serve Qwen3-8B", ("int8", "int4", "fp16", "mxfp8"), ("ultraquant_4bit", "octave_k8v4", "nvfp4")),
        ("sglang serve --model-path Qwen3-8B", ("int8", "fp16"), ("mxfp8", "fp4_mx_block16", "bf16")),
    ],
)
def test_kv_types_are_those_of_the_engine(capsys, start, refused, taken):
    for name in refused:
        assert main(["plan", "--from-command", f"{start} --kv-cache-dtype {name}"]) == 2
        assert f"--kv-cache-dtype is '{name}'; allowed: auto" in capsys.readouterr().err
    for name in taken:
        code, plan = launched(capsys, f"{start} --kv-cache-dtype {name}")
        assert (code, plan["flags"]) == (0, [])


def test_a_cache_of_eight_bits_in_blocks_has_a_scale_for_32_elements(capsys):
    _, plan = launched(capsys, "sglang serve --model-path Qwen3-8B --kv-cache-dtype mxfp8")
    assert plan["kv"]["bytes_per_token"] == 36 * 2 * 8 * 128
    assert plan["kv"]["scale_bytes_per_token"] == 36 * 2 * 8 * 128 / 32


def test_two_changes_on_the_cards_that_are_there_come_before_more_cards(capsys):
    _, plan = planned(capsys, "openai/gpt-oss-120b")
    first = plan["what_if"][0]
    assert first["change"] == "--gpu-memory-utilization 0.92 → 0.95 and --max-num-seqs 1024 → 256"
    assert first["serves"]
    assert first["max_concurrency"] >= 1
    for row in plan["what_if"]:
        lacking = row["serves"] and row["verdict"] == "tight"  # by less than the figures are uncertain by
        assert row["serves"] == (row["max_concurrency"] >= 1) or lacking
    main(["plan", "openai/gpt-oss-120b", "--gpu-memory", "79.3"])
    shown = capsys.readouterr().out
    assert "tight, and may lack a little: longest request 112,304, 0.8 of full length" in shown
    assert "tight: longest request 0" not in shown


def test_several_models_are_shown_with_the_shares_that_they_need(capsys):
    main(["plan", "Llama-3.1-8B-Instruct", "Qwen3-14B", "--gpu-memory", "79.3"])
    lines = capsys.readouterr().out.splitlines()
    for name, share in (("meta-llama/Llama-3.1-8B-Instruct", "0.46"), ("Qwen/Qwen3-14B", "0.51")):
        at = next(at for at, line in enumerate(lines) if line.startswith(f"{name}: KV cache"))
        assert f"with --gpu-memory-utilization {share} the pool holds" in lines[at]
        assert "or 1.0 requests of" in lines[at + 1]


@pytest.mark.parametrize(("held", "shown"), [(0.965, 0.9), (1.3, 1.3), (0.04, 0.0), (2.0, 2.0)])
def test_a_part_of_a_request_is_not_rounded_up(held, shown):
    assert down(held) == shown


def test_arguments_that_go_before_the_commands_own_are_named(capsys):
    command = "vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 4 --max-model-len 8192"
    _, plan = launched(capsys, command, "Qwen3-8B", "--tp", "2", "--context", "4096")
    assert "Qwen3-8B counted in place of the command's model meta-llama/Llama-3.1-70B-Instruct" in plan["notes"]
    assert "--tp 2 counted in place of the command's 4" in plan["notes"]
    assert "--context 4096 counted in place of the command's 8192" in plan["notes"]
    _, plan = launched(capsys, command, "Llama-3.1-70B-Instruct", "--tp", "4")
    assert not [note for note in plan["notes"] if "in place of" in note]


def test_the_beginning_of_a_flag_counts_as_the_flag(capsys, llama):
    command = f"vllm serve {llama} --max-num-seq 4"
    _, plan = launched(capsys, command)
    assert (plan["models"][0]["max_num_seqs"], plan["command"]) == (4, command)
    assert main(["plan", "--from-command", f"vllm serve {llama} --max-num-seq x"]) == 2
    assert "--max-num-seqs is 'x'" in capsys.readouterr().err


@pytest.mark.parametrize(("own", "kept"), [("0.95", "0.88"), ("0.85", "0.85")])
def test_a_flag_of_the_other_engine_does_not_undo_the_own_one(capsys, llama, own, kept):
    start = f"sglang serve --model-path {llama}"
    _, plan = launched(capsys, f"{start} --mem-fraction-static {own} --gpu-memory-utilization 0.9")
    assert plan["command"] == f"{start} --mem-fraction-static {kept}"


def test_host_memory_for_swapping_is_left_out_and_not_made_a_cache(capsys, llama):
    _, plan = launched(capsys, f"vllm serve {llama} --swap-space 16 -tp 4")
    assert plan["command"] == f"vllm serve {llama} -tp 4"


def test_counts_are_taken_with_suffixes(capsys, llama):
    _, plan = planned(capsys, llama, "--context", "16k", "--params", "8B")
    assert plan["kv"]["context"] == 16_000
    _, same = planned(capsys, llama, "--context", "16000", "--params", "8e9")
    assert same["per_gpu"] == plan["per_gpu"]
    with pytest.raises(SystemExit):
        main(["plan", str(llama), "--context", "many"])
    assert "invalid count value: 'many'" in capsys.readouterr().err


def test_a_version_that_nobody_knows_is_said(capsys, llama):
    _, plan = planned(capsys, llama, "--engine-version", "9.9.9")
    assert any(note.startswith("vllm 9.9.9 is not known: computed as vllm") for note in plan["notes"])


def test_a_name_that_says_how_weights_are_stored_leads_to_the_option(capsys):
    assert main(["plan", "Qwen/Qwen2.5-72B-Instruct-AWQ"]) == 2
    assert "with --weights awq its weights are counted in that type" in capsys.readouterr().err


def test_an_index_without_a_size_is_not_said_to_have_one(capsys, llama):
    index = {"metadata": {}, "weight_map": {"a": "model-1.safetensors"}}
    (llama / "model.safetensors.index.json").write_text(json.dumps(index))
    _, plan = planned(capsys, llama)
    assert any(note.endswith("it states no size, so the shape in the config is used") for note in plan["notes"])


def test_ranks_that_share_contexts_use_the_copies(capsys, llama):
    # 8 KV heads on 16 ranks: two of them share a context and hold its halves
    _, plan = planned(capsys, llama, "--tp", "16", "--dcp", "2")
    assert not [note for note in plan["notes"] if "heads are copied" in note]
    _, plan = planned(capsys, llama, "--tp", "16")
    assert any("stops shrinking beyond 8" in note for note in plan["notes"])
