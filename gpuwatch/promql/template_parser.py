"""From the text of a template to a tree of pieces."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gpuwatch.promql.plan import parse as parse_expression
from gpuwatch.promql.template_functions import FUNCTIONS
from gpuwatch.promql.values import PromQLError

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant."""

    value: str | float | bool | None


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable (``$labels``), or the dot when `name` is empty, and the fields taken of it."""

    name: str
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    """A function with arguments, or one operand when `function` is empty."""

    function: str
    args: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pipe:
    """Commands, each given the result of the one before as its last argument; `fields` where it is in parentheses."""

    commands: tuple[Command, ...]
    fields: tuple[str, ...] = ()


Operand: TypeAlias = "Literal | Variable | Pipe"


@dataclass(frozen=True, slots=True)
class Output:
    """Print a value."""

    pipe: Pipe


@dataclass(frozen=True, slots=True)
class Assign:
    """Give a variable a value."""

    name: str
    pipe: Pipe
    declare: bool


@dataclass(frozen=True, slots=True)
class If:
    """The first branch whose condition is true."""

    branches: tuple[tuple[Pipe, tuple[Piece, ...]], ...]
    otherwise: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class With:
    """The body with the dot (and `name`) set to a value that is not empty."""

    name: str
    pipe: Pipe
    body: tuple[Piece, ...]
    otherwise: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """The body for each sample of a list."""

    key: str
    value: str
    pipe: Pipe
    body: tuple[Piece, ...]
    otherwise: tuple[Piece, ...]


Piece: TypeAlias = "str | Output | Assign | If | With | Loop"

_INSIDE = re.compile(r"(?:`[^`]*`|\"(?:[^\"\\\n]|\\.)*\"|(?!\}\})[^`\"])*\}\}", re.DOTALL)
_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|`[^`]*`)
      | (?P<number>[+-]?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?))
      | (?P<variable>\$\w*(?:\.\w+)*)
      | (?P<field>(?:\.[A-Za-z_]\w*)+)
      | (?P<dot>\.)
      | (?P<symbol>:=|[=|(),])
      | (?P<word>\w+)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_TEXT = re.compile(r"(?:[^\\]|\\(?:[abfnrtv\\\"]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{3}))*")
_CONSTANTS: dict[str, bool | None] = {"true": True, "false": False, "nil": None}
_REFUSED = frozenset({"define", "template", "block", "break", "continue"})
_BLOCKS = frozenset({"if", "with", "range"})
_TOP = ("Labels", "Value", "ExternalLabels", "ExternalURL")
_KNOWN = frozenset({"$", "$labels", "$value", "$externalLabels", "$externalURL"})
_DEEPEST = 32


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    spaced: bool


_END = _Token("end", "", spaced=True)


class Parser:
    """Parses one template; see `run`."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._parts = _split(text)
        self._tokens: list[_Token] = []
        self._at = 0
        self._scopes: list[set[str]] = [set(_KNOWN)]
        self._top = True

    def run(self) -> tuple[Piece, ...]:
        """Return the pieces of the template.

        Raises:
            PromQLError: The template is malformed, or uses something that is not supported.
        """
        try:
            pieces, stop = self._body()
        except PromQLError as error:
            raise PromQLError(f"template {_short(self._text)}: {error}") from None
        if stop:
            raise PromQLError(f"template {_short(self._text)}: {{{{ {stop} }}}} without a beginning")
        return pieces

    def _body(self) -> tuple[tuple[Piece, ...], str]:
        """Parse up to the action that ends the body; its word is returned and the place is behind the word."""
        if len(self._scopes) > _DEEPEST:
            raise PromQLError(f"it is nested more than {_DEEPEST} levels deep")
        pieces: list[Piece] = []
        self._scopes.append(set())
        for kind, content in self._parts:
            if kind == "text":
                pieces.append(content)
                continue
            self._tokens, self._at = _tokens(content), 0
            word = self._peek().text if self._peek().kind == "word" else ""
            if word in ("end", "else"):
                self._take()
                self._scopes.pop()
                return tuple(pieces), word
            if word in _REFUSED:
                raise PromQLError(f"{{{{ {word} }}}} is not supported")
            pieces.append(self._block(word) if word in _BLOCKS else self._simple())
        self._scopes.pop()
        return tuple(pieces), ""

    def _simple(self) -> Piece:
        first, second = self._peek(), self._peek(1)
        if first.kind == "variable" and second.text in (":=", "="):
            name = self._take().text
            declare = self._take().text == ":="
            if not declare and not any(name in scope for scope in self._scopes):
                raise PromQLError(f"the variable {name} is not defined")
            pipe = self._whole()
            self._declare(name)
            return Assign(name, pipe, declare)
        return Output(self._whole())

    def _block(self, word: str) -> Piece:
        self._take()
        self._scopes.append(set())
        names = self._names() if word != "if" else []
        pipe = self._whole()
        for name in names:
            self._declare(name)
        top, self._top = self._top, self._top and word == "if"
        body, stop = self._body()
        self._top = top
        branches = [(pipe, body)]
        otherwise: tuple[Piece, ...] = ()
        while stop == "else":
            if self._peek().text == "if" and word == "if":
                self._take()
                pipe = self._whole()
                body, stop = self._body()
                branches.append((pipe, body))
                continue
            self._finish()
            otherwise, stop = self._body()
            if stop == "else":
                raise PromQLError("{{ else }} twice")
        if stop != "end":
            raise PromQLError(f"{{{{ {word} }}}} is not closed with {{{{ end }}}}")
        self._finish()
        self._scopes.pop()
        if word == "if":
            return If(tuple(branches), otherwise)
        if word == "with":
            return With(names[0] if names else "", pipe, body, otherwise)
        key, value = names if len(names) == 2 else ("", names[0] if names else "")
        return Loop(key, value, pipe, body, otherwise)

    def _names(self) -> list[str]:
        """Return the variables that ``with`` or ``range`` declares in front of a ``:=``."""
        names = []
        at = self._at
        while self._peek().kind == "variable":
            names.append(self._take().text)
            if self._peek().text == ":=":
                self._take()
                return names
            if self._peek().text != ",":
                break
            self._take()
        self._at = at
        return []

    def _declare(self, name: str) -> None:
        if "." in name or name in _KNOWN:
            raise PromQLError(f"{name} cannot be set")
        self._scopes[-1].add(name)

    def _whole(self) -> Pipe:
        pipe = self._pipe()
        self._finish()
        return pipe

    def _pipe(self) -> Pipe:
        commands = [self._command(piped=False)]
        while self._peek().text == "|":
            self._take()
            commands.append(self._command(piped=True))
        return Pipe(tuple(commands))

    def _command(self, *, piped: bool) -> Command:
        function = ""
        token = self._peek()
        if token.kind == "word" and token.text not in _CONSTANTS:
            function = self._take().text
            if function not in FUNCTIONS:
                raise PromQLError(f"the function {function} is not supported; supported are {', '.join(FUNCTIONS)}")
        args: list[Operand] = []
        while self._peek().text not in ("|", ")") and self._peek() is not _END:
            args.append(self._operand())
        if function:
            _check_call(function, args, piped)
        elif len(args) != 1 or piped:
            raise PromQLError("a value is missing" if not args else "only functions take arguments")
        return Command(function, tuple(args))

    def _operand(self) -> Operand:
        token = self._take()
        if token.kind in ("string", "number"):
            return Literal(_string(token.text) if token.kind == "string" else _number(token.text))
        if token.kind == "word":
            if token.text not in _CONSTANTS:
                raise PromQLError(f"the function {token.text} needs parentheses here, or does not exist")
            return Literal(_CONSTANTS[token.text])
        if token.kind == "variable":
            return self._variable(token.text)
        if token.kind in ("dot", "field"):
            fields = tuple(token.text.split(".")[1:]) if token.kind == "field" else ()
            if self._top:
                _check_top(fields)
            return Variable("", fields)
        if token.text != "(":
            raise PromQLError(f"unexpected {token.text!r}")
        return self._parenthesis()

    def _parenthesis(self) -> Pipe:
        """Parse the rest of a pipe in parentheses and the fields taken of its value."""
        pipe = self._pipe()
        if self._take().text != ")":
            raise PromQLError("a parenthesis is not closed")
        follows = self._peek()
        if follows.kind == "field" and not follows.spaced:
            return Pipe(pipe.commands, tuple(self._take().text.split(".")[1:]))
        return pipe

    def _variable(self, text: str) -> Variable:
        name, *fields = text.split(".")
        if not any(name in scope for scope in self._scopes):
            raise PromQLError(f"the variable {name} is not defined")
        if name == "$":
            _check_top(tuple(fields))
        elif (name in ("$value", "$externalURL") and fields) or (
            name in ("$labels", "$externalLabels") and len(fields) > 1
        ):
            raise PromQLError(f"{text} has too many fields")
        return Variable(name, tuple(fields))

    def _peek(self, ahead: int = 0) -> _Token:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else _END

    def _take(self) -> _Token:
        token = self._peek()
        if token is _END:
            raise PromQLError("an action ends too early")
        self._at += 1
        return token

    def _finish(self) -> None:
        if self._peek() is not _END:
            raise PromQLError(f"unexpected {self._peek().text!r}")


