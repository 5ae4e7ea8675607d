"""What a command loads beside the model, and what it leaves out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwatch.ledger.beside import adapters_of, draft_name, draft_of, loads_towers
from gpuwatch.ledger.budget import Deployment, pool_bytes
from gpuwatch.ledger.pool import longest_context, own_share, pool_of, request_bytes, spare_bytes
from gpuwatch.units import GIB
from tests.unit.ledger.models import model

PLAIN = model(40, 8, 128)
TOKEN = 163_840


@pytest.mark.parametrize(
    ("engine", "flags", "found"),
    [
        ("vllm", {"enable-lora": True}, (1, 16)),
        ("vllm", {"enable-lora": True, "max-loras": 8, "max-lora-rank": 256}, (8, 256)),
        ("vllm", {"enable-lora": False, "max-loras": 8}, (0, 0)),
        ("vllm", {}, (0, 0)),
        ("sglang", {"enable-lora": True}, (0, 0)),
    ],
)
def test_adapters_of_a_command(engine, flags, found):
    assert adapters_of(engine, flags) == found


@pytest.mark.parametrize(
    ("version", "limits", "videos", "loaded"),
    [
        ((0, 11, 0), '{"image": 0, "video": 0}', True, False),
        ((0, 11, 0), '{"image": 0}', True, True),
        ((0, 11, 0), '{"image": 0}', False, False),
        ((0, 11, 0), '{"image": {"count": 0}, "video": {"count": 0}}', True, False),
        ((0, 11, 0), '{"image": 2, "video": 0}', True, True),
        ((0, 8, 5), '{"image": 0, "video": 0}', True, True),
        ((0, 11, 0), "image=0", True, True),
        ((0, 11, 0), None, True, True),
    ],
)
def test_towers_are_left_out_where_no_request_may_have_what_they_encode(version, limits, videos, loaded):
    flags = {} if limits is None else {"limit-mm-per-prompt": limits}
    assert loads_towers("vllm", version, flags, (), videos=videos) is loaded


def test_a_model_that_is_served_for_text_alone_has_no_tower():
    assert not loads_towers("vllm", (0, 33), {}, ("--language-model-only",), videos=True)
    assert not loads_towers("sglang", (0, 5, 23), {}, ("--language_model_only",), videos=True)
    assert loads_towers("vllm", (0, 33), {}, ("--model", "language-model-only"), videos=True)


@pytest.mark.parametrize(
    ("flags", "arguments", "name"),
    [
        ({"speculative-config": '{"model": "small", "num_speculative_tokens": 3}'}, (), "small"),
        ({"speculative-config": '{"method": "ngram"}'}, (), ""),
        ({"speculative-model": "small"}, (), "small"),
        ({"speculative-model": "[ngram]"}, (), ""),
        ({}, ("--speculative-draft-model-path", "small"), "small"),
        ({}, ("--speculative-draft-model-path=small",), "small"),
        ({}, ("--speculative-draft-model-path",), ""),
        ({}, (), ""),
    ],
)
def test_the_draft_model_of_a_command(flags, arguments, name):
    assert draft_name(flags, arguments) == name


def test_a_draft_keeps_the_same_tokens_in_its_part_of_the_pool():
    deployment = Deployment("vllm", (0, 24, 0), 80 * GIB, tp=2, context=8192)
    draft = draft_of(model(10, 8, 128), 2 * GIB, PLAIN, deployment)
    assert (draft.weights, draft.share) == (2 * GIB, 0.25)
    both = replace(deployment, drafting_share=draft.share)
    assert own_share(both) == pytest.approx(0.8)
    assert own_share(replace(both, pp=2)) == pytest.approx(2 / 3)
    available = 5 * 1024 * 16 * TOKEN / 2  # for the model alone: 5,120 blocks of 16 tokens
    assert pool_of(PLAIN, deployment, available).tokens == 5120 * 16
    assert pool_of(PLAIN, both, available).tokens == 4096 * 16
    assert pool_of(PLAIN, both, available).bytes == pytest.approx(available)
    assert request_bytes(PLAIN, both, 8192) == pytest.approx(1.25 * request_bytes(PLAIN, deployment, 8192))
    assert spare_bytes(PLAIN, both) == pytest.approx(1.25 * spare_bytes(PLAIN, deployment))
    assert longest_context(PLAIN, both, available) == 4095 * 16


def test_a_drafts_weights_are_divided_among_the_ranks():
    deployment = Deployment("vllm", (0, 24, 0), 80 * GIB, tp=2, context=8192)
    both = replace(deployment, drafting=3 * GIB)
    assert pool_bytes(PLAIN, deployment) - pool_bytes(PLAIN, both) == pytest.approx(1.5 * GIB)
    sglang = replace(both, engine="sglang")  # its pool is cut before the draft is loaded
    assert pool_bytes(PLAIN, replace(sglang, drafting=0.0)) == pool_bytes(PLAIN, sglang)


def test_sglang_gives_a_draft_its_layers_in_each_token():
    both = Deployment("sglang", (0, 5, 23), 80 * GIB, block_size=1, drafting_share=0.25)
    assert pool_of(PLAIN, both, 1000 * TOKEN * 1.25).tokens == 1000
