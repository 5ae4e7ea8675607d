"""Does every digit come back? Strings of 8 to 20 digits, at one endpoint or against a second one.

A quantised KV cache shows here first: a text stays plausible when keys and values lose precision, a digit does not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, TypeAlias

from gpuwatch.model import label
from gpuwatch.probes.client import ProbeError
from gpuwatch.probes.digits_verdict import Baseline, Versus, conclude
from gpuwatch.probes.haystack import record, seeded
from gpuwatch.probes.limits import read_pool
from gpuwatch.probes.questions import Planned, Tally, answer_tokens, ask_planned, scale
from gpuwatch.probes.scoring import judge, recall

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpuwatch.probes.exchange import Reply
    from gpuwatch.probes.haystack import Question
    from gpuwatch.probes.result import Result
    from gpuwatch.probes.run import Run
    from gpuwatch.probes.scoring import Recall

RECORDS = 12
"""Strings in one text. Their number is part of what is asked, so that saved answers can be compared."""
Open: TypeAlias = "Callable[[], Run]"


@dataclass(frozen=True, slots=True)
class DigitsOptions:
    """What to try.

    Attributes:
        digits: Lengths of the strings.
        trials: Questions for each length.
        tokens: Length of the text in which the strings stand.
        concurrency: Requests at a time.
        baseline: A second endpoint (a run that has begun), or the saved result of an earlier run; None: neither.
    """

    digits: tuple[int, ...] = (8, 12, 16, 20)
    trials: int = 20
    tokens: int = 2048
    concurrency: int = 4
    baseline: Run | Baseline | None = None


@dataclass(slots=True)
class Column:
    """The answers to the strings of one length: `answers` by number of the trial, None where there was none."""

    tally: Tally = field(default_factory=Tally)
    answers: dict[int, Recall] = field(default_factory=dict)

    def outcomes(self, trials: int) -> str:
        """Return one sign for each trial: ``1`` exact, ``0`` not, ``-`` no answer."""
        return "".join("-" if (a := self.answers.get(trial)) is None else str(int(a.exact)) for trial in range(trials))

    def right_digits(self) -> int:
        """Return how many digits are right at their place, over all answers."""
        return sum(answer.right_digits for answer in self.answers.values())

    def first_wrong(self) -> float | None:
        """Return the median place, from 0, of the first wrong digit; None where every answer is exact."""
        places = [answer.first_wrong for answer in self.answers.values() if answer.first_wrong is not None]
        return median(places) if places else None


def probe(run: Run, options: DigitsOptions) -> Result:
    """Ask for strings of digits that stand in a text, and compare the answers with those of the baseline.

    Both sides get the same questions, one trial after the other, so that a probe that is ended early has pairs.

    Raises:
        ProbeError: the text does not fit, the server answers nothing, or the baseline was asked other questions.
    """
    second, earlier = _baseline(run, options)
    sentences, counted = _sentences(run, options, second, earlier)
    here = {length: Column() for length in options.digits}
    there = {length: Column() for length in options.digits}
    sides = [(run, here)] if second is None else [(run, here), (second, there)]
    total = options.trials * len(options.digits) * len(sides)
    done, complete = 0, True
    for trial in range(options.trials):
        for side, columns in sides:
            plan = _plan(columns, sentences, run.seed, trial)
            complete = ask_planned(_quietly(side, run), plan, options.concurrency, done, total) and complete
            done += len(plan)
        if not complete:
            break
    versus = _versus(options, second, there, earlier)
    measured = [
        (length, column.tally, column.outcomes(options.trials), column.right_digits(), column.first_wrong())
        for length, column in here.items()
    ]
    figures = (
        ("kv_dtype", kv_dtype(run) or None, ""),
        ("text_tokens", options.tokens if counted else None, "tokens"),
        ("sentences", sentences, ""),
        ("records", RECORDS, ""),
        ("trials", options.trials, ""),
        ("seed", run.seed, ""),
    )
    stopped = next((side.over for side, _ in sides if side.over), "") if not complete else ""
    return conclude(run, measured, versus, figures, stopped)


def _quietly(side: Run, run: Run) -> Run:
    """Let both sides report their progress in one place."""
    side.report = run.report
    return side


def _plan(columns: Mapping[int, Column], sentences: int, seed: int, trial: int) -> Sequence[Callable[[], Planned]]:
    return [partial(_planned, column, sentences, length, seed, trial) for length, column in columns.items()]


def _planned(column: Column, sentences: int, length: int, seed: int, trial: int) -> Planned:
    def take(question: Question, reply: Reply) -> None:
        judged = column.tally.take(
            reply, lambda answer: judge(answer, question.expected, question.others), answer_tokens(length)
        )
        if judged is not None:
            column.answers[trial] = recall(reply.text, question.expected)

    return Planned(record(seeded("digits", seed, length, trial), sentences, length, RECORDS), take)


def _sentences(run: Run, options: DigitsOptions, second: Run | None, earlier: Baseline | None) -> tuple[int, bool]:
    """Return the sentences of filler in each text: those of the saved run, so that the questions are the same."""
    longest = max(options.digits)
    texts = scale(run, lambda count: record(seeded("digits", run.seed, "scale"), count, longest, RECORDS).prompt)
    sentences = texts.sentences(options.tokens) if earlier is None else earlier.sentences
    for side in [run, *([second] if second is not None else [])]:
        _check_room(side, texts.tokens(sentences), answer_tokens(longest))
    return sentences, texts.counted


def _check_room(run: Run, tokens: float, answer: int) -> None:
    """Refuse a text that the server does not take, or that would wait for ever as the KV pool has no room for it.

    Args:
        run: Where it is to be sent.
        tokens: Length of the text.
        answer: Tokens that the answer may have.

    Raises:
        ProbeError: it is too long.
    """
    pool, limit = read_pool(run.metrics(), run.server.engine), run.server.max_model_len
    if limit is not None and tokens + answer > limit:
        why = f"the server takes {limit:,}, answer included"
    elif pool is not None and tokens + answer > pool.usable:
        why = f"the KV pool has room for {pool.usable:,}, answer included"
    else:
        return
    raise ProbeError(f"a text of {tokens:,.0f} tokens does not fit at {run.server.url}: {why}; give a smaller --length")


def _baseline(run: Run, options: DigitsOptions) -> tuple[Run | None, Baseline | None]:
    given = options.baseline
    if not isinstance(given, Baseline):
        return given, None
    if (given.seed, given.records) != (run.seed, RECORDS):
        raise ProbeError(
            f"--baseline {given.name}: it was asked other questions (seed {given.seed}, {given.records} strings); "
            f"here: seed {run.seed}, {RECORDS} strings"
        )
    missing = [length for length in options.digits if length not in given.outcomes]
    if missing:
        raise ProbeError(f"--baseline {given.name}: has no strings of {missing[0]} digits; run both with one --digits")
    return None, given


def _versus(
    options: DigitsOptions, second: Run | None, there: Mapping[int, Column], earlier: Baseline | None
) -> Versus | None:
    if second is not None:
        outcomes = {length: column.outcomes(options.trials) for length, column in there.items()}
        return Versus(second.server.url, second.server.model, kv_dtype(second), outcomes)
    if earlier is not None:
        return Versus(earlier.name, earlier.model, earlier.kv_dtype, earlier.outcomes)
    return None


def kv_dtype(run: Run) -> str:
    """Return the type of the KV cache as the metrics page names it (``auto``: the model's own); empty: not said."""
    reading = run.metrics()
    if reading is None:
        return ""
    found = {label(labels, "cache_dtype") for labels in reading.values}
    return next(iter(sorted(found - {""})), "")
