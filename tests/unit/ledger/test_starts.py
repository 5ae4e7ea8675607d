"""Ranks with which an engine does not start, and a cache that is never larger than the cards."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.ledger.budget import Deployment
from gpuwatch.ledger.kv import bytes_per_token
from gpuwatch.ledger.need import Engine
from gpuwatch.ledger.plan import fewest_gpus, make_plan, verdict_of
from gpuwatch.ledger.pool import pool_of, request_bytes
from gpuwatch.ledger.starts import most_sharing, obstacles
from gpuwatch.ledger.whatif import what_if
from gpuwatch.units import GIB
from tests.unit.ledger.models import model

QUERY = 64
LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}

WINDOWS = {"sliding_window": 1024, "sliding_window_pattern": 6}


def shape(kv_heads, heads=QUERY, **more):
    return model(40, kv_heads, 128, num_attention_heads=heads, **more)


def launched(of=None, kind="vllm", context=32768, **more):
    deployment = Deployment(kind, (0, 33, 0) if kind == "vllm" else (0, 5, 23), 80 * GIB, context=context, **more)
    return Engine(shape(8) if of is None else of, deployment)


@pytest.mark.parametrize(
    ("of", "ranks", "says"),
    [
        (shape(8), {"tp": 3}, "64 query heads cannot be divided over 3 ranks"),
        (shape(8), {"tp": 128}, "64 query heads cannot be divided over 128 ranks"),
        (shape(6, 48), {"tp": 4}, "6 KV heads can neither be divided over 4 ranks nor copied"),
        (shape(8), {"tp": 8, "dcp": 4}, "vLLM demands more ranks than the 8 KV heads"),
        (shape(8), {"tp": 16, "dcp": 4}, "with 8 KV heads at most 2 is allowed"),
        (shape(8), {"tp": 16, "dcp": 3}, "the ranks must be a multiple of it"),
        (shape(2, 8), {"tp": 8, "dcp": 8}, "with 2 KV heads at most 4 is allowed"),
        (shape(8, **LATENT), {"tp": 8, "dcp": 16}, "the ranks must be a multiple of it"),
        (shape(4, **WINDOWS), {"tp": 8, "dcp": 2}, "vLLM takes none with layers that have a window"),
        (shape(4, attention_chunk_size=8192), {"tp": 8, "dcp": 2}, "vLLM takes none with layers that have a window"),
        (shape(8), {"tp": 2, "mig": True}, "slices cannot form a group"),
        (shape(8), {"pp": 2, "mig": True}, "slices cannot form a group"),
    ],
)
def test_ranks_that_the_engine_refuses_are_no_plan_whatever_the_memory(of, ranks, says):
    engine = launched(of, **ranks)
    (reason,) = obstacles(of, engine.deployment)
    assert says in reason
    assert verdict_of([engine]) == "does_not_fit"
    assert make_plan([engine]).notes[0] == reason


@pytest.mark.parametrize(
    ("of", "ranks"),
    [
        (shape(8), {"tp": 16, "dcp": 2}),
        (shape(4, **WINDOWS), {"tp": 8, "dcp": 2, "hybrid_manager": False}),
        (shape(4, **WINDOWS), {"tp": 8, "dcp": 2, "kind": "sglang"}),
        (shape(8), {"dp": 2, "mig": True}),
        (shape(4), {"tp": 16, "dcp": 4}),
        (shape(1), {"tp": 8}),
        (shape(8, **LATENT), {"tp": 8, "dcp": 8}),
        (shape(8), {"tp": 8, "dcp": 4, "kind": "sglang"}),
    ],
)
def test_ranks_that_the_engine_takes_are_judged_by_memory(of, ranks):
    engine = launched(of, **ranks)
    assert obstacles(of, engine.deployment) == ()
    assert verdict_of([engine]) != "does_not_fit"


BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["model.layers.0.mlp.gate"]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}
CODER = {"num_experts": 160, "num_experts_per_tok": 8, "moe_intermediate_size": 2560}


@pytest.mark.parametrize(
    ("of", "ranks", "says"),
    [
        (shape(8, quantization_config=BLOCKS, **CODER), {"tp": 8}, "2,560 over 8 ranks is 320 each"),
        (shape(8, quantization_config=BLOCKS, **CODER), {"tp": 8, "kind": "sglang"}, "2,560 over 8 ranks is 320 each"),
        (shape(8, quantization_config=BLOCKS, **CODER), {"tp": 4}, ""),  # 640 = 5 x 128
        (shape(8, quantization_config=BLOCKS, **CODER), {"tp": 8, "expert_parallel": True}, ""),
        (shape(8, quantization_config=AWQ, **CODER), {"tp": 8}, ""),  # a kernel takes narrower groups of experts
        (shape(8, quantization_config=AWQ, intermediate_size=29568), {"tp": 8}, "29,568 over 8 ranks is 3696 each"),
        (shape(8, quantization_config=AWQ, intermediate_size=29696), {"tp": 8}, ""),  # 3,712 = 29 x 128
        (shape(8, quantization_config=AWQ, intermediate_size=29568), {"tp": 1}, ""),
        (shape(8, intermediate_size=29568), {"tp": 8}, ""),
    ],
)
def test_ranks_must_not_cut_groups_of_weights_that_share_a_scale(of, ranks, says):
    found = obstacles(of, launched(of, **ranks).deployment)
    assert bool(found) == bool(says)
    assert says in "".join(found)


def test_whole_experts_are_the_way_out_where_ranks_cut_their_blocks():
    rows = what_if(launched(shape(8, quantization_config=BLOCKS, **CODER), tp=8))
    assert "--enable-expert-parallel" in [row.change for row in rows]
    plain = what_if(launched(shape(8, **CODER), tp=8))
    costs = next(row.costs for row in plain if row.change == "weights in FP8 or INT8")
    assert "2,560 over 8 ranks cuts groups of 128" in costs


def test_the_query_heads_of_a_kv_head_bound_the_degree_too():
    assert most_sharing(shape(2, 12), launched(tp=12).deployment) == 6
    assert most_sharing(shape(4, 24), launched(tp=16).deployment) == 2  # 16 / 4 = 4, but 6 query heads


def test_a_way_out_of_wrong_ranks_is_proposed_and_nothing_that_leaves_them():
    rows = what_if(launched(tp=8, dcp=4))
    assert "--decode-context-parallel-size 4 → 1" in [row.change for row in rows]
    assert all(row.verdict != "does_not_fit" for row in rows)
    assert "tensor parallel 3 → 2" in [row.change for row in what_if(launched(tp=3))]


def test_the_fewest_cards_are_sought_among_those_that_start():
    assert fewest_gpus([replace(launched(tp=3), parameters=60e9)]) == 2  # 112 GiB of weights
    assert fewest_gpus([replace(launched(tp=8, dcp=4), parameters=8e9)]) == 1


@settings(max_examples=60, deadline=None)
@given(
    heads=st.sampled_from([1, 2, 3, 4, 6, 8, 16]),
    ranks=st.tuples(st.integers(1, 64), st.sampled_from([1, 2, 3, 4, 8, 16])).filter(lambda pair: pair[1] <= pair[0]),
    pp=st.integers(1, 4),
    kind=st.sampled_from(["vllm", "sglang"]),
    latent=st.booleans(),
)
def test_a_pool_holds_no_more_than_the_cards_have(heads, ranks, pp, kind, latent):
    tp, dcp = ranks
    of = shape(heads, 48 * heads, **(LATENT if latent else {}))
    deployment = launched(of, kind, tp=tp, dcp=dcp, pp=pp).deployment
    whole, cards = bytes_per_token(of, "auto"), tp * pp
    assert pool_of(of, deployment, GIB).tokens * whole <= cards * GIB * 1.000001
    assert request_bytes(of, deployment, 4096) * cards >= 4096 * whole * 0.999999


def test_ranks_cut_no_groups_in_what_is_not_quantised():
    words = {"quant_method": "awq", "bits": 4, "group_size": 128}
    packed = model(4, 8, 128, intermediate_size=2112, quantization_config=words)
    plain = model(4, 8, 128, intermediate_size=2112, quantization_config={
        **words, "modules_to_not_convert": [f"model.layers.{at}.mlp" for at in range(4)],
    })  # fmt: skip
    some = model(4, 8, 128, intermediate_size=2112, quantization_config={
        **words, "modules_to_not_convert": ["model.layers.0.mlp", "visual.blocks.0.mlp"],
    })  # fmt: skip
    two = Deployment("vllm", (0, 20), 80 * GIB, tp=2)
    assert [bool(obstacles(of, two)) for of in (packed, plain, some)] == [True, False, True]
