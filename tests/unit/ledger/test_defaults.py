"""What engines choose by themselves, by hand from their sources, and what they leave for the pool."""

from __future__ import annotations

import pytest

from gpuwatch.ledger.budget import Deployment, pool_bytes, residents
from gpuwatch.ledger.defaults import NEWEST, sglang_chunk, vllm_batch, with_defaults
from gpuwatch.ledger.pool import longest_context, pool_of, sglang_cell
from gpuwatch.units import GIB
from tests.unit.ledger.models import model

PLAIN = model(40, 8, 128, max_position_embeddings=131072)


@pytest.mark.parametrize(
    ("version", "gib", "expected"),
    [
        ((0, 6, 4), 80, (2048, 256)),  # V0 cuts prompts of a model with 131,072 tokens
        ((0, 8, 0), 80, (8192, 1024)),
        ((0, 8, 0), 24, (2048, 1024)),
        ((0, 9, 2), 24, (2048, 256)),
        ((0, 20, 0), 69.9, (2048, 256)),
        ((0, 20, 0), 79.6, (8192, 1024)),
        ((0, 27, 0), 192, (8192, 1024)),
        ((0, 28, 0), 192, (16384, 1024)),
        ((0, 28, 0), 141, (8192, 1024)),
    ],
)
def test_the_batch_of_vllms_server(version, gib, expected):
    assert vllm_batch(version, gib * GIB, 131072, unified=False) == expected


def test_v0_takes_whole_prompts_of_models_with_a_short_context():
    assert vllm_batch((0, 6, 4), 24 * GIB, 20000, unified=False) == (20000, 256)


def test_unified_memory_is_no_large_card():
    assert vllm_batch((0, 33, 0), 120 * GIB, 8192, unified=True) == (2048, 256)


@pytest.mark.parametrize(("version", "fraction"), [((0, 19, 0), 0.9), ((0, 20, 0), 0.92), ((0, 33, 0), 0.92)])
def test_vllms_fraction_rose_with_0_20(version, fraction):
    deployment = Deployment("vllm", version, 80 * GIB, context=4096)
    assert with_defaults(deployment, PLAIN, chunk=None, sequences=None, fraction=None).fraction == fraction


def test_the_step_is_no_larger_than_all_requests_and_the_batch_no_larger_than_the_step():
    deployment = Deployment("vllm", (0, 33, 0), 80 * GIB, context=100)
    filled = with_defaults(deployment, PLAIN, chunk=None, sequences=4, fraction=None)
    assert (filled.chunk, filled.sequences) == (400, 4)
    filled = with_defaults(deployment, PLAIN, chunk=64, sequences=None, fraction=0.5)
    assert (filled.chunk, filled.sequences, filled.fraction) == (64, 64, 0.5)


@pytest.mark.parametrize(("version", "linear", "cached"), [
    ((0, 27, 1), True, False), ((0, 28, 0), True, True), ((0, 27, 1), False, True),
])  # fmt: skip
def test_prefixes_of_models_with_states_are_cached_since_0_28(version, linear, cached):
    shape = {"attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state": 16} if linear else {}
    filled = with_defaults(
        Deployment("vllm", version, 80 * GIB), model(8, 8, 128, **shape), chunk=None, sequences=None, fraction=None
    )
    assert filled.prefix_caching is cached


@pytest.mark.parametrize(
    ("gib", "chunk"), [(16, 2048), (24, 4096), (48, 4096), (79.6, 8192), (141, 8192), (180, 16384)]
)
def test_sglangs_chunk_follows_the_card(gib, chunk):
    assert sglang_chunk(gib * GIB) == chunk


@pytest.mark.parametrize(("gib", "chunk"), [(24, 2048), (48, 8192), (141, 8192), (180, 16384)])
def test_sglang_before_0_5_3_has_three_chunks(gib, chunk):
    assert sglang_chunk(gib * GIB, (0, 5, 2)) == chunk


def deployed(engine="vllm", version=(0, 33, 0), **more):
    return Deployment(engine, version, 80 * GIB, **{"context": 8192, "chunk": 8192, "fraction": 0.9, **more})


