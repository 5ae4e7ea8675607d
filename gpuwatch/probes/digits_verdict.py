"""What the answers of the digits probe mean, alone and against a baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from gpuwatch.diagnosis.finding import Advice, Evidence, Finding
from gpuwatch.probes.client import ProbeError
from gpuwatch.probes.questions import Tally, failures_sentence, listed, reasoning_sentence
from gpuwatch.probes.result import Result
from gpuwatch.probes.scoring import ENOUGH
from gpuwatch.probes.statistics import Share, mcnemar, wilson
from gpuwatch.units import percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatch.probes.result import Figure, Value
    from gpuwatch.probes.run import Run

SCHEMA = 1
"""The only form of a saved result that there is."""
MOST_SENTENCES = 10_000_000
"""More than the longest context holds."""
CERTAIN = 0.05
"""Chance below which a difference between two endpoints is called one."""
OWN_TYPES = frozenset({"auto", "bfloat16", "float16", "bf16", "fp16", "half", "float32", "float"})
"""Types of a KV cache that is not quantised."""
Measured: TypeAlias = "tuple[int, Tally, str, int, float | None]"
"""Digits of the strings, tally, outcomes by trial, right digits, median place of the first wrong digit."""


@dataclass(frozen=True, slots=True)
class Versus:
    """The other side. `outcomes` by number of digits: one sign for each trial, see `digits.Column.outcomes`."""

    name: str
    model: str
    kv_dtype: str
    outcomes: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Baseline:
    """A saved result of this probe: what was asked, and what came of it."""

    name: str
    model: str
    kv_dtype: str
    seed: int
    records: int
    sentences: int
    outcomes: Mapping[int, str]


def read_baseline(name: str, document: Any) -> Baseline:
    """Return what `document`, the JSON of a result, says; `name` is the file's, for messages.

    Raises:
        ProbeError: it is not the result of a digits probe.
    """
    try:
        if document["probe"] != "digits":
            raise ProbeError(f"--baseline {name}: a result of probe {document['probe']}; expected one of probe digits")
        if document["schema"] != SCHEMA:
            raise ProbeError(f"--baseline {name}: schema {str(document['schema'])[:20]}; allowed: {SCHEMA}")
        facts = {fact["name"]: fact["value"] for fact in document["facts"]}
        outcomes = {int(row["digits"]): str(row["outcomes"]) for row in document["rows"]}
        sentences = int(facts["sentences"])
        if not 0 <= sentences <= MOST_SENTENCES:
            raise ProbeError(f"--baseline {name}: {facts['sentences']} sentences; allowed: 0 to {MOST_SENTENCES:,}")
        return Baseline(
            name,
            str(document["server"]["model"]),
            str(facts["kv_dtype"] or ""),
            int(facts["seed"]),
            int(facts["records"]),
            sentences,
            outcomes,
        )
    except (KeyError, OverflowError, TypeError, ValueError):
        raise ProbeError(f"--baseline {name}: not the JSON of gpuwatch probe digits") from None


@dataclass(frozen=True, slots=True)
class Pairs:
    """Questions that both sides answered: by whom they were answered exactly."""

    both: int = 0
    only_here: int = 0
    only_there: int = 0
    neither: int = 0

    @classmethod
    def of(cls, here: str, there: str) -> Pairs:
        """Count two strings of outcomes, trial by trial; a trial without an answer on either side is left out."""
        pairs = list(zip(here, there))  # noqa: B905  # the shorter run decides
        return cls(*(pairs.count(pair) for pair in (("1", "1"), ("1", "0"), ("0", "1"), ("0", "0"))))

    def __add__(self, other: Pairs) -> Pairs:
        return Pairs(
            self.both + other.both,
            self.only_here + other.only_here,
            self.only_there + other.only_there,
            self.neither + other.neither,
        )

    @property
    def total(self) -> int:
        """All pairs."""
        return self.both + self.only_here + self.only_there + self.neither

    @property
    def here(self) -> Share:
        """Exact answers on this side."""
        return Share(self.both + self.only_here, self.total)

    @property
    def there(self) -> Share:
        """Exact answers on the other side."""
        return Share(self.both + self.only_there, self.total)

    @property
    def chance(self) -> float:
        """Two-sided exact p-value of a difference at least this large between equally good sides (McNemar)."""
        return mcnemar(self.only_here, self.only_there)

    def outcome(self) -> str:
        """Return `worse`, `better` or `no difference seen` (this side against the other), or `not measured`."""
        if not self.total:
            return "not measured"
        if self.chance >= CERTAIN:
            return "no difference seen"
        return "worse" if self.only_there > self.only_here else "better"


def conclude(
    run: Run, measured: Sequence[Measured], versus: Versus | None, figures: Sequence[Figure], stopped: str
) -> Result:
    """Say what the answers mean. `stopped`: why the probe ended early, empty where it did not."""
    shares = {digits: tally.share for digits, tally, *_ in measured}
    overall = sum(shares.values(), Share(0, 0))
    pairs = {
        digits: Pairs.of(outcomes, versus.outcomes.get(digits, "") if versus else "")
        for digits, _, outcomes, *_ in measured
    }
    together = sum(pairs.values(), Pairs())
    answer = verdict(shares)
    facts: list[Figure] = [
        ("verdict", answer, ""),
        ("exact", overall.ratio, "ratio"),
        ("exact_low", overall.low, "ratio"),
        ("exact_high", overall.high, "ratio"),
        ("answers", overall.of, ""),
        *figures,
    ]
    if versus is not None:
        facts += [
            ("baseline", versus.name, ""),
            ("baseline_kv_dtype", versus.kv_dtype or None, ""),
            ("baseline_exact", together.there.ratio, "ratio"),
            ("pairs", together.total, ""),
            ("only_here_exact", together.only_here, ""),
            ("only_baseline_exact", together.only_there, ""),
            ("chance", together.chance if together.total else None, "ratio"),
            ("against_baseline", together.outcome(), ""),
        ]
    kv_dtype = str(next((value for name, value, _ in figures if name == "kv_dtype"), "") or "")
    findings = _finding(run, together, versus, kv_dtype)
    return Result(
        "digits",
        run.server,
        run.started,
        complete=not stopped,
        stopped_because=stopped,
        facts=tuple(facts),
        rows=tuple(_row(one, pairs[one[0]] if versus else None) for one in measured),
        findings=findings,
        conclusion=(
            *_sentences(measured, together, versus, kv_dtype, found=bool(findings)),
            *reasoning_sentence([tally for _, tally, *_ in measured]),
            *run.rate_limited(),
        ),
        advice=_advice(answer, versus, kv_dtype),
    )


def verdict(shares: Mapping[int, Share]) -> str:
    """Return `passes` (at least 90 % exact at every length), `fails` (less than half at each), `partly`.

    `not complete`: it passes where there are answers, but there is a length without any.
    """
    known = [share for share in shares.values() if share.of]
    if not known:
        return "not measured"
    if all(share.hits >= ENOUGH * share.of for share in known):
        return "passes" if len(known) == len(shares) else "not complete"
    return "fails" if all(2 * share.hits < share.of for share in known) else "partly"


def _row(one: Measured, pairs: Pairs | None) -> dict[str, Value]:
    digits, tally, outcomes, right_digits, first_wrong = one
    share = tally.share
    return {
        "digits": digits,
        "prompt_tokens": tally.prompt_tokens,
        "exact": share.hits,
        "of": share.of,
        "exact_ratio": share.ratio,
        "low_ratio": share.low,
        "high_ratio": share.high,
        "right_digits_ratio": right_digits / (digits * share.of) if share.of else None,
        "first_wrong_digit": None if first_wrong is None else first_wrong + 1,
        "other_number": tally.outcomes["other"],
        "no_number": tally.outcomes["none"],
        "failed": tally.failures,
        "baseline_exact": pairs.there.hits if pairs else None,
        "baseline_of": pairs.there.of if pairs else None,
        "chance": pairs.chance if pairs and pairs.total else None,
        "outcomes": outcomes,
    }


def _sentences(
    measured: Sequence[Measured], pairs: Pairs, versus: Versus | None, kv_dtype: str, *, found: bool
) -> list[str]:
    shares = {digits: tally.share for digits, tally, *_ in measured}
    overall, answer = sum(shares.values(), Share(0, 0)), verdict(shares)
    said = [
        {
            "not measured": "No question was answered: recall of digits is not known.",
            "passes": f"Strings of digits come back exactly: {overall}.",
            "fails": f"The model fails: {overall} strings come back exactly, at no length half of them.",
            "not complete": f"Strings of digits come back exactly at every length that was answered: {overall}.",
            "partly": f"Strings of digits come back exactly in {overall} answers{lengths_differ(shares)}.",
        }[answer]
    ]
    missing = [digits for digits, share in shares.items() if not share.of]
    if missing and overall.of:
        said.append(f"No question was answered for strings of {listed(missing)} digits: nothing is known about them.")
    if versus is not None:
        said += _against(pairs, versus, found)
    elif answer in ("partly", "fails") and quantised(kv_dtype):
        said.append(
            f"The KV cache is stored as {kv_dtype}. Whether that is the cause, only the same questions to the model "
            "with its own KV type tell: --baseline."
        )
    failed = failures_sentence([tally for _, tally, *_ in measured])
    return [*said, failed] if failed else said


def lengths_differ(shares: Mapping[int, Share]) -> str:
    """Return whether the lengths differ, as the end of a sentence: they do where one interval lies below another."""
    lows = [share.low for share in shares.values() if share.low is not None]
    highs = [share.high for share in shares.values() if share.high is not None]
    if len(lows) < 2:
        return ""
    return "; the lengths differ, see the table" if max(lows) > min(highs) else "; the lengths are not told apart"


def _against(pairs: Pairs, versus: Versus, found: bool) -> list[str]:
    if not pairs.total:
        return [f"No question was answered here and by the baseline ({versus.name}): there is nothing to compare."]
    shown = (
        f"of {pairs.total} questions to both, {pairs.here.hits} are exact here and {pairs.there.hits} at the baseline "
        f"({versus.name}); {pairs.only_there} only there, {pairs.only_here} only here, p = {pairs.chance:.3g}"
    )
    outcome = pairs.outcome()
    if outcome == "worse":
        more = [] if found else ["What differs between the two (KV type, weights, version) is not seen from here."]
        return [f"Worse than the baseline: {shown}.", *more]
    if outcome == "better":
        return [f"Better than the baseline: {shown}."]
    most = wilson(pairs.only_there, pairs.total)[1]
    text = f"No difference to the baseline is seen: {shown}. "
    return [text + f"A loss of up to {percent(most)} of the questions could go unnoticed; more --trials narrow it."]


def quantised(kv_dtype: str) -> bool:
    """Return whether a KV type as an engine names it is a quantised one; unknown is not quantised."""
    return bool(kv_dtype) and kv_dtype.lower().removeprefix("torch.") not in OWN_TYPES


def _finding(run: Run, pairs: Pairs, versus: Versus | None, kv_dtype: str) -> tuple[Finding, ...]:
    """Name the KV type as the cause only where it differs, the model does not, and the difference is no chance."""
    if versus is None or pairs.outcome() != "worse" or versus.model != run.server.model:
        return ()
    if not quantised(kv_dtype) or not versus.kv_dtype or quantised(versus.kv_dtype):
        return ()
    evidence = (
        Evidence(f"the KV cache is stored as {kv_dtype} here, as {versus.kv_dtype} at the baseline", name="kv_dtype"),
        Evidence(
            f"{pairs.only_there} of {pairs.total} strings come back exactly only from the baseline, {pairs.only_here} "
            f"only from here (p = {pairs.chance:.3g})",
            name="only_baseline_exact",
            value=float(pairs.only_there),
        ),
    )
    cause = (
        f"With the KV cache as {kv_dtype} the model gives {pairs.here} strings of digits exactly, with "
        f"{versus.kv_dtype} {pairs.there}. The two endpoints serve the same model name; other differences between them "
        "are not seen from here."
    )
    advice = (
        Advice("keep the KV cache in the model's own type, at twice the memory", "--kv-cache-dtype", kv_dtype, "auto"),
        Advice("or use a checkpoint with KV scales, and ask the same questions again"),
    )
    return (
        Finding(
            "fp8_kv_accuracy",
            "warning",
            "The quantised KV cache loses digits",
            cause,
            0.8,
            evidence,
            advice,
            since=round(run.started * 1000),
        ),
    )


def _advice(answer: str, versus: Versus | None, kv_dtype: str) -> tuple[Advice, ...]:
    if versus is None and answer in ("partly", "fails"):
        text = "save this result with -o FILE, serve the model with its own KV type, and ask again with --baseline FILE"
        if not quantised(kv_dtype):
            text = "compare it with a setting that is known to be good: -o FILE there, --baseline FILE here"
        return (Advice(text),)
    return ()
