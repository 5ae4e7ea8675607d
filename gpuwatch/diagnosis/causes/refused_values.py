"""Values of launch flags that no version takes, alone or together with others: the engine will not start with them.

Source: ``vllm/config`` (``CacheConfig``, ``ParallelConfig``, ``SchedulerConfig``), ``srt/server_args.py`` of SGLang.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes.view import Cause, advise
from gpuwatch.diagnosis.explanation import Explanation
from gpuwatch.diagnosis.finding import Evidence
from gpuwatch.engines.flag_versions import FlagProblem, show

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from gpuwatch.diagnosis.causes.view import Run, View
    from gpuwatch.model import Fact

_SHARES = {"vllm": ("gpu-memory-utilization",), "sglang": ("mem-fraction-static",)}
_COUNTS = {
    "vllm": (
        "tensor-parallel-size",
        "pipeline-parallel-size",
        "data-parallel-size",
        "max-model-len",
        "max-num-seqs",
        "max-num-batched-tokens",
        "block-size",
    ),
    "sglang": ("tp-size", "pp-size", "dp-size", "context-length", "max-running-requests"),
}
_WORDS = frozenset({("max-model-len", "auto"), ("max-model-len", "-1")})
"""Values that newer versions of vLLM take for "what fits"."""
_USUAL = "0.9"
_FIGURES = re.compile(r"^[+-]?\d[\d.,]*[%\w]?$")


def problems(view: View, engine_of: str) -> Iterator[tuple[FlagProblem, Fact]]:
    """Yield values that are outside of what a flag can be; an engine that became ready has taken its own."""
    said: set[str] = set()
    for run in view.runs:
        engine = run.text("engine") or engine_of
        if engine not in _SHARES or run.fact("ready") is not None:
            continue
        given = _flags(run)
        found = [*(_share(name, given) for name in _SHARES[engine]), *(_count(name, given) for name in _COUNTS[engine])]
        for problem in found:
            if problem is not None and problem.flag not in said:
                said.add(problem.flag)
                yield problem, given[problem.flag]


def _flags(run: Run) -> dict[str, Fact]:
    facts = {fact.key: fact for fact in (*run.loose.values(), *run.facts)}
    return {key[5:]: fact for key, fact in facts.items() if key.startswith("flag.") and not _stands_for_one(fact)}


def _stands_for_one(fact: Fact) -> bool:
    """Whether a value is a variable, a placeholder or a word of the sentence in which a command stands."""
    return isinstance(fact.value, str) and _FIGURES.match(fact.value) is None


def _number(fact: Fact) -> float | None:
    if isinstance(fact.value, bool):
        return None
    try:
        value = float(fact.value)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _share(name: str, given: Mapping[str, Fact]) -> FlagProblem | None:
    """Return what is wrong with a share of the GPU's memory, which is above 0 and at most 1."""
    fact = given.get(name)
    if fact is None:
        return None
    shown, value = show(fact.value), _number(fact)
    if value is None:
        return FlagProblem(name, "unknown", shown, f"--{name} takes a number above 0 and up to 1", "", _USUAL)
    if 0 < value <= 1:
        return None
    # 90 stands for 90 %.
    percent = 50 <= value < 100
    text = f"--{name} is a share of the GPU's memory, above 0 and up to 1" + (", not percent" if percent else "")
    return FlagProblem(name, "unknown", shown, text, "", f"{value / 100:g}" if percent else _USUAL)


def _count(name: str, given: Mapping[str, Fact]) -> FlagProblem | None:
    fact = given.get(name)
    if fact is None or (name, shown := show(fact.value)) in _WORDS:
        return None
    value = _number(fact)
    if value is not None and value >= 1 and value == int(value):
        return None
    parallel = name.endswith(("parallel-size", "tp-size", "pp-size", "dp-size"))
    return FlagProblem(
        name,
        "unknown",
        shown,
        f"--{name} takes a whole number of 1 and above",
        "",
        "1" if parallel else "(leave it out)",
    )