def test_graphs_are_part_of_vllms_budget_since_0_20():
    old, new = (pool_bytes(PLAIN, deployed(version=version)) for version in ((0, 19, 0), (0, 20, 0)))
    assert old - new == residents(PLAIN, deployed()).graphs > 0
    assert residents(PLAIN, deployed(eager=True)).graphs == 0


@pytest.mark.parametrize(
    ("version", "charged"), [((0, 6, 4), 0.42), ((0, 6, 6), 0.23), ((0, 7, 3), 0.23), ((0, 9, 0), 0.42), ((0, 9, 1), 0)]
)
def test_what_lies_outside_torch_is_part_of_vllms_budget_before_0_9_1(version, charged):
    deployment = deployed(version=version)
    found = residents(PLAIN, deployment)
    left = 72 * GIB - found.weights - found.activations - charged * GIB
    assert pool_bytes(PLAIN, deployment) == pytest.approx(left)


def test_a_stated_pool_needs_no_budget():
    assert pool_bytes(PLAIN, deployed(kv_bytes=7 * GIB)) == 7 * GIB
    assert pool_of(PLAIN, deployed(blocks_override=10), 0.0).tokens == 160


def test_sglangs_pool_is_what_is_free_after_loading_less_its_reserve():
    found = residents(PLAIN, deployed("sglang"))
    expected = 79.5 * GIB * 0.9 - found.weights  # half a GiB is gone before it looks
    assert pool_bytes(PLAIN, deployed("sglang")) == pytest.approx(expected)


def test_sglangs_cell_and_the_tokens_of_its_pool():
    assert sglang_cell(PLAIN, deployed("sglang")) == 40 * 8 * 256 * 2
    assert sglang_cell(PLAIN, deployed("sglang", tp=4, pp=2)) == 20 * 2 * 256 * 2
    pool = pool_of(PLAIN, deployed("sglang", block_size=64), 1000.5 * 163_840)
    assert pool.tokens == 960  # whole pages of 64
    assert pool_of(PLAIN, deployed("sglang", block_size=1, max_total_tokens=500), GIB).tokens == 500


def test_dp_attention_keeps_the_heads_of_fewer_ranks_together():
    assert sglang_cell(PLAIN, deployed("sglang", tp=8, dp_attention=4)) == 40 * 4 * 256 * 2


def test_sglangs_window_pool_has_eight_tokens_for_ten():
    kinds = ["full_attention"] * 10 + ["sliding_attention"] * 20
    mixed = model(30, 8, 128, layer_types=kinds, sliding_window=1024)
    assert sglang_cell(mixed, deployed("sglang")) == pytest.approx((10 + 0.8 * 20) * 8 * 256 * 2)


def test_sglangs_hybrids_give_most_of_the_pool_to_states():
    hybrid = model(8, 8, 128, hidden_size=4096, attn_layer_period=8, attn_layer_offset=4, mamba_d_state=16)
    pool = pool_of(hybrid, deployed("sglang", block_size=1), GIB)
    assert pool.tokens == int(GIB / 1.9 / (8 * 256 * 2))


def test_the_longest_request_is_one_block_short_of_the_pool():
    # vLLM's first block is never used
    assert longest_context(PLAIN, deployed(), 101 * 16 * 163_840) == 1600
    assert longest_context(PLAIN, deployed(), 16 * 163_840) == 0
    assert longest_context(PLAIN, deployed("sglang", block_size=1), 100 * 163_840) == 100


def test_the_newest_versions_are_those_that_are_known():
    assert NEWEST == {"vllm": (0, 33, 0), "sglang": (0, 5, 23)}


def test_throughput_mode_doubles_what_is_left_to_vllm():
    deployment = Deployment("vllm", (0, 32, 0), 24 * GIB, context=32768)
    filled = with_defaults(deployment, PLAIN, chunk=None, sequences=4096, fraction=None, doubled=True)
    assert (filled.chunk, filled.sequences) == (4096, 4096)
    filled = with_defaults(deployment, PLAIN, chunk=1024, sequences=None, fraction=None, doubled=True)
    assert (filled.chunk, filled.sequences) == (1024, 512)
