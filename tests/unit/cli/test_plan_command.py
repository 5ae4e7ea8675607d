"""Launch commands of all kinds in ``gpuwatch plan``: what is kept of them, what they mean, what is not counted."""

from __future__ import annotations

import json

import pytest

from gpuwatch.cli import UsageError, main
from gpuwatch.cli.plan_command import read_launch

GIB = 2**30
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
"""8,030,261,248 parameters; 131,072 bytes of KV for a token."""


def planned(capsys, *arguments):
    code = main(["plan", *map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture
def llama(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


def weights_of(plan):
    return plan["per_gpu"][0]["components"]["weights"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CUDA_VISIBLE_DEVICES=0,1 nohup vllm serve x -tp 2 > log 2>&1 &", None),
        ("docker run --gpus all -e 'A=b c' vllm/vllm-openai:v0.10.2 --model x", None),
        ("cd /srv && . venv/bin/activate; vllm serve x -tp 2 | tee log", None),
        ("vllm serve x --hf-overrides '{\"a\": 1}' 2>/dev/null", None),
        ("python3 -m sglang.launch_server --model-path x --tp 2 &> log", None),
        ("vllm serve x \\\n  -tp 2 # two cards", "vllm serve x -tp 2"),
        ("vllm serve x --tensor-parallel-sise 2 >log &", "vllm serve x --tensor-parallel-size 2 >log &"),
    ],
)
def test_a_repaired_command_is_the_one_that_was_given(text, expected):
    launch = read_launch(text)
    version = "0.5.23" if launch.command.engine == "sglang" else "0.32.0"
    assert launch.repaired(launch.command.problems(version)) == (expected or text)
    assert not {">", "2>&1", "&", "|", "tee", "log"} & set(launch.command.arguments)


def test_what_stands_behind_a_redirection_is_refused_and_not_left_out():
    with pytest.raises(UsageError, match="'-tp' stands behind a redirection"):
        read_launch("vllm serve x > log -tp 2")
    assert read_launch("vllm serve x > log && echo done").command.arguments == ("x",)


@pytest.mark.parametrize("dash", ["\u2013", "\u2014", "\u2010"])
def test_a_dash_of_typography_is_refused_with_the_hyphens_that_are_meant(dash):
    with pytest.raises(UsageError, match=r"begins with a dash that is no hyphen; allowed: --tensor-parallel-size$"):
        read_launch(f"vllm serve x {dash}tensor-parallel-size=2")


def test_figures_are_those_of_the_command_that_is_printed(capsys, llama):
    _, plan = planned(capsys, "--from-command", f"vllm serve {llama} --tensor-parallel-sise 2 --max-model-len 4096")
    assert plan["command"] == f"vllm serve {llama} --tensor-parallel-size 2 --max-model-len 4096"
    assert (len(plan["per_gpu"]), plan["models"][0]["tp"]) == (2, 2)
    assert "the figures are for the command with the names and forms of its flags repaired" in plan["notes"]


def test_a_risky_value_is_counted_as_given_and_said(capsys, llama):
    _, plan = planned(capsys, "--from-command", f"vllm serve {llama} --gpu-memory-utilization 0.97")
    assert plan["models"][0]["fraction"] == 0.97
    assert "the figures count --gpu-memory-utilization as given, which the repaired command changes" in plan["notes"]


def test_a_length_left_to_vllm_is_the_longest_that_its_pool_holds(capsys, llama):
    # 0.92 x 24 GiB less 16,094,076,928 of weights, 1,267,374,490 of the sampler and 512 MiB of graphs are 2770 blocks
    # of 2 MiB; one is the null block, 2769 x 16 tokens remain.
    for value in ("auto", "-1"):
        command = f"vllm serve {llama} --max-model-len {value}"
        code, plan = planned(capsys, "--from-command", command, "--gpu-memory", 24, "--fail")
        assert (code, plan["kv"]["context"], plan["verdict"]) == (0, 44_304, "tight")
        assert any(
            "44,304 tokens, the longest that the pool holds (the model declares 131,072)" in n for n in plan["notes"]
        )
    _, plan = planned(capsys, "--from-command", f"vllm serve {llama} --max-model-len auto", "--gpu-memory", 80)
    assert plan["kv"]["context"] == 131_072
    _, plan = planned(capsys, "--from-command", f"vllm serve {llama} --max-model-len auto", "--gpu-memory", 8)
    assert plan["verdict"] == "does_not_fit"


@pytest.mark.parametrize(
    ("stored", "flags", "bytes_each"),
    [("float32", "", 2), ("float32", "--dtype float32", 4), ("bfloat16", "--dtype float32", 4), ("float16", "", 2)],
)
def test_weights_have_the_type_that_the_command_asks_for(capsys, llama, stored, flags, bytes_each):
    (llama / "config.json").write_text(json.dumps({**LLAMA, "torch_dtype": stored}))
    _, plan = planned(capsys, "--from-command", f"vllm serve {llama} {flags}")
    assert weights_of(plan) == pytest.approx(8_030_261_248 * bytes_each, rel=0.003)  # and 32 MiB of rotations


def test_weights_that_bitsandbytes_packs_keep_embedding_and_head(capsys, llama):
    command = f"vllm serve {llama} --quantization bitsandbytes"
    _, plan = planned(capsys, "--engine-version", "0.26.0", "--from-command", command)
    packed, ends, norms = 6_979_321_856 * 4.5 / 8, 2 * 128_256 * 4096 * 2, 65 * 4096 * 2
    assert weights_of(plan) == pytest.approx(packed + ends + norms + 131_072 * 128 * 2, rel=1e-3)


@pytest.mark.parametrize("name", ["gguf", "nonsense"])
def test_a_quantisation_whose_bits_are_unknown_is_said(capsys, llama, name):
    _, plan = planned(capsys, "--from-command", f"vllm serve {llama} -q {name}")
    assert any(f"the quantisation '{name}' is not known" in note for note in plan["notes"])


def test_names_are_judged_for_an_old_version_where_they_are_slips_and_else_named(capsys, llama):
    command = f"vllm serve {llama} --enable-foo --max-modl-len 4096 --worker-use-ray"
    _, plan = planned(capsys, "--engine-version", "0.8.5", "--from-command", command)
    assert [(fault["flag"], fault["replacement"]) for fault in plan["flags"]] == [("--max-modl-len", "--max-model-len")]
    assert plan["kv"]["context"] == 4096
    assert plan["command"] == f"vllm serve {llama} --enable-foo --max-model-len 4096 --worker-use-ray"
    words = "not checked, as not all flags of vllm 0.8.5 are listed here: --enable-foo, --worker-use-ray"
    assert words in plan["notes"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--enable-lora --max-loras 8 --max-lora-rank 256",
         "the adapters' part of a step, and their places in experts (--enable-lora)"),
        ("""--speculative-config '{"method": "eagle3", "model": "d", "num_speculative_tokens": 3}'""",
         "weights, KV cache and graphs of the draft model (--speculative-config)"),
        ("--hf-overrides not-json", "what these settings change of the model's config (--hf-overrides)"),
        ("--kv-cache-dtype turboquant_k8v4", "what turboquant_k8v4 saves; its KV cache is counted as 16-bit"),
        ("--config serve.yml", "the settings in the file (--config)"),
    ],
)  # fmt: skip
def test_what_a_flag_adds_and_the_plan_leaves_out_is_said(capsys, llama, flags, says):
    _, plan = planned(capsys, "--from-command", f"vllm serve {llama} {flags}")
    assert f"not counted: {says}" in plan["notes"]


