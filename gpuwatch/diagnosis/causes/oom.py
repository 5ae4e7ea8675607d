"""PyTorch's out-of-memory line taken apart, and the step of the engine in which it came.

The same text stands for half a dozen causes with opposite remedies. What separates them is the step: the frames of the
traceback, or what the engine had printed before.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes.view import Cause, group, sizes
from gpuwatch.diagnosis.explanation import Explanation, logged, size
from gpuwatch.diagnosis.finding import Evidence
from gpuwatch.engines.logs import match_with
from gpuwatch.engines.sizes import bytes_of
from gpuwatch.engines.stack_log import FILES, STEP_OF, STEPS
from gpuwatch.engines.torch_log import PATTERNS as TORCH
from gpuwatch.units import GIB

if TYPE_CHECKING:
    from gpuwatch.diagnosis.causes.view import Run, View
    from gpuwatch.diagnosis.finding import Advice
    from gpuwatch.model import Fact, LogEvent

CONTEXT = 3 * GIB // 2
"""A process holds about this much beside torch's allocator: CUDA context, NCCL and library workspaces."""
FOREIGN_SHARE = 0.1
"""From this share of the card on, memory of others counts as theirs and not as noise of contexts and displays."""
NOTICED = GIB // 2
"""Less than this is what contexts and displays take anyway."""
FRAGMENTED = GIB
"""Less that is reserved and not handed out is the normal remainder of torch's blocks, whatever its hint says."""
_PROCESS = re.compile(r"(?P<own>this process)? has (?P<size>[\d.]+ \w+) memory in use")


@dataclass(frozen=True, slots=True)
class Oom:
    """The figures of one line, in bytes; None where the line, or its torch version, does not have them."""

    event: LogEvent
    gpu: str
    requested: int | None
    free: int | None
    total: int | None
    allocated: int | None
    spare: int | None
    others: int | None

    @property
    def fragmented(self) -> bool:
        """Whether what was asked for was there, in pieces: more than the request is reserved and not handed out."""
        return (
            self.spare is not None
            and self.requested is not None
            and self.spare > self.requested
            and self.spare > FRAGMENTED
        )

    @property
    def shared(self) -> bool:
        """Whether other processes hold a good part of the card."""
        return (
            self.others is not None
            and self.total is not None
            and self.others > max(FOREIGN_SHARE * self.total, 2 * GIB)
        )

    @property
    def decided_by_others(self) -> bool:
        """Whether what other processes hold, even a small part of the card, is more than what was missing."""
        return self.others is not None and self.others >= NOTICED and self.others >= self.short > 0

    @property
    def short(self) -> int:
        """How many bytes were missing; 0 where the line does not tell."""
        if self.requested is None or self.free is None:
            return 0
        return max(0, self.requested - self.free)


UNSHOWN = "unshown"
"""The step of what came after the KV pool was made, where no line tells more."""
NAMED = {"load_oom": "load", "graph_capture_failed": "graphs"}
"""Events that name their step themselves."""
RETOLD = 50
"""Lines within which an engine tells again, under a name of its own, what torch had said."""
_OOM_PATTERN = next(pattern for pattern in TORCH if pattern.event == "torch_oom")


def retold(view: View, run: Run, event: LogEvent) -> LogEvent | None:
    """Return the line in which the engine names the step of an error that torch had told before it."""
    for other in view.events(*NAMED):
        near = run.holds(other) and 0 < other.line - event.line <= RETOLD
        asked = _figured(other).field("req")
        if near and (not asked or asked == event.field("req")) and _is_memory(other):
            return other
    return None


def _is_memory(event: LogEvent) -> bool:
    return event.event == "load_oom" or "out of memory" in event.text


def _figured(event: LogEvent) -> LogEvent:
    """Return an event with the figures of torch's message, where it quotes that message."""
    if event.event not in NAMED or "Tried to allocate" not in event.text:
        return event
    found = match_with(_OOM_PATTERN, event.text)
    return event if found is None else replace(event, fields=(*event.fields, *found.groups))


