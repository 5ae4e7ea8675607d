"""Sizes of a step and of a batch with which an engine does not start, whatever its memory."""

from __future__ import annotations

import pytest

from gpuwatch.ledger.budget import Deployment
from gpuwatch.ledger.changes import changes_of
from gpuwatch.ledger.defaults import with_defaults
from gpuwatch.ledger.need import Engine
from gpuwatch.ledger.plan import make_plan
from gpuwatch.ledger.steps import refusals
from gpuwatch.ledger.whatif import what_if
from gpuwatch.units import GIB
from tests.unit.ledger.models import model

SHAPE = model(40, 8, 128, max_position_embeddings=32768)


def launched(kind="vllm", version=(0, 32, 0), chunk=None, sequences=None, **more):
    plain = Deployment(kind, version, 80 * GIB, **{"context": 32768, "tp": 2, **more})
    return Engine(SHAPE, with_defaults(plain, SHAPE, chunk=chunk, sequences=sequences, fraction=None))


def reasons(engine):
    return [str(refusal) for refusal in refusals(engine.model, engine.deployment)]


def test_more_sequences_than_tokens_of_a_step_are_refused_and_fewer_by_default():
    (reason,) = reasons(engine := launched(chunk=512, sequences=1024))
    assert reason.endswith("--max-num-seqs 512 at most, or --max-num-batched-tokens 1024")
    plan = make_plan([engine])
    assert (plan.verdict, plan.serves, plan.notes[0]) == ("fits", False, reason)
    assert reasons(launched(chunk=512, sequences=512)) == []
    by_default = launched(chunk=512)
    assert (by_default.deployment.sequences, reasons(by_default)) == (512, [])
    assert reasons(launched("sglang", (0, 5, 23), chunk=512, sequences=1024)) == []


def test_a_step_that_holds_no_whole_prompt_is_refused_without_chunked_prefill():
    (reason,) = reasons(launched(chunk=2048, chunked=False))
    assert reason.endswith("--max-num-batched-tokens 32768, or a --max-model-len of 2048")
    assert reasons(launched(chunk=32768, chunked=False)) == []
    assert reasons(launched(chunk=2048)) == []
    assert launched(chunked=False).deployment.chunk == 32768  # by default as much as the longest prompt


@pytest.mark.parametrize(
    ("version", "context", "chunked", "refused"),
    [
        ((0, 7, 3), 8192, None, True),  # V0 cuts prompts by itself only of models with a longer context
        ((0, 7, 3), 8192, True, False),
        ((0, 7, 3), 32769, None, False),
        ((0, 7, 3), 32769, False, True),
        ((0, 9, 2), 8192, False, False),  # V1, which did not say
        ((), 8192, False, False),
    ],
)
def test_whole_prompts_are_those_of_the_version(version, context, chunked, refused):
    engine = launched(version=version, chunk=2048, sequences=256, context=context, chunked=chunked, longer_allowed=True)
    assert bool(reasons(engine)) is refused


def test_a_step_of_sglang_is_a_multiple_of_its_pages():
    (reason,) = reasons(launched("sglang", (0, 5, 23), chunk=2000, block_size=64))
    assert reason.endswith("--chunked-prefill-size 1984")
    assert reasons(launched("sglang", (0, 5, 23), chunk=1984, block_size=64)) == []
    assert reasons(launched("sglang", (0, 4, 6), chunk=2000, block_size=64)) == [reason]
    assert reasons(launched("sglang", (0, 4, 5), chunk=2000, block_size=64)) == []
    assert reasons(launched("sglang", (0, 5, 23), chunk=2000, block_size=64, paged_steps=False)) == []


def test_a_step_of_sglang_is_divided_among_the_groups_before_its_pages_are_checked():
    shared = {"chunk": 448, "block_size": 64, "tp": 8, "dp_attention": 8}
    (reason,) = reasons(launched("sglang", (0, 5, 23), **shared))  # 56 tokens each
    assert reason.endswith("--chunked-prefill-size 512")
    assert reasons(launched("sglang", (0, 5, 3), **shared)) == []  # 448 is checked, or 56: not known
    assert reasons(launched("sglang", (0, 5, 23), **{**shared, "chunk": 1100}))[0].endswith("size 1024")
    assert reasons(launched("sglang", (0, 5, 23), **{**shared, "chunk": 1024})) == []


def test_no_change_makes_a_step_that_is_refused():
    engine = launched(chunk=2048, sequences=2048)
    assert not [change for change in changes_of(engine) if change.change.startswith("--max-num-batched-tokens")]
    rows = what_if(launched(chunk=512, sequences=1024))
    assert [row.change for row in rows if row.serves] == ["--max-num-seqs 1024 → 256"]
