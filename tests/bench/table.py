"""One line per figure: what was measured, what it was measured against, and whether the budget holds."""

from __future__ import annotations

from dataclasses import dataclass

HEADINGS = ("measured", "figure", "peer or floor in the same run", "ratio", "budget", "")


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `judged` is the number that the budget limits; `at_least` turns the limit round; None: no budget."""

    what: str
    figure: str
    against: str = ""
    ratio: float | None = None
    judged: float | None = None
    budget: float | None = None
    unit: str = ""
    at_least: bool = False

    @property
    def verdict(self) -> str:
        """Return OK, OVER, or nothing where there is no budget."""
        if self.budget is None or self.judged is None:
            return ""
        good = self.judged >= self.budget if self.at_least else self.judged <= self.budget
        return "OK" if good else "OVER"

    def cells(self) -> tuple[str, ...]:
        """Return the row as text."""
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}" if self.ratio < 10 else f"{self.ratio:.0f}"
        sign = "≥" if self.at_least else "≤"
        budget = "" if self.budget is None else f"{sign} {self.budget:g} {self.unit}".rstrip()
        return self.what, self.figure, self.against, ratio, budget, self.verdict


def print_table(rows: list[Row]) -> None:
    """Print the rows under their headings."""
    cells = [HEADINGS, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADINGS))]
    for number, line in enumerate(cells):
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))