def read_oom(event: LogEvent) -> Oom:
    """Take an out-of-memory event apart (see `engines.torch_log`)."""
    event = _figured(event)
    allocated = sizes(event, "alloc", "alloc1")
    reserved = sizes(event, "res1")
    spare = sizes(event, "unalloc")
    if spare is None and reserved is not None and allocated is not None:
        spare = reserved - allocated
    total, free = sizes(event, "tot", "tot1"), sizes(event, "free", "free1")
    return Oom(
        event,
        group(event, "gpu", "gpu1"),
        sizes(event, "req"),
        free,
        total,
        allocated,
        spare,
        _others(event.field("procs"), total, free, None if allocated is None else allocated + (spare or 0)),
    )


def _others(processes: str, total: int | None, free: int | None, own: int | None) -> int | None:
    """Return what other processes hold. A container sees its own process under the host's id, as one among others."""
    held = [(found["own"] is not None, bytes_of(found["size"]) or 0) for found in _PROCESS.finditer(processes)]
    if any(mine for mine, _ in held):
        return sum(amount for mine, amount in held if not mine)
    if own is None:
        return None
    if held:
        amounts = [amount for _, amount in held]
        mine = min(amounts, key=lambda amount: abs(amount - own))
        return sum(amounts) - mine
    if total is None or free is None:
        return None
    return max(0, total - free - own - CONTEXT)


def figures(oom: Oom) -> list[Evidence]:
    """Return the line itself, and what it says about fragmentation."""
    found = [logged(oom.event)]
    if not oom.fragmented and oom.spare is not None and oom.requested is not None:
        text = (
            f"Ruled out: fragmentation: {size(oom.spare)} are reserved and unallocated for a request of "
            f"{size(oom.requested)}; torch prints its hint in every such message"
        )
        if oom.spare > oom.requested:
            text = (
                f"Not ruled out: fragmentation: {size(oom.spare)} are reserved and unallocated, more than the "
                f"{size(oom.requested)} that were asked for; up to 1 GiB is the usual remainder of torch's blocks"
            )
        found.append(_of(oom, text, oom.spare))
    if oom.others is not None and not oom.shared:
        decides = oom.decided_by_others
        text = f"{'Not ruled' if decides else 'Ruled'} out: other processes: they hold {size(oom.others)}"
        text += f", more than the {size(oom.short)} that were missing" if decides else ""
        found.append(_of(oom, text, oom.others))
    return found


def _of(oom: Oom, text: str, value: float) -> Evidence:
    return Evidence(text, oom.event.source, oom.event.line, oom.event.event, value, "bytes")


@dataclass(frozen=True, slots=True)
class Phase:
    """The step in which memory ran out: one of `engines.stack_log.STEPS`, ``unshown`` or ``unknown``.

    `steps` are all steps that the traceback passes through. `sure` is false where only the order of lines tells.
    """

    step: str
    steps: frozenset[str]
    evidence: tuple[Evidence, ...]
    sure: bool


def phase_of(view: View, run: Run, event: LogEvent) -> Phase:
    """Return the step in which an error came: from its traceback, else from what the engine had printed before."""
    frames = {}
    for frame in view.frames(event):
        step = FILES.get(frame.field("file")) or STEP_OF.get(frame.field("step"), "")
        if step:
            frames[step] = frame
        inner = STEP_OF.get(frame.field("step"))
        if inner:
            frames.setdefault(inner, frame)
    steps = frozenset(frames)
    if (begun := _multimodal_profile(view, run, event, steps)) is not None:
        return Phase("multimodal", steps | {"profile"}, (logged(begun),), sure=True)
    for step in STEPS:
        if step in frames:
            return Phase(step, steps, (logged(frames[step]),), sure=True)
    if event.field("graphs"):
        return Phase("graphs", steps, (), sure=True)
    if event.field("serving"):
        return Phase("serve", steps, (), sure=True)
    return replace(_by_order(view, run, event), steps=steps)


