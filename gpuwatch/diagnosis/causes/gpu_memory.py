"""GPU memory that ran out: in which step, who wanted it, and what to change. One function per cause."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import moves, neighbours, weights
from gpuwatch.diagnosis.causes.oom import NAMED, RETOLD, UNSHOWN, Case, Phase, phase_of, read_oom, retold
from gpuwatch.diagnosis.causes.serving import activation, library
from gpuwatch.diagnosis.causes.uncounted import lora, pooled, uncounted_adapters, uncounted_draft
from gpuwatch.diagnosis.causes.view import Cause, advise, from_fact, group, number, ruled_out
from gpuwatch.diagnosis.explanation import Explanation, count, logged, size
from gpuwatch.diagnosis.finding import NotEnough
from gpuwatch.engines.flag_versions import available
from gpuwatch.units import GIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuwatch.diagnosis.causes.view import Run, View
    from gpuwatch.diagnosis.finding import Advice
    from gpuwatch.model import LogEvent

MOST_OF_CARD = 0.5
"""Where others hold more of the card than this, they are why a request fails, and not how the rest is cut up."""
UNPOOLED = ("load", "profile")
"""Steps before there is a KV pool: the engine's share of the card, which sizes it, changes nothing in them."""
V0_PROFILE = "determine_num_available_blocks"
"""V0's method of the profile run; V1 calls it otherwise."""
GRAPH_FLAGS = ("cuda-graph-max-bs", "cuda-graph-max-bs-decode")
"""SGLang's flag for the largest batch that is captured, and its name from 0.5.14 on."""
V0_CAPTURE = re.compile(
    r"Capturing cudagraphs for decoding|Capturing the model for CUDA graphs|/vllm/worker/(?:model_runner|worker)\.py"
)
"""What only vLLM V0 writes when it captures graphs: its line, or frames of its workers."""
SEATS = 256
"""The default of --max-num-seqs before V1; the sampler's warm-up grows in proportion to it."""


def out_of_memory(view: View) -> Iterator[Cause | NotEnough]:
    """Judge PyTorch's and CUDA's out-of-memory errors: one cause for each run and step."""
    done = set()
    for event in view.events("torch_oom", "cuda_oom_other", "load_oom", "graph_capture_failed"):
        run = view.run_of(event)
        if (event.event == "graph_capture_failed" and "out of memory" not in event.text) or (
            event.field("sleep") and _told_by_torch(view, run, event)
        ):
            continue
        oom = read_oom(event)
        step = NAMED.get(event.event)
        phase = Phase(step, frozenset(), (), sure=True) if step else phase_of(view, run, event)
        if phase.step == "unknown" and (again := retold(view, run, event)) is not None:
            phase = Phase(NAMED[again.event], frozenset(), (logged(again),), sure=True)
        key = (run.source, run.start, phase.step, oom.fragmented, oom.shared)
        if key in done:
            continue
        done.add(key)
        case = Case(view, run, event, oom, phase)
        if oom.fragmented and oom.shared and (oom.others or 0) > MOST_OF_CARD * (oom.total or 0):
            yield neighbours.crowded(case)
        elif oom.fragmented:
            yield fragmentation(case)
        elif oom.shared and phase.step not in ("serve", "logits", "lora", "sampler", "multimodal"):
            yield foreign_memory(case)
        elif oom.shared and phase.step == "serve" and (share := neighbours.within_share(case)) is not None:
            yield neighbours.squeezed(case, share)
        else:
            for said in _by_step(case):
                yield _beside(case, said) if isinstance(said, Cause) else said


def _told_by_torch(view: View, run: Run, event: LogEvent) -> bool:
    """Whether torch tells with figures what sleep mode's allocator, which it asked, had said in one word before it."""
    return any(run.holds(each) and 0 < each.line - event.line <= RETOLD for each in view.events("torch_oom"))


def _beside(case: Case, cause: Cause) -> Cause:
    """Return a cause with what says that other processes hold a good part of the card, where they do."""
    explanation = cause.explanation
    return replace(cause, explanation=replace(explanation, evidence=(*explanation.evidence, *case.beside)))


