"""KV bytes and verdicts of whole deployments, worked out by hand from the published write-ups."""

from __future__ import annotations

import pytest

from gpuwatch.ledger.budget import Deployment
from gpuwatch.ledger.kv import whole_bytes_per_token
from gpuwatch.ledger.need import Engine, with_weights
from gpuwatch.ledger.plan import make_plan
from gpuwatch.units import GIB
from tests.unit.ledger.models import model

MILLION = 1_048_576


@pytest.mark.parametrize(
    ("layers", "kv_heads", "dtype", "tokens", "expected"),
    [
        (40, 8, "auto", 1, 163_840),
        (40, 8, "auto", MILLION, 171_798_691_840),
        (40, 8, "auto", MILLION, 160 * GIB),
        (40, 8, "fp8", MILLION, 80 * GIB),
        (40, 8, "int4", MILLION, 40 * GIB),
        (40, 8, "fp16", 1_000_000, 163_840_000_000),
        (40, 8, "fp8", 1_000_000, 81_920_000_000),
        (40, 8, "int4", 1_000_000, 40_960_000_000),
        (80, 8, "auto", 1, 327_680),
        (80, 8, "auto", 32_768, 10 * GIB),
        (32, 4, "auto", 32_768, 2 * GIB),
        (64, 8, "auto", 32_768, 8 * GIB),
    ],
)
def test_a_token_takes_two_times_layers_heads_dimension_and_bytes(layers, kv_heads, dtype, tokens, expected):
    assert whole_bytes_per_token(model(layers, kv_heads, 128), dtype) * tokens == expected


WIDE = model(40, 8, 128)
NARROW = model(40, 8, 128, hidden_size=4096, num_attention_heads=32, intermediate_size=12288)
SMALL = model(32, 4, 128, hidden_size=4096, num_attention_heads=32, intermediate_size=11008)
LARGE = model(80, 8, 128, hidden_size=8192, num_attention_heads=64, intermediate_size=28672, vocab_size=128256)


def planned(of, parameters, weights, kv, context, tp, gib):  # noqa: PLR0917  # columns of a table
    deployment = Deployment("vllm", (0, 33, 0), gib * GIB, tp=tp, context=context, kv_dtype=kv)
    return make_plan([Engine(with_weights(of, weights), deployment, parameters=parameters)])


@pytest.mark.parametrize("gib", [79.3, 80])
@pytest.mark.parametrize(
    ("of", "parameters", "weights", "kv", "context", "tp", "verdict"),
    [
        (WIDE, 32e9, "bf16", "fp8", MILLION, 2, "tight"),
        (WIDE, 32e9, "int4", "int4", MILLION, 1, "tight"),
        (WIDE, 32e9, "bf16", "auto", MILLION, 4, "fits"),
        (NARROW, 9e9, "fp16", "auto", 1_000_000, 2, "does_not_fit"),
        (NARROW, 9e9, "fp16", "fp8", 1_000_000, 2, "fits"),
        (NARROW, 9e9, "int8", "fp8", 1_000_000, 2, "fits"),
    ],
)
def test_million_token_deployments(of, parameters, weights, kv, context, tp, verdict, gib):  # noqa: PLR0917  # a table
    assert planned(of, parameters, weights, kv, context, tp, gib).verdict == verdict


@pytest.mark.parametrize(
    ("of", "parameters", "weights", "tp", "verdict"),
    [
        (SMALL, 7e9, "bf16", 4, "fits"),
        (WIDE, 30e9, "int4", 4, "fits"),
        (LARGE, 70e9, "int4", 4, "fits"),
        (LARGE, 70e9, "int8", 4, "tight"),
        (LARGE, 70e9, "bf16", 4, "does_not_fit"),
        (LARGE, 70e9, "int4", 1, "does_not_fit"),
        (WIDE, 32e9, "int4", 1, "does_not_fit"),
    ],
)
def test_32k_tokens_on_24_gib_cards(of, parameters, weights, tp, verdict):
    assert planned(of, parameters, weights, "auto", 32_768, tp, 24).verdict == verdict


def test_steady_bytes_of_a_card_are_the_sum_by_hand():
    # 32e9 x 2 bytes over two cards; 80 GiB of FP8 KV over two cards and one null block of 16 tokens. PyTorch takes
    # large tensors in steps of 2 MiB: in each layer 1 MiB more for three matrices of 35, 25 and 135 MiB, and 1.5 for
    # embedding and head of 742.5.
    card = planned(WIDE, 32e9, "bf16", "fp8", MILLION, 2, 80).cards[0]
    assert card.components["weights"] == 32e9 + (40 * 3 + 2 * 1.5) * 2**20
    assert card.components["kv_cache"] == 40 * GIB + 16 * 40_960
    assert card.capacity == 80 * GIB


def test_more_ranks_than_kv_heads_stop_shrinking_the_cache_and_say_so():
    four, eight = (planned(model(40, 4, 128), 32e9, "bf16", "auto", 32_768, tp, 80) for tp in (4, 8))
    assert four.cards[0].components["kv_cache"] == eight.cards[0].components["kv_cache"]
    assert any("heads are copied" in note for note in eight.notes)
    assert not any("heads are copied" in note for note in four.notes)


def test_the_fewest_cards_are_found_by_doubling():
    assert planned(LARGE, 70e9, "bf16", "auto", 32_768, 4, 24).fewest_gpus == 8
    assert planned(SMALL, 7e9, "bf16", "auto", 32_768, 4, 24).fewest_gpus == 1


def test_a_config_that_lacks_what_is_needed_never_fits():
    lacking = model(40, 8, 128, layer_types=["full_attention", *["mamba"] * 39])
    assert lacking.missing
    large = Deployment("vllm", (0, 32, 0), 180 * GIB, context=4096)
    plan = make_plan([Engine(lacking, large)])
    assert (plan.verdict, plan.fewest_gpus) == ("unknown", None)
    assert any(note.startswith("missing in the config: the sizes of the linear layers' state") for note in plan.notes)
    # What could be computed is a lower bound, and that is enough to say no.
    small = make_plan([Engine(lacking, Deployment("vllm", (0, 32, 0), 8 * GIB, context=4096))])
    assert small.verdict == "does_not_fit"
    whole = Engine(model(2, 8, 128), large)
    assert make_plan([whole]).verdict == "fits"
    assert make_plan([whole, Engine(lacking, large)]).verdict == "unknown"
