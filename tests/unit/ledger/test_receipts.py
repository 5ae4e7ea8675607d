"""The ledger against what engines printed at start."""

from __future__ import annotations

import statistics

import pytest

from gpuwatch.ledger.budget import activation_bytes, pool_bytes, residents
from gpuwatch.ledger.pool import pool_of
from gpuwatch.ledger.weights import Split, weight_bytes
from gpuwatch.units import GIB
from tests.unit.ledger.receipts import RECEIPTS

# vLLM 0.7.2 printed a pool and a token count that do not belong together; one NPU build of SGLang gave linear layers a
# KV cache; a build of SGLang for Granite rounds what it prints.
CONTRADICT = {"DeepSeek-R1-Distill-Qwen-14B-vllm-0.7.2"}
POOLS = [r for r in RECEIPTS if "pool_gib" in r.printed and r.name not in CONTRADICT]
VLLM_POOLS = [r for r in POOLS if r.data["engine"] == "vllm"]
WEIGHTS = [r for r in RECEIPTS if "weights_gib" in r.printed and r.sixteen_bits]
TEXT_ONLY = [r for r in WEIGHTS if "VL" not in r.name and "gemma" not in r.name and "typhoon" not in r.name]
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


def test_weights_of_text_models_in_16_bits_are_within_one_and_a_half_percent():
    errors = {
        r.name: weight_bytes(r.model, Split(r.deployment.tp, r.deployment.pp, r.deployment.attention_tp))
        / (r.printed["weights_gib"] * GIB)
        - 1
        for r in TEXT_ONLY
        if r.data["engine"] == "vllm" and "phi" not in r.name and "Embedding" not in r.name
    }
    assert len(errors) >= 15
    assert statistics.median(map(abs, errors.values())) < 0.008
    assert max(map(abs, errors.values())) < 0.015, errors


@pytest.mark.parametrize("receipt", ACTIVATIONS, ids=lambda r: r.name)
def test_activation_peaks_are_within_a_tenth_or_60_mib(receipt):
    found = activation_bytes(receipt.model, receipt.deployment) / GIB
    assert found == pytest.approx(receipt.printed["activation_gib"], rel=0.1, abs=0.06)


def test_pools_that_nobody_fitted_are_predicted_from_the_card_within_eight_percent_in_the_middle():
    errors = []
    for receipt in VLLM_POOLS:
        if "card_gib" in receipt.printed and "weights_gib" in receipt.printed and not receipt.fitted:
            model, deployment = receipt.model, receipt.deployment
            found = pool_of(model, deployment, pool_bytes(model, deployment, residents(model, deployment)))
            errors.append(abs(found.tokens / receipt.printed["tokens"] - 1))
    assert len(errors) >= 5
    assert statistics.median(errors) < 0.08
