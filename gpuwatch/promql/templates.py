"""Templates of annotations and labels: the part of Go's text/template that rule files use.

Everything that can be known before a template is rendered is refused when it is parsed. Functions:
https://prometheus.io/docs/prometheus/2.42/configuration/template_reference/.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gpuwatch.promql.goformat import show
from gpuwatch.promql.template_functions import FUNCTIONS, Sample, field_of, truth
from gpuwatch.promql.template_parser import (
    Assign,
    Command,
    If,
    Literal,
    Loop,
    Output,
    Parser,
    Piece,
    Pipe,
    Variable,
    With,
)
from gpuwatch.promql.values import PromQLError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatch.model import Labels
    from gpuwatch.promql.template_parser import Operand
    from gpuwatch.promql.values import Querier

_LONGEST = 16_384


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template."""

    text: str
    pieces: tuple[Piece, ...]

    def render(
        self,
        labels: Labels | Mapping[str, str],
        value: float,
        querier: Querier | None = None,
        time: int = 0,
        external_labels: Mapping[str, str] | None = None,
        *,
        external_url: str = "",
    ) -> str:
        """Return the text for one sample of an alert.

        Args:
            labels: What ``$labels`` stands for.
            value: What ``$value`` stands for.
            querier: Answers the function ``query``.
            time: When queries are evaluated, in milliseconds.
            external_labels: What ``$externalLabels`` stands for.
            external_url: What ``$externalURL`` stands for.

        Raises:
            PromQLError: A query fails or a value has the wrong type.
        """
        if len(self.pieces) <= 1 and all(isinstance(piece, str) for piece in self.pieces):
            return self.text if self.pieces else ""
        data = {
            "Labels": dict(labels),
            "Value": value,
            "ExternalLabels": dict(external_labels or {}),
            "ExternalURL": external_url,
        }
        run = _Run(querier, time)
        run.scopes[0].update(
            {
                "$": _Data(data),
                "$labels": data["Labels"],
                "$value": value,
                "$externalLabels": data["ExternalLabels"],
                "$externalURL": external_url,
            }
        )
        run.body(self.pieces, run.scopes[0]["$"])
        text = "".join(run.out)
        if len(text) > _LONGEST:
            raise PromQLError(f"a template gave more than {_LONGEST} characters")
        return text


@lru_cache(maxsize=256)
def parse(text: str) -> Template:
    """Parse a template; those used last are kept.

    Raises:
        PromQLError: The template is malformed, or uses something that is not supported.
    """
    return Template(text, Parser(text).run())


class _Data(dict[str, Any]):
    """The dot at the top of a template."""


@dataclass(slots=True)
class _Run:
    """One rendering."""

    querier: Querier | None
    time: int
    out: list[str] = field(default_factory=list)
    scopes: list[dict[str, Any]] = field(default_factory=lambda: [{}])

    def body(self, pieces: tuple[Piece, ...], dot: Any) -> None:
        """Write all pieces."""
        self.scopes.append({})
        for piece in pieces:
            self._piece(piece, dot)
        self.scopes.pop()

    def _piece(self, piece: Piece, dot: Any) -> None:
        if isinstance(piece, str):
            self.out.append(piece)
        elif isinstance(piece, Output):
            self.out.append(_text(self._pipe(piece.pipe, dot)))
        elif isinstance(piece, Assign):
            value = self._pipe(piece.pipe, dot)
            scope = self.scopes[-1] if piece.declare else self._scope(piece.name)
            scope[piece.name] = value
        elif isinstance(piece, If):
            self._if(piece, dot)
        elif isinstance(piece, With):
            self._with(piece, dot)
        else:
            self._loop(piece, dot)

    def _if(self, piece: If, dot: Any) -> None:
        for pipe, body in piece.branches:
            if truth(self._pipe(pipe, dot)):
                self.body(body, dot)
                return
        self.body(piece.otherwise, dot)

    def _with(self, piece: With, dot: Any) -> None:
        value = self._pipe(piece.pipe, dot)
        if not truth(value):
            self.body(piece.otherwise, dot)
            return
        self.scopes.append({piece.name: value} if piece.name else {})
        self.body(piece.body, value)
        self.scopes.pop()

    def _loop(self, piece: Loop, dot: Any) -> None:
        value = self._pipe(piece.pipe, dot)
        if isinstance(value, dict):
            items: list[tuple[Any, Any]] = sorted(value.items())
        elif isinstance(value, list):
            items = list(enumerate(value))
        else:
            raise PromQLError(f"range needs the result of a query, not {show(value)}")
        if not items:
            self.body(piece.otherwise, dot)
        for key, item in items:
            names = {piece.value: item} if piece.value else {}
            if piece.key:
                names[piece.key] = key
            self.scopes.append(names)
            self.body(piece.body, item)
            self.scopes.pop()

    def _scope(self, name: str) -> dict[str, Any]:
        return next(scope for scope in reversed(self.scopes) if name in scope)

    def _pipe(self, pipe: Pipe, dot: Any) -> Any:
        value: Any = None
        for number, command in enumerate(pipe.commands):
            value = self._command(command, dot, [value] if number else [])
        return value

    def _command(self, command: Command, dot: Any, piped: list[Any]) -> Any:
        args = [self._operand(arg, dot) for arg in command.args] + piped
        if not command.function:
            return args[0]
        if command.function == "query":
            return self._query(args[0])
        if command.function == "externalURL":
            return self.scopes[0]["$externalURL"]
        try:
            return FUNCTIONS[command.function].call(*args)
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise PromQLError(f"{command.function}: {error}") from None

    def _operand(self, operand: Operand, dot: Any) -> Any:
        if isinstance(operand, Literal):
            return operand.value
        if isinstance(operand, Pipe):
            value = self._pipe(operand, dot)
        elif isinstance(operand, Variable):
            value = self._scope(operand.name)[operand.name] if operand.name else dot
        else:
            raise TypeError(operand)
        for name in operand.fields:
            value = field_of(value, name)
        return value

    def _query(self, expr: Any) -> list[Sample]:
        if not isinstance(expr, str):
            raise PromQLError(f"query needs a text, not {show(expr)}")
        if self.querier is None:
            raise PromQLError("query cannot be answered here")
        return [Sample(dict(labels), value) for labels, value in self.querier.instant(expr, self.time).items()]


def _text(value: Any) -> str:
    if isinstance(value, (Sample, list, _Data)):
        raise PromQLError("a sample or a list of samples cannot be printed; use value, label or first")
    return show(value)
