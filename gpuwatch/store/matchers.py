"""Label matchers: which series a selector means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from gpuwatch.store.regex import compile_regex

if TYPE_CHECKING:
    from collections.abc import Mapping

MatchOp: TypeAlias = Literal["=", "!=", "=~", "!~"]


@dataclass(frozen=True, slots=True)
class Matcher:
    """One condition on a label; a missing label counts as the empty string."""

    name: str
    op: MatchOp
    value: str

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Say whether `labels` satisfy the condition.

        Raises:
            RegexError: The value is not a supported regular expression.
        """
        value = labels.get(self.name, "")
        if self.op == "=":
            return value == self.value
        if self.op == "!=":
            return value != self.value
        found = compile_regex(self.value).fullmatch(value) is not None
        return found if self.op == "=~" else not found
