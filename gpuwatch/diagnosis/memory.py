"""GPU memory: peaks that were survived, peaks that will not fit, fragmentation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis.activation import TOKEN_MOST, step_advice, step_evidence, step_of
from gpuwatch.diagnosis.baseline import really_seen
from gpuwatch.diagnosis.context import GPU_SCOPE, LOG_SCOPE, SERVER_SCOPE
from gpuwatch.diagnosis.diagnosis import Diagnosis
from gpuwatch.diagnosis.explanation import Explanation, Unknown, Verdict, count, excluded, logged, measured, size
from gpuwatch.diagnosis.finding import Advice
from gpuwatch.diagnosis.growth import since_ready
from gpuwatch.units import MIB

if TYPE_CHECKING:
    from gpuwatch.diagnosis.activation import Step
    from gpuwatch.diagnosis.context import Subject
    from gpuwatch.diagnosis.finding import Evidence

FOREIGN_GROWTH = 256 * MIB
"""Other processes must have grown by this much to be named; contexts and displays move by less."""
PEAK_WINDOW = "6m"
"""The finding is kept for 5 minutes after a peak of the last minute."""
ELSEWHERE = "look which process grew (nvidia-smi on the host, outside of any container)"
"""What to do about memory that no visible process owns."""


def prefill_peak(subject: Subject) -> Verdict:
    """Explain a memory peak while requests ran that left almost nothing free."""
    peak = subject.over("max_over_time", "gpu_memory_peak_bytes", PEAK_WINDOW, GPU_SCOPE)
    took = subject.over("max_over_time", "gpu_memory_step_bytes", PEAK_WINDOW, GPU_SCOPE)
    total = subject.now("gpu_memory_total_bytes", GPU_SCOPE)
    if peak is None or took is None or total is None:
        return Unknown("the memory peak of the last minute, read at 10 Hz, while the engine served")
    left = subject.value
    evidence = [
        measured(f"used memory peaked at {size(peak)} of {size(total)}", "gpu_memory_peak_bytes", peak, "bytes"),
        measured(f"it rose by {size(took)} within a minute while requests ran", "gpu_memory_step_bytes", took, "bytes"),
        measured(f"{size(left)} were left at the peak", "gpu_memory_free_bytes", left, "bytes"),
    ]
    engines = _engines_on(subject)
    computed = [_prompt_tokens(engine) for engine in engines]
    prompts = sum(filter(None, computed))
    if prompts:
        seen = really_seen(engines[0], "engine_prompt_tokens_total", 360, SERVER_SCOPE)
        text = f"{count(prompts)} prompt tokens were processed in {seen}"
        evidence.append(measured(text, "engine_prompt_tokens_total", prompts, "tokens"))
    # With several engines on one card the step cannot be laid to one of them.
    room = _room(subject, took + max(0.0, left))
    steps = [(engine, step_of(engine, took, room, total, PEAK_WINDOW)) for engine in engines]
    evidence += [item for engine, step in steps if len(steps) == 1 for item in step_evidence(engine, step)]
    evidence += _others(subject)
    evidence += since_ready(subject)
    advice = [item for engine, step in steps for item in step_advice(engine, step)]
    rose = f"Memory rose by {size(took)} while requests ran and left {size(left)} free"
    unseen = _unseen(subject, took, PEAK_WINDOW)
    evidence += unseen
    look = (Advice(f"{ELSEWHERE}; if it is the engine:"), *advice)
    if unseen:
        cause = f"{rose}, and no visible process owns it: a prefill, or a program that gpuwatch does not see."
        return Explanation(cause, 0.5, tuple(evidence), look)
    # Engines count a prompt when its first token or its last one is there.
    if None not in computed and 0 < prompts < took / TOKEN_MOST and not any(step.tokens for _, step in steps):
        cause = f"{rose}, more than the prompts counted so far take: one that still runs, or another program."
        return Explanation(cause, 0.5, tuple(evidence), look)
    if not prompts:
        return Explanation(f"{rose}.", 0.55, tuple(evidence), tuple(advice))
    cause = f"A prefill took {size(took)} on top of the pool and left {size(left)} free. " + _next_one(steps, left)
    return Explanation(cause, 0.8, tuple(evidence), tuple(advice))


def _unseen(subject: Subject, took: float, window: str) -> list[Evidence]:
    """Return how far memory that no visible process owns moved within `window`, where that is half of `took` or more.

    A gauge that is read once a second misses a part of a peak that is read ten times a second.
    """
    name = "gpu_memory_unattributed_bytes"
    most = subject.over("max_over_time", name, window, GPU_SCOPE)
    least = subject.over("min_over_time", name, window, GPU_SCOPE)
    if most is None or least is None or most - least <= took / 2:
        return []
    text = f"memory that no visible process owns rose by up to {size(most - least)}"
    return [measured(text, name, most - least, "bytes")]


def _room(subject: Subject, reached: float) -> float:
    """Return the bytes that were free before a step: what it took and left, but not more than was ever read as free."""
    free = subject.over("max_over_time", "gpu_memory_free_bytes", PEAK_WINDOW, GPU_SCOPE)
    return reached if free is None else min(reached, free)


def _next_one(steps: list[tuple[Subject, Step]], left: float) -> str:
    """Say what that means for the next prefill."""
    step = steps[0][1] if len(steps) == 1 else None
    if step is None or step.fits is None or step.full is None or step.budget is None:
        return "It was survived; a larger one fails."
    if not step.fits:
        chunk = f"a full chunk of {count(step.budget)} tokens takes about {size(step.full)}"
        return f"It was survived; {chunk} and will not fit."
    return f"A full chunk of {count(step.budget)} tokens was survived, and {size(left)} are left for the next one."


def headroom_low(subject: Subject) -> Verdict:
    """Explain free memory that is less than recent peaks took."""
    transient = _transient(subject)
    free = subject.over("max_over_time", "gpu_memory_free_bytes", "1m", GPU_SCOPE)
    total = subject.now("gpu_memory_total_bytes", GPU_SCOPE)
    if transient is None or free is None or total is None:
        return Unknown("free memory and the peaks of the last 10 minutes")
    evidence = [
        measured(
            f"peaks of the last 10 minutes took and gave back up to {size(transient)}",
            "gpu_memory_transient_bytes",
            transient,
            "bytes",
        ),
        measured(f"at most {size(free)} were free in the last minute", "gpu_memory_free_bytes", free, "bytes"),
    ]
    grown = _growth(subject, "gpu_memory_other_bytes")
    advice: list[Advice] = []
    if grown is not None and grown > FOREIGN_GROWTH:
        text = f"processes of no known engine grew by {size(grown)} in 10 minutes"
        evidence.append(measured(text, "gpu_memory_other_bytes", grown, "bytes"))
        cause = f"Another process took {size(grown)} on this GPU: the next peak of {size(transient)} will not fit."
        advice.append(Advice("move or stop the other process on this GPU (nvidia-smi lists it)"))
        confidence = 0.85
    else:
        cause = f"The next peak of {size(transient)} will not fit: {size(free)} are free."
        if grown is not None:
            evidence.append(
                excluded("other visible processes: they did not grow", "gpu_memory_other_bytes", grown, "bytes")
            )
        confidence = 0.7
        if unseen := _unseen(subject, transient, "10m"):
            evidence += unseen
            cause += " Whether it is the engine's, no visible process tells."
            advice.append(Advice(f"{ELSEWHERE}; if it is the engine:"))
            confidence = 0.5
    for engine in _engines_on(subject):
        step = step_of(engine, transient, free, total, "10m")
        evidence += step_evidence(engine, step)
        advice += step_advice(engine, step)
    return Explanation(cause, confidence, tuple(evidence), tuple(advice))


def _transient(subject: Subject) -> float | None:
    """Return the peaks of the last 10 minutes; of an engine that has started anew within them, only its latest."""
    for engine in _engines_on(subject):
        resets = engine.select("engine_generation_tokens_total", SERVER_SCOPE)
        if any(often > 0 for _, often in subject.context.samples(f"resets({resets}[10m])")):
            return subject.now("gpu_memory_transient_bytes", GPU_SCOPE)
    return subject.over("max_over_time", "gpu_memory_transient_bytes", "10m", GPU_SCOPE)


def fragmentation(subject: Subject) -> Verdict:
    """Explain a failed allocation beside a large reserved but unallocated rest."""
    reserved = subject.now("log_oom_reserved_unallocated_bytes", LOG_SCOPE)
    requested = subject.now("log_oom_requested_bytes", LOG_SCOPE)
    lines = subject.events("torch_oom", seconds=600)
    if reserved is None or requested is None:
        return Unknown("the sizes in PyTorch's out-of-memory message")
    free = subject.now("log_oom_free_bytes", LOG_SCOPE)
    evidence: list[Evidence] = [
        measured(f"{size(requested)} were asked for and refused", "log_oom_requested_bytes", requested, "bytes"),
        measured(
            f"{size(reserved)} were reserved by PyTorch but unallocated",
            "log_oom_reserved_unallocated_bytes",
            reserved,
            "bytes",
        ),
    ]
    if free is not None:
        evidence.append(measured(f"{size(free)} were free on the device", "log_oom_free_bytes", free, "bytes"))
    evidence += _unexplained(subject)
    evidence += since_ready(subject)
    evidence += [logged(event) for event in lines[-1:]]
    hint = next((event.text for event in reversed(lines) if "PYTORCH_ALLOC_CONF" in event.text), None)
    variable = "PYTORCH_ALLOC_CONF" if hint else "PYTORCH_CUDA_ALLOC_CONF"
    return Explanation(
        f"The allocator is fragmented: {size(reserved)} are reserved and unused, in pieces too small "
        f"for {size(requested)}.",
        0.85,
        tuple(evidence),
        (
            Advice(
                "let the allocator grow and shrink its segments (in the environment of the process that failed)",
                variable,
                None,
                "expandable_segments:True",
            ),
        ),
    )


def _unexplained(subject: Subject) -> list[Evidence]:
    """Return what the engine holds beyond weights, pool, graphs and activations: what the allocator keeps, and more."""
    parts = [
        subject.config("weights_bytes", "weights.bytes"),
        subject.config("kv_cache_bytes", "kv.bytes"),
        subject.config("graph_bytes", "graph.bytes"),
        subject.config("activation_peak_bytes", "activation.bytes"),
    ]
    held = [used for _, used in subject.context.samples(subject.select("gpu_memory_engine_bytes", SERVER_SCOPE))]
    if not subject.server or not held or parts[0] is None or parts[1] is None:
        return []
    explained = sum(part for part in parts if part is not None)
    rest = max(held) - explained
    text = f"the engine holds {size(max(held))}; weights, pool, graphs and activations explain {size(explained)} of it"
    return [measured(f"{text}, {size(rest)} remain", "gpu_memory_engine_bytes", max(held), "bytes")] if rest > 0 else []


def _engines_on(subject: Subject) -> list[Subject]:
    """Return the engines that use the GPU, as (host, server) subjects."""
    placed = subject.context.samples(subject.select("gpu_engine", GPU_SCOPE))
    found = {(dict(labels).get("host", ""), dict(labels).get("server", "")) for labels, _ in placed}
    engines = []
    for host, server in sorted(found):
        kinds = {
            dict(labels).get("engine_kind", "")
            for labels, _ in subject.context.samples(
                subject.context.about({"host": host, "server": server}).select("engine_info", SERVER_SCOPE)
            )
        }
        kind = kinds.pop() if len(kinds) == 1 else ""
        engines.append(subject.context.about({"host": host, "server": server, "engine_kind": kind}))
    return engines


def _prompt_tokens(engine: Subject) -> float | None:
    return engine.total("increase", "engine_prompt_tokens_total", PEAK_WINDOW, SERVER_SCOPE)


def _growth(subject: Subject, name: str) -> float | None:
    now = subject.now(name, GPU_SCOPE)
    least = subject.over("min_over_time", name, "10m", GPU_SCOPE)
    return now - least if now is not None and least is not None else None


def _others(subject: Subject) -> list[Evidence]:
    grown = _growth(subject, "gpu_memory_other_bytes")
    if grown is None:
        return []
    if grown <= FOREIGN_GROWTH:
        text = "other visible processes on this GPU: they did not grow"
        return [excluded(text, "gpu_memory_other_bytes", grown, "bytes")]
    text = f"other processes on this GPU grew by {size(grown)} within 10 minutes"
    return [measured(text, "gpu_memory_other_bytes", grown, "bytes")]


DIAGNOSES = (
    Diagnosis(
        "prefill_memory_peak",
        "warning",
        "A memory peak left almost nothing free",
        prefill_peak,
        GPU_SCOPE,
    ),
    Diagnosis("gpu_headroom_low", "warning", "The next memory peak will not fit", headroom_low, GPU_SCOPE),
    Diagnosis(
        "allocator_fragmentation",
        "critical",
        "The allocator is fragmented",
        fragmentation,
        LOG_SCOPE,
    ),
)
"""The findings of this family."""
