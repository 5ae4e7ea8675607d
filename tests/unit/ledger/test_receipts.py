"""The ledger against what engines printed at start."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from gpuwatch.ledger.budget import activation_bytes, pool_bytes, residents
from gpuwatch.ledger.defaults import with_defaults
from gpuwatch.ledger.loaded import printed_bytes
from gpuwatch.ledger.pool import pool_of
from gpuwatch.units import GIB
from tests.unit.ledger.receipts import ELSEWHERE, RECEIPTS

POOLS = [r for r in RECEIPTS if "pool_gib" in r.printed and not r.contradictory]
VLLM_POOLS = [r for r in POOLS if r.data["engine"] == "vllm"]
WEIGHTS = [r for r in RECEIPTS if "weights_gib" in r.printed and r.sixteen_bits]
ACTIVATIONS = [r for r in RECEIPTS if "activation_gib" in r.printed]


def test_both_halves_are_large_enough_to_mean_something():
    assert len(RECEIPTS) >= 44
    assert min(sum(r.fitted for r in RECEIPTS), sum(not r.fitted for r in RECEIPTS)) >= 15


@pytest.mark.parametrize("receipt", VLLM_POOLS, ids=lambda r: r.name)
def test_a_pool_of_the_printed_bytes_has_the_printed_tokens(receipt):
    # Pools are printed with two decimals: half a hundredth of a GiB is what may be lost.
    found = pool_of(receipt.model, receipt.deployment, receipt.printed["pool_gib"] * GIB)
    rounding = 0.006 / receipt.printed["pool_gib"]
    assert found.tokens == pytest.approx(receipt.printed["tokens"], rel=max(0.0015, rounding))


@pytest.mark.parametrize("receipt", [r for r in VLLM_POOLS if "concurrency" in r.printed], ids=lambda r: r.name)
def test_the_printed_concurrency_comes_out(receipt):
    found = pool_of(receipt.model, receipt.deployment, receipt.printed["pool_gib"] * GIB)
    assert found.concurrency == pytest.approx(receipt.printed["concurrency"], rel=0.003, abs=0.01)


def test_two_receipts_contradict_themselves():
    assert [r.data["model"] for r in RECEIPTS if r.contradictory] == [
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B",  # one rank's pool, the tokens of a smaller one
        "Qwen3-Next-80B-A3B-Instruct W8A8",  # an NPU build that gave all layers a KV cache
    ]


@pytest.mark.parametrize("receipt", WEIGHTS, ids=lambda r: r.name)
def test_weights_in_16_bits_are_within_one_percent(receipt):
    found = printed_bytes(receipt.model, receipt.deployment.split, receipt.deployment.loading) / GIB
    assert found == pytest.approx(receipt.printed["weights_gib"], rel=0.01)


def test_most_weights_in_16_bits_come_out_to_a_thousandth():
    errors = [
        abs(printed_bytes(r.model, r.deployment.split, r.deployment.loading) / GIB / r.printed["weights_gib"] - 1)
        for r in WEIGHTS
    ]
    assert len(errors) >= 29
    assert statistics.median(errors) < 0.001


@pytest.mark.parametrize("receipt", ACTIVATIONS, ids=lambda r: r.name)
def test_activation_peaks_are_within_a_tenth_or_60_mib(receipt):
    found = activation_bytes(receipt.model, receipt.deployment) / GIB
    assert found == pytest.approx(receipt.printed["activation_gib"], rel=0.1, abs=0.06)


FROM_CARDS = [
    r for r in POOLS if {"card_gib", "before_gib"} & set(r.printed) and "max_total_tokens" not in r.data["flags"]
]


def test_pools_that_nobody_fitted_are_predicted_from_the_card():
    errors = []
    for receipt in FROM_CARDS:
        if not receipt.fitted:
            model, deployment = receipt.model, receipt.deployment
            found = pool_of(model, deployment, pool_bytes(model, deployment, residents(model, deployment)))
            errors.append(abs(found.tokens / receipt.printed["tokens"] - 1))
    assert len(errors) >= 7
    assert statistics.median(errors) < 0.03
    assert max(errors) < 0.08


def test_the_default_fraction_of_sglang_is_the_same_on_an_accelerator_of_another_make():
    # printed on an MI355X of 287.2 GiB that was told no fraction
    known = next(r for r in RECEIPTS if r.data["source"] == "sgl-project/sglang#18263")
    plain = replace(known.deployment, capacity=287.2 * GIB)
    found = with_defaults(plain, known.model, chunk=None, sequences=None, fraction=None)
    assert found.fraction == 0.911


LOSSES = {"Qwen/Qwen3-32B": 0.02, "openai/gpt-oss-120b": 0.03}  # while loading on an NPU; kernels of Hopper


@pytest.mark.parametrize("receipt", [r for r in ELSEWHERE if "weights_gib" in r.printed], ids=lambda r: r.name)
def test_weights_of_receipts_found_later_are_within_one_percent(receipt):
    found = printed_bytes(receipt.model, receipt.deployment.split, receipt.deployment.loading) / GIB
    assert found == pytest.approx(receipt.printed["weights_gib"], rel=LOSSES.get(receipt.data["model"], 0.01))


@pytest.mark.parametrize("receipt", [r for r in ELSEWHERE if "pool_gib" in r.printed], ids=lambda r: r.name)
def test_tokens_of_receipts_found_later_are_those_of_their_pools(receipt):
    assert abs(receipt.pool_error) < 0.012  # ranks differ by this much; the least counts, another may be printed


def test_quantised_weights_of_which_the_config_is_known_are_within_one_percent():
    known = [r for r in RECEIPTS if "weights_gib" in r.printed and not r.sixteen_bits and not r.on_npu]
    errors = [
        abs(printed_bytes(r.model, r.deployment.split, r.deployment.loading) / GIB / r.printed["weights_gib"] - 1)
        for r in known
    ]
    assert len(errors) >= 6
    assert max(errors) < 0.01