def _check_top(fields: tuple[str, ...]) -> None:
    if fields and fields[0] not in _TOP:
        raise PromQLError(f".{fields[0]} does not exist; there are {', '.join('.' + name for name in _TOP)}")


def _check_call(name: str, args: list[Operand], piped: bool) -> None:
    function, count = FUNCTIONS[name], len(args) + piped
    if count < function.fewest or (function.most is not None and count > function.most):
        wanted = str(function.fewest) if function.fewest == function.most else f"at least {function.fewest}"
        raise PromQLError(f"the function {name} takes {wanted} argument(s), not {count}")
    if name == "query" and args and isinstance(args[0], Literal):
        if not isinstance(args[0].value, str):
            raise PromQLError("query needs a text")
        parse_expression(args[0].value)


def _split(text: str) -> Iterator[tuple[str, str]]:
    """Yield ("text", …) and ("action", …) with the trim marks applied and comments left out."""
    at, trim = 0, False
    while at < len(text):
        begin = text.find("{{", at)
        plain = text[at:] if begin < 0 else text[at:begin]
        plain = plain.lstrip() if trim else plain
        if begin < 0:
            if plain:
                yield "text", plain
            return
        inside = begin + 2
        if text.startswith("-", inside) and text[inside + 1 : inside + 2].isspace():
            plain = plain.rstrip()
            inside += 1
        if plain:
            yield "text", plain
        if text[inside:].lstrip().startswith("/*"):
            content, at = _comment(text, inside)
        else:
            found = _INSIDE.match(text, inside)
            if not found:
                raise PromQLError("{{ is not closed with }}")
            content, at = found[0][:-2], found.end()
        trim = content.endswith("-") and content[-2:-1].isspace()
        if not content.lstrip().startswith("/*"):
            yield "action", content[:-1] if trim else content


def _comment(text: str, begin: int) -> tuple[str, int]:
    end = text.find("*/", begin)
    close = text.find("}}", end)
    if end < 0 or close < 0 or text[end + 2 : close].strip() not in ("", "-"):
        raise PromQLError("a comment is not closed")
    return text[begin:close], close + 2


def _tokens(content: str) -> list[_Token]:
    tokens, spaced = [], True
    for found in _TOKEN.finditer(content):
        kind = found.lastgroup or ""
        if kind == "other":
            raise PromQLError(f"unexpected {found[0]!r}")
        if kind != "space":
            tokens.append(_Token(kind, found[0], spaced))
        spaced = kind == "space"
    if not tokens:
        raise PromQLError("an action is empty")
    return tokens


def _string(token: str) -> str:
    if token.startswith("`"):
        return token[1:-1]
    if not _TEXT.fullmatch(token[1:-1]):
        raise PromQLError(f"{token} has an unknown escape")
    return str(ast.literal_eval(token))


def _number(token: str) -> float | int:
    if re.fullmatch(r"[+-]?\d+", token):
        return int(token)
    return float(int(token, 16)) if "x" in token.lower() else float(token)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "…")
