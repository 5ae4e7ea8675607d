"""The JSON of `/api/v1/snapshot`, versioned, and the way back: what `--attach` reads.

Findings have the shape of ``check --json``. Series are written as objects of their labels, numbers that JSON does not
have as ``"NaN"``, ``"+Inf"`` and ``"-Inf"``; where a text could stand in the same place, as ``{"number": "NaN"}``.
A key that is missing takes its default and one that is not known is left out, so that programs of the same schema
understand each other whatever their version.
"""

from __future__ import annotations

import json
import math
from dataclasses import Field, dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

from gpuwatch import __version__
from gpuwatch.diagnosis.finding import Advice, Evidence, Finding, NotEnough, Severity, State
from gpuwatch.model import Absence, Fact, LogLine, Reason
from gpuwatch.snapshot import Answer, Mode, Recording, RuleStatus, RuleView, Snapshot, SourceState

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = 1

_SPECIAL = {"NaN": math.nan, "+Inf": math.inf, "-Inf": -math.inf}
_PLAIN: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "str | None": (str, type(None)),
    "int | None": (int, type(None)),
}
"""What the fields that are written as they are may hold, by their annotation."""
_Way: TypeAlias = "tuple[Callable[[Any], Any], Callable[[Any], Any]]"


class SnapshotError(Exception):
    """A document that is no snapshot of a schema that is understood; the message is one line."""


def encode(snapshot: Snapshot) -> bytes:
    """Return the document of `snapshot`."""
    data = {"schema": SCHEMA, "gpuwatch": __version__, **_SNAPSHOT.encode(snapshot)}
    return json.dumps(data, separators=(",", ":"), allow_nan=False).encode()