def _multimodal_profile(view: View, run: Run, event: LogEvent, steps: frozenset[str]) -> LogEvent | None:
    """Return the line that begins V0's profile run of a multimodal model, where the error came in that run."""
    begun = [each for each in view.events("mm_profile_begin") if run.holds(each) and each.line < event.line]
    ended = run.fact("kv.blocks", event.line) or run.fact("ready", event.line)
    profiling = not steps or "profile" in steps
    return begun[-1] if begun and ended is None and profiling else None


def _by_order(view: View, run: Run, event: LogEvent) -> Phase:
    """Return the step from the order of lines in the run, the latest step first."""
    here = event.line
    begun = [each for each in view.events("graph_capture_begin") if run.holds(each) and each.line < here]
    served = [each for each in view.events("stats") if run.holds(each) and each.line < here]
    finished = run.fact("graph.seconds", here)

    def before(*keys: str) -> Fact | None:
        found = (run.fact(key, here) for key in keys)
        return next((fact for fact in found if fact is not None and fact.source == event.source), None)

    if (ready := before("ready")) is not None:
        return _ordered("serve", ready, "the server had said that it takes requests", sure=True)
    if served:
        return Phase("serve", frozenset(), (logged(served[-1]),), sure=True)
    if begun and (finished is None or (finished.line or 0) < begun[-1].line):
        return Phase("graphs", frozenset(), (logged(begun[-1]),), sure=True)
    if finished is None and not run.yes("enforce_eager"):
        pool = before("kv.tokens", "kv.blocks", "kv.bytes")
        if pool is not None:
            # A carrier or a cut may have lost the lines that tell a capture from a warm-up, and both from a request.
            return _ordered(UNSHOWN, pool, "the KV pool had been sized; no line tells what came after that")
    return _by_weights(before("weights.bytes"), before("load.begun", "gpu.free_at_start_bytes"), finished)


def _by_weights(loaded: Fact | None, begun: Fact | None, finished: Fact | None) -> Phase:
    """Return the step from how far the loading had come."""
    if loaded is not None and finished is None:
        return _ordered(
            "profile", loaded, "the weights were loaded and the KV pool not yet sized: this is the profile run"
        )
    if loaded is None and begun is not None:
        return _ordered("load", begun, "the engine had begun to load the weights, and not said that it ended")
    # Private pools exist while graphs are captured and while they are replayed: they do not tell the two apart.
    return Phase("unknown", frozenset(), (), sure=False)


def _ordered(step: str, fact: Fact, text: str, *, sure: bool = False) -> Phase:
    return Phase(step, frozenset(), (Evidence(text, fact.source, fact.line, fact.key),), sure)


@dataclass(frozen=True, slots=True)
class Case:
    """One out-of-memory error with everything that decides about it."""

    view: View
    run: Run
    event: LogEvent
    oom: Oom
    phase: Phase

    @property
    def logits(self) -> frozenset[str]:
        """The functions that make logits or look at them."""
        return frozenset(STEPS["logits"])

    @property
    def evidence(self) -> list[Evidence]:
        """The line, what it rules out, and what tells the step."""
        return [*figures(self.oom), *self.phase.evidence]

    @property
    def beside(self) -> list[Evidence]:
        """What says that others hold a good part of the card, for a cause that is not about them."""
        held = self.oom.others
        if held is None or not self.oom.shared:
            return []
        return [_of(self.oom, f"Not ruled out: other processes: they hold {size(held)} of the card", held)]

    @property
    def where(self) -> str:
        """The card, for a sentence."""
        return f"GPU {self.oom.gpu}" if self.oom.gpu else "the GPU"

    @property
    def asked(self) -> str:
        """What was asked for and what was free, for a sentence."""
        if self.oom.requested is None:
            return "more than was free"
        free = f" ({size(self.oom.free)} free)" if self.oom.free is not None else ""
        return f"{size(self.oom.requested)}{free}"

    def found(self, id_: str, cause: str, confidence: float, advice: list[Advice], *more: Evidence) -> Cause:
        """Return the cause, with the evidence that all of them share."""
        confidence = confidence if self.phase.sure else min(confidence, 0.65)
        return Cause(id_, Explanation(cause, confidence, (*self.evidence, *more), tuple(advice)), self.event.time)
