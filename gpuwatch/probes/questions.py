"""Putting many small questions to a server and counting what came back, for the probes that test recall."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from gpuwatch.probes.client import ProbeError
from gpuwatch.probes.limits import read_pool
from gpuwatch.probes.refusal import Refused, longer, refused
from gpuwatch.probes.scoring import reasons, spoken
from gpuwatch.probes.statistics import Share

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpuwatch.diagnosis.finding import Finding
    from gpuwatch.probes.exchange import Reply
    from gpuwatch.probes.haystack import Question
    from gpuwatch.probes.limits import Pool
    from gpuwatch.probes.run import Run
    from gpuwatch.probes.scoring import Outcome

ANSWER_TOKENS = 48
"""Tokens of an answer: a number of 20 digits, one token each, with a sign between them or a few words."""
SHORTEST = 1024
ASSUMED_LIMIT = 8192
"""Tokens of the longest request where the server does not say it."""
SPARE = 0.03
"""Share of the longest request that is kept free: a text's tokens are known only once the server has counted them."""
CALIBRATION = (8, 72)
"""Sentences of the two prompts that tell how many tokens a sentence has; fewer where the server takes less."""
_UNSURE = 1.3
"""Factor by which a text may be longer than its estimate."""
_USUAL_WORDS = 11.5
"""Words of an average sentence of the filler, for servers that count nothing."""


def answer_tokens(digits: int) -> int:
    """Return the tokens that the answer to a question for a number of so many digits may have."""
    return max(ANSWER_TOKENS, 2 * digits + 8)


@dataclass(frozen=True, slots=True)
class Scale:
    """Tokens of a prompt with n sentences of filler: `fixed` + n · `per_sentence`, as the server counts them.

    `counted` is False where no counts were seen, and the usual tokens of English words are assumed; `why` says it.
    """

    per_sentence: float
    fixed: float
    counted: bool
    why: str = ""

    def sentences(self, tokens: int) -> int:
        """Return the sentences of a prompt of about `tokens` tokens."""
        return max(0, round((tokens - self.fixed) / self.per_sentence))

    def tokens(self, sentences: int) -> float:
        """Return the tokens of a prompt with so many sentences."""
        return self.fixed + sentences * self.per_sentence