def together(view: View) -> Iterator[Cause]:
    """Judge flags of vLLM that exclude each other, and ranks for which too few GPUs are visible."""
    logs = {given.path for given in view.incident.inputs if given.kind == "engine_log"}
    for run in view.runs:
        if run.fact("ready") is not None:
            continue
        found = [cause for cause in (_visible(run, logs), _prefill(run)) if cause is not None]
        if len(found) > 1:
            first, second = (cause.explanation for cause in found)
            both = Explanation(
                f"{first.cause} {second.cause}",
                min(first.confidence, second.confidence),
                (*first.evidence, *second.evidence),
                (*first.advice, *second.advice),
            )
            found = [Cause("flag_risky", both)]
        if found:
            yield found[0]
            return


def _prefill(run: Run) -> Cause | None:
    """Judge a batch that is smaller than the longest prompt where prompts may not be split."""
    flags = _flags(run)
    split, batch, longest = (
        flags.get(name) for name in ("enable-chunked-prefill", "max-num-batched-tokens", "max-model-len")
    )
    if run.sglang or split is None or split.value is not False or batch is None or longest is None:
        return None
    tokens, most = _number(batch), _number(longest)
    if tokens is None or most is None or not 0 < tokens < most:
        return None
    return Cause(
        "flag_risky",
        Explanation(
            f"Prompts may not be split (--no-enable-chunked-prefill), and a step takes {tokens:.0f} tokens where a "
            f"prompt may have {most:.0f}: vLLM refuses to start where it goes by that.",
            0.8,
            (
                Evidence("chunked prefill is off", split.source, split.line, split.key),
                Evidence(f"--max-num-batched-tokens {tokens:.0f}", batch.source, batch.line, batch.key, tokens),
                Evidence(f"--max-model-len {most:.0f}", longest.source, longest.line, longest.key, most),
            ),
            (
                advise("let prompts be split", "--no-enable-chunked-prefill", "true", "(leave it out)"),
                advise("or let a whole prompt into one step", "--max-num-batched-tokens", int(tokens), int(most)),
            ),
        ),
    )


def _visible(run: Run, logs: Container[str]) -> Cause | None:
    """Judge ranks that need more GPUs than are visible, where no other node can have the rest."""
    visible, flags = run.fact("env.CUDA_VISIBLE_DEVICES"), _flags(run)
    cards = [card for card in str(visible.value).split(",") if card.strip()] if visible is not None else []
    ranks = (run.number("tp") or 1) * (run.number("pp") or 1)
    elsewhere = "nnodes" in flags or run.text("flag.distributed-executor-backend") == "ray"
    if (
        visible is None
        or visible.source in logs
        or not cards
        or elsewhere
        or ranks <= len(cards)
        or "$" in str(visible.value)
    ):
        return None
    flag = "--tp-size" if run.sglang else "--tensor-parallel-size"
    fits = run.number("pp") in (None, 1)
    return Cause(
        "flag_risky",
        Explanation(
            f"{ranks:.0f} ranks need a GPU each, and CUDA_VISIBLE_DEVICES shows the engine {len(cards)}: without other "
            "nodes it does not start.",
            0.85,
            (
                Evidence(
                    f"CUDA_VISIBLE_DEVICES={visible.value}: {len(cards)} GPUs",
                    visible.source,
                    visible.line,
                    visible.key,
                ),
                *(
                    Evidence(f"{fact.key[5:]} {fact.value}", fact.source, fact.line, fact.key)
                    for name in ("tensor-parallel-size", "tp-size", "pipeline-parallel-size", "pp-size")
                    if (fact := flags.get(name)) is not None
                ),
            ),
            (
                advise("show it as many GPUs as it has ranks", "CUDA_VISIBLE_DEVICES", str(visible.value)),
                *([advise("or use what is visible", flag, int(ranks), len(cards))] if fits else []),
            ),
        ),
    )
