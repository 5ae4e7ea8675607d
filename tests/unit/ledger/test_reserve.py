"""SGLang's own share of a card, worked out from its sources, and as servers printed it."""

from __future__ import annotations

import pytest

from gpuwatch.ledger.budget import Deployment
from gpuwatch.ledger.command import read_command
from gpuwatch.ledger.defaults import sglang_chunk, with_defaults
from gpuwatch.ledger.portable import from_portable, portable
from gpuwatch.ledger.predict import engine_of
from gpuwatch.ledger.reading import read_model
from gpuwatch.ledger.reserve import sglang_fraction
from gpuwatch.units import GIB, MIB
from tests.unit.ledger.models import config, model

PLAIN = model(40, 8, 128)
LATENT = model(61, 128, 128, kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128)
KIMI = {"vt_hidden_size": 1152, "vt_num_hidden_layers": 27, "vt_num_attention_heads": 16, "vt_intermediate_size": 4304}
SIGLIP = {"hidden_size": 1152, "num_hidden_layers": 27, "num_attention_heads": 16, "intermediate_size": 4304}
NEWEST, SPRING, WINTER, SUMMER = (0, 5, 23), (0, 5, 12), (0, 5, 8), (0, 5, 2)


def seeing(architecture="QwenVLForConditionalGeneration", layers=40, **vision):
    return model(layers, 8, 128, architectures=[architecture], vision_config=vision)


def fraction(of, version, gib, **more):
    chunk = more.pop("chunk", sglang_chunk(gib * GIB, version))
    return sglang_fraction(Deployment("sglang", version, gib * GIB, chunk=chunk, **more), of)


def left(gib, aside):
    """The share of a card of `gib` that is left beside `aside` MiB, in thousandths."""
    memory = gib * GIB / MIB
    return round((memory - aside) / memory, 3)


@pytest.mark.parametrize(
    ("gib", "tp", "chunk", "graphs", "sizes"),
    [
        (24, 1, 4096, 48, 50),
        (24, 4, 4096, 80, 50),
        (48, 2, 4096, 32, 50),
        (79.6, 1, 8192, 256, 58),
        (79.6, 8, 8192, 512, 58),
        (180, 2, 16384, 512, 74),
    ],
)
def test_the_share_is_what_a_sum_over_the_launch_leaves(gib, tp, chunk, graphs, sizes):
    # 8 MiB for each of the captured numbers of tokens: 8 up to 32, 14 up to 256, 8 up to 512, 8 up to 1,024,
    # 12 up to 4,096, and one for each further 512.
    aside = 512 + 1.5 * chunk + tp * 1024 / 8 + 2 * graphs
    assert fraction(PLAIN, NEWEST, gib, tp=tp) == left(gib, aside + 8 * sizes)
    assert fraction(PLAIN, WINTER, gib, tp=tp) == left(gib, aside)  # none were captured unasked


def test_a_large_card_keeps_ten_gib_at_least():
    assert fraction(PLAIN, NEWEST, 79.6, chunk=2048) == left(79.6, 10240)


@pytest.mark.parametrize(("version", "more"), [(WINTER, 0), ((0, 5, 9), 0), ((0, 5, 10), 1536), (NEWEST, 1536)])
def test_prefill_graphs_of_latent_attention_have_a_reserve_since_they_are_captured_unasked(version, more):
    assert fraction(LATENT, version, 79.6, tp=8) == left(79.6, 512 + 12288 + 1024 + 1024 + more)


@pytest.mark.parametrize(
    ("version", "algorithm", "more"),
    [
        (WINTER, "EAGLE", 2048),
        (WINTER, "STANDALONE", 6144),
        (WINTER, "NGRAM", 0),
        (SPRING, "EAGLE3", 2048 + 1536),
        ((0, 5, 13), "EAGLE3", 1536),
        (NEWEST, "STANDALONE", 1536),
    ],
)
def test_drafting_has_a_reserve_to_0_5_12(version, algorithm, more):
    found = fraction(LATENT, version, 79.6, tp=8, speculation=algorithm)
    assert found == left(79.6, 512 + 12288 + 1024 + 1024 + more)


def test_a_draft_comes_on_top_of_the_ten_gib():
    assert fraction(PLAIN, WINTER, 79.6, chunk=2048, speculation="EAGLE") == left(79.6, 10240 + 2048)


def test_deepep_has_a_reserve_beside_the_ten_gib():
    assert fraction(LATENT, NEWEST, 79.6, tp=1, chunk=2048, deepep=True) == left(79.6, 10240 + 2048)
    assert fraction(LATENT, WINTER, 79.6, tp=1, chunk=2048, deepep=True) == left(79.6, 10240)


@pytest.mark.parametrize(("gib", "tp", "each"), [(79.6, 8, 4.5 * 512), (79.6, 2, 3 * 256)])
def test_groups_of_dp_attention_pad_the_batch(gib, tp, each):
    graphs = 512 if tp >= 4 else 256
    aside = 512 + 12288 + tp * 128 + 2 * graphs + each * tp
    assert fraction(LATENT, WINTER, gib, tp=tp, dp_attention=tp) == left(gib, aside)


