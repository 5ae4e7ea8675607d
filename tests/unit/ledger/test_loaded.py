"""What weights are on a card: segments, tables of rotations, buffers, copies, and what is left out; by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwatch.ledger.allocator import held
from gpuwatch.ledger.budget import Deployment, activation_bytes
from gpuwatch.ledger.known import find
from gpuwatch.ledger.loaded import printed_bytes, slack_bytes, taken_slack
from gpuwatch.ledger.need import Engine
from gpuwatch.ledger.notes import notes_of
from gpuwatch.ledger.reading import read_model
from gpuwatch.ledger.weights import (
    Loading,
    Split,
    absorbed_bytes,
    adapter_bytes,
    buffer_bytes,
    expert_padding,
    parameters,
    rotation_bytes,
    triton_saving,
    weight_bytes,
)
from gpuwatch.units import GIB, MIB
from tests.unit.ledger.models import model

QWEN_VISION = {
    "model_type": "qwen3_vl", "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "out_hidden_size": 2048,
    "patch_size": 16, "temporal_patch_size": 2, "spatial_merge_size": 2, "deepstack_visual_indexes": [5, 11, 17],
}  # fmt: skip


@pytest.mark.parametrize(
    ("mib", "allocated", "reserved"),
    [
        ([31.25], 32, 32),  # three quarters of a MiB are left: too little to cut off
        ([30.5], 30.5, 32),  # one and a half is cut off, and nothing fits there
        ([30.5, 1.5], 32, 32),  # but this does
        ([35, 35], 72, 72),  # a whole MiB is not cut off
        ([8, 8], 16, 20),  # two in one segment
        ([8, 8, 8], 24, 40),
        ([6.5, 6.5, 6.5], 20, 20),  # the last one gets the rest
        ([0.25] * 8, 2, 2),
        ([0.75] * 3, 2.25, 4),  # two in each segment of 2 MiB
        ([10, 12], 22, 22),
        ([], 0, 0),
    ],
)
def test_tensors_are_held_in_segments(mib, allocated, reserved):
    found = held(size * MIB for size in mib)
    assert (found.asked / MIB, found.allocated / MIB, found.reserved / MIB) == (sum(mib), allocated, reserved)


def test_requests_are_rounded_to_512_bytes():
    assert held([1, 513]).allocated == 512 + 1024


def small(**more):
    """Each layer has 10, 8, 86 and 43 MiB: the shape of Qwen2.5-3B; embedding and head are 593.5."""
    fields = {"hidden_size": 2048, "num_attention_heads": 16, "intermediate_size": 11008, "vocab_size": 151936}
    return model(36, 2, 128, **{**fields, "tie_word_embeddings": True, **more})


def test_what_vllm_prints_has_the_rest_of_segments_that_are_not_cut():
    # 36 times 43 MiB in 44, and half a MiB at the embedding: 36.5 MiB, as the printed 5.7916 GiB say
    assert slack_bytes(small(), Split(), Loading(version=(0, 10, 2)), reserved=False) == 36.5 * MIB


def test_sglang_and_late_versions_of_vllm_count_what_the_card_lost():
    # Each matrix of 8 MiB takes a segment of 20, where the 10 of the next layer fit in: of 36 such segments and the
    # first 10, 648 MiB are used.
    plain, split = small(), Split()
    lost = (36 + 0.5 + 36 * 20 + 10 - 648) * MIB
    assert taken_slack(plain, split, Loading(version=(0, 27))) == lost
    assert taken_slack(plain, split, Loading(version=(0, 6, 4))) == lost
    assert taken_slack(plain, split, Loading(version=(0, 26))) == 36.5 * MIB
    sglang = Loading("sglang", (0, 5, 23))
    assert printed_bytes(plain, split, sglang) - weight_bytes(plain, split, sglang) == lost


@pytest.mark.parametrize(
    ("fields", "mib"),
    [
        ({"max_position_embeddings": 131072}, [32]),
        ({"max_position_embeddings": 131072, "partial_rotary_factor": 0.25}, [8]),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, [32]),
        ({"max_position_embeddings": 32768, "rope_scaling": {"type": "linear", "factor": 4.0}}, [32]),
        (
            {
                "max_position_embeddings": 131072,
                "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32768},
            },
            [16],
        ),
        (
            {
                "max_position_embeddings": 131072,
                "rope_scaling": {"type": "longrope", "original_max_position_embeddings": 4096},
            },
            [33],
        ),
        (
            {
                "max_position_embeddings": 131072,
                "model_type": "gemma3_text",
                "sliding_window": 512,
                "layer_types": ["sliding_attention"] * 30 + ["full_attention"] * 6,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
            [256, 32],
        ),
        ({"max_position_embeddings": 131072, "architectures": ["BloomForCausalLM"]}, []),
        ({"max_position_embeddings": 1024, "architectures": ["GPT2LMHeadModel"]}, [4]),
        ({"max_position_embeddings": 262144, "rope_scaling": {"mrope_section": [24, 20, 20]}}, [256]),
        ({}, []),
    ],
)
def test_tables_of_rotations(fields, mib):
    assert rotation_bytes(small(**fields), Loading(version=(0, 24))) == tuple(size * MIB for size in mib)


def test_positions_of_videos_make_the_table_four_times_as_long_until_vllm_knows_better():
    sees = small(max_position_embeddings=262144, vision_config=QWEN_VISION)
    assert rotation_bytes(sees, Loading(version=(0, 31))) == (256 * MIB,)
    assert rotation_bytes(sees, Loading(version=(0, 32))) == (64 * MIB,)
    assert rotation_bytes(sees, Loading("sglang", (0, 5, 23))) == (128 * MIB,)  # 32 bits


def test_levels_of_a_tower_have_a_buffer_for_a_step_each():
    # printed: 0.096 GiB for 8192 tokens and a width of 2048
    sees = small(vision_config=QWEN_VISION)
    assert buffer_bytes(sees, Loading(chunk=8192)) == 3 * 32 * MIB
    assert buffer_bytes(sees, Loading(chunk=8192, towers=False)) == 0
    assert buffer_bytes(sees, Loading("sglang", chunk=8192)) == 0


def test_without_towers_their_weights_are_not_loaded_and_no_encoding_is_profiled():
    sees = small(vision_config=QWEN_VISION)
    assert weight_bytes(sees, Split()) - weight_bytes(sees, Split(), Loading(towers=False)) == 2 * sees.tower
    one = Deployment("vllm", (0, 24, 0), 48 * GIB, sequences=8, chunk=2048)
    other = Deployment("vllm", (0, 24, 0), 48 * GIB, sequences=8, chunk=2048, towers=False)
    assert activation_bytes(sees, one) == 1024 * 2.7 * MIB
    assert activation_bytes(sees, other) < 0.2 * GIB
    says = "the 2.7 GiB of activations are an estimate of the longest image"
    launches = (one, other, replace(one, engine="sglang"), replace(one, sequences=1024))
    estimated = [any(says in note for note in notes_of(Engine(sees, launch))) for launch in launches]
    assert estimated == [True, False, False, False]  # 1,024 sequences: sampling takes 38.6 B x 152,064 of each


def test_places_for_adapters_by_hand():
    # Qwen3-8B on two ranks: 16 x (three inputs of 4096, outputs of 2048, 512 and 512; 2048 in, 4096 out; two inputs of
    # 4096, twice 6144 out; 6144 in, 4096 out), in 36 layers
    fields = {"hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 12288}
    eight = model(36, 8, 128, **fields)
    each = 3 * 4096 + 3072 + 2048 + 4096 + 2 * 4096 + 2 * 6144 + 6144 + 4096
    split = Split(tp=2, attention_tp=2)
    assert adapter_bytes(eight, split, Loading(adapters=1, rank=16)) == 2 * 16 * 36 * each
    assert adapter_bytes(eight, split, Loading(adapters=3, rank=16)) == 3 * 2 * 16 * 36 * each
    assert adapter_bytes(eight, split, Loading()) == 0


LATENT = {
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "num_attention_heads": 128, "hidden_size": 7168,
}  # fmt: skip


def test_latent_projections_are_whole_on_each_rank():
    deep = model(4, 128, 128, **LATENT)
    copied = 7168 * (1536 + 576)
    divided = 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168
    rest = 4 * 3 * 7168 * 27648 / 8 + 2 * 152064 * 7168 / 8 + 9 * 7168
    found = weight_bytes(deep, Split(tp=8, attention_tp=8))
    assert found == pytest.approx(2 * (4 * (copied + divided / 8) + rest))


def test_quantised_up_projections_of_the_latent_entry_are_kept_once_more_in_16_bits():
    packed = model(4, 128, 128, **LATENT, quantization_config={"quant_method": "fp8"})
    assert absorbed_bytes(packed, Split(tp=8, attention_tp=8)) == 4 * 512 * 16 * 256 * 2
    assert absorbed_bytes(model(4, 128, 128, **LATENT), Split()) == 0


def test_kernels_round_experts_in_mxfp4_up():
    moe = {"hidden_size": 2880, "num_experts": 32, "moe_intermediate_size": 2880}
    oss = model(4, 8, 64, **moe, quantization_config={"quant_method": "mxfp4"})
    assert expert_padding(oss, Split(), Loading()) == pytest.approx(2944 / 2880 * 3072 / 2880)
    assert expert_padding(oss, Split(tp=2), Loading()) == pytest.approx(1536 / 1440 * 3072 / 2880)
    assert expert_padding(oss, Split(), Loading("sglang")) == 1
    assert expert_padding(model(4, 8, 64, **moe), Split(), Loading()) == 1


def test_hoppers_kernel_keeps_the_scales_of_experts_twice_and_pads_nothing():
    # printed by vLLM 0.14.1 with Triton's kernel on an H100 (vllm-project/vllm#33155)
    known = find("openai/gpt-oss-120b")
    oss, loading = read_model(known.config, known.name), Loading("vllm", (0, 14, 1), 5120)
    found = printed_bytes(oss, Split(), loading) - triton_saving(oss, Split(), loading)
    assert found / GIB == pytest.approx(64.38, rel=0.005)
    assert triton_saving(oss, Split(), Loading("sglang")) == 0


def test_sglangs_attention_groups_copy_the_embedding():
    plain = small(tie_word_embeddings=False)
    split, loading = Split(tp=4, attention_tp=2), Loading("sglang")
    both = weight_bytes(plain, split) - weight_bytes(plain, Split(tp=4, attention_tp=2), loading)
    assert -both == 151936 * 2048 * 2 * 3 / 4


def test_dense_parts_beside_experts_and_double_ones_are_counted():
    beside = small(enable_moe_block=True, num_experts=4, moe_intermediate_size=704, num_experts_per_tok=2)
    assert parameters(beside).feed_forward == 36 * 3 * 2048 * 11008
    assert parameters(beside).router == 36 * 2048 * 4
    wide = small(num_kv_shared_layers=16, use_double_wide_mlp=True)
    assert parameters(wide).feed_forward == (20 + 2 * 16) * 3 * 2048 * 11008


def test_layers_that_use_the_cache_of_others_have_heads_of_their_own_kind():
    kinds = (["sliding_attention"] * 2 + ["full_attention"]) * 12
    fields = {"layer_types": kinds, "sliding_window": 512, "global_head_dim": 256}
    shares = small(**fields, num_kv_shared_layers=18)
    assert shares.shared_attention == 2 * 2048 * 16 * (12 * 128 + 6 * 256)


def test_absurd_depths_are_not_gone_through():
    deep = small(vision_config={**QWEN_VISION, "depth": 10**12})
    assert slack_bytes(deep, Split(), Loading(), reserved=True) == 0
