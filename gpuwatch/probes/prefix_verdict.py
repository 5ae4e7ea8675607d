"""What the cases of the prefix probe mean: whether the cache works, where it ends, what to change in the requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.finding import Evidence, Finding
from gpuwatch.probes.prefix_advice import PRESSURE, advice, after
from gpuwatch.probes.prefix_own import parted
from gpuwatch.probes.result import Result
from gpuwatch.units import percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.probes.prefix_own import Parting
    from gpuwatch.probes.result import Figure, Value
    from gpuwatch.probes.run import Run

TOLERANCE = 0.1
"""Part of the prompt by which text prompts may be off: their shared tokens are estimates."""
FAST = 0.5
"""A first token in less than this part of the time speaks for a hit, where hits cannot be counted."""
SOONER = 0.8
"""A first token in less than this part of the time is said to come sooner."""
OWN = "second of your prompts"


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that was tried.

    Attributes:
        name: What it is.
        tokens: Prompt tokens, of all requests of the case.
        shared: Leading tokens that were sent before.
        best: Tokens that a cache of whole blocks finds; None: not foreseeable.
        cached: Tokens that were found; None: not known, see `detail`.
        ttft: Seconds to the first token.
        detail: Why something is not known.
        refused: No answer came.
        kind: What came instead: refused, timeout, failed and so on (`Reply.kind`).
        tried: False where it was left out; `detail` says why.
    """

    name: str
    tokens: int | None = None
    shared: int | None = None
    best: int | None = None
    cached: int | None = None
    ttft: float | None = None
    detail: str = ""
    refused: bool = False
    tried: bool = True
    kind: str = ""

    @property
    def ratio(self) -> float | None:
        """The part of the tokens that was found."""
        return self.cached / self.tokens if self.cached is not None and self.tokens else None


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything the probe knows. `block` and `enabled` as the page says, `step` and `smallest` as measured, in tokens.

    `step`: hits come in multiples of it; None where they do not, or where it was not measured. `smallest`: the shortest
    common beginning that was found; `once`: the prompt did not hold two of them. `pool`: usable tokens of the KV pool.
    `exact`: whether shared tokens are exact. `parting`: where two prompts of the user's own part.
    """

    cases: tuple[Case, ...]
    block: int | None = None
    step: int | None = None
    smallest: int | None = None
    once: bool = False
    pool: int | None = None
    ranks: int = 1
    enabled: bool | None = None
    concurrency: int = 1
    exact: bool = True
    parting: Parting | None = None

    def case(self, name: str) -> Case | None:
        """Return the case of that name, if it was tried."""
        return next((case for case in self.cases if case.name == name and case.tried), None)

    def cached(self, name: str) -> int | None:
        """Return the tokens found in that case, or None."""
        case = self.case(name)
        return case.cached if case is not None else None

    def ratio(self, name: str) -> float | None:
        """Return the part found in that case, or None."""
        case = self.case(name)
        return case.ratio if case is not None else None

    @property
    def size(self) -> int | None:
        """Tokens in which hits come, as measured, else as the page says."""
        return self.step or (self.smallest if self.once else self.block)

    @property
    def repeats(self) -> tuple[Case, ...]:
        """The cases in which the very same prompt was sent again."""
        return tuple(case for case in self.cases if case.name.startswith("same prompt"))


def conclude(run: Run, measured: Measured, stopped: str) -> Result:
    """Say what was found. `stopped`: why the probe ended early, empty where it did not."""
    answer = verdict(measured)
    facts: tuple[Figure, ...] = (
        ("verdict", answer, ""),
        ("same_prompt", measured.ratio("same prompt"), "ratio"),
        ("random_tail", measured.ratio("random tail"), "ratio"),
        ("random_head", measured.ratio("random head"), "ratio"),
        ("block_size_page", measured.block, "tokens"),
        ("block_size_measured", measured.step, "tokens"),
        ("shortest_hit", measured.smallest, "tokens"),
        ("pool", measured.pool, "tokens"),
        ("replicas", measured.ranks, ""),
        ("prefix_caching", measured.enabled, ""),
    )
    return Result(
        "prefix",
        run.server,
        run.started,
        complete=not stopped,
        stopped_because=stopped,
        facts=facts,
        rows=tuple(_row(case, measured) for case in measured.cases),
        findings=_finding(run, measured) if answer == "never hits" else (),
        conclusion=(*_conclusion(measured, answer), *run.rate_limited()),
        advice=tuple(advice(run, measured, answer)),
    )


def verdict(measured: Measured) -> str:
    """Return `works`, `partly`, `by replica`, `never hits` or `not known`.

    `by replica`: the same prompt is found at some repetitions only, because each replica has a cache of its own.
    """
    known = [case for case in measured.repeats if case.cached is not None]
    if not known:
        return "never hits" if measured.enabled is False else "not known"
    if not any(case.cached for case in known):
        return "never hits"
    if not known[0].cached:
        return "by replica"
    return "works" if _outcome(known[0], measured) in ("as expected", "more", "measured") else "partly"


def _outcome(case: Case, measured: Measured) -> str:
    if not case.tried:
        return "not tried"
    if case.refused:
        return case.kind or "refused"
    if case.cached is None:
        return "unknown"
    if case.best is None:
        return "measured"
    slack = 0 if measured.exact else TOLERANCE * (case.tokens or 0) + (measured.size or 0)
    if abs(case.cached - case.best) <= slack:
        return "as expected"
    return "more" if case.cached > case.best else "less"


def _row(case: Case, measured: Measured) -> dict[str, Value]:
    return {
        "case": case.name,
        "sent_tokens": case.tokens,
        "shared_tokens": case.shared,
        "expected_tokens": case.best,
        "cached_tokens": case.cached,
        "cached_ratio": case.ratio,
        "ttft_s": case.ttft,
        "outcome": _outcome(case, measured),
        "detail": case.detail,
    }


# Sentences


def _conclusion(measured: Measured, answer: str) -> Iterator[str]:
    same = measured.repeats[0] if measured.repeats else None
    if same is None or answer == "not known":
        yield _not_known(measured)
        return
    if answer == "never hits":
        yield f"Prefix caching never hits: {_why_never(measured)[0]}"
        return
    if answer == "by replica":
        yield _by_replica(measured, known=[case for case in measured.repeats if case.cached is not None])
        return
    works = "Prefix caching works" if answer == "works" else "Prefix caching finds less than it could"
    yield f"{works}: the same prompt finds {_of(same)}{_faster(measured)}."
    yield from _ends(measured)
    yield from _steps(measured)
    yield from _apart(measured)
    yield from _together(measured)
    yield from _own(measured)
    yield from _pressure(measured)
    less = [case.name for case in measured.cases if _outcome(case, measured) == "less" and case.name != same.name]
    if less:
        yield f"Less than whole blocks would give: {', '.join(less)}."


def _by_replica(measured: Measured, known: list[Case]) -> str:
    hits = sum(1 for case in known if case.cached)
    first = f"The same prompt is found at {hits} of {len(known)} repetitions only, all of them sent at once: "
    if measured.ranks > 1:
        return f"{first}each of {measured.ranks} replicas has a cache of its own, and repetitions go to another one."
    return (
        f"{first}so it is with several replicas behind this address, each with a cache of its own, when the router "
        "does not send what begins alike to the same one."
    )


def _of(case: Case) -> str:
    if case.cached is None or case.tokens is None:
        return "an unknown part"
    return f"{case.cached:,} of {case.tokens:,} tokens ({percent(case.ratio)})"


def _faster(measured: Measured) -> str:
    first, same = measured.case("first time"), measured.case("same prompt")
    if first is None or same is None or not first.ttft or same.ttft is None or same.ttft > SOONER * first.ttft:
        return ""
    return f", and its first token comes after {same.ttft:.3f} s instead of {first.ttft:.3f} s"


def _ends(measured: Measured) -> Iterator[str]:
    head, tail = measured.case("random head"), measured.case("random tail")
    if head is not None and tail is not None and head.cached is not None and tail.cached is not None:
        yield f"A random tail still finds {_of(tail)}, a random head {_of(head)}: only a common beginning counts."


def _steps(measured: Measured) -> Iterator[str]:
    step, block = measured.step, measured.block
    if step is not None:
        said = "" if block is None else " as the page says" if block == step else f"; the page says {block:,}"
        what = "exact to the token" if step == 1 else f"in blocks of {step:,} tokens"
        yield f"Hits come {what}{said}; a beginning shorter than that is never found."
    elif measured.smallest is not None and measured.once:
        said = "" if block is None or block >= measured.smallest else f", although the page says blocks of {block:,}"
        yield (
            f"The shortest common beginning that is found has {measured.smallest:,} tokens{said}. Whether hits come in "
            "multiples of it would take a longer prompt: --length."
        )
    elif measured.smallest is not None:
        yield (
            f"The shortest common beginning that is found has {measured.smallest:,} tokens, and hits do not come in "
            "multiples of it: layers of several kinds (sliding window, Mamba) or speculative decoding share the cache."
        )


def _apart(measured: Measured) -> Iterator[str]:
    """Say what has a cache of its own: salts and adapters."""
    for what, other, own in (
        ("cache_salt", "another salt", "same salt"),
        ("LoRA adapter", "LoRA adapter, first time", "LoRA adapter, repeated"),
    ):
        apart, same = measured.cached(other), measured.cached(own)
        if apart == 0 and same:
            yield f"Each {what} has a cache of its own: the same prompt under another one finds nothing."
        elif apart and same:
            yield f"The {what} does not separate the cache: {apart:,} tokens were found under another one."
    if (salted := measured.case("new salt")) is not None and salted.refused and salted.kind == "refused":
        yield "The server does not take cache_salt."


def _together(measured: Measured) -> Iterator[str]:
    case = next((case for case in measured.cases if case.name.endswith("new, at the same moment")), None)
    if case is None or case.cached is None or not case.tokens:
        return
    many = int(case.name.split()[0])
    computed = (case.tokens - case.cached) * many / case.tokens
    yield f"{many} equal new prompts at the same moment are computed {computed:.1f} times."


def _own(measured: Measured) -> Iterator[str]:
    case, parting = measured.case(OWN), measured.parting
    if case is None or parting is None:
        return
    if case.refused:
        yield f"Your prompts were not answered: {case.detail}"
    else:
        yield f"Your two prompts {parted(parting, case.shared)}; of the second one {_of(case)} were found."


def _pressure(measured: Measured) -> Iterator[str]:
    cases = [case for case in measured.cases if case.name.endswith(PRESSURE) and case.cached is not None]
    kept = [after(case) for case in cases if case.cached]
    gone = [after(case) for case in cases if not case.cached]
    pool = f"the pool holds {measured.pool:,}" if measured.pool else "the pool's size is not known"
    if kept and gone and max(kept) < min(gone):
        yield f"A prompt is found after {max(kept):,} tokens of other prompts and gone after {min(gone):,}; {pool}."
    elif kept and not gone:
        yield f"A prompt is still found after {max(kept):,} tokens of other prompts; {pool}."
    elif gone and not kept:
        yield f"A prompt is gone after {min(gone):,} tokens of other prompts already; {pool}."


def _not_known(measured: Measured) -> str:
    why = next((case.detail for case in measured.repeats if case.detail), "the probe ended before it was tried")
    first, same = measured.case("first time"), measured.case("same prompt")
    hint = ""
    if first is not None and same is not None and first.ttft and same.ttft is not None:
        speaks = "speaks for a hit" if same.ttft < FAST * first.ttft else "does not speak for a hit"
        hint = f" The first token came after {same.ttft:.3f} s instead of {first.ttft:.3f} s, which {speaks}."
    return f"Whether prefix caching hits cannot be told: {why}.{hint}"


# The finding


def _why_never(measured: Measured) -> tuple[str, float]:
    """Return why the same prompt is never found, and how sure that is."""
    same = measured.repeats[0] if measured.repeats else None
    tokens = same.tokens if same is not None else None
    if measured.enabled is False:
        return "the engine's prefix cache is switched off: every prompt is computed in full.", 0.95
    if measured.block is not None and tokens is not None and tokens <= measured.block:
        return f"the prompt of {tokens:,} tokens is no longer than one block of {measured.block:,}.", 0.95
    if measured.ranks > 1:
        text = f"{len(measured.repeats)} repetitions went to {measured.ranks} replicas, each with a cache of its own"
        return f"{text}, or the cache is off.", 0.5
    longer = "blocks longer than the prompt" if tokens is None else f"blocks longer than the {tokens:,} tokens sent"
    text = (
        "the very same prompt, sent again at once, was computed again. Not ruled out: a router that adds something of "
        "its own to each request, several replicas behind this address, a model for which the engine keeps no cache, "
        f"{longer} (hybrid models; the page may say a smaller block)."
    )
    return text, 0.6


def _finding(run: Run, measured: Measured) -> tuple[Finding, ...]:
    cause, confidence = _why_never(measured)
    evidence = [
        Evidence(
            f"{case.name}: 0 of {case.tokens:,} tokens were found", run.server.url, name="cached_tokens", value=0.0
        )
        for case in measured.repeats
        if case.cached == 0 and case.tokens is not None
    ]
    if measured.enabled is not None:
        text = f"the page says that prefix caching is {'on' if measured.enabled else 'off'}"
        name = "gpuwatch_engine_prefix_cache_enabled"
        evidence.append(Evidence(text, run.server.url, name=name, value=float(measured.enabled)))
    if measured.block is not None:
        text = f"one block holds {measured.block:,} tokens; only full blocks hit"
        name = "gpuwatch_engine_kv_block_size_tokens"
        evidence.append(Evidence(text, run.server.url, name=name, value=float(measured.block), unit="tokens"))
    return (
        Finding(
            "prefix_cache_zero_hit",
            "info",
            "The prefix cache never hits",
            f"{cause[0].upper()}{cause[1:]}",
            confidence,
            tuple(evidence),
            tuple(advice(run, measured, "never hits")),
            since=round(run.started * 1000),
        ),
    )
