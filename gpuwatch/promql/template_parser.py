"""From the text of a template to a tree of pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.promql.plan import parse as parse_expression
from gpuwatch.promql.template_functions import FUNCTIONS
from gpuwatch.promql.template_lexer import END, Token, constant, split, tokens
from gpuwatch.promql.template_nodes import (
    Assign,
    Command,
    If,
    Include,
    Leave,
    Literal,
    Loop,
    Output,
    Pipe,
    Variable,
    With,
)
from gpuwatch.promql.values import PromQLError

if TYPE_CHECKING:
    from gpuwatch.promql.template_nodes import Operand, Piece

_CONSTANTS: dict[str, bool | None] = {"true": True, "false": False, "nil": None}
_BLOCKS = frozenset({"if", "with", "range"})
_KEYWORDS = _BLOCKS | {"define", "template", "block", "break", "continue", "end", "else"}
_TOP = ("Labels", "Value", "ExternalLabels", "ExternalURL")
_KNOWN = frozenset({"$", "$labels", "$value", "$externalLabels", "$externalURL"})
_DEEPEST = 32


class Parser:
    """Parses one template; see `run`. `definitions` are the templates that it defines, by name."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._parts = split(text)
        self._tokens: list[Token] = []
        self._at = 0
        self._scopes: list[set[str]] = [set(_KNOWN)]
        self._top = True  # whether the dot is the one of the whole template
        self._root = True  # whether $ is
        self._open = 0
        self._loops = 0
        self._included: list[str] = []
        self.definitions: dict[str, tuple[Piece, ...]] = {}

    def run(self) -> tuple[Piece, ...]:
        """Return the pieces of the template.

        Raises:
            PromQLError: The template is malformed, or uses something that is not supported.
        """
        try:
            return self._checked()
        except PromQLError as error:
            raise PromQLError(f"template {_short(self._text)}: {error}") from None

    def _checked(self) -> tuple[Piece, ...]:
        pieces, stop = self._body()
        if stop:
            raise PromQLError(f"{{{{ {stop} }}}} without a beginning")
        lacking = next((name for name in self._included if name not in self.definitions), None)
        if lacking is not None:
            raise PromQLError(f"the template {lacking!r} is not defined")
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
            self._tokens, self._at = tokens(content), 0
            word = self._peek().text if self._peek().kind == "word" else ""
            if word in ("end", "else"):
                self._take()
                self._scopes.pop()
                return tuple(pieces), word
            pieces.extend(self._action(word))
        self._scopes.pop()
        return tuple(pieces), ""

    def _action(self, word: str) -> tuple[Piece, ...]:
        if word in _BLOCKS:
            self._open += 1
            block = self._block(word)
            self._open -= 1
            return (block,)
        if word == "define":
            self._define()
            return ()
        if word in ("template", "block"):
            return (self._include(word),)
        if word in ("break", "continue"):
            self._take()
            self._finish()
            if not self._loops:
                raise PromQLError(f"{{{{ {word} }}}} outside {{{{ range }}}}")
            return (Leave(word == "break"),)
        return (self._simple(),)

    def _define(self) -> None:
        self._take()
        if self._open:
            raise PromQLError("{{ define }} is only allowed outside other blocks")
        name = self._name("define")
        self._finish()
        self._definition(name, "define")

    def _include(self, word: str) -> Include:
        self._take()
        name = self._name(word)
        if word == "block" and self._peek() is END:
            raise PromQLError("{{ block }} needs a value behind the name")
        pipe = self._whole() if self._peek() is not END else None
        self._included.append(name)
        if word == "block":
            self._definition(name, word)
        return Include(name, pipe)

    def _name(self, word: str) -> str:
        token = self._take()
        if token.kind != "string":
            raise PromQLError(f"{{{{ {word} }}}} needs a name in quotes")
        return str(constant(token))

    def _definition(self, name: str, word: str) -> None:
        """Parse the body of a definition, in which only ``$`` and the dot exist: what it is called with."""
        outside = self._scopes, self._top, self._root, self._open, self._loops
        depth = len(self._scopes)
        self._scopes = [{"$"}, *(set() for _ in range(depth))]
        self._top, self._root, self._open, self._loops = False, False, 1, 0
        body, stop = self._body()
        if stop != "end":
            raise PromQLError(f"{{{{ {word} }}}} is not closed with {{{{ end }}}}")
        self._finish()
        self._scopes, self._top, self._root, self._open, self._loops = outside
        if _is_empty(body):
            self.definitions.setdefault(name, body)
        elif not _is_empty(self.definitions.get(name, ())):
            raise PromQLError(f"the template {name!r} is defined twice")
        else:
            self.definitions[name] = body

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
        names, pipe = self._condition(word)
        top, self._top = self._top, self._top and word == "if"
        self._loops += word == "range"
        body, stop = self._body()
        self._loops -= word == "range"
        self._top = top
        branches = [("".join(names[:1]), pipe, body)]
        otherwise: tuple[Piece, ...] = ()
        while stop == "else":
            if self._peek().text == "if" and word == "if":
                self._take()
                names, pipe = self._condition(word)
                body, stop = self._body()
                branches.append(("".join(names), pipe, body))
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

    def _condition(self, word: str) -> tuple[list[str], Pipe]:
        """Parse what stands behind ``if``, ``with`` or ``range``, and the variables that it declares."""
        names = self._names()
        if len(names) > (2 if word == "range" else 1):
            raise PromQLError(f"{{{{ {word} }}}} declares too many variables")
        pipe = self._whole()
        for name in names:
            self._declare(name)
        return names, pipe

    def _names(self) -> list[str]:
        """Return the variables that a block declares in front of a ``:=``."""
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
            _check_function(function)
        args: list[Operand] = []
        while self._peek().text not in ("|", ")") and self._peek() is not END:
            if (function or args) and not self._peek().spaced:
                raise PromQLError(f"unexpected {self._peek().text!r}; a blank is missing in front of it")
            args.append(self._operand())
        if function:
            _check_call(function, args, piped)
        elif not args:
            raise PromQLError("a value is missing")
        elif (len(args) > 1 or piped) and not self._may_have_methods(args[0]):
            raise PromQLError("only functions take arguments")
        elif isinstance(args[0], Literal) and args[0].value is None:
            raise PromQLError("nil cannot be shown")
        return Command(function, tuple(args))

    def _may_have_methods(self, operand: Operand) -> bool:
        """Return whether the last field of an operand may be a method; labels and the like have none."""
        if isinstance(operand, Literal) or not operand.fields:
            return False
        return isinstance(operand, Pipe) or not (
            operand.name in _KNOWN - {"$"} or (self._root and operand.name == "$") or (self._top and not operand.name)
        )

    def _operand(self) -> Operand:
        token = self._take()
        if token.kind in ("string", "character", "number"):
            return Literal(constant(token))
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
            if self._root:
                _check_top(tuple(fields))
        elif (name in ("$value", "$externalURL") and fields) or (
            name in ("$labels", "$externalLabels") and len(fields) > 1
        ):
            raise PromQLError(f"{text} has too many fields")
        return Variable(name, tuple(fields))

    def _peek(self, ahead: int = 0) -> Token:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else END

    def _take(self) -> Token:
        token = self._peek()
        if token is END:
            raise PromQLError("an action ends too early")
        self._at += 1
        return token

    def _finish(self) -> None:
        if self._peek() is not END:
            raise PromQLError(f"unexpected {self._peek().text!r}")


