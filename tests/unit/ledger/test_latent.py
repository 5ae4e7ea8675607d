"""What vLLM and SGLang keep of layers with latent attention, by architecture and version."""

from __future__ import annotations

import json

import pytest

from gpuwatch.cli import main
from gpuwatch.ledger.latent import as_kept
from gpuwatch.ledger.reading import read_model
from gpuwatch.ledger.weights import Split, absorbed_bytes, parameters, weight_bytes
from gpuwatch.pipeline.model_facts import model_facts
from gpuwatch.units import GIB

MINICPM3 = {
    "architectures": ["MiniCPM3ForCausalLM"], "model_type": "minicpm3", "num_hidden_layers": 62,
    "num_attention_heads": 40, "num_key_value_heads": 40, "hidden_size": 2560, "intermediate_size": 6400,
    "q_lora_rank": 768, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64,
    "vocab_size": 73448, "max_position_embeddings": 32768, "torch_dtype": "bfloat16", "tie_word_embeddings": True,
}  # fmt: skip
V2_LITE = {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "num_hidden_layers": 27,
    "num_attention_heads": 16, "num_key_value_heads": 16, "hidden_size": 2048, "intermediate_size": 10944,
    "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
    "first_k_dense_replace": 1, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "vocab_size": 102400, "max_position_embeddings": 163840, "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture
def planned(capsys, tmp_path):
    def run(config, *arguments):
        (tmp_path / "config.json").write_text(json.dumps(config))
        main(["plan", str(tmp_path), "--json", *arguments])
        return json.loads(capsys.readouterr().out)

    return run


@pytest.mark.parametrize(
    ("arguments", "token"),
    [
        ((), 62 * 2 * 40 * (64 + 32) * 2),
        (("--engine-version", "0.8.5"), 62 * 2 * 40 * (64 + 32) * 2),
        (("--engine", "sglang"), 62 * (256 + 32) * 2),
        (("--engine", "sglang", "--engine-version", "0.4.6"), 62 * (256 + 32) * 2),
    ],
)
def test_vllm_keeps_keys_and_values_of_each_head_of_minicpm3_and_sglang_the_latent_entry(planned, arguments, token):
    plan = planned(MINICPM3, "--gpu-memory", "24", *arguments)
    assert plan["kv"]["bytes_per_token"] == token
    assert (plan["verdict"] == "fits") == ("sglang" in arguments)
    noted = [note for note in plan["notes"] if "each of 40 heads of this model, not its latent entry: 27 times" in note]
    assert bool(noted) == ("sglang" not in arguments)


def test_tensor_parallelism_divides_the_heads_that_are_kept(planned):
    alone, half = (planned(MINICPM3, "--tp", str(tp))["per_gpu"][0]["components"]["kv_cache"] for tp in (1, 2))
    assert half == pytest.approx(alone / 2, rel=1e-3)


def test_deepseek_before_latent_caches_keeps_heads_padded_to_256(planned):
    # vLLM's pull request 10927: 5,373 blocks of 16 tokens in 35.42 GiB
    before = planned(V2_LITE, "--engine-version", "0.6.4")["kv"]["bytes_per_token"]
    assert before == 27 * 2 * 16 * 256 * 2 == pytest.approx(35.42 * GIB / (5373 * 16), rel=1e-3)
    after = [planned(V2_LITE, "--engine-version", version)["kv"]["bytes_per_token"] for version in ("0.7.1", "0.33.0")]
    assert after == [27 * (512 + 64) * 2] * 2


@pytest.mark.parametrize("config", [MINICPM3, V2_LITE])
def test_the_weights_are_those_of_the_projections_whatever_is_kept(config):
    model = read_model(config)
    kept = as_kept(model, "vllm", (0, 6, 4))
    assert kept.layers != model.layers
    assert parameters(kept) == parameters(model)
    assert [weight_bytes(kept, Split(tp=tp, attention_tp=tp)) for tp in (1, 4)] == [
        weight_bytes(model, Split(tp=tp, attention_tp=tp)) for tp in (1, 4)
    ]


def test_projections_are_absorbed_only_where_the_entry_is_kept():
    model = read_model(MINICPM3 | {"quantization_config": {"quant_method": "fp8"}})
    assert absorbed_bytes(model, Split()) > 0
    assert absorbed_bytes(as_kept(model, "vllm", ()), Split()) == 0


def test_the_heads_of_a_cache_that_depends_on_the_engine_are_no_fact_of_the_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MINICPM3))
    assert "model.kv_heads" not in {fact.key for fact in model_facts([tmp_path], "localhost:8000", 0)}
