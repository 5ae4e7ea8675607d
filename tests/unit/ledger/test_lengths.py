"""Lengths that engines allow and take by themselves, from what a model's config declares and how it is scaled."""

from __future__ import annotations

import pytest

from gpuwatch.ledger.budget import Deployment
from gpuwatch.ledger.fields import ModelConfigError
from gpuwatch.ledger.lengths import allowed_length, default_length, too_long
from gpuwatch.ledger.need import Engine
from gpuwatch.ledger.plan import make_plan
from gpuwatch.ledger.reading import read_model
from gpuwatch.units import GIB
from tests.unit.ledger.models import model

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
DEEPSEEK = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
OLD, NEW, OTHER = ("vllm", (0, 31, 0)), ("vllm", (0, 32, 0)), ("sglang", (0, 5, 23))


def scaled(declared, scaling, **more):
    return model(4, 8, 128, max_position_embeddings=declared, rope_scaling=scaling, **more)


@pytest.mark.parametrize(
    ("of", "old", "new", "other"),
    [
        (scaled(32768, YARN), 131072, 32768, 32768),
        (scaled(131072, YARN), 131072, 131072, 131072),
        (scaled(163840, DEEPSEEK), 163840, 163840, 163840),
        (scaled(32768, {"type": "linear", "factor": 4.0}), 131072, 131072, 131072),
        (scaled(32768, {"type": "dynamic", "factor": 2.0}), 65536, 65536, 65536),
        (scaled(131072, LLAMA3), 131072, 131072, 131072),
        (scaled(32768, None), 32768, 32768, 32768),
        (scaled(8192, None, model_max_length=131072), 131072, 131072, 131072),
        (scaled(32768, None, model_max_length=10**30), 32768, 32768, 32768),
    ],
)
def test_the_length_of_a_scaled_model_depends_on_the_engine(of, old, new, other):
    assert [allowed_length(of, *engine) for engine in (OLD, NEW, OTHER)] == [old, new, other]
    assert default_length(of, *NEW) == new


def test_a_model_of_two_lengths_starts_with_the_short_one_and_allows_the_long_one():
    of = scaled(131072, {"type": "longrope"}, original_max_position_embeddings=4096)
    assert (default_length(of, *NEW), allowed_length(of, *NEW)) == (4096, 131072)
    assert default_length(of, *OTHER) == 131072


def test_gemma_3_declares_its_scaled_length():
    of = scaled(131072, {"rope_type": "linear", "factor": 8.0}, architectures=["Gemma3ForCausalLM"])
    assert allowed_length(of, *NEW) == 131072


def test_a_length_beyond_that_is_refused_whatever_the_memory():
    def launched(kind, **more):
        return Engine(scaled(32768, None), Deployment(kind, (0, 33, 0), 80 * GIB, context=65536, **more))

    for kind, flag in (("vllm", "VLLM_ALLOW_LONG_MAX_MODEL_LEN"), ("sglang", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT")):
        engine = launched(kind)
        plan = make_plan([engine])
        assert (plan.verdict, plan.serves) == ("fits", False)
        assert plan.notes[0] == str(too_long(engine.model, engine.deployment))
        assert "65,536 tokens are beyond the 32,768" in plan.notes[0]
        assert flag in plan.notes[0]
    forced = make_plan([launched("vllm", longer_allowed=True)])
    assert forced.serves
    assert any("answers degrade without an error" in note for note in forced.notes)
    assert not too_long(model(4, 8, 128), Deployment("vllm", (0, 33, 0), GIB, context=10**9))  # declares none


def test_a_kind_of_scaling_that_no_engine_has_is_refused():
    with pytest.raises(ModelConfigError, match=r"rope_type is 'zzz'; allowed: default, .*yarn.*llama3"):
        model(4, 8, 128, max_position_embeddings=32768, rope_scaling={"rope_type": "zzz", "factor": 4.0})


def test_what_the_config_of_gemma_3_leaves_out_has_its_defaults():
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    of = read_model({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text})
    assert (of.q_heads, of.kv_heads, of.layers[0].head_dim, of.vocab, of.context) == (8, 4, 256, 262_208, 131_072)
    assert not of.missing


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_hidden_layers", 10**8), ("num_hidden_layers", 0), ("hidden_size", 4 * 10**9), ("hidden_size", 0)],
)
def test_a_size_of_no_model_is_refused(field, value):
    with pytest.raises(ModelConfigError, match=f"{field} is {value:,}; allowed: 1 to"):
        model(4, 8, 128, **{field: value}) if field == "hidden_size" else model(value, 8, 128)
