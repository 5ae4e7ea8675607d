"""What changes buy, how they are ranked, and what a model on several cards serves in all."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gpuwatch.engines.version import parse_version
from gpuwatch.ledger.budget import Deployment
from gpuwatch.ledger.changes import HARDWARE, QUALITY, SPEED
from gpuwatch.ledger.command import read_command
from gpuwatch.ledger.need import Engine, with_weights
from gpuwatch.ledger.plan import capacity_of, fraction_needed, make_plan, verdict_of
from gpuwatch.ledger.predict import measured
from gpuwatch.ledger.spread import spreads
from gpuwatch.ledger.whatif import best_pair, concurrency, on_these_cards, what_if
from gpuwatch.units import GIB
from tests.unit.ledger.models import model

WIDE = model(40, 8, 128)
TOKEN = 163_840
"""KV bytes of one token of `WIDE` in 16 bits."""


def engine(gib=80, tp=2, context=131072, of=WIDE, **more):
    deployment = Deployment("vllm", (0, 33, 0), gib * GIB, tp=tp, context=context, **more)
    return Engine(of, deployment, parameters=32e9)


def row(rows, start):
    return next(found for found in rows if found.change.startswith(start))


def test_an_eight_bit_cache_holds_twice_as_much():
    plain = capacity_of(engine())
    found = row(what_if(engine()), "--kv-cache-dtype auto → fp8")
    assert found.max_context == pytest.approx(2 * plain.max_context, rel=0.01)
    assert found.weight == QUALITY
    assert "digit strings" in found.costs


def test_four_bit_weights_leave_their_bytes_to_the_pool():
    plain, found = capacity_of(engine()), row(what_if(engine()), "weights in INT4")
    saved = 32e9 * (2 - 0.56) / 2  # on each of two cards
    assert found.max_context - plain.max_context == pytest.approx(saved / (TOKEN / 2), rel=0.01)
    assert found.engine.model.quantisation.bits == 4


def test_half_a_chunk_helps_only_where_the_chunk_makes_the_peak():
    assert not [found for found in what_if(engine(sequences=256)) if "batched-tokens" in found.change]
    assert row(what_if(engine(sequences=16)), "--max-num-batched-tokens 8192 → 4096").weight == SPEED


def test_rows_that_make_it_fit_come_first_and_the_cheapest_of_them():
    tight = engine(gib=48, tp=2, context=65536)
    rows = what_if(tight)
    order = [{"fits": 0, "tight": 1, "does_not_fit": 2}[found.verdict] for found in rows]
    assert order == sorted(order)
    fitting = [found.weight for found in rows if found.verdict == "fits"]
    assert fitting == sorted(fitting)
    assert len(fitting) > 1


def test_more_ranks_are_proposed_only_where_the_heads_can_be_divided():
    odd = model(40, 7, 128, num_attention_heads=14)
    assert row(what_if(engine(tp=2)), "tensor parallel 2 → 4").weight == HARDWARE
    assert not [found for found in what_if(engine(tp=2, of=odd)) if "tensor parallel" in found.change]


def test_copied_heads_are_put_to_use_by_decode_context_parallelism():
    few = model(40, 2, 128)
    found = row(what_if(engine(tp=8, of=few)), "--decode-context-parallel-size 1 → 4")
    assert found.max_concurrency == pytest.approx(4 * capacity_of(engine(tp=8, of=few)).max_concurrency, rel=0.01)
    assert not [r for r in what_if(engine(tp=2)) if "decode-context" in r.change]


VERSIONS = {
    "vllm": ["0.4.1", "0.6.4", "0.7.3", "0.8.5", "0.9.2", "0.10.0", "0.10.2", "0.15.1", "0.20.2", "0.21.0", "0.33.0"],
    "sglang": ["0.2.15", "0.4.1", "0.4.2", "0.5.8", "0.5.23"],
}
OF_FLAGS = re.compile(r"(--[a-z-]+)(?: \S+ → (\S+))?$")
LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}


@pytest.mark.parametrize(("kind", "version"), [(kind, version) for kind in VERSIONS for version in VERSIONS[kind]])
@pytest.mark.parametrize("latent", [False, True])
def test_no_row_sets_a_flag_that_the_check_of_commands_objects_to(kind, version, latent):
    of = model(40, 2, 128, **(LATENT if latent else {}))
    asked = Engine(of, Deployment(kind, parse_version(version), 80 * GIB, tp=8, context=8192, fraction=0.85))
    changes = [match for found in what_if(asked) if (match := OF_FLAGS.match(found.change))]
    assert changes
    for match in changes:
        command = read_command(kind, [word for word in match.groups() if word])
        assert command.problems(version) == (), match.group()


@pytest.mark.parametrize(
    ("kind", "version", "offered"),
    [
        ("vllm", (0, 20, 2), ["fp8"]),  # 4-bit KV came on 1 May 2026, between 0.20 and 0.21
        ("vllm", (0, 21, 0), ["fp8", "nvfp4"]),
        ("sglang", (0, 4, 1), ["fp8_e5m2"]),
        ("sglang", (0, 4, 2), ["fp8_e4m3"]),
    ],
)
def test_the_types_of_the_cache_are_those_of_the_version(kind, version, offered):
    rows = what_if(Engine(WIDE, Deployment(kind, version, 80 * GIB, tp=2, context=131072), parameters=32e9))
    found = {one.change.rsplit(" → ", 1)[-1] for one in rows if one.change.startswith("--kv-cache-dtype")}
    assert found == set(offered)


def test_latent_attention_has_no_four_bit_cache_in_vllm():
    assert not [found for found in what_if(engine(of=model(60, 1, 128, **LATENT))) if "nvfp4" in found.change]


@pytest.mark.parametrize(("version", "hinted"), [((0, 10, 0), False), ((0, 10, 2), True)])
def test_copied_heads_are_shared_only_by_versions_that_can(version, hinted):
    few = Engine(model(40, 2, 128), Deployment("vllm", version, 80 * GIB, tp=8, context=8192))
    rows = [found for found in what_if(few) if "decode-context" in found.change]
    notes = [note for note in make_plan([few]).notes if "decode-context" in note]
    assert (bool(rows), bool(notes)) == (hinted, hinted)


@pytest.mark.parametrize(("version", "context", "offered"), [
    ((0, 6, 4), 8192, False),  # a prompt goes through in one step: it must hold the longest
    ((0, 6, 4), 65536, True),  # longer ones are cut
    ((0, 9, 2), 8192, True),
])  # fmt: skip
def test_half_a_step_is_none_where_whole_prompts_are_taken(version, context, offered):
    of = model(40, 8, 128, vocab_size=1000)  # the forward pass makes the peak
    whole = Engine(of, Deployment("vllm", version, 80 * GIB, context=context, chunk=8192, sequences=16))
    assert bool([found for found in what_if(whole) if "batched-tokens" in found.change]) is offered


def test_a_cache_of_mixed_width_is_no_setting_that_exists():
    found = row(what_if(engine()), "KV of the last 4,096 tokens in 16 bits")
    assert not found.available
    assert "neither vLLM nor SGLang" in found.costs


def test_a_cache_of_mixed_width_is_never_better_than_the_narrow_one():
    small = engine(gib=24, tp=8)
    narrow = row(what_if(small), "--kv-cache-dtype auto → fp8")
    found = row(what_if(small), "KV of the last 4,096 tokens in 16 bits")
    # The last 4,096 tokens take what 8,192 of the narrow type do; the weights are the same.
    assert found.max_context == narrow.max_context - 4096
    assert found.max_concurrency == pytest.approx(narrow.max_concurrency * 131072 / (131072 + 4096))
    assert found.engine.residents.weights == small.residents.weights


@pytest.mark.parametrize(("kind", "flag"), [("vllm", "--max-model-len"), ("sglang", "--context-length")])
def test_the_context_that_would_fit_is_said_where_the_one_asked_for_does_not(kind, flag):
    deployment = Deployment(kind, (0, 33, 0), 79.3 * GIB, tp=1, context=1_048_576, sequences=256, fraction=0.92)
    asked = Engine(WIDE, deployment, parameters=16e9)
    found = row(what_if(asked), f"{flag} 1048576 → ")
    length = found.engine.deployment.context
    # 79.3 x 0.92 GiB less 29.8 of weights and about 3 more leave 40 GiB: 1.2 times the cache of 219 thousand tokens.
    assert length == pytest.approx(219_000, rel=0.03)
    assert (found.verdict, length % 1024) == ("fits", 0)
    longer = asked.with_deployment(context=length + 1024)
    assert verdict_of([longer]) == "tight" or capacity_of(longer).max_concurrency < 1
    assert not [r for r in what_if(found.engine) if r.change.startswith(flag)]


def test_two_changes_are_proposed_where_no_single_one_is_enough():
    # 10 GiB of KV cache on each card: with 8.3 GiB of 4-bit weights 22 of 24 GiB, too close without an 8-bit cache
    hard = engine(gib=24, tp=2, context=131072)
    assert verdict_of([hard]) == "does_not_fit"
    assert not [found for found in what_if(hard) if found.verdict == "fits"]
    pair = best_pair(hard)
    assert pair.verdict == "fits"
    assert " and " in pair.change
    assert "; " in pair.costs
    assert best_pair(engine()) is None


def test_what_others_take_of_the_card_counts():
    alone, shared = what_if(engine()), what_if(engine(), [engine(tp=2, context=1024, gib=80)])
    assert row(shared, "--kv-cache-dtype auto → fp8").max_context < row(alone, "--kv-cache-dtype").max_context


def test_sglang_is_told_in_its_own_flags():
    deployment = Deployment("sglang", (0, 5, 23), 80 * GIB, tp=2, context=131072, sequences=32, fraction=0.86)
    changes = " | ".join(found.change for found in what_if(Engine(WIDE, deployment)))
    assert "--mem-fraction-static 0.86 → 0.89" in changes
    assert "fp8_e4m3" in changes
    assert "gpu-memory-utilization" not in changes


def test_a_running_engine_is_taken_with_the_pool_that_it_has():
    live = measured(engine(context=8192), 10 * GIB)
    # blocks of 16 tokens on one of two ranks; one request takes 512 of them
    assert concurrency(live, 8192) == pytest.approx(10 * GIB // (16 * TOKEN // 2) / 512)


def test_on_the_same_cards_nothing_is_bought_and_nothing_is_invented():
    rows = on_these_cards(measured(engine(), 20 * GIB), 131072)
    assert rows
    assert all(found.available and found.weight != HARDWARE for found in rows)
    assert not [found for found in rows if "tensor parallel" in found.change or "nvfp4" in found.change]
    assert [r for r in on_these_cards(engine(), 131072, four_bit_kv=True) if "nvfp4" in r.change]


def test_the_pair_costs_no_quality_where_that_is_enough():
    rows = on_these_cards(engine(sequences=1024), 131072)
    assert rows[-1].change == "--gpu-memory-utilization 0.92 → 0.95 and --max-num-seqs 1024 → 256"
    assert rows[-1].max_concurrency >= 1


def test_where_it_is_not_enough_the_pair_is_the_cheapest_that_serves_such_a_request():
    rows = on_these_cards(measured(engine(), 20 * GIB), 2_000_000)
    *singles, pair = rows
    assert all(found.max_concurrency < 1 for found in singles)
    assert pair.max_concurrency < 1 or pair.weight >= QUALITY


def test_gains_are_measured_against_what_runs_now():
    *singles, _ = on_these_cards(engine(), 131072)
    now = concurrency(engine(), 131072)
    assert all(found.max_concurrency > now for found in singles)
    assert [f.max_concurrency for f in singles] == sorted((f.max_concurrency for f in singles), reverse=True)


def test_replicas_and_ranks_are_compared_by_what_they_serve_in_all():
    # one card: 59.6 GiB of weights, 5 of KV cache and 3 more of 72, of which the engine may use 66.2
    ways = {way.tp: way for way in spreads(engine(gib=72, tp=4, context=32768), 4)}
    assert {tp: way.replicas for tp, way in ways.items()} == {1: 4, 2: 2, 4: 1}
    two = capacity_of(engine(gib=72, tp=2, context=32768)).max_concurrency
    assert ways[2].concurrency == pytest.approx(2 * two)
    assert ways[1].verdict == "tight"


def test_replicas_of_what_does_not_fit_on_one_card_serve_nothing():
    ways = {way.tp: way for way in spreads(engine(gib=24, context=4096), 8)}
    assert (ways[1].verdict, ways[1].concurrency) == ("does_not_fit", 0)
    assert ways[8].concurrency > 0


def test_slices_of_a_card_form_no_group():
    assert [way.tp for way in spreads(engine(tp=1, mig=True), 4)] == [1]
    assert make_plan([engine(gib=24, tp=1, mig=True)]).fewest_gpus is None
    assert not [row for row in what_if(engine(gib=24, tp=1, mig=True)) if "tensor parallel" in row.change]


def test_the_share_that_an_engine_needs_holds_exactly_what_was_asked_for():
    tight = engine(gib=48, tp=2, context=65536)
    share = fraction_needed(tight)
    assert capacity_of(tight.with_deployment(fraction=share)).max_concurrency >= 1
    assert capacity_of(tight.with_deployment(fraction=share - 0.01)).max_concurrency < 1


def test_sglangs_share_is_of_what_the_engines_before_it_leave():
    def sglang():
        return Engine(with_weights(WIDE, "int4"), Deployment("sglang", (0, 5, 23), 80 * GIB, context=8192))

    alone, second = fraction_needed(sglang()), fraction_needed(sglang(), [sglang()])
    assert capacity_of(sglang().with_deployment(fraction=alone)).max_concurrency >= 1
    assert second > alone


def said(planned):
    return [note for note in make_plan([planned]).notes if "will not start" in note]


def test_a_plan_that_fits_the_card_and_not_the_engines_share_says_what_is_needed():
    # 29.8 GiB of weights, 1.25 of KV cache, 1.4 of activations, 0.6 of graphs, 0.5 of buffers: 33.6 of 35
    (note,) = said(engine(gib=35, tp=2, context=16384))
    assert "--gpu-memory-utilization 0.92 the pool holds less than one request of 16,384 tokens" in note
    assert note.endswith("it needs 0.97")
    assert said(engine(gib=80, tp=2, context=16384)) == []


def test_where_no_share_is_enough_that_is_said():
    # 156.1 GiB of weights, 0.6 of KV cache, 1.5 of activations, 0.6 of graphs: more than 99 % of 160, and 1 for context
    (note,) = said(Engine(WIDE, Deployment("vllm", (0, 33, 0), 160 * GIB, context=4096), parameters=83.8e9))
    assert "no fraction is enough" in note


def test_the_fewest_cards_are_those_on_which_it_starts():
    # on two cards it needs 0.97, as above
    plan = make_plan([engine(gib=35, tp=2, context=16384)])
    assert (plan.verdict, plan.serves, plan.fewest_gpus) == ("tight", False, 4)
    assert {way.tp: way.concurrency for way in spreads(engine(gib=35, tp=2, context=16384), 2)} == {1: 0, 2: 0}


def test_a_pool_of_so_many_blocks_holds_no_more_and_can_be_given_up():
    small = engine(blocks_override=100)
    found = capacity_of(small)
    assert (found.tokens, found.max_context) == (1600, 99 * 16)  # one is the null block
    rows = what_if(small)
    assert rows[0].change == "without --num-gpu-blocks-override 100"
    assert rows[0].max_context == capacity_of(engine()).max_context
    assert make_plan([small]).fewest_gpus == make_plan([engine()]).fewest_gpus
    assert "with --num-gpu-blocks-override 100 the pool" in said(small)[0]


def test_all_sizes_of_a_pool_are_given_up_together_and_a_share_that_was_asked_for_counts_again():
    both = engine(kv_bytes=GIB, blocks_override=100, idle_fraction=0.5)
    (row,) = [row for row in on_these_cards(both, 8192) if row.change.startswith("without")]
    assert row.change == f"without --num-gpu-blocks-override 100 and --kv-cache-memory-bytes {GIB}"
    told = engine(fraction=0.5, fraction_told=True)
    assert row.max_concurrency == concurrency(told, 8192) != concurrency(engine(), 8192)


def test_of_two_changes_the_flag_that_is_given_up_is_named_last():
    *_, pair = on_these_cards(engine(kv_bytes=GIB), 8192)
    assert pair.change == "--kv-cache-dtype auto → fp8 and without --kv-cache-memory-bytes 1073741824"


def test_a_fraction_that_is_called_risky_is_not_proposed():
    def sglang(fraction):
        deployment = Deployment("sglang", (0, 5, 23), 80 * GIB, tp=2, context=131072, fraction=fraction)
        return [row.change for row in what_if(Engine(WIDE, deployment)) if "mem-fraction" in row.change]

    assert sglang(0.85) == ["--mem-fraction-static 0.85 → 0.88"]
    assert sglang(0.9) == []
    assert not [row for row in what_if(engine(fraction=0.95)) if "utilization" in row.change]


def test_sglang_chooses_its_fraction_anew_for_other_ranks():
    # 45,568 MiB less 512, 1.5 x 16,384, 128 a rank, 2 x 32 for graphs, with four ranks 2 x 160, and 8 x 74 of prefill
    deployment = Deployment("sglang", (0, 5, 23), 44.5 * GIB, tp=2, context=4096, chunk=16384, fraction=0.429)
    rows = what_if(Engine(model(32, 8, 128), deployment, parameters=8e9))
    assert row(rows, "tensor parallel 2 → 4").engine.deployment.fraction == 0.418
    told = replace(deployment, fraction_told=True)
    rows = what_if(Engine(model(32, 8, 128), told, parameters=8e9))
    assert row(rows, "tensor parallel 2 → 4").engine.deployment.fraction == 0.429


def exact_share(of, capacity, **more):
    """The share of the card that holds one request of 8,192 tokens and not a byte more, in vLLM 0.19."""
    planned = Engine(of, Deployment("vllm", (0, 19, 0), capacity, context=8192, chunk=2048, sequences=64, **more))
    taken = planned.residents
    return planned, (taken.weights + taken.activations + taken.communication + planned.kv_bytes) / capacity


@pytest.mark.parametrize(
    ("lacking", "verdict", "serves"),
    [(-0.001, "fits", True), (0.002, "tight", True), (0.05, "does_not_fit", False)],
)
def test_a_share_that_lacks_less_than_is_known_is_no_certain_no(lacking, verdict, serves):
    # 25 GiB of weights known to 1 % and 0.5 GiB of activations to a third: about 0.3 GiB; 0.002 of the card is 0.16
    planned, exact = exact_share(WIDE, 80 * GIB)
    asked = planned.with_deployment(fraction=exact - lacking, fraction_told=True)
    made = make_plan([asked])
    assert (verdict_of([asked]) if lacking > 0 else "fits", made.serves) == (verdict, serves)
    notes = [note for note in made.notes if "one request" in note]
    assert len(notes) == (lacking > 0)
    assert all(("may not start" in note) is serves for note in notes)
    assert (made.fewest_gpus == 1) is serves


def test_a_pool_that_was_asked_for_is_certain():
    planned, _ = exact_share(WIDE, 80 * GIB)
    asked = planned.with_deployment(kv_bytes=planned.kv_bytes - 2 * 16 * TOKEN, fraction_told=True)
    made = make_plan([asked])
    assert (made.verdict, made.serves) == ("does_not_fit", False)


def test_a_shorter_request_is_the_longest_one():
    found = row(what_if(engine(gib=48, tp=2, context=1_048_576)), "--max-model-len")
    assert found.max_context == found.engine.deployment.context


def test_no_engine_is_no_plan():
    with pytest.raises(ValueError, match="no model to plan"):
        make_plan([])
