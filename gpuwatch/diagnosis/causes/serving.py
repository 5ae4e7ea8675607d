"""GPU memory that ran out while the engine served: in a prefill, logits, a decode batch, or a library of CUDA."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import moves, neighbours
from gpuwatch.diagnosis.causes.course import courses
from gpuwatch.diagnosis.causes.view import advise, from_fact, number, ruled_out
from gpuwatch.diagnosis.explanation import count, logged, size
from gpuwatch.units import GIB

if TYPE_CHECKING:
    from gpuwatch.diagnosis.causes.course import Point
    from gpuwatch.diagnosis.causes.oom import Case
    from gpuwatch.diagnosis.causes.view import Cause
    from gpuwatch.diagnosis.finding import Advice, Evidence
    from gpuwatch.model import LogEvent

LARGE_TENSOR = GIB
"""One allocation of this size in a forward pass may be logits of a whole prompt, and not the chunk's activations."""
LOW_POOL = 0.7
"""Below this usage of the KV pool nothing speaks for a pool that is too small."""
LOGIT_BYTES = 4
"""Samplers of both engines work on logits in 32 bits."""
VOCABULARIES = (30_000, 300_000)
"""Tokens that the vocabularies of served models have."""
DECODE = "forward_decode"
"""SGLang's function for a batch of which each request generates one token."""
SAMPLED = frozenset({"compute_logprobs", "gather_logprobs"})
"""Functions of samplers that look at one row for each request; those for prompts have names of their own."""
_LIBRARIES = {"CUBLAS": "cuBLAS", "cublas": "cuBLAS", "Cuda failure": "NCCL"}


def outside(case: Case) -> Cause:
    """Explain memory that a library of CUDA asked for beside torch's allocator while the engine served."""
    who = next((name for word, name in _LIBRARIES.items() if word in case.event.text), "CUDA")
    return case.found(
        "gpu_out_of_memory",
        f"{who} found no memory left on {case.where} while the engine served: handles, workspaces and modules are "
        "taken outside torch's allocator, beside what the profile at start counted, and the pool has the rest.",
        0.75,
        [
            *moves.lower_fraction(case.run, 0, None, "leave more beside the pool"),
            advise("is anything else on the card: nvidia-smi lists its processes"),
        ],
        ruled_out("a tensor of a step: torch would name the size that it asked for", case.event),
    )


def activation(case: Case) -> Cause:
    """Explain a step that did not fit while the engine served: its sampler, a decode batch, logits or a prefill."""
    if case.event.event == "cuda_oom_other":
        return outside(case)
    functions = {frame.field("step") for frame in case.view.frames(case.event)} if case.phase.steps else set()
    logits = functions & case.logits
    if "sampling" in case.phase.steps and logits <= SAMPLED:
        return batch(case, sampler=True)
    if DECODE in functions and not logits:
        return batch(case, sampler=False)
    return prefill(case)


