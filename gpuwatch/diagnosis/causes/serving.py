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
WORD_BYTES = (4, 8)
"""Bytes of an element of what samplers make of logits: 32 bits, or 64 for the places that sorting gives."""
FULL_BATCH = 0.9
"""From this share of the most requests on, a batch is taken for a full one."""
SHARED = 0.02
"""A tensor within this share of tokens x vocabulary is the logits of them."""
VOCABULARIES = (30_000, 300_000)
"""Tokens that the vocabularies of served models have."""
DECODE = "forward_decode"
"""SGLang's function for a batch of which each request generates one token."""
SAMPLED = frozenset({"compute_logprobs", "gather_logprobs"})
"""Functions of samplers that look at one row for each request; those for prompts have names of their own."""
_LIBRARIES = {
    "CUBLAS": "cuBLAS",
    "cublas": "cuBLAS",
    "Cuda failure": "NCCL",
    "Triton Error": "Triton",
    "DeepEP": "DeepEP",
    "cumem_allocator": "vLLM's allocator for sleep mode",
}


def library(case: Case) -> str:
    """Return what asked for the memory where it was not torch's allocator; empty where the line does not tell."""
    return next((name for word, name in _LIBRARIES.items() if word in case.event.text), "")


def outside(case: Case) -> Cause:
    """Explain memory that a library of CUDA asked for beside torch's allocator while the engine served."""
    who = library(case) or "CUDA"
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
    if case.phase.step == "multimodal":
        return encoder(case)
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
    rows, width = _rows(case, running)
    fits = int(running) if running else None
    more: list[Evidence] = [logged(point.event)] if point is not None else []
    # Near the most requests, the batch of the last line is the one that failed.
    scaled = rows or (running if seats and running > FULL_BATCH * seats else 0)
    if scaled and oom.free is not None and oom.requested:
        fits = max(1, int(scaled * min(1, oom.free / oom.requested)) // 8 * 8)
    what = "The sampler works on one row of logits for each request of the batch (vocabulary x 4 bytes)"
    if sampler and rows and oom.requested:
        words = oom.requested / width / rows
        what += "" if width == LOGIT_BYTES else f", and sorting them takes {width} bytes for each"
        what += f": {count(rows)} rows of {count(round(words))} are {case.asked}, which could not be had"
    else:
        what = what if sampler else "A decode step grows with the requests in the batch"
        what += f": {case.asked} could not be had"
    proposed = fits if fits and (seats is None or fits < seats) else max(1, int(seats) // 2) if seats else None
    why = "admit fewer requests at a time"
    if rows and fits == proposed:
        why += f": rows of about {count(fits or 0)} fit into the {size(oom.free or 0)} that were free"
    elif fits and fits == proposed and scaled:
        why += f": {count(running)} ran, and the part of them that fits into the {size(oom.free or 0)} that were free"
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


def _rows(case: Case, running: float) -> tuple[float | None, int]:
    """Return the rows of the sampler's tensor, and the bytes of an element of it.

    They are known by the model's vocabulary, else as those that run, where these explain the tensor.
    """
    asked = case.oom.requested
    if asked is None:
        return None, LOGIT_BYTES
    config = case.view.incident.config or {}
    words = config.get("vocab_size")
    if isinstance(words, int) and words > 0:
        same = [width for width in WORD_BYTES if abs(asked / (words * width) - running) <= SHARED * running]
        width = same[0] if same and running else LOGIT_BYTES
        return max(1, asked // (words * width)), width
    for width in WORD_BYTES:
        if running and VOCABULARIES[0] <= asked / width / running <= VOCABULARIES[1]:
            return running, width
    return None, LOGIT_BYTES


def encoder(case: Case) -> Cause:
    """Explain the encoder of a multimodal model that did not fit while the engine served."""
    run = case.run
    advice = moves.fewer_images(run, "accept fewer images or videos per prompt")
    advice += moves.capped_image(run, "or cap the size of one image")
    advice += moves.lower_fraction(run, case.oom.short, case.oom.total, "or leave more beside the pool")
    more = [ruled_out("the text of the prompt: the encoder works on images, before any of its chunks", case.event)]
    said, advised = _neighbours(case, more)
    return case.found(
        "prefill_activation_oom",
        f"The encoder of a multimodal request asked for {case.asked} on {case.where}: its images or videos are larger, "
        f"or more, than what the pool left room for.{said}",
        0.7 if said else 0.88,
        [*advice, *advised],
        *more,
    )


def _is_logits(case: Case, tokens: float | None) -> bool:
    """Whether a tensor has the size of the logits of a step, by the model's vocabulary."""
    words = (case.view.incident.config or {}).get("vocab_size")
    if not isinstance(words, int) or words <= 0 or not tokens or case.oom.requested is None:
        return False
    return abs(case.oom.requested / (tokens * words * LOGIT_BYTES) - 1) <= SHARED


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
    traced = case.phase.step == "logits"
    logits = traced or (not case.phase.steps and _is_logits(case, tokens))
    share = oom.free / oom.requested if logits and oom.free is not None and oom.requested else 0.5
    chunks = moves.smaller_chunk(run, tokens, share)
    large = (oom.requested or 0) >= LARGE_TENSOR
    if logits:
        why = "the traceback is in the logits" if traced else "it has the size of the logits of that step"
        cause = (
            f"One tensor of {case.asked} did not fit on {case.where} beside the pool, and {why}. Those of a whole "
            f"prompt have that size (tokens x vocabulary x 4 bytes): {asking} make them, and the start-up profile does "
            "not count them."
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
        cause += f" Where no frame tells, logits of a whole prompt look the same: {asking} make them."
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
