"""How sure a share of a few trials is, and whether two shares differ."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuwatch.units import percent

Z95 = 1.959963984540054
"""Standard normal quantile of a two-sided 95 % interval."""


def wilson(hits: int, trials: int, z: float = Z95) -> tuple[float, float]:
    """Return the Wilson score interval of `hits` out of `trials`, as two ratios.

    Unlike hits ± z·s it never leaves 0 to 1 and is right for few trials and for shares of 0 and 1
    (E. B. Wilson, JASA 22, 1927; recommended by Brown, Cai and DasGupta, Statistical Science 16, 2001).

    Raises:
        ValueError: `trials` is not positive, or `hits` is not between 0 and `trials`.
    """
    if trials < 1 or not 0 <= hits <= trials:
        raise ValueError(f"{hits} hits of {trials} trials")
    share, square = hits / trials, z * z
    middle = share + square / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + square / (4 * trials * trials))
    scale = 1 + square / trials
    low = 0.0 if hits == 0 else max(0.0, (middle - spread) / scale)
    high = 1.0 if hits == trials else min(1.0, (middle + spread) / scale)
    return low, high


@dataclass(frozen=True, slots=True)
class Share:
    """`hits` out of `of` trials. Without a trial there is no ratio: absent is not zero."""

    hits: int
    of: int

    @property
    def ratio(self) -> float | None:
        """The share, 0 to 1; None without a trial."""
        return self.hits / self.of if self.of else None

    @property
    def low(self) -> float | None:
        """Lower end of the 95 % Wilson interval; None without a trial."""
        return wilson(self.hits, self.of)[0] if self.of else None

    @property
    def high(self) -> float | None:
        """Upper end of the 95 % Wilson interval; None without a trial."""
        return wilson(self.hits, self.of)[1] if self.of else None

    def __add__(self, other: Share) -> Share:
        return Share(self.hits + other.hits, self.of + other.of)

    def __str__(self) -> str:
        """Return such as ``24 of 25 (96 %, 80 to 99 %)``; the interval is Wilson's at 95 %."""
        if not self.of:
            return "not measured"
        low, high = (percent(end).removesuffix(" %") for end in wilson(self.hits, self.of))
        return f"{self.hits} of {self.of} ({percent(self.hits / self.of)}, {low} to {high} %)"


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided exact p-value of McNemar's test for paired answers.

    Of the questions that one side answered and the other did not, half should go either way if the sides are equally
    good; the p-value is the binomial chance of a split at least as uneven. Questions that both or none answered say
    nothing about the difference.

    Args:
        only_first: Questions that only the first side answered.
        only_second: Questions that only the second side answered.

    Raises:
        ValueError: a count is negative.
    """
    if min(only_first, only_second) < 0:
        raise ValueError(f"{only_first} and {only_second} questions")
    trials = only_first + only_second
    tail = sum(math.comb(trials, k) for k in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * tail / (1 << trials))


def by_a_coin(hits: int, trials: int) -> float:
    """Return the chance that at least `hits` of `trials` answers are right where each is right by the toss of a coin.

    Raises:
        ValueError: `hits` is not between 0 and `trials`.
    """
    if not 0 <= hits <= trials:
        raise ValueError(f"{hits} hits of {trials} trials")
    return sum(math.comb(trials, k) for k in range(hits, trials + 1)) / (1 << trials)
