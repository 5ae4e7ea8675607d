"""Adapters and draft models that an engine leaves out when it sizes the KV pool."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import moves
from gpuwatch.diagnosis.causes.view import advise, from_fact, ruled_out
from gpuwatch.diagnosis.explanation import size, told
from gpuwatch.diagnosis.finding import Evidence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.diagnosis.causes.oom import Case
    from gpuwatch.diagnosis.causes.view import Cause
    from gpuwatch.model import Fact

COUNTED_LORA = (0, 8, 0)
"""vLLM from here on counts LoRA buffers when it sizes the pool (the V1 engine)."""


AT_LOAD = frozenset({"create_lora_manager", "create_lora_weights", "init_lora_manager"})
"""Functions that make the buffers of adapters, right after the weights were loaded."""


def lora(case: Case) -> Cause:
    """Explain adapters that did not fit: their buffers, which are made before there is a pool, or one while serving."""
    if not pooled(case) and (
        {"load", "profile"} & case.phase.steps
        or AT_LOAD & {frame.field("step") for frame in case.view.frames(case.event)}
    ):
        cause = (
            f"The buffers for LoRA adapters, which are made when the model is loaded, need {case.asked}: they do not "
            "fit beside the weights."
        )
        early = ruled_out("the size of the KV pool: it does not exist yet while the model is loaded", case.event)
        return replace(_adapters(case, cause, 0.88, early, pooled=False), title="LoRA adapters do not fit on the GPU")
    return _adapters(
        case, f"Loading LoRA adapters needs {case.asked} beside the pool, which left no room for them.", 0.88
    )


def pooled(case: Case) -> bool:
    """Whether the run had told of a KV pool, or of a server that is ready, before the error."""
    facts = (case.run.fact(key, case.event.line) for key in ("kv.bytes", "kv.tokens", "kv.blocks", "ready"))
    return any(fact is not None and fact.source == case.event.source for fact in facts)


def uncounted_adapters(case: Case) -> Cause | None:
    """Explain LoRA buffers that an engine before V1 leaves out when it sizes the pool."""
    run = case.run
    if not run.yes("flag.enable-lora") or run.sglang or (run.version or (0, 0, 0)) >= COUNTED_LORA:
        return None
    blocks = run.number("kv.blocks")
    twins = [other for other in case.view.runs if other is not run and other.number("kv.blocks") == blocks]
    plain = [other for other in twins if not other.yes("flag.enable-lora")]
    more: list[Evidence] = []
    if blocks is not None and plain:
        more += from_fact(run, "kv.blocks", "with LoRA the pool has {} blocks")
        more += from_fact(plain[-1], "kv.blocks", "without LoRA it has just as many: {}")
    cause = (
        f"The LoRA buffers were not taken off the KV pool, and once it was there, {case.asked} could not be had. This "
        "version sizes the pool as if there were no adapters."
    )
    return _adapters(case, cause, 0.9 if plain else 0.7, *more)


def _adapters(case: Case, cause: str, confidence: float, *more: Evidence, pooled: bool = True) -> Cause:
    """Return the cause with its advice; `pooled` says that a KV pool is there, which could leave room for adapters."""
    run = case.run
    loras, rank = run.number("flag.max-loras"), run.number("flag.max-lora-rank")
    advice = []
    if loras is not None and loras > 1:
        advice.append(
            advise("hold fewer adapters on the GPU at a time", "--max-loras", int(loras), max(1, int(loras) // 4))
        )
    if rank is not None and rank > 16:
        advice.append(advise("no higher rank than the adapters have", "--max-lora-rank", int(rank), 16))
    if not advice:
        most = "--max-loras-per-batch" if run.sglang else "--max-loras"
        advice.append(advise("hold only as many adapters, of the rank, as are used", most))
    if not pooled:
        advice.append(moves.more_cards(run, "or spread the weights over more GPUs"))
        advice.append(
            advise("or load a quantised checkpoint (8 or 4 bits)", "--quantization", run.text("quantization"))
        )
        return case.found("lora_memory", cause, confidence, advice, *more)
    advice += moves.lower_fraction(run, case.oom.short, case.oom.total, "or leave room for the buffers beside the pool")
    return case.found("lora_memory", cause, confidence, advice, *more)


def uncounted_draft(case: Case) -> Cause | None:
    """Explain a draft model that the engine leaves out when it sizes the pool."""
    run = case.run
    flags = ("flag.speculative-model", "flag.speculative-config", "flag.speculative-algorithm")
    drafted = next((run.fact(flag) for flag in flags if run.text(flag)), None)
    loads = [fact for fact in run.all("weights.bytes") if (fact.line or 0) < case.event.line]
    if drafted is None and case.phase.step != "draft":
        return None
    if run.version is not None and run.version >= moves.V1 and case.phase.step != "draft" and not run.sglang:
        return None
    if case.phase.step == "serve":
        return None
    more = (
        [Evidence(f"speculative decoding is on: {drafted.value}", drafted.source, drafted.line, drafted.key)]
        if drafted
        else []
    )
    draft = _second_load(loads)
    counted = run.number("weights.bytes")
    weights = f" of {size(draft)}" if draft else ""
    if draft and counted is not None:
        second = next(fact for fact in loads if fact.value == draft)
        more.append(told(second, f"a second model of {size(draft)} was loaded", "bytes"))
        more += from_fact(run, "weights.bytes", f"the engine counted {size(counted)} of weights")
    missing = (draft or 0) + case.oom.short
    return case.found(
        "spec_decode_memory",
        f"The draft model{weights} and its KV cache were not taken off the KV pool: {case.asked} did not fit.",
        0.9 if draft else 0.75,
        [
            *moves.lower_fraction(run, missing, case.oom.total, "leave room for the draft model beside the pool"),
            advise("or use a version that counts the draft model, or a smaller draft"),
        ],
        *more,
    )


def _second_load(loads: Sequence[Fact]) -> float | None:
    """Return the bytes of the last of several loads that is clearly smaller than the first."""
    values = [float(fact.value) for fact in loads if not isinstance(fact.value, (str, bool))]
    smaller = [value for value in values if value < 0.9 * values[0]] if values else []
    return smaller[0] if smaller else None
