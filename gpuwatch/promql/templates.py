"""Templates of annotations and labels: the part of Go's text/template that rule files use.

Everything that can be known before a template is rendered is refused when it is parsed. Functions:
https://prometheus.io/docs/prometheus/2.42/configuration/template_reference/.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gpuwatch.promql.goformat import show
from gpuwatch.promql.template_functions import FUNCTIONS, Sample, field_of, method_of, path_of, truth
from gpuwatch.promql.template_nodes import Assign, If, Include, Literal, Loop, Output, Pipe, Variable, With
from gpuwatch.promql.template_parser import Parser
from gpuwatch.promql.values import PromQLError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuwatch.model import Labels
    from gpuwatch.promql.template_nodes import Command, Operand, Piece
    from gpuwatch.promql.values import Querier

_LONGEST = 16_384
_MOST_PIECES = 100_000
_MOST_INCLUDED = 50


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template; `definitions` are the templates that it defines for itself, by name."""

    text: str
    pieces: tuple[Piece, ...]
    definitions: Mapping[str, tuple[Piece, ...]] = field(default_factory=dict)

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
            return "".join(str(piece) for piece in self.pieces)
        data = {
            "Labels": dict(labels),
            "Value": value,
            "ExternalLabels": dict(external_labels or {}),
            "ExternalURL": external_url,
        }
        run = _Run(querier, time, external_url, self.definitions)
        run.scopes[0].update(
            {
                "$": _Data(data),
                "$labels": data["Labels"],
                "$value": value,
                "$externalLabels": data["ExternalLabels"],
                "$externalURL": external_url,
            }
        )
        try:
            run.body(self.pieces, run.scopes[0]["$"])
        except RecursionError:
            raise PromQLError("the templates are nested too deeply") from None
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
    parser = Parser(text)
    return Template(text, parser.run(), parser.definitions)


class _Data(dict[str, Any]):
    """The dot at the top of a template."""


class _Left(Exception):  # noqa: N818  # it is control flow, not an error
    """A loop, or one turn of it, is left."""

    def __init__(self, *, loop: bool) -> None:
        super().__init__()
        self.loop = loop


@dataclass(slots=True)
class _Run:
    """One rendering."""

    querier: Querier | None
    time: int
    url: str
    definitions: Mapping[str, tuple[Piece, ...]]
    out: list[str] = field(default_factory=list)
    scopes: list[dict[str, Any]] = field(default_factory=lambda: [{}])
    included: int = 0
    pieces: int = 0

    def body(self, pieces: tuple[Piece, ...], dot: Any) -> None:
        """Write all pieces."""
        self.scopes.append({})
        for piece in pieces:
            self._piece(piece, dot)
        self.scopes.pop()

    def _piece(self, piece: Piece, dot: Any) -> None:
        self.pieces += 1
        if self.pieces > _MOST_PIECES:
            raise PromQLError(f"a template has more than {_MOST_PIECES:,} steps")
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
        elif isinstance(piece, Loop):
            self._loop(piece, dot)
        elif isinstance(piece, Include):
            self._include(piece, dot)
        else:
            raise _Left(loop=piece.loop)

    def _if(self, piece: If, dot: Any) -> None:
        self.scopes.append({})
        for name, pipe, body in piece.branches:
            value = self._pipe(pipe, dot)
            if name:
                self.scopes[-1][name] = value
            if truth(value):
                self.body(body, dot)
                break
        else:
            self.body(piece.otherwise, dot)
        self.scopes.pop()

    def _with(self, piece: With, dot: Any) -> None:
        value = self._pipe(piece.pipe, dot)
        self.scopes.append({piece.name: value} if piece.name else {})
        if truth(value):
            self.body(piece.body, value)
        else:
            self.body(piece.otherwise, dot)
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
            self.scopes.append(dict.fromkeys(filter(None, (piece.key, piece.value)), value))
            self.body(piece.otherwise, dot)
            self.scopes.pop()
        depth = len(self.scopes)
        for key, item in items:
            names = {piece.value: item} if piece.value else {}
            if piece.key:
                names[piece.key] = key
            self.scopes.append(names)
            try:
                self.body(piece.body, item)
            except _Left as left:
                if left.loop:
                    break
            finally:
                del self.scopes[depth:]

    def _include(self, piece: Include, dot: Any) -> None:
        value = self._pipe(piece.pipe, dot) if piece.pipe is not None else None
        if self.included >= _MOST_INCLUDED:
            raise PromQLError(f"templates include each other more than {_MOST_INCLUDED} levels deep")
        outside, self.scopes = self.scopes, [{"$": value}]
        self.included += 1
        self.body(self.definitions[piece.name], value)
        self.included -= 1
        self.scopes = outside

    def _scope(self, name: str) -> dict[str, Any]:
        return next(scope for scope in reversed(self.scopes) if name in scope)

    def _pipe(self, pipe: Pipe, dot: Any) -> Any:
        value: Any = None
        for number, command in enumerate(pipe.commands):
            value = self._command(command, dot, [value] if number else [])
        return value

    def _command(self, command: Command, dot: Any, piped: list[Any]) -> Any:
        if command.function in ("and", "or"):
            return self._choice(command, dot, piped)
        if not command.function and (len(command.args) > 1 or piped):
            return self._method(command, dot, piped)
        args = [self._operand(arg, dot) for arg in command.args] + piped
        if not command.function:
            return args[0]
        if command.function == "query":
            return self._query(args[0])
        if command.function in ("externalURL", "pathPrefix"):
            return self.url if command.function == "externalURL" else path_of(self.url)
        return _called(command.function, FUNCTIONS[command.function].call, args)

    def _choice(self, command: Command, dot: Any, piped: list[Any]) -> Any:
        """Evaluate the arguments of ``and`` or ``or`` up to the one that decides."""
        value: Any = None
        for arg in command.args:
            value = self._operand(arg, dot)
            if truth(value) == (command.function == "or"):
                return value
        return piped[0] if piped else value

    def _method(self, command: Command, dot: Any, piped: list[Any]) -> Any:
        """Call the method that the last field of the first operand names with the other operands."""
        operand = command.args[0]
        assert not isinstance(operand, Literal)
        receiver = replace(operand, fields=operand.fields[:-1])
        args = [self._operand(receiver, dot), *(self._operand(arg, dot) for arg in command.args[1:]), *piped]
        name = operand.fields[-1]
        return _called(name, method_of(args[0], name), args)

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


def _called(name: str, function: Callable[..., Any], args: list[Any]) -> Any:
    try:
        return function(*args)
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise PromQLError(f"{name}: {error}") from None


def _text(value: Any) -> str:
    if isinstance(value, (Sample, list, _Data)):
        raise PromQLError("a sample or a list of samples cannot be printed; use value, label or first")
    return show(value)