def batch(case: Case, *, sampler: bool) -> Cause:
    """Explain a batch with more requests than its step has memory for; `sampler` says that the sampler asked for it."""
    run, oom = case.run, case.oom
    point = _before(case)
    running = point.running if point is not None else 0
    seats = run.number("max_num_seqs")
    rows = _rows(case, running)
    fits = int(running) if running else None
    more: list[Evidence] = [logged(point.event)] if point is not None else []
    if rows and oom.free and oom.requested:
        fits = max(1, int(rows * oom.free / oom.requested) // 8 * 8)
    what = "The sampler works on one row of logits for each request of the batch (vocabulary x 4 bytes)"
    if sampler and rows and oom.requested:
        words = oom.requested / LOGIT_BYTES / rows
        what += f": {count(rows)} rows of {count(round(words))} are {case.asked}, which could not be had"
    else:
        what = what if sampler else "A decode step grows with the requests in the batch"
        what += f": {case.asked} could not be had"
    proposed = fits if fits and (seats is None or fits < seats) else max(1, int(seats) // 2) if seats else None
    why = "admit fewer requests at a time"
    if rows and fits == proposed:
        why += f": rows of about {count(fits or 0)} fit into the {size(oom.free or 0)} that were free"
    elif fits and fits == proposed:
        why += f": {count(fits)} ran before"
    advice = [advise(why, moves.seats_flag(run), seats and int(seats), proposed)]
    advice += moves.lower_fraction(run, oom.short, oom.total, "or leave more beside the pool")
    more += from_fact(run, "max_num_seqs", "up to {} requests run at a time")
    more.append(ruled_out("the size of a prefill chunk: the step did not process a prompt", case.event))
    said, advised = _neighbours(case, more)
    return case.found("gpu_out_of_memory", f"{what} on {case.where}.{said}", 0.85, [*advised, *advice], *more)


def _before(case: Case) -> Point | None:
    """Return the last statistics line with running requests before the error."""
    found = [
        point
        for course in courses(case.view)
        if course.run is case.run
        for point in course.points
        if point.event.line < case.event.line and point.running
    ]
    return max(found, key=lambda point: point.event.line) if found else None


def _rows(case: Case, running: float) -> float | None:
    """Return the rows of the sampler's tensor: by the model's vocabulary, else those running where they explain it."""
    asked = case.oom.requested
    if asked is None:
        return None
    config = case.view.incident.config or {}
    words = config.get("vocab_size")
    if isinstance(words, int) and words > 0:
        return max(1, asked // (words * LOGIT_BYTES))
    if running and VOCABULARIES[0] <= asked / LOGIT_BYTES / running <= VOCABULARIES[1]:
        return running
    return None


def prefill(case: Case) -> Cause:
    """Explain a prefill that did not fit: logits of a whole prompt where the traceback is in them, else its peak."""
    run, oom = case.run, case.oom
    dump = [event for event in case.view.events("crash_dump") if run.holds(event) and event.line <= case.event.line]
    tokens = next((value for event in reversed(dump) if (value := number(event, "tokens"))), None)
    usage = next((value for event in reversed(dump) if (value := number(event, "kv")) is not None), None)
    more: list[Evidence] = []
    if tokens is not None:
        text = f"the step that failed had {count(tokens)} tokens"
        more.append(replace(logged(dump[-1]), text=text, value=tokens, unit="tokens"))
    elif (told := _last_prefill(case)) is not None:
        tokens = number(told, "nt")
        more.append(logged(told))
    if usage is None:
        usage = _last_usage(case)
    if usage is not None and usage < LOW_POOL:
        more.append(ruled_out(f"a KV pool that is too small: it was used to {usage:.0%}", case.event, usage, "ratio"))
    more += from_fact(run, "activation.bytes", "profiled activation peak: {}", "bytes")
    asking = "return_logprob with logprob_start_len" if run.sglang else "echo and prompt_logprobs"
    spare = advise(f"do without {asking} on long prompts")
    chunks = moves.smaller_chunk(run, tokens)
    logits = case.phase.step == "logits"
    large = (oom.requested or 0) >= LARGE_TENSOR
    if logits:
        cause = (
            f"One tensor of {case.asked} did not fit on {case.where} beside the pool, and the traceback is in the "
            f"logits. Those of a whole prompt have that size (tokens x vocabulary x 4 bytes): {asking} make them, and "
            "the start-up profile does not count them."
        )
        advice = [spare, *chunks]
    else:
        step = f" of {count(tokens)} tokens" if tokens else ""
        needed = f"{case.asked} more" if oom.requested is not None else "more"
        rest = "the pool took the rest" if not _taken(case) else "the pool and other processes took the rest"
        cause = f"A prefill step{step} needed {needed} than the profile at start had left on {case.where}: {rest}."
        advice = [*chunks]
    if large and not logits and case.phase.steps:
        more.append(ruled_out("logits of a whole prompt: the traceback does not pass through them", case.event))
    elif large and not logits:
        cause += f" Without a traceback, logits of a whole prompt look the same: {asking} make them."
        advice.append(advise(f"or, if requests ask for them, do without {asking} on long prompts"))
    said, advised = _neighbours(case, more)
    advice += moves.lower_fraction(run, oom.short, oom.total, "or leave more beside the pool")
    advice += advised
    return case.found("prefill_activation_oom", cause + said, 0.7 if said else 0.88, advice, *more)


def _neighbours(case: Case, more: list[Evidence]) -> tuple[str, list[Advice]]:
    """Return what to say and to do about other processes whose memory would have been enough; add their evidence."""
    oom = case.oom
    if not _taken(case):
        return "", []
    tenants = neighbours.told(case.view, case.event, oom.gpu)
    more += neighbours.evidence(tenants)
    said = (
        f" Other processes hold {size(oom.others or 0)} of the card{neighbours.naming(tenants)}: without them it "
        "would have been there."
    )
    return said, [advise("or stop the other processes, or give them another card; nvidia-smi lists them")]


def _taken(case: Case) -> bool:
    """Whether other processes hold as much as was missing, or a good part of the card."""
    return case.oom.shared or case.oom.decided_by_others


def _last_prefill(case: Case) -> LogEvent | None:
    """Return SGLang's line about the prefill that failed: the last statistics line, where it is of a prefill."""
    last: LogEvent | None = None
    for event in case.view.events("stats"):
        if case.run.holds(event) and event.line < case.event.line:
            last = event
    return last if last is not None and last.field("pattern") == "sgl_prefill" else None


def _last_usage(case: Case) -> float | None:
    for event in reversed(case.view.events("stats")):
        if case.run.holds(event) and event.line < case.event.line:
            percent = number(event, "kv")
            return percent / 100 if percent is not None else number(event, "ftu", "tu")
    return None