def test_drafts_without_weights_are_counted_whole_and_their_tokens_are_read():
    told = """vllm serve x --speculative-config '{"method": "ngram", "num_speculative_tokens": 4}'"""
    command = read_launch(told).command
    assert (command.drafted, command.unread("0.32.0")) == (4, [])
    sglang = read_launch("sglang serve --model-path x --speculative-algorithm EAGLE --speculative-num-draft-tokens 6")
    assert sglang.command.drafted == 6
    assert sglang.command.unread("0.5.23") == [
        "not counted: weights, KV cache and graphs of the draft model (--speculative-algorithm)"
    ]


@pytest.mark.parametrize(
    ("dtype", "context", "tokens_bytes"),
    [
        ("nvfp4", 65_536, 32 * 8 * (128 + 16)),  # half a byte an element, a byte for each 16
        ("int4", 65_536, 32 * 8 * 256 / 2 * (1 + 0.25 / 4)),
        ("int8", 65_536, 32 * 8 * 256 * (1 + 0.125 / 8)),
    ],
)
def test_scales_are_counted_once_and_in_the_pool_too(capsys, llama, dtype, context, tokens_bytes):
    _, plan = planned(capsys, llama, "--kv-dtype", dtype, "--context", context, "--gpu-memory", 24)
    kv = plan["kv"]
    assert kv["bytes_per_token"] + kv["scale_bytes_per_token"] == tokens_bytes
    assert plan["per_gpu"][0]["components"]["kv_cache"] == round((context + 16) * tokens_bytes)  # and the null block
    pool = 0.92 * 24 * GIB - 16_094_076_928 - 38.6 * 256 * 128_256 - 512 * 2**20
    blocks = int(pool // (16 * tokens_bytes))
    assert (kv["tokens"], kv["max_context"]) == (16 * blocks, 16 * (blocks - 1))


def test_a_share_that_holds_no_request_does_not_fit_and_fails_a_script(capsys, llama):
    asked = (llama, "--gpu-memory", 24, "--context", 16384, "--fail")
    code, plan = planned(capsys, *asked, "--utilization", 0.3)
    assert (code, plan["verdict"], plan["serves"]) == (1, "does_not_fit", False)
    # 14.99 GiB of weights, 2.00 of KV and its null block, 1.18 of the sampler, 0.5 of graphs: 18.68 of 24
    assert "will not start: it needs 0.78" in plan["notes"][0] + plan["notes"][1]
    assert "--gpu-memory-utilization 0.3 → 0.78" in [row["change"] for row in plan["what_if"]]
    main(["plan", *map(str, asked), "--utilization", "0.3"])
    assert "verdict: does not fit: with --gpu-memory-utilization 0.3 the pool holds less" in capsys.readouterr().out
    assert planned(capsys, *asked)[0] == 0


def test_a_default_share_that_holds_no_request_is_tight_and_fails_a_script(capsys, llama):
    # 50,000 tokens are 6.1 GiB: 23.8 of 24 with all else, but only 5.4 are left of 0.92
    code, plan = planned(capsys, llama, "--gpu-memory", 24, "--context", 50_000, "--fail")
    assert (code, plan["verdict"], plan["serves"]) == (1, "tight", False)


def test_windows_alone_hold_requests_of_any_length(capsys, llama):
    (llama / "config.json").write_text(json.dumps({**LLAMA, "sliding_window": 4096}))
    _, plan = planned(capsys, llama)
    assert (plan["kv"]["max_context"], plan["kv"]["any_length"]) == (None, True)
    main(["plan", str(llama)])
    printed = capsys.readouterr().out
    assert "the longest request of any length, or" in printed
    assert "17,179,869,184" not in printed


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"layer_types": ["full_attention", "linear_attention"]},
            "layer_types names 2 layers; num_hidden_layers is 32",
        ),
        ({"hybrid_override_pattern": "M*M*"}, "hybrid_override_pattern names 4 layers; num_hidden_layers is 32"),
        ({"attn_type_list": [1, 0]}, "attn_type_list names 2 layers; num_hidden_layers is 32"),
        ({"block_configs": [{"attention": {}, "ffn": {"ffn_mult": 1}}]}, "block_configs has 1 blocks"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0; allowed: 1 and more"),
        ({"num_key_value_heads": 5}, "num_key_value_heads is 5; allowed: a divisor of the 32 query heads"),
    ],
)
def test_a_config_that_contradicts_itself_is_refused(capsys, llama, fields, says):
    (llama / "config.json").write_text(json.dumps({**LLAMA, **fields}))
    assert main(["plan", str(llama)]) == 2
    assert says in capsys.readouterr().err


