"""Adapters and draft models that an engine leaves out when it sizes the KV pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import moves
from gpuwatch.diagnosis.causes.view import advise, from_fact
from gpuwatch.diagnosis.explanation import size, told
from gpuwatch.diagnosis.finding import Evidence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.diagnosis.causes.oom import Case
    from gpuwatch.diagnosis.causes.view import Cause
    from gpuwatch.model import Fact

COUNTED_LORA = (0, 8, 0)
"""vLLM from here on counts LoRA buffers when it sizes the pool (the V1 engine)."""


def lora(case: Case) -> Cause:
    """Explain adapters that did not fit."""
    return _adapters(
        case, f"Loading LoRA adapters needs {case.asked} beside the pool, which left no room for them.", 0.88
    )


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


def _adapters(case: Case, cause: str, confidence: float, *more: Evidence) -> Cause:
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
        advice.append(advise("hold only as many adapters, of the rank, as are used", "--max-loras"))
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
