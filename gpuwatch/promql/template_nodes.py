"""What a template consists of once it is parsed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


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
    """A function with arguments; without a `function` one operand, and what its last field, a method, is given."""

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
    """The first branch whose condition is true: (a variable for its value or "", condition, body)."""

    branches: tuple[tuple[str, Pipe, tuple[Piece, ...]], ...]
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
    """The body for each item of a list or mapping."""

    key: str
    value: str
    pipe: Pipe
    body: tuple[Piece, ...]
    otherwise: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Include:
    """The template called `name`, with the value of `pipe` as its dot."""

    name: str
    pipe: Pipe | None


@dataclass(frozen=True, slots=True)
class Leave:
    """The end of a turn of the innermost loop, or of the loop as a whole."""

    loop: bool


Piece: TypeAlias = "str | Output | Assign | If | With | Loop | Include | Leave"
