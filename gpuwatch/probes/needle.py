"""Does the model find one fact in a long text? Recall by depth and length, with confidence intervals."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.finding import Advice, Evidence, Finding
from gpuwatch.probes.haystack import needle, seeded
from gpuwatch.probes.heatmap import heat_map
from gpuwatch.probes.limits import read_pool
from gpuwatch.probes.questions import (
    ANSWER_TOKENS,
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
from gpuwatch.probes.statistics import Share
from gpuwatch.probes.truncation import Short, changes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpuwatch.probes.exchange import Reply
    from gpuwatch.probes.haystack import Question
    from gpuwatch.probes.questions import Scale
    from gpuwatch.probes.result import Figure, Value
    from gpuwatch.probes.run import Run

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
TRUNCATED = 0.8
"""A prompt that the server counts as less than this share of what was sent was cut."""


@dataclass(frozen=True, slots=True)
class NeedleOptions:
    """What to try.

    Attributes:
        lengths: Prompt lengths in tokens; empty: doubling from 1,024 up to what the server can serve.
        depths: Where the fact stands, 0 (first) to 1 (last, right before the question).
        trials: Questions for each length and depth.
        concurrency: Requests at a time.
        distractors: Facts of the same form about other names in the same text.
    """

    lengths: tuple[int, ...] = ()
    depths: tuple[float, ...] = DEPTHS
    trials: int = 5
    concurrency: int = 4
    distractors: int = 3


@dataclass(frozen=True, slots=True)
class Spot:
    """One question of the grid: `length` in tokens, 0 for the control; `depth` from 0 to 1."""

    length: int
    sentences: int
    depth: float
    trial: int


@dataclass(slots=True)
class Grid:
    """The tallies of all cells; `control` are questions without filler, which a model that can do the task answers."""

    cells: dict[tuple[int, int], Tally]
    control: Tally

    @classmethod
    def of(cls, lengths: Sequence[int], depths: Sequence[float]) -> Grid:
        """Return an empty grid. Depths are kept as whole percentages."""
        return cls({(length, round(depth * 100)): Tally() for length in lengths for depth in depths}, Tally())

    def shares(self) -> dict[tuple[int, int], Share]:
        """Return the share of each cell that has an answer."""
        return {cell: tally.share for cell, tally in self.cells.items() if tally.answered}

    def by_length(self) -> dict[int, Share]:
        """Return the share of each length over all depths."""
        return _pooled(self.shares(), 0)

    def unanswered(self) -> list[int]:
        """Return the lengths without any answer."""
        return sorted({length for length, _ in self.cells} - self.by_length().keys())

    def by_depth(self) -> dict[int, Share]:
        """Return the share of each depth, in percent, over all lengths."""
        return _pooled(self.shares(), 1)


def _pooled(shares: Mapping[tuple[int, int], Share], place: int) -> dict[int, Share]:
    pooled: dict[int, Share] = {}
    for cell, share in sorted(shares.items()):
        pooled[cell[place]] = pooled.get(cell[place], Share(0, 0)) + share
    return pooled


def probe(run: Run, options: NeedleOptions) -> Result:
    """Ask for one number in texts of all lengths and depths.

    Each round asks once in every cell, so that a probe that is ended early has measured the whole grid, only coarser.

    Raises:
        ProbeError: no length fits, or the server answers nothing.
    """
    pool, limit = read_pool(run.metrics(), run.server.engine), run.server.max_model_len
    lengths = usable_lengths(options.lengths, limit, pool)
    texts = scale(run, lambda sentences: _question(run, options, Spot(0, sentences, 0.5, 0)).prompt)
    depths = dict(reversed([(round(depth * 100), depth) for depth in options.depths])).values()  # one cell, one depth
    grid = Grid.of(lengths, options.depths)
    plan: list[Callable[[], Planned]] = [
        partial(_plan, run, options, grid.control, Spot(0, 0, 0.5, trial)) for trial in range(2 * options.trials)
    ]
    for trial in range(options.trials):
        for length, depth in itertools.product(lengths, sorted(depths)):
            tally = grid.cells[length, round(depth * 100)]
            plan.append(partial(_plan, run, options, tally, Spot(length, texts.sentences(length), depth, trial)))
    complete = ask_planned(run, plan, options.concurrency)
    untried = left_out(options.lengths, limit, pool, lengths)
    return conclude(run, options, grid, texts, untried, complete=complete)


def _plan(run: Run, options: NeedleOptions, tally: Tally, spot: Spot) -> Planned:
    def take(question: Question, reply: Reply) -> None:
        tally.take(reply, lambda answer: judge(answer, question.expected, question.others))

    return Planned(_question(run, options, spot), take)


def _question(run: Run, options: NeedleOptions, spot: Spot) -> Question:
    rng = seeded("needle", run.seed, spot.length, round(spot.depth * 100), spot.trial)
    return needle(rng, spot.sentences, spot.depth, distractors=options.distractors)


def conclude(
    run: Run, options: NeedleOptions, grid: Grid, texts: Scale, untried: Sequence[str] = (), *, complete: bool
) -> Result:
    """Say what the answers mean. `untried`: sentences about lengths that were left out."""
    lengths = sorted({length for length, _ in grid.cells})
    depths = sorted({depth for _, depth in grid.cells})
    findings = _truncated(run, grid, texts)
    drawing = heat_map(
        grid.shares(), lengths, depths, ("depth", lambda depth: f"{depth} %", lambda length: f"{length:,}")
    )
    overall = sum(grid.by_length().values(), Share(0, 0))
    reach = _reach(grid)
    answer = verdict(grid)
    facts: tuple[Figure, ...] = (
        ("verdict", answer, ""),
        ("recall", overall.ratio, "ratio"),
        ("recall_low", overall.low, "ratio"),
        ("recall_high", overall.high, "ratio"),
        ("answers", overall.of, ""),
        ("recall_without_filler", grid.control.share.ratio, "ratio"),
        ("reads_up_to", reach, "tokens"),
        ("tokens_counted_by_server", texts.counted, ""),
        ("trials", options.trials, ""),
        ("seed", run.seed, ""),
    )
    return Result(
        "needle",
        run.server,
        run.started,
        complete=complete,
        stopped_because=run.over if not complete else "",
        facts=facts,
        rows=tuple(_row(cell, tally) for cell, tally in sorted(grid.cells.items())),
        findings=(*findings, *_refusals(run, grid, texts)),
        conclusion=(
            *_sentences(options, grid, texts, overall, [*_unread(findings), *untried]),
            *reasoning_sentence([grid.control, *grid.cells.values()]),
            *run.rate_limited(),
        ),
        advice=_advice(answer, reach, run, findings),
        drawing=drawing,
    )


def verdict(grid: Grid) -> str:
    """Return `passes`, `not complete`, `partly`, `fails` or `not measured`.

    It passes where at least 90 % of the answers are right at every length, and fails where less than half are right at
    each of them. It is not complete where nothing is wrong with the answers, but there is a length without any.
    """
    lengths = grid.by_length()
    if not lengths:
        return "not measured"
    if all(share.hits >= ENOUGH * share.of for share in lengths.values()):
        return "not complete" if grid.unanswered() else "passes"
    return "fails" if all(2 * share.hits < share.of for share in lengths.values()) else "partly"


def _reach(grid: Grid) -> int | None:
    """Return the longest length that is read together with all shorter ones."""
    reach, lengths = None, grid.by_length()
    for length in sorted({length for length, _ in grid.cells}):
        share = lengths.get(length)
        if share is None or share.hits < ENOUGH * share.of:
            break
        reach = length
    return reach


def _row(cell: tuple[int, int], tally: Tally) -> dict[str, Value]:
    share = tally.share
    return {
        "length_tokens": cell[0],
        "depth_percent": cell[1],
        "prompt_tokens": tally.prompt_tokens,
        "right": share.hits,
        "of": share.of,
        "recall_ratio": share.ratio,
        "low_ratio": share.low,
        "high_ratio": share.high,
        "other_number": tally.outcomes["other"],
        "wrong_number": tally.outcomes["wrong"],
        "no_number": tally.outcomes["none"],
        "failed": tally.failures,
        "ttft_s": tally.first_token,
    }


def _sentences(options: NeedleOptions, grid: Grid, texts: Scale, overall: Share, untried: Sequence[str]) -> list[str]:
    said, answer = [], verdict(grid)
    control, lengths = grid.control.share, grid.by_length()
    if answer == "partly":
        said.append(_falls(lengths, _reach(grid)))
    else:
        said.append(
            {
                "not measured": "No question in a long text was answered: recall is not known.",
                "passes": f"The model finds the fact at every length that was tried: {overall}.",
                "not complete": f"The model finds the fact at every length that was answered: {overall}.",
                "fails": f"The model fails: {overall} answers are right, at no length half of them.",
            }[answer]
        )
    if lengths and grid.unanswered():
        said.append(f"No question was answered at {listed(grid.unanswered())} tokens: nothing is known about that.")
    if control.of and control.hits < ENOUGH * control.of:
        said.append(
            f"Without any filler it answered {control} rightly: it fails the task itself, so this says nothing about "
            "long contexts. Are its weights loaded, is its tokenizer the right one, can it answer a question at all?"
        )
    elif answer in ("fails", "partly") and control.of:
        said.append(f"Without filler it answered {control} rightly: the task is understood, the length is the matter.")
    uneven = _uneven(grid.by_depth())
    if uneven and answer not in ("passes", "not complete"):
        said.append(uneven)
    unclear = [length for length, share in lengths.items() if _unclear(share)]
    if unclear and answer != "not measured":
        said.append(
            f"{options.trials} trials a cell are too few to tell {ENOUGH:.0%} from less at {listed(unclear)} tokens: "
            f"--trials {options.trials * 4} narrows the intervals by half."
        )
    said += untried
    if not texts.counted:
        said.append(texts.why)
    failed = failures_sentence([grid.control, *grid.cells.values()])
    return [*said, failed] if failed else said


def _unclear(share: Share) -> bool:
    low, high = share.low, share.high
    return low is not None and high is not None and low < ENOUGH <= high and share.hits not in (0, share.of)


def _falls(lengths: Mapping[int, Share], reach: int | None) -> str:
    first = next(length for length, share in sorted(lengths.items()) if share.hits < ENOUGH * share.of)
    until = (
        f"The model finds the fact up to {reach:,} tokens ({lengths[reach]})" if reach else "Not every length is read"
    )
    return f"{until}; at {first:,} tokens only {lengths[first]} answers are right."


def _uneven(depths: Mapping[int, Share]) -> str:
    """Return a sentence where one depth is certainly worse than another, judged by their intervals."""
    worst = min(depths, key=lambda depth: depths[depth].ratio or 0.0, default=None)
    best = max(depths, key=lambda depth: depths[depth].ratio or 0.0, default=None)
    if worst is None or best is None:
        return ""
    high, low = depths[worst].high, depths[best].low
    if high is None or low is None or high >= low:
        return ""
    return f"It depends on where the fact stands: {depths[best]} at {best} % depth, {depths[worst]} at {worst} %."


def _refusals(run: Run, grid: Grid, texts: Scale) -> tuple[Finding, ...]:
    """Find lengths within what the server states at which every question was refused."""
    by_length: dict[int, list[Tally]] = {}
    for (length, _), tally in grid.cells.items():
        by_length.setdefault(length, []).append(tally)
    return refusals(run, by_length, texts)


def _truncated(run: Run, grid: Grid, texts: Scale) -> tuple[Finding, ...]:
    """Find prompts that the server counted as far shorter than they were."""
    if not texts.counted:
        return ()
    short = []
    for (length, _), tally in sorted(grid.cells.items()):
        sent = texts.tokens(texts.sentences(length))
        if tally.prompt_tokens is not None and tally.prompt_tokens < TRUNCATED * sent:
            short.append((sent, tally.prompt_tokens))
    if not short:
        return ()
    sent, counted = short[-1]
    text = f"a prompt of about {sent:,.0f} tokens was counted as {counted:,}"
    cause = f"The server answers long prompts, but reads only part of them: {text}, and no error was returned."
    return (
        Finding(
            "silent_truncation",
            "warning",
            "Prompts are cut without an error",
            cause,
            0.9,
            (Evidence(text, source=run.server.url, name="usage.prompt_tokens", value=float(counted), unit="tokens"),),
            changes(run.server, Short(round(sent), counted, "cut"), ANSWER_TOKENS),
            since=round(run.started * 1000),
        ),
    )


def _unread(cut: Sequence[Finding]) -> list[str]:
    """Say that wrong answers about text that the server cut off are not the model's."""
    return ["Prompts were cut before the model read them: what it missed there says nothing about it."] if cut else []


def _advice(answer: str, reach: int | None, run: Run, cut: Sequence[Finding]) -> tuple[Advice, ...]:
    """Return what to change; where prompts were cut (`cut`) nothing is said of a limit of the model."""
    if cut:
        return cut[0].advice
    if answer == "partly" and reach is not None:
        limit = run.server.max_model_len
        flag = {"vllm": "--max-model-len", "sglang": "--context-length"}.get(run.server.engine, "")
        text = f"keep prompts within {reach:,} tokens, or accept no longer ones, until recall is better"
        return (Advice(text, flag, str(limit) if limit else None, str(reach) if flag else None),)
    return ()
