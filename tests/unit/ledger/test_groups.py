"""How vLLM cuts layers into groups and blocks: the examples of its own documentation, and sizes by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwatch.ledger.kv import KvSettings, element_bytes, layout
from tests.unit.ledger.models import model


def windowed(full, sliding, **more):
    kinds = ["full_attention"] * full + ["sliding_attention"] * sliding
    return model(full + sliding, 8, 128, layer_types=kinds, sliding_window=1024, **more)


@pytest.mark.parametrize(
    ("full", "sliding", "groups", "padding"),
    [
        (10, 20, [("full", 10), ("sliding", 10), ("sliding", 10)], 0),
        (2, 3, [("full", 2), ("sliding", 2), ("sliding", 2)], 1),
        (13, 12, [("full", 13), ("sliding", 13)], 1),
        (8, 9, [("full", 9), ("sliding", 9)], 1),
        (10, 52, [("full", 10), *[("sliding", 10)] * 6], 8),
        (30, 0, [("full", 30)], 0),
    ],
)
def test_groups_have_equal_numbers_of_layers_and_short_ones_are_padded(full, sliding, groups, padding):
    plan = layout(windowed(full, sliding), KvSettings())
    assert [(group.kind, group.layers) for group in plan.groups] == groups
    assert plan.padding_layers == padding
    assert plan.block_bytes == groups[0][1] * 16 * 8 * 256 * 2  # layers, tokens, heads, K and V, bytes


def test_without_the_hybrid_manager_every_layer_keeps_everything():
    plan = layout(windowed(10, 20), KvSettings(hybrid_manager=False))
    assert [(group.kind, group.layers, group.window) for group in plan.groups] == [("full", 30, 0)]


def test_a_request_holds_blocks_of_each_group():
    settings = KvSettings(max_model_len=32768, batched_tokens=8192, in_flight=2)
    plan = layout(windowed(10, 20), settings)
    # full: 32,768 / 16; each of two windows: (1,023 + 2 x 8,192) / 16, rounded up, and one
    assert plan.request_blocks == 2048 + 2 * (1088 + 1)
    assert plan.concurrency(10_000) == pytest.approx(10_000 / 4226)


@pytest.mark.parametrize("version", [(0, 9, 2), (0, 19, 2), (0, 20, 0)])
def test_the_printed_tokens_of_several_groups_are_divided_by_them_to_0_20_0(version):
    old = layout(windowed(10, 20), KvSettings(max_model_len=8192, version=version))
    assert old.tokens(3000) == 1000 * 16


@pytest.mark.parametrize("version", [(0, 20, 1), (0, 20, 2), (0, 21, 0), (0, 24, 0)])
def test_the_printed_tokens_are_what_is_served_at_once_from_0_20_1_on(version):
    new = layout(windowed(10, 20), KvSettings(max_model_len=8192, version=version))
    # 512 blocks of the full group and 2 x (512 + 1): a window and a step of 8,192 are longer than the request
    assert new.tokens(3000) == int(3000 / 1538 * 8192)


@pytest.mark.parametrize(("version", "tokens"), [((0, 20, 0), 1000 * 16), ((0, 20, 2), int(1000 / 63 * 1000))])
def test_a_length_that_fills_no_whole_block_counts_from_0_20_1_on(version, tokens):
    plan = layout(model(4, 8, 128), KvSettings(max_model_len=1000, version=version))
    assert plan.tokens(1000) == tokens  # 63 blocks of 16 hold 1,000 tokens


def test_a_single_group_prints_blocks_times_their_size():
    plan = layout(model(4, 8, 128), KvSettings(max_model_len=4096, version=(0, 32, 0)))
    assert plan.tokens(1000) == 16_000


def test_a_length_that_no_block_divides_prints_less():
    plan = layout(model(4, 8, 128), KvSettings(max_model_len=1000, version=(0, 32, 0)))
    assert plan.tokens(1000) == int(1000 / 63 * 1000)  # 63 blocks of 16 hold 1,000 tokens


def test_layers_with_smaller_pages_take_more_tokens_into_a_block():
    gemma4 = model(
        30, 8, 256, sliding_window=1024, global_head_dim=512, num_global_key_value_heads=2,
        layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 5,
    )  # fmt: skip
    plan = layout(gemma4, KvSettings())
    full, sliding = plan.groups[0], plan.groups[1]
    assert (full.block_size, sliding.block_size) == (32, 16)
    assert full.page == sliding.page == 16 * 8 * 512 * 2


def test_states_make_attention_pages_at_least_as_large():
    qwen = model(
        8, 2, 256, linear_num_key_heads=16, linear_num_value_heads=32, linear_key_head_dim=128,
        linear_value_head_dim=128, linear_conv_kernel_dim=4, full_attention_interval=4,
    )  # fmt: skip
    plan = layout(qwen, KvSettings())
    # (8,192 x 3 + 524,288) elements of 2 bytes over 2,048 bytes a token: 536 tokens, a multiple of 16 is 544
    assert plan.groups[0].block_size == 544
    assert {group.page for group in plan.groups} == {544 * 2048}
    assert layout(qwen, KvSettings(block_size=128)).groups[0].block_size == 640


@pytest.mark.parametrize(
    ("caching", "version", "mixer", "held"),
    [(False, (0, 32, 0), "mamba2", 1), (True, (0, 31, 0), "mamba2", 2), (True, (0, 32, 0), "mamba2", 3),
     (True, (0, 32, 0), "mamba1", 2)],
)  # fmt: skip
def test_states_of_a_request(caching, version, mixer, held):
    shape = {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "attn_layer_indices": [3]}
    if mixer == "mamba2":
        shape |= {"mamba_n_heads": 80, "mamba_d_head": 128}
    plan = layout(model(8, 8, 128, **shape), KvSettings(prefix_caching=caching, version=version))
    assert {group.held for group in plan.groups if group.kind == "linear"} == {held}


def test_a_model_of_states_alone_has_one_block_for_each_request():
    mamba = model(24, 8, 128, layer_types=["mamba"] * 24, state_size=16, intermediate_size=1536, conv_kernel=4)
    plan = layout(mamba, KvSettings(prefix_caching=False))
    assert plan.request_blocks == 1
    assert plan.block_bytes == 24 * (1536 * 3 + 1536 * 16) * 2


@pytest.mark.parametrize(
    ("tp", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1)]
)  # fmt: skip
def test_heads_are_divided_over_ranks_and_then_copied(tp, heads):
    assert layout(model(4, 8, 128), KvSettings(tp=tp)).block_bytes == 4 * 16 * heads * 256 * 2


def test_decode_context_parallelism_makes_a_block_hold_the_tokens_of_all_ranks():
    plan = layout(model(4, 1, 128), KvSettings(tp=8, dcp=8, max_model_len=8192, version=(0, 32, 0)))
    assert plan.request_blocks == 8192 // 8 // 16
    assert plan.tokens(100) == 100 * 16 * 8


def test_pipeline_stages_divide_the_layers():
    assert layout(model(10, 8, 128), KvSettings(pp=4)).block_bytes == 3 * 16 * 8 * 256 * 2  # 3 of 10 at most


def test_latent_attention_keeps_one_entry_on_every_rank():
    deepseek = model(61, 128, 128, kv_lora_rank=512, qk_rope_head_dim=64)
    assert layout(deepseek, KvSettings(tp=8)).block_bytes == 61 * 16 * 576 * 2
    assert layout(deepseek, KvSettings(tp=8, dtype="fp8_ds_mla")).block_bytes == 61 * 16 * 656


@pytest.mark.parametrize(
    ("dtype", "bytes_each"),
    [("auto", 2), ("fp8", 1), ("fp8_e5m2", 1), ("int8", 1), ("int4", 0.5), ("nvfp4", 0.5), ("float32", 4)],
)
def test_bytes_of_an_element(dtype, bytes_each):
    assert element_bytes(dtype, "bfloat16") == bytes_each


def test_scales_of_each_head_are_counted():
    plain, scaled, packed = (
        layout(model(4, 8, 128), KvSettings(dtype=dtype)).block_bytes
        for dtype in ("fp8", "fp8_per_token_head", "nvfp4")
    )
    assert plain == 4 * 16 * 8 * 256
    assert scaled == plain + 4 * 16 * 8 * 8  # 4 bytes for K and V of each head
    assert packed == 4 * 16 * 8 * (128 + 16)  # half a byte an element, and a byte for each sixteen


def test_a_model_that_keeps_nothing_is_refused():
    with pytest.raises(ValueError, match="no layer keeps a KV cache or a state"):
        layout(replace(model(1, 8, 128), layers=()), KvSettings())


@pytest.mark.parametrize("version", [(0, 11, 0), (0, 20, 0), (0, 21, 0), ()])
def test_a_pool_of_states_alone_prints_its_requests_times_their_length(version):
    mamba = model(24, 8, 128, layer_types=["mamba"] * 24, state_size=16, intermediate_size=1536, conv_kernel=4)
    plan = layout(mamba, KvSettings(prefix_caching=False, max_model_len=2048, version=version))
    assert plan.tokens(100) == 100 * 2048