def test_layers_beyond_those_of_the_model_are_passed_over_with_a_note(capsys, llama):
    (llama / "config.json").write_text(json.dumps({**LLAMA, "layer_types": ["full_attention"] * 33}))
    _, plan = planned(capsys, llama)
    assert plan["kv"]["bytes_per_token"] == 131_072
    assert "layer_types names 33 layers, of which the first 32 are counted (num_hidden_layers)" in plan["notes"]


def test_more_stages_than_layers_do_not_start(capsys, llama):
    _, plan = planned(capsys, llama, "--pp", 33)
    assert plan["verdict"] == "does_not_fit"
    assert "32 layers over 33 pipeline stages: one has none, so it will not start" in plan["notes"]


def test_drafted_tokens_take_states_of_their_own(capsys):
    asked = "vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct -tp 4 --max-model-len 8192"
    told = """ --speculative-config '{"method": "ngram", "num_speculative_tokens": 2}'"""
    plain, drafting = (planned(capsys, "--from-command", asked + more)[1] for more in ("", told))
    # A rank keeps 1,024 bytes a token, and a state of 6,144 + 131,072 elements, as 272 tokens do. A request has 31
    # blocks of 12 layers with attention, two of each of three groups of 12 linear layers, and there is the null block.
    # With two drafts the convolution's part is 10,240 elements: 288 tokens, 29 blocks and four of each group.
    assert plain["per_gpu"][0]["components"]["kv_cache"] == (31 + 3 * 2 + 1) * 12 * 272 * 1024
    assert drafting["per_gpu"][0]["components"]["kv_cache"] == (29 + 3 * 4 + 1) * 12 * 288 * 1024