def decode(document: bytes | str) -> Snapshot:
    """Return the snapshot in `document`.

    Raises:
        SnapshotError: It is not JSON, not such a document, or of another schema.
    """
    try:
        data = json.loads(document)
    except (ValueError, RecursionError):
        raise SnapshotError("the answer is not JSON") from None
    if not isinstance(data, dict) or "schema" not in data:
        raise SnapshotError("the answer is no snapshot of gpuwatch")
    if data["schema"] != SCHEMA:
        raise SnapshotError(
            f"gpuwatch {str(data.get('gpuwatch', '?'))[:20]} answers with snapshots of schema "
            f"{str(data['schema'])[:20]}; this is gpuwatch {__version__}, which reads schema {SCHEMA}"
        )
    try:
        snapshot: Snapshot = _SNAPSHOT.decode(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SnapshotError(f"the snapshot is damaged: {type(error).__name__}: {str(error)[:80]}") from None
    return snapshot


def number_json(value: float) -> float | str:
    """Return a number as JSON has it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return value


def _number(value: Any) -> float:
    number = _SPECIAL[value] if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise TypeError("a number is expected")
    return float(number)


def _scalar_json(value: Any) -> Any:
    shown = number_json(value) if isinstance(value, float) else value
    return {"number": shown} if isinstance(value, float) and isinstance(shown, str) else shown


def _scalar(value: Any) -> Any:
    if isinstance(value, dict):
        return _SPECIAL[value["number"]]
    if value is not None and not isinstance(value, (str, int, float)):
        raise TypeError("a text or a number is expected")
    return value


def _labels(value: Any) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((str(key), str(text)) for key, text in value.items()))


def _one_of(literal: Any) -> _Way:
    """Return the way of a field that holds one of a few words."""

    def decode(value: Any) -> Any:
        if value not in get_args(literal):
            raise ValueError(f"{str(value)[:20]!r} is none of {', '.join(get_args(literal))}")
        return value

    return str, decode


def _plain(value: Any, kind: str, key: str) -> Any:
    if not isinstance(value, _PLAIN[kind]) or (isinstance(value, bool) and kind != "bool"):
        raise TypeError(f"{key} is no {kind}")
    return value


@dataclass(frozen=True)
class _Shape:
    """How the fields of a dataclass are written: under which key where it differs, and how where it is not as it is."""

    cls: type
    ways: dict[str, _Way] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()

    def encode(self, item: Any) -> dict[str, Any]:
        """Return the object of `item`."""
        data = {}
        for entry in self._entries:
            value = getattr(item, entry.name)
            way = self.ways.get(entry.name)
            data[self.keys.get(entry.name, entry.name)] = way[0](value) if way is not None else value
        return data

    def decode(self, data: Any) -> Any:
        """Return the item of an object."""
        values = {}
        for entry in self._entries:
            key = self.keys.get(entry.name, entry.name)
            if key in data:
                way = self.ways.get(entry.name)
                values[entry.name] = way[1](data[key]) if way is not None else _plain(data[key], str(entry.type), key)
        return self.cls(**values)

    @cached_property
    def _entries(self) -> list[Field[Any]]:
        return [entry for entry in fields(self.cls) if entry.name not in self.left_out]


def _many(shape: _Shape) -> _Way:
    return (
        lambda items: [shape.encode(item) for item in items],
        lambda data: tuple(shape.decode(one) for one in data),
    )


def _optional(shape: _Shape) -> _Way:
    return (
        lambda item: None if item is None else shape.encode(item),
        lambda data: None if data is None else shape.decode(data),
    )


_LABELS: _Way = (dict, _labels)
_LABEL_DICT: _Way = (dict, lambda data: dict(_labels(data)))
_SCALAR: _Way = (_scalar_json, _scalar)
_NUMBER: _Way = (number_json, _number)
_TEXTS: _Way = (list, lambda data: tuple(map(str, data)))
_PAIRS: _Way = (lambda pairs: [list(pair) for pair in pairs], lambda data: tuple((str(a), str(b)) for a, b in data))
_SAMPLES: _Way = (
    lambda samples: [[dict(labels), number_json(value)] for labels, value in samples],
    lambda data: tuple((_labels(labels), _number(value)) for labels, value in data),
)
_READINGS: _Way = (
    lambda readings: [[text, number_json(value), number_json(limit)] for text, value, limit in readings],
    lambda data: tuple((str(text), _number(value), _number(limit)) for text, value, limit in data),
)
_AGE: _Way = (
    lambda age: None if age is None else number_json(age),
    lambda data: None if data is None else _number(data),
)
_REASON: _Way = (lambda reason: reason.value, Reason)

_ANSWER = _Shape(Answer, {"samples": _SAMPLES})
_FINDING = _Shape(
    Finding,
    {
        "severity": _one_of(Severity),
        "state": _one_of(State),
        "confidence": _NUMBER,
        "evidence": _many(_Shape(Evidence, {"value": _SCALAR})),
        "advice": _many(_Shape(Advice, keys={"current": "from", "proposed": "to"})),
        "labels": _LABEL_DICT,
    },
    left_out=frozenset({"alerts"}),
)
_SNAPSHOT = _Shape(
    Snapshot,
    {
        "mode": _one_of(Mode),
        "interval": _NUMBER,
        "answers": (
            lambda answers: {name: _ANSWER.encode(answer) for name, answer in answers.items()},
            lambda data: {str(name): _ANSWER.decode(answer) for name, answer in data.items()},
        ),
        "findings": _many(_FINDING),
        "not_enough": _many(_Shape(NotEnough, {"labels": _LABEL_DICT})),
        "rules": _many(_Shape(RuleView, {"readings": _READINGS, "status": _one_of(RuleStatus)})),
        "sources": _many(_Shape(SourceState, {"age": _AGE})),
        "absent": _many(_Shape(Absence, {"labels": _LABELS, "reason": _REASON})),
        "lines": _many(_Shape(LogLine)),
        "facts": _many(_Shape(Fact, {"value": _SCALAR})),
        "recording": _optional(_Shape(Recording, {"position": _NUMBER, "length": _NUMBER, "speed": _NUMBER})),
        "looked_for": _PAIRS,
        "problems": _TEXTS,
        "focus": (
            lambda focus: None if focus is None else list(focus),
            lambda data: None if data is None else (str(data[0]), str(data[1])),
        ),
    },
)