def scale(run: Run, make: Callable[[int], str]) -> Scale:
    """Ask the server how many tokens its prompts have; `make` gives a prompt with so many sentences.

    Raises:
        ProbeError: the server answers none of the two prompts.
    """
    usual = _USUAL_WORDS * run.vocabulary.tokens_per_word
    few, many = CALIBRATION
    pool, longest = read_pool(run.metrics(), run.server.engine), run.server.max_model_len or ASSUMED_LIMIT
    longest = longest if pool is None else min(longest, pool.usable)
    many = max(few + 4, min(many, math.floor(longest / 2 / usual)))
    replies = [run.ask(make(sentences), 1) for sentences in (few, many)]
    while replies[0].ok and replies[1].kind == "refused" and many > few + 4:
        many = max(few + 4, (few + many) // 2)
        replies[1] = run.ask(make(many), 1)
    short, long = (reply.prompt_tokens for reply in replies)
    if short is not None and long is not None and long > short:
        per_sentence = (long - short) / (many - few)
        return Scale(per_sentence, max(0.0, short - few * per_sentence), counted=True)
    if not any(reply.answered for reply in replies) and not run.over:
        raise ProbeError(f"{run.server.url}: {replies[0].error or 'no answer'}", 3)
    return Scale(usual, 60.0, counted=False, why=_why_not(replies))


def _why_not(replies: Sequence[Reply]) -> str:
    """Return why the tokens of prompts are not known."""
    estimates = "lengths are estimates from the number of words."
    if any(reply.ran_on for reply in replies):
        return f"The server ignores max_tokens, so the count at the end of an answer was not seen: {estimates}"
    if all(reply.ok for reply in replies):
        known = [reply.prompt_tokens for reply in replies if reply.prompt_tokens is not None]
        if known:
            return f"The server counts {known[0]:,} prompt tokens for a short and a longer prompt alike: {estimates}"
        return f"The server counts no prompt tokens: {estimates}"
    bad = next(reply for reply in replies if not reply.answered)
    return (
        f"One of the two prompts that tell how many tokens a sentence has was not answered ({bad.error}): {estimates}"
    )


def usable_lengths(
    wanted: Sequence[int], limit: int | None, pool: Pool | None = None, answer: int = ANSWER_TOKENS
) -> tuple[int, ...]:
    """Return the prompt lengths to try, in tokens: `wanted`, or doubling from 1,024 up to what the server can serve.

    Args:
        wanted: Lengths that the user named; empty: none.
        limit: Tokens of the longest request, prompt and answer; None: the server does not say, 8,192 is assumed.
        pool: The KV pool; a request that is longer than it waits for ever. None: not known.
        answer: Tokens that the answer needs.

    Raises:
        ProbeError: none of the lengths fits.
    """
    most = math.floor((limit or ASSUMED_LIMIT) * (1 - SPARE)) - answer
    room = _room(pool, answer)
    if room is not None and room < 1:
        raise ProbeError(f"the KV pool has room for {pool.usable if pool else 0:,} tokens: too few for a question")
    if wanted:
        fitting = tuple(sorted({length for length in wanted if limit is None or length <= limit - answer}))
        if not fitting:
            raise ProbeError(f"--lengths: the server takes {limit:,} tokens with the answer; allowed: up to {most:,}")
        if room is not None and fitting[0] > room:
            assert pool is not None
            raise ProbeError(f"--lengths: the KV pool has room for {pool.usable:,} tokens; allowed: up to {room:,}")
        return tuple(length for length in fitting if room is None or length <= room)
    most = most if room is None else min(most, room)
    lengths, length = [], SHORTEST
    while length < most:
        lengths.append(length)
        length *= 2
    if most < 1:
        raise ProbeError(f"the server takes {limit or 0:,} tokens with the answer: too few for a question")
    return (*lengths, most)


def _room(pool: Pool | None, answer: int) -> int | None:
    """Return the longest prompt that fits into the pool with its answer; its tokens are known only roughly."""
    return None if pool is None else math.floor(pool.usable * (1 - SPARE)) - answer


def left_out(wanted: Sequence[int], limit: int | None, pool: Pool | None, tried: Sequence[int]) -> tuple[str, ...]:
    """Return a sentence each about lengths that were not tried: the server takes less, or its pool has no room."""
    over = [length for length in sorted(set(wanted)) if limit is not None and length > limit - ANSWER_TOKENS]
    said = []
    if over:
        said.append(f"Left out, because the server takes less: {listed(over)}.")
    room = _room(pool, ANSWER_TOKENS)
    if pool is None or room is None:
        return tuple(said)
    most = math.floor((limit or ASSUMED_LIMIT) * (1 - SPARE)) - ANSWER_TOKENS
    asked = sorted({*wanted} - {*over}) if wanted else [most]
    beyond = [length for length in asked if length > room and length not in tried]
    if beyond:
        which = listed(beyond) if wanted else f"everything from {room + 1:,} to {most:,}"
        said.append(f"Left out, because the KV pool has room for {pool.usable:,} tokens only: {which}.")
    return tuple(said)


def listed(lengths: Sequence[int]) -> str:
    """Return lengths as text."""
    return ", ".join(f"{length:,}" for length in lengths)


@dataclass(slots=True)
class Tally:
    """What came of the questions of one kind."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    tokens: list[int] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)
    error: str = ""
    reasoned: int = 0
    """Answers that begin with reasoning, and have no words after it."""

    @property
    def answered(self) -> int:
        """Questions that were answered, rightly or wrongly."""
        return self.outcomes.total()

    @property
    def share(self) -> Share:
        """Right answers among the answered questions. A request that failed says nothing about recall."""
        return Share(self.outcomes["right"], self.answered)

    @property
    def failures(self) -> int:
        """Requests that got no answer."""
        return sum(self.failed.values())

    @property
    def prompt_tokens(self) -> int | None:
        """Median of the prompt's tokens as the server counts them."""
        return round(median(self.tokens)) if self.tokens else None

    @property
    def first_token(self) -> float | None:
        """Median seconds to the first token."""
        return median(self.ttft) if self.ttft else None

    def take(self, reply: Reply, outcome: Callable[[str], Outcome], most: int = ANSWER_TOKENS) -> Outcome | None:
        """Count one reply; `outcome` judges its text, for which `most` tokens were asked. None: cancelled or failed."""
        if reply.kind == "cancelled":
            return None
        if reply.prompt_tokens is not None:
            self.tokens.append(reply.prompt_tokens)
        if reply.ttft is not None:
            self.ttft.append(reply.ttft)
        ran_on = len(reply.token_times) > most  # the server ignores max_tokens; the answer is there
        if not reply.answered and not ran_on:
            self.failed[reply.kind] += 1
            self.error = reply.error
            return None
        self.reasoned += reasons(reply.text) and not spoken(reply.text).strip()
        judged = outcome(reply.text)
        self.outcomes[judged] += 1
        return judged


@dataclass(frozen=True, slots=True)
class Planned:
    """A question to ask and what is done with the reply."""

    question: Question
    take: Callable[[Question, Reply], None]


def ask_planned(
    run: Run, plan: Sequence[Callable[[], Planned]], concurrency: int, done: int = 0, of: int | None = None
) -> bool:
    """Put all questions of `plan`, in its order; return whether all were put before the probe had to end.

    Prompts are made when they are needed, a few at a time: a grid over a long context is gigabytes of text.

    Args:
        run: Where to ask.
        plan: Makes the questions.
        concurrency: Requests at a time.
        done: Questions of the probe that were put before this plan.
        of: Questions of the whole probe; None: those of this plan.
    """
    size = max(1, concurrency) * 2
    total = len(plan) if of is None else of
    for start in range(0, len(plan), size):
        if run.over:
            return False
        run.report(done + start, total, "questions")
        batch = [make() for make in plan[start : start + size]]
        asks = [run.make(each.question.prompt, answer_tokens(len(each.question.expected))) for each in batch]
        for planned, reply in zip(batch, run.ask_all(asks, concurrency), strict=True):
            planned.take(planned.question, reply)
    run.report(done + len(plan), total, "questions")
    return not run.over


def refusals(run: Run, by_length: Mapping[int, Sequence[Tally]], texts: Scale) -> tuple[Finding, ...]:
    """Return the finding that a length which the server states is refused, nothing where none is.

    Args:
        run: The run.
        by_length: What came of the questions of each length, in tokens.
        texts: What lengths are worth; a length that is an estimate has to be well within what is stated.
    """
    stated, whole = run.server.max_model_len, None
    for length, tallies in sorted(by_length.items()):
        tokens = round(texts.tokens(texts.sentences(length)))
        kinds = {kind for tally in tallies for kind in tally.failed}
        if any(tally.answered for tally in tallies):
            whole = tokens + ANSWER_TOKENS
        elif kinds == {"refused"} and stated and (tokens + ANSWER_TOKENS) * (1 if texts.counted else _UNSURE) <= stated:
            error = next(tally.error for tally in tallies if tally.error)
            if longer(error, stated, ANSWER_TOKENS):
                return ()
            return (refused(run, Refused(tokens, ANSWER_TOKENS, error), whole),)
    return ()


def reasoning_sentence(tallies: Sequence[Tally]) -> tuple[str, ...]:
    """Return a sentence about answers that end within their reasoning; none where there are none."""
    cut = sum(tally.reasoned for tally in tallies)
    if not cut:
        return ()
    asked = sum(tally.answered for tally in tallies)
    text = f"{cut} of {asked} answers end within their reasoning (<think>) and hold no number after it"
    return (f"{text}: this says nothing about what the model finds. Switch its reasoning off for this probe.",)


def failures_sentence(tallies: Sequence[Tally]) -> str:
    """Return a sentence about requests that got no answer, or an empty text."""
    failed = sum(tally.failures for tally in tallies)
    if not failed:
        return ""
    kinds: Counter[str] = Counter()
    for tally in tallies:
        kinds.update(tally.failed)
    shown = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    last = next(tally.error for tally in reversed(tallies) if tally.error)
    asked = failed + sum(tally.answered for tally in tallies)
    return f"{failed} of {asked} requests got no answer ({shown}) and are not counted: {last}"