@pytest.mark.parametrize("asked", ["auto", "-1"])
def test_a_length_left_to_a_vllm_that_cannot_choose_it_is_replaced_by_the_longest_that_its_pool_holds(
    capsys, llama, asked
):
    command = f"vllm serve {llama} --max-model-len {asked}"
    _, plan = planned(capsys, "--from-command", command, "--engine-version", "0.12.0")
    (problem,) = plan["flags"]
    assert problem["problem"] == f"vLLM before 0.14.0 takes a number, not {asked}: the engine will not start"
    assert problem["replacement"] == "--max-model-len 131072"
    assert plan["command"] == f"vllm serve {llama} --max-model-len 131072"
    _, newer = planned(capsys, "--from-command", command, "--engine-version", "0.14.0")
    assert newer["flags"] == []


def test_a_draft_model_that_is_known_is_counted(capsys, llama):
    told = f"""vllm serve {llama} --speculative-config '{{"model": "meta-llama/Llama-3.2-1B-Instruct"}}'"""
    _, plan = planned(capsys, "--from-command", told)
    _, alone = planned(capsys, "--from-command", f"vllm serve {llama}")
    assert "not counted: graphs of the draft model (--speculative-config)" in plan["notes"]
    draft = 16 * (2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192) + 128_256 * 2048
    assert weights_of(plan) - weights_of(alone) == pytest.approx(2 * draft, rel=0.02)  # and 16 MiB of rotations
    # 16 layers with heads of 64 beside 32 with heads of 128: a quarter more for each token
    assert plan["kv"]["tokens"] < 0.8 * alone["kv"]["tokens"]


def test_adapters_take_their_places(capsys, llama):
    _, plan = planned(capsys, "--from-command", f"vllm serve {llama} --enable-lora --max-loras 2 --max-lora-rank 32")
    _, alone = planned(capsys, "--from-command", f"vllm serve {llama}")
    each = 3 * 4096 + 4096 + 2 * 1024 + 4096 + 4096 + 2 * 4096 + 3 * 14336 + 4096
    assert weights_of(plan) - weights_of(alone) == 2 * 32 * 32 * each * 2