def _by_step(case: Case) -> Iterator[Cause | NotEnough]:
    step, steps = case.phase.step, case.phase.steps
    if step in ("graphs", "pool", "warmup", "draft", "serve", UNSHOWN) and (draft := uncounted_draft(case)) is not None:
        yield draft
    elif step in ("graphs", "pool", "warmup", UNSHOWN) and (adapters := uncounted_adapters(case)) is not None:
        yield adapters
    elif step == "multimodal" and "profile" not in steps:
        yield activation(case)
    elif step == "logits" and "profile" in steps:
        yield profile(case)
    else:
        judge = _JUDGES.get(step)
        if judge is not None:
            yield judge(case)
        else:
            yield unnamed(case)
            yield NotEnough(
                "prefill_activation_oom",
                "the traceback above the error, or the engine's log from its start: profile_run, capture_model, "
                "execute_model or _dummy_sampler_run tell the causes of one out-of-memory text apart",
            )


def fragmentation(case: Case) -> Cause:
    """Explain a request that failed beside a larger amount that is reserved and not handed out."""
    oom = case.oom
    assert oom.spare is not None
    assert oom.requested is not None
    hint = bool(case.event.field("hint"))
    slept = [logged(event) for event in case.view.events("sleep")[-2:]]
    variable = "PYTORCH_ALLOC_CONF" if hint else "PYTORCH_CUDA_ALLOC_CONF"
    advice = [
        advise(
            "let the allocator grow and shrink its segments, in the environment of the process that failed"
            + (" (off around weight updates over CUDA IPC)" if slept else ""),
            variable,
            None,
            "expandable_segments:True",
        )
    ]
    tenants = neighbours.told(case.view, case.event, oom.gpu) if oom.shared else []
    held = f" Other processes hold {size(oom.others or 0)}{neighbours.naming(tenants)}." if oom.shared else ""
    return case.found(
        "allocator_fragmentation",
        f"The allocator is fragmented: {size(oom.spare)} are reserved and unused on {case.where}, in pieces too small "
        f"for {size(oom.requested)}.{held}",
        0.7 if oom.shared else 0.9,
        advice,
        *slept,
        *case.beside,
    )


def foreign_memory(case: Case) -> Cause:
    """Explain a start that failed beside other processes that hold the card."""
    held = case.oom.others or 0
    tenants = neighbours.told(case.view, case.event, case.oom.gpu)
    advice = [
        advise(
            "stop the process that holds the memory: nvidia-smi lists it; VLLM:: and sglang:: processes of an "
            "earlier start count"
        ),
        *_share_beside(case, held),
    ]
    return case.found(
        "startup_gpu_shared",
        f"Other processes hold {size(held)} of {case.where}{neighbours.naming(tenants)}; {case.asked} could not be "
        "had.",
        0.85,
        advice,
        *neighbours.evidence(tenants),
    )


def _share_beside(case: Case, held: float) -> list[Advice]:
    """Return the advice to leave what others hold out of the engine's share, where that can help.

    Before there is a pool the share changes nothing, and none may be less than what the engine has beside its pool.
    """
    run, oom = case.run, case.oom
    own = (oom.total or 0) - (oom.free or 0) - held
    least = (run.number("weights.bytes") or 0) if pooled(case) else own
    why = "or leave its memory out of the engine's share"
    advice = [] if case.phase.step in UNPOOLED else moves.lower_fraction(run, held, oom.total, why)
    shares = [float(each.proposed) for each in advice if each.proposed and each.flag == moves.fraction_flag(run)]
    if advice and not any(share * (oom.total or 0) < least for share in shares):
        return advice
    return [advise("or give this engine another card: no share of this one leaves room for what it needs there")]


