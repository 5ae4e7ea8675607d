"""Does the answer respect position? Two contradicting facts far apart, asked for as the first and as the last one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.finding import Advice
from gpuwatch.probes.haystack import contradiction, seeded
from gpuwatch.probes.limits import read_pool
from gpuwatch.probes.questions import (
    Planned,
    Tally,
    ask_planned,
    failures_sentence,
    left_out,
    listed,
    reasoning_sentence,
    refusals,
    scale,
    usable_lengths,
)
from gpuwatch.probes.result import Result
from gpuwatch.probes.scoring import ENOUGH, judge
from gpuwatch.probes.statistics import Share, by_a_coin, mcnemar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpuwatch.probes.exchange import Reply
    from gpuwatch.probes.haystack import Question
    from gpuwatch.probes.questions import Scale
    from gpuwatch.probes.result import Figure, Value
    from gpuwatch.probes.run import Run

GAPS: Mapping[str, tuple[float, float]] = {"near": (0.45, 0.55), "far": (0.05, 0.95)}
"""Depths of the two statements: close together, and at both ends."""
CERTAIN = 0.05
"""Chance below which a leaning (two-sided), and a respected order (one-sided), is called one."""
Key = tuple[int, str, str]
"""Length in tokens, gap, and which statement is asked for."""


@dataclass(frozen=True, slots=True)
class OrderOptions:
    """What to try.

    Attributes:
        lengths: Prompt lengths in tokens; empty: doubling from 1,024 up to what the server can serve.
        trials: Texts for each length and gap; each is asked for its first and for its last statement.
        concurrency: Requests at a time.
    """

    lengths: tuple[int, ...] = ()
    trials: int = 10
    concurrency: int = 4


def probe(run: Run, options: OrderOptions) -> Result:
    """Ask for the first and the last of two contradicting statements.

    Only both questions together separate reading the order from a leaning: a model that always repeats what it read
    last is right in every question for the last one.

    Raises:
        ProbeError: no length fits, or the server answers nothing.
    """
    pool, limit = read_pool(run.metrics(), run.server.engine), run.server.max_model_len
    lengths = usable_lengths(options.lengths, limit, pool)
    texts = scale(
        run, lambda sentences: contradiction(seeded("order", run.seed), sentences, GAPS["far"], last=True).prompt
    )
    tallies = {(length, gap, which): Tally() for length in lengths for gap in GAPS for which in ("first", "last")}
    plan: list[Callable[[], Planned]] = [
        partial(_plan, run, texts, key, tallies[key], trial) for trial in range(options.trials) for key in tallies
    ]
    complete = ask_planned(run, plan, options.concurrency)
    return conclude(run, tallies, texts, left_out(options.lengths, limit, pool, lengths), complete=complete)


def _plan(run: Run, texts: Scale, key: Key, tally: Tally, trial: int) -> Planned:
    length, gap, which = key

    def take(question: Question, reply: Reply) -> None:
        tally.take(reply, lambda answer: judge(answer, question.expected, question.others))

    rng = seeded("order", run.seed, length, gap, trial)  # the same text for both questions
    question = contradiction(rng, texts.sentences(length), GAPS[gap], last=which == "last")
    return Planned(question, take)


def conclude(
    run: Run, tallies: Mapping[Key, Tally], texts: Scale, untried: Sequence[str] = (), *, complete: bool
) -> Result:
    """Say what the answers mean. `untried`: sentences about lengths that were left out."""
    asked = {which: _sum(tallies, which=which) for which in ("first", "last")}
    both = asked["first"] + asked["last"]
    answer = verdict(tallies)
    facts: tuple[Figure, ...] = (
        ("verdict", answer, ""),
        ("right", both.ratio, "ratio"),
        ("right_low", both.low, "ratio"),
        ("right_high", both.high, "ratio"),
        ("right_asked_for_first", asked["first"].ratio, "ratio"),
        ("right_asked_for_last", asked["last"].ratio, "ratio"),
        ("answers", both.of, ""),
        ("tokens_counted_by_server", texts.counted, ""),
        ("seed", run.seed, ""),
    )
    failed = failures_sentence(list(tallies.values()))
    conclusion = [
        _sentence(answer, asked),
        *_by_gap(tallies, answer),
        *untried,
        *([failed] if failed else []),
        *reasoning_sentence(list(tallies.values())),
        *run.rate_limited(),
    ]
    by_length: dict[int, list[Tally]] = {}
    for (length, _, _), tally in tallies.items():
        by_length.setdefault(length, []).append(tally)
    missing = unanswered(tallies)
    if missing and answer != "not measured":
        conclusion.insert(1, f"Without enough answers to say anything about it: {listed(missing)} tokens.")
    return Result(
        "order",
        run.server,
        run.started,
        complete=complete,
        stopped_because=run.over if not complete else "",
        facts=facts,
        rows=tuple(_row(key, tally) for key, tally in tallies.items()),
        findings=refusals(run, by_length, texts),
        conclusion=tuple(conclusion),
        advice=_advice(answer),
    )


def _sum(tallies: Mapping[Key, Tally], *, which: str = "", gap: str = "") -> Share:
    chosen = (tally.share for key, tally in tallies.items() if key[2].startswith(which) and key[1].startswith(gap))
    return sum(chosen, Share(0, 0))


def leaning(tallies: Mapping[Key, Tally]) -> tuple[int, int]:
    """Return how often the first and the last statement was given where the other one was asked for."""
    late = sum(tally.outcomes["other"] for key, tally in tallies.items() if key[2] == "first")
    early = sum(tally.outcomes["other"] for key, tally in tallies.items() if key[2] == "last")
    return early, late


def unanswered(tallies: Mapping[Key, Tally]) -> list[int]:
    """Return the lengths at which one of the two questions got no answer at all."""
    lengths = sorted({length for length, _, _ in tallies})
    return [
        length
        for length in lengths
        if any(
            not sum(tally.answered for key, tally in tallies.items() if key[0] == length and key[2] == which)
            for which in ("first", "last")
        )
    ]


def verdict(tallies: Mapping[Key, Tally]) -> str:
    """Return what the answers follow.

    `respects order`: at least 90 % of both kinds of question are right, and a coin would hardly do as well; where it
    might, nothing is said: `not measured`. `not complete`: they are, but there is a length
    without answers. `prefers the last` or `prefers the first`: one
    statement is given in most answers, whatever was asked, and that is no chance. `does not recall`: most answers are
    neither of the two. `ignores order`: both are given, without regard to the question; `partly` is what remains.
    """
    first, last = _sum(tallies, which="first"), _sum(tallies, which="last")
    if not first.of or not last.of:
        return "not measured"
    if first.hits >= ENOUGH * first.of and last.hits >= ENOUGH * last.of:
        if by_a_coin(first.hits + last.hits, first.of + last.of) >= CERTAIN:
            return "not measured"
        return "not complete" if unanswered(tallies) else "respects order"
    early, late = leaning(tallies)
    given = first.hits + last.hits + early + late
    if 2 * given < first.of + last.of:
        return "does not recall"
    if mcnemar(early, late) < CERTAIN and max(early, late) >= 2 * min(early, late):
        weaker = first if late > early else last
        if 2 * weaker.hits < weaker.of:
            return "prefers the last" if late > early else "prefers the first"
    both = first + last
    low = both.low
    return "ignores order" if low is not None and low <= 0.5 else "partly"


def _row(key: Key, tally: Tally) -> dict[str, Value]:
    share = tally.share
    return {
        "length_tokens": key[0],
        "gap": key[1],
        "asked_for": key[2],
        "prompt_tokens": tally.prompt_tokens,
        "right": share.hits,
        "of": share.of,
        "right_ratio": share.ratio,
        "low_ratio": share.low,
        "high_ratio": share.high,
        "other_statement": tally.outcomes["other"],
        "wrong_number": tally.outcomes["wrong"],
        "no_number": tally.outcomes["none"],
        "failed": tally.failures,
        "ttft_s": tally.first_token,
    }


def _sentence(answer: str, asked: Mapping[str, Share]) -> str:
    shown = f"asked for the first: {asked['first']} right, for the last: {asked['last']}"
    return {
        "not measured": "Too few questions were answered: whether the order counts is not known.",
        "respects order": f"The answers respect the order of two contradicting statements; {shown}.",
        "not complete": f"The answers respect the order of two contradicting statements at every length that was "
        f"answered; {shown}.",
        "prefers the last": f"The model fails: it gives the last statement whatever is asked; {shown}.",
        "prefers the first": f"The model fails: it gives the first statement whatever is asked; {shown}.",
        "does not recall": f"The model fails: most of its answers are neither of the two statements; {shown}. "
        "So this says nothing about order: see `gpuwatch probe needle`.",
        "ignores order": f"The model fails: it finds the statements, but not which one comes first; {shown}.",
        "partly": f"The answers respect the order more often than not, not reliably; {shown}.",
    }[answer]


def _by_gap(tallies: Mapping[Key, Tally], answer: str) -> list[str]:
    """Compare statements that stand close together with those far apart, where the intervals separate them."""
    near, far = _sum(tallies, gap="near"), _sum(tallies, gap="far")
    if answer == "does not recall" or near.low is None or far.high is None or far.high >= near.low:
        return []
    return [f"The distance is the matter: {near} right close together, {far} at the two ends of the text."]


def _advice(answer: str) -> tuple[Advice, ...]:
    if answer in ("prefers the last", "prefers the first", "ignores order", "partly"):
        text = "leave one version of a fact in the prompt: drop what is outdated before it is sent"
        kept = {"prefers the last": "last", "prefers the first": "first"}.get(answer)
        if kept:
            text += f", or put what counts {kept}"
        return (Advice(text),)
    return ()