def _check_top(fields: tuple[str, ...]) -> None:
    if fields and fields[0] not in _TOP:
        raise PromQLError(f".{fields[0]} does not exist; there are {', '.join('.' + name for name in _TOP)}")


def _check_function(name: str) -> None:
    if name in _KEYWORDS:
        raise PromQLError(f"{{{{ {name} }}}} is not allowed here")
    if name == "call":
        raise PromQLError("the function call needs a function as a value, which nothing in the template of a rule is")
    if name not in FUNCTIONS:
        raise PromQLError(f"the function {name} is not supported; supported are {', '.join(FUNCTIONS)}")


def _check_call(name: str, args: list[Operand], piped: bool) -> None:
    function, count = FUNCTIONS[name], len(args) + piped
    if count < function.fewest or (function.most is not None and count > function.most):
        wanted = str(function.fewest) if function.fewest == function.most else f"at least {function.fewest}"
        raise PromQLError(f"the function {name} takes {wanted} argument(s), not {count}")
    if name == "query" and args and isinstance(args[0], Literal):
        if not isinstance(args[0].value, str):
            raise PromQLError("query needs a text")
        parse_expression(args[0].value)


def _is_empty(body: tuple[Piece, ...]) -> bool:
    return all(isinstance(piece, str) and not piece.strip() for piece in body)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "…")