def sampler(case: Case) -> Cause:
    """Explain the warm-up of the sampler, which makes logits for the largest batch."""
    run = case.run
    asked = number(case.event, "n") or run.number("max_num_seqs")
    seats = f"{count(asked)} requests" if asked else "the largest batch (1,024 requests by default)"
    proposed = SEATS if asked is None or asked > SEATS else max(16, int(asked) // 4)
    advice = moves.fewer_seats(run, proposed, "warm up with fewer requests; logits shrink in proportion", asked)
    if "profile" not in case.phase.steps:
        advice += moves.lower_fraction(run, case.oom.short, case.oom.total, "or leave more beside the KV pool")
    more = []
    if "profile" in case.phase.steps:
        more.append(ruled_out("the size of the KV pool: it does not exist yet while the engine profiles", case.event))
    return case.found(
        "sampler_warmup_oom",
        f"The sampler's warm-up makes logits for {seats} at once: {case.asked} did not fit.",
        0.93,
        advice,
        *more,
    )


def multimodal(case: Case) -> Cause:
    """Explain the encoder of a multimodal model, profiled with the largest inputs that are accepted."""
    run = case.run
    length, seats = run.number("max_model_len"), run.number("max_num_seqs")
    advice = [
        *moves.fewer_images(
            run, "accept fewer images or videos per prompt; the profile holds that many of the largest size"
        ),
        *moves.fewer_seats(run, min(32, int(seats or 256) // 4 or 1), "or profile fewer sequences", seats),
        *moves.shorter(
            run, min(length or 4096, 4096), "or a shorter context: the profile is filled with images", length
        ),
        *moves.capped_image(run, "or cap the size of one image"),
    ]
    return case.found(
        "mm_profiling_memory",
        f"The profile run feeds the vision encoder as many dummy images as the longest prompts can hold: {case.asked} "
        "did not fit.",
        0.9,
        advice,
        ruled_out(
            "the memory fraction: no KV cache exists yet while the engine profiles, so lowering it frees nothing"
        ),
    )


def graphs(case: Case) -> Cause:
    """Explain memory that ran out while CUDA graphs were captured."""
    run = case.run
    fraction = run.number("memory_fraction")
    more = from_fact(run, "memory_fraction", "the engine may take {} of the card, graphs come on top of the pool")
    more += from_fact(run, "graph.estimated_bytes", "estimated for graphs: {}", "bytes")
    left = ""
    total = case.oom.total or run.number("gpu.total_bytes")
    if fraction is not None and total:
        left = f" {fraction:g} of {size(total)} leaves {size((1 - fraction) * total)} for graphs, NCCL and contexts."
    advice = moves.lower_fraction(run, max(case.oom.short, GIB / 2), case.oom.total, "leave more beside the pool")
    advice += _fewer_graphs(case)
    advice += [
        advise(
            "or none, at the price of slower decoding",
            "--disable-cuda-graph" if run.sglang else "--enforce-eager",
            None,
            "(set)",
        ),
    ]
    return case.found(
        "cudagraph_memory",
        f"Memory ran out on {case.where} while CUDA graphs were captured, after the pool was there: "
        f"{case.asked}.{left}",
        0.92,
        advice,
        *more,
        ruled_out("a prefill chunk: no request had been taken", case.event),
    )


def _looks_first(case: Case) -> bool:
    """Whether the lines of a run without a version are those of vLLM V0: its capture, or frames of its workers."""
    if case.run.version is not None:
        return False
    begun = [each for each in case.view.events("graph_capture_begin") if case.run.holds(each)]
    return any(V0_CAPTURE.search(each.text) for each in (*begun, *case.view.frames(case.event)))


def _fewer_graphs(case: Case) -> list[Advice]:
    """Return the advice to capture graphs of fewer batch sizes, by what the engine has for it."""
    run = case.run
    if run.sglang:
        flag = next((flag for flag in GRAPH_FLAGS if run.number(f"flag.{flag}")), GRAPH_FLAGS[0])
        most = run.number(f"flag.{flag}")
        proposed = max(1, int(most) // 4) if most and most > 1 else None
        return [advise("or capture fewer batch sizes", f"--{flag}", most and int(most), proposed)]
    if moves.first_engine(run) or _looks_first(case):
        # V0 captures the batch sizes up to the most requests; it has no flag for the sizes.
        seats = run.number("max_num_seqs")
        why = "or capture fewer batch sizes: V0 has graphs up to this many requests"
        return moves.fewer_seats(run, max(1, int(seats or SEATS) // 4), why, seats)
    if available("vllm", run.version, "cudagraph-capture-sizes"):
        return [advise("or capture fewer batch sizes", "--cudagraph-capture-sizes", None, "1 2 4 8 16 32")]
    # Every version of V1 takes the sizes as a part of this one.
    sizes = '{"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32]}'
    return [advise("or capture fewer batch sizes", "--compilation-config", None, sizes)]


def profile(case: Case) -> Cause:
    """Explain the profile run: one dummy step of the largest size did not fit beside the weights."""
    run = case.run
    budget = run.number("max_num_batched_tokens")
    tokens = f"{count(budget)} tokens" if budget else "the largest size"
    return case.found(
        "prefill_activation_oom",
        f"A step of {tokens} does not fit beside the weights on {case.where}: the profile run asked for {case.asked}.",
        0.8,
        [
            *([] if V0_PROFILE in case.event.text else moves.smaller_chunk(run)),
            *moves.fewer_seats(run, _some_seats(run), "or fewer sequences in a batch"),
            moves.more_cards(run, "or spread the weights over more GPUs"),
        ],
        *from_fact(run, "weights.bytes", "weights on the GPU: {}", "bytes"),
        ruled_out(
            "the memory fraction: no KV cache exists yet while the engine profiles, so lowering it frees nothing"
        ),
    )


def _some_seats(run: Run) -> int:
    """Return fewer requests in a batch than now: the default of V0, or a quarter of what is no more than that."""
    seats = run.number("max_num_seqs")
    return max(1, int(seats) // 4) if seats is not None and seats <= SEATS else SEATS


def unnamed(case: Case) -> Cause:
    """Name an error whose step the files do not tell."""
    why, alike = "in a step that the files do not show", " Weights, profile, graphs and a long prompt look alike here."
    advice = [advise("find the step first: the traceback names profile_run, capture_model, execute_model or another")]
    if case.phase.step == UNSHOWN:
        why = "after the KV pool was made, in a step that the files do not show"
        alike = " CUDA graphs, a warm-up and a long prompt look alike here."
        # More room beside the pool is the way out of each of them.
        advice += moves.lower_fraction(case.run, case.oom.short, case.oom.total, "or leave more beside the pool")
    if case.phase.step == "pool":
        why, alike = "while the KV pool was made", ""
        less = "leave more beside the pool"
        advice = moves.smaller_pool(case.run, _room(case), "the pool has a fixed size that does not fit") or (
            moves.lower_fraction(case.run, case.oom.short, case.oom.total, less)
        )
    if who := library(case):
        why += f", asked for by {who} beside torch's allocator"
        advice += moves.lower_fraction(case.run, 0, None, "leave more beside the pool, if it was there by then")
    return case.found(
        "gpu_out_of_memory",
        f"Memory ran out on {case.where} {why}: {case.asked}.{alike}",
        0.5,
        advice,
    )


def _room(case: Case) -> float | None:
    """Return what is there for the pool, a part of which was allocated when the rest failed; None if not known."""
    weights, oom = case.run.number("weights.bytes"), case.oom
    if weights is None or oom.allocated is None or oom.free is None:
        return None
    return oom.allocated - weights + oom.free


def warmed_up(view: View) -> Iterator[Cause]:
    """Judge the line that vLLM prints when the warm-up of the sampler runs out of memory."""
    for event in view.events("warmup_oom")[:1]:
        run = view.run_of(event)
        seats = number(event, "n")
        proposed = SEATS if seats is None or seats > SEATS else max(16, int(seats) // 4)
        what = group(event, "what") or "sampler"
        yield Cause(
            "sampler_warmup_oom",
            Explanation(
                f"The {what}'s warm-up makes logits for {count(seats or 0)} requests at once, after the KV pool took "
                "the rest of the card.",
                0.95,
                (logged(event), *from_fact(run, "memory_fraction", "the engine may take {} of the card")),
                (
                    *moves.fewer_seats(
                        run, proposed, "warm up with fewer requests; logits shrink in proportion", seats
                    ),
                    *moves.lower_fraction(run, 0, None, "or leave more beside the KV pool"),
                ),
            ),
            event.time,
        )


_JUDGES: dict[str, Callable[[Case], Cause]] = {
    "sampler": sampler,
    "multimodal": multimodal,
    "lora": lora,
    "graphs": graphs,
    "logits": activation,
    "profile": profile,
    "load": weights.no_room,
    "serve": activation,
    "warmup": graphs,
    "pool": unnamed,
    "draft": activation,
}