def test_what_is_off_or_cannot_be_captured_takes_nothing():
    assert fraction(PLAIN, NEWEST, 79.6, eager=True) == left(79.6, 512 + 12288 + 128)
    assert fraction(PLAIN, WINTER, 79.6, eager=True) == left(79.6, 512 + 12288 + 128 + 512)
    assert fraction(PLAIN, NEWEST, 79.6, pp=2) == left(79.6, 512 + 12288 + 256 + 512)


@pytest.mark.parametrize(
    ("gib", "tp", "more", "aside"),
    [
        (23.7, 1, {}, 2.9),
        (79.6, 1, {}, 10.0),
        (79.6, 8, {}, 13.5),
        (79.6, 8, {"speculation": "EAGLE"}, 15.5),
        (79.6, 8, {"dp_attention": 8}, 17.5),
        (141, 8, {}, 16.0),
        (180, 8, {}, 32.0),
    ],
)
def test_before_0_5_3_the_share_goes_by_the_card(gib, tp, more, aside):
    assert fraction(LATENT, SUMMER, gib, tp=tp, **more) == left(gib, aside * 1024)


@pytest.mark.parametrize(("tp", "share"), [(1, 0.88), (2, 0.87), (4, 0.85), (8, 0.81), (16, 0.79)])
def test_before_0_4_8_the_share_goes_by_ranks(tp, share):
    assert fraction(PLAIN, (0, 4, 7), 80, tp=tp) == share


def test_the_share_that_a_server_printed_for_kimi_k2_5():
    # SGLang 0.5.8 on eight cards of 287.98 GiB prints mem_fraction_static=0.82604.
    kimi = seeing("KimiK25ForConditionalGeneration", **KIMI)
    assert fraction(kimi, WINTER, 287.98, tp=8) == pytest.approx(0.82604, abs=5e-6)


@pytest.mark.parametrize(
    ("vision", "factor"),
    [
        (SIGLIP, 0.95 * (1 - 0.1 * (27 * 1152**2 / (24 * 1024**2) - 1))),
        ({"depth": 27, "hidden_size": 1152}, 0.92477),  # only ``num_hidden_layers`` is looked for: 24 x 1,152 x 1,152
        ({"depth": 32, "hidden_size": 3584}, 0.95 * 0.8),  # at most a fifth less
        ({"layers": 24, "width": 1024}, 0.95),
        ({"hidden_size": 256, "num_hidden_layers": 4}, 0.95 * 1.05),
    ],
)
def test_a_vision_tower_takes_a_part_by_its_size(vision, factor):
    # Prefill is not captured for models that take images.
    share = left(79.6, 512 + 12288 + 128 + 512)
    for version in (WINTER, NEWEST):
        assert fraction(seeing(**vision), version, 79.6) == pytest.approx(share * factor, abs=1e-5)


def test_older_versions_took_a_tenth_of_every_model_with_a_tower():
    assert fraction(seeing(**SIGLIP), (0, 4, 7), 80) == pytest.approx(0.88 * 0.9)
    assert fraction(seeing(**SIGLIP), (0, 4, 9), 79.6) == pytest.approx(left(79.6, 10240) * 0.9)


def test_models_that_serve_text_unless_told_otherwise_keep_the_whole_share():
    gemma = seeing("Gemma3ForConditionalGeneration", **SIGLIP)
    told = fraction(gemma, NEWEST, 79.6, multimodal=True)
    assert fraction(gemma, NEWEST, 79.6) == fraction(PLAIN, NEWEST, 79.6)
    assert told < 0.92 * fraction(gemma, NEWEST, 79.6)
    assert fraction(seeing(**SIGLIP), NEWEST, 79.6, towers=False) == fraction(PLAIN, NEWEST, 79.6)


def test_a_fraction_that_was_asked_for_stays():
    told = with_defaults(
        Deployment("sglang", WINTER, 80 * GIB), seeing(**SIGLIP), chunk=None, sequences=None, fraction=0.9
    )
    assert told.fraction == 0.9


def test_the_tower_travels_with_the_facts_of_an_engine():
    kimi = {**config(8, 8, 128), "architectures": ["KimiK25ForConditionalGeneration"], "vision_config": KIMI}
    assert from_portable(portable(kimi)).vision == read_model(kimi).vision == (27, 1152)
    facts = {"model.config": portable(kimi), "version": "0.5.8", "tp": 8, "flag.speculative-algorithm": "EAGLE"}
    memory = 287.98 * 1024
    expected = round((memory - 27136 - 2048) / memory, 3) * 0.909737
    assert engine_of("sglang", facts, 287.98 * GIB).deployment.fraction == pytest.approx(expected, abs=1e-6)


def test_the_flags_are_read_from_a_command():
    words = ["--moe-a2a-backend", "deepep", "--speculative-algorithm", "EAGLE", "--enable-multimodal"]
    flags = read_command("sglang", words).flags
    assert flags == {"moe-a2a-backend": "deepep", "speculative-algorithm": "EAGLE", "enable-multimodal": True}
