"""What one prefill step takes beside the pool, what the next one will take, and the settings that make room for it.

Activations grow in proportion to the tokens of a step. A caching allocator keeps what a step took, so the step that
used memory makes is the step's peak above what was kept before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.bounds import SMALLEST_CHUNK
from gpuwatch.diagnosis.context import SERVER_SCOPE
from gpuwatch.diagnosis.explanation import count, measured, size
from gpuwatch.diagnosis.finding import Advice
from gpuwatch.diagnosis.room import fixed_pool, memory_flag, whole_mib
from gpuwatch.units import MIB

if TYPE_CHECKING:
    from gpuwatch.diagnosis.context import Subject
    from gpuwatch.diagnosis.finding import Evidence

CHUNK_STEP = 256
"""Proposed chunks are multiples of this."""
RESERVE = 0.04
"""Share of the card that a proposal leaves free at the next peak: twice what the alert on peaks asks for."""
EXCEEDS = 1.1
"""The step exceeds what the engine profiled when it is so many times larger."""
TOKEN_MOST = 16 * MIB
"""No token of a step takes more: its logits and log-probabilities over 256k words are some MiB."""


@dataclass(frozen=True, slots=True)
class Step:
    """One prefill step as it was seen.

    Args:
        took: bytes it took.
        room: bytes that were free before it.
        tokens: most tokens that it can have had; None where nothing tells.
        budget: token budget of a step (the chunk); None where it is not known.
        total: bytes of the card.
    """

    took: float
    room: float
    tokens: float | None
    budget: float | None
    total: float

    @property
    def full(self) -> float | None:
        """Bytes that a step with the whole budget takes; None where it cannot be told."""
        if not self.budget or not self.tokens:
            return None
        return self.took * max(1.0, self.budget / self.tokens)

    @property
    def fits(self) -> bool | None:
        """Whether a step with the whole budget fits into the room; None where it cannot be told."""
        return None if self.full is None else self.full <= self.room

    def chunk(self) -> int | None:
        """Return the largest budget whose step leaves the reserve free; None where none does or it is not known.

        Where nothing tells the tokens of the step, it is taken to have had the whole budget.
        """
        if not self.budget or self.took <= 0:
            return None
        per_token = self.took / min(self.tokens or self.budget, self.budget)
        fitting = (self.room - RESERVE * self.total) / per_token
        chunk = int(min(fitting, self.budget - 1) // CHUNK_STEP) * CHUNK_STEP
        return chunk if chunk >= SMALLEST_CHUNK else None

    def fraction(self, current: float) -> float:
        """Return the memory fraction that makes room for a full step and the reserve, in steps of 0.01."""
        return max(0.05, math.floor((current - self.lacking / self.total) * 100 + 1e-6) / 100)

    @property
    def lacking(self) -> float:
        """Return the bytes that a full step and the reserve need beyond the room there is."""
        return max(0.0, (self.full or self.took) + RESERVE * self.total - self.room)


def step_of(engine: Subject, took: float, room: float, total: float, window: str) -> Step:
    """Return the step that took `took` bytes of `room`, with the tokens and the budget of `engine`.

    Tokens that cannot have taken so much are not those of the step.
    """
    budget = engine.config("max_num_batched_tokens", "max_num_batched_tokens")
    tokens = step_tokens(engine, window, budget)
    if tokens is not None and took > TOKEN_MOST * tokens:
        tokens = None
    return Step(took, room, tokens, budget, total)


def step_tokens(engine: Subject, window: str, budget: float | None) -> float | None:
    """Return the most tokens that a step within `window` can have had: by the histogram of steps, else by the prompts.

    The histogram gives the upper bound of the highest bucket in which a step fell. Prompts of fewer tokens than the
    budget in all cannot have filled it.
    """
    expr = f"increase({engine.select('engine_iteration_tokens_bucket', SERVER_SCOPE)}[{window}])"
    by_bound: dict[float, float] = {}
    for labels, more in engine.context.samples(expr):
        bound = float(dict(labels).get("le", "nan"))
        by_bound[bound] = by_bound.get(bound, 0.0) + more
    bounds = sorted(bound for bound in by_bound if not math.isnan(bound))
    most = None
    for lower, bound in zip([0.0, *bounds], bounds, strict=False):
        if by_bound[bound] > by_bound.get(lower, 0.0) + 0.5:
            most = bound
    if most is None:
        most = engine.total("increase", "engine_prompt_tokens_total", window, SERVER_SCOPE) or None
    if most is None:
        return None
    return min(most, budget) if budget else (None if math.isinf(most) else most)


def step_evidence(engine: Subject, step: Step) -> list[Evidence]:
    """Return what is known of a step beside its bytes: tokens, chunk, what was profiled, what a full one takes."""
    found = []
    if step.tokens and step.budget:
        text = f"a step had at most {count(step.tokens)} tokens; the budget of a step is {count(step.budget)}"
        found.append(measured(text, "engine_config_max_num_batched_tokens", step.budget, "tokens"))
    profiled = engine.config("activation_peak_bytes", "activation.bytes")
    if profiled:
        text = f"the engine profiled an activation peak of {size(profiled)}; this step took {size(step.took)}"
        if step.took > EXCEEDS * profiled:
            text += ": more than it reserved for"
        found.append(measured(text, "engine_config_activation_peak_bytes", profiled, "bytes"))
    if step.full is not None and step.full > step.took:
        text = f"a step with the whole budget would take about {size(step.full)}; {size(step.room)} were free"
        found.append(measured(text, "gpu_memory_step_bytes", step.full, "bytes"))
    return found


def step_advice(engine: Subject, step: Step) -> list[Advice]:
    """Return the chunk and the memory fraction that restore the margin."""
    found = []
    flag = "--chunked-prefill-size" if engine.sglang else "--max-num-batched-tokens"
    reserve = size(RESERVE * step.total)
    chunk = step.chunk()
    if step.budget is None:
        found.append(Advice("process prompts in smaller chunks", flag))
    elif chunk is not None:
        text = f"process prompts in smaller chunks: the step shrinks with them, and {reserve} stay free at its peak"
        found.append(Advice(text, flag, f"{step.budget:.0f}", str(chunk)))
    elif step.budget > SMALLEST_CHUNK:
        text = "process prompts in the smallest sensible chunks; that alone may not be enough"
        found.append(Advice(text, flag, f"{step.budget:.0f}", str(SMALLEST_CHUNK)))
    text = f"or give the pool less, which leaves {reserve} at the next peak"
    flag, now = memory_flag(engine)
    fixed, current = fixed_pool(engine), engine.config("memory_fraction_ratio", "memory_fraction")
    if fixed is not None:
        if 0 < step.lacking < fixed:
            found.append(Advice(text, flag, now, whole_mib(fixed - step.lacking)))
    elif current is not None and step.fraction(current) < current:
        found.append(Advice(text, flag, now, f"{step.fraction(current):.2f}"))
    return found
