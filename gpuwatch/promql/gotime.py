"""Moments the way Go's ``time.Time`` shows them in templates; always in UTC, as Prometheus renders them."""

from __future__ import annotations

import datetime as dt
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_LARGEST = float(2**63)
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_LAYOUT = re.compile(
    r"January|Jan(?![a-z])|Monday|Mon(?![a-z])|MST|2006|-07:00:00|-070000|-07:00|-0700|-07"
    r"|Z(?:07:00:00|070000|07:00|0700|07)|__2|002|_2(?!006)|0[1-6]|15|PM|pm|[.,](?:0+|9+)(?!\d)|[1-5]"
)


class Named(int):
    """A whole number that is shown as a word: a month or a weekday."""

    word = ""

    def __str__(self) -> str:
        """Return the word."""
        return self.word


def _named(number: int, words: tuple[str, ...], first: int) -> Named:
    made = Named(number)
    made.word = words[number - first]
    return made


@dataclass(frozen=True, slots=True)
class Moment:
    """A time in nanoseconds since the epoch."""

    nanoseconds: int

    @property
    def date(self) -> dt.datetime:
        """The time, to the microsecond below it."""
        return _EPOCH + dt.timedelta(microseconds=self.nanoseconds // 1000)

    def __str__(self) -> str:
        """Return what ``Time.String`` gives."""
        return layout(self, "2006-01-02 15:04:05.999999999 -0700 MST")


def moment(seconds: float) -> Moment | None:
    """Return seconds since the epoch as a moment, whole milliseconds as in Prometheus; None for NaN and infinity.

    Raises:
        ValueError: It does not fit into 64 bits of nanoseconds.
    """
    if not math.isfinite(seconds):
        return None
    nanoseconds = seconds * 1e9
    if abs(nanoseconds) > _LARGEST:
        raise ValueError(f"{seconds:g} seconds are beyond the times that nanoseconds can count")
    whole = int(nanoseconds)
    return Moment(abs(whole) // 10**6 * 10**6 * (1 if whole >= 0 else -1))


def layout(at: Moment, form: str) -> str:
    """Return what ``Time.Format`` gives for a layout such as ``2006-01-02 15:04:05``."""
    date, fraction = at.date, f"{at.nanoseconds % 10**9:09d}"

    def one(found: re.Match[str]) -> str:
        word = found[0]
        if word[0] in ".,":
            shown = fraction[: len(word) - 1]
            shown = shown.rstrip("0") if word[1] == "9" else shown
            return word[0] + shown if shown else ""
        if word[0] == "Z":
            return "Z"
        if word.startswith("-07"):
            return "+" + re.sub(r"\d", "0", word[1:])
        return _PARTS[word](date)

    return _LAYOUT.sub(one, form)


def _half(date: dt.datetime) -> int:
    return date.hour % 12 or 12


_PARTS: dict[str, Callable[[dt.datetime], str]] = {
    "January": lambda date: _MONTHS[date.month - 1],
    "Jan": lambda date: _MONTHS[date.month - 1][:3],
    "Monday": lambda date: _DAYS[date.isoweekday() % 7],
    "Mon": lambda date: _DAYS[date.isoweekday() % 7][:3],
    "MST": lambda _: "UTC",
    "2006": lambda date: f"{date.year:04d}",
    "06": lambda date: f"{date.year % 100:02d}",
    "01": lambda date: f"{date.month:02d}",
    "1": lambda date: str(date.month),
    "02": lambda date: f"{date.day:02d}",
    "_2": lambda date: f"{date.day:2d}",
    "2": lambda date: str(date.day),
    "002": lambda date: f"{date.timetuple().tm_yday:03d}",
    "__2": lambda date: f"{date.timetuple().tm_yday:3d}",
    "15": lambda date: f"{date.hour:02d}",
    "03": lambda date: f"{_half(date):02d}",
    "3": lambda date: str(_half(date)),
    "04": lambda date: f"{date.minute:02d}",
    "4": lambda date: str(date.minute),
    "05": lambda date: f"{date.second:02d}",
    "5": lambda date: str(date.second),
    "PM": lambda date: "PM" if date.hour >= 12 else "AM",
    "pm": lambda date: "pm" if date.hour >= 12 else "am",
}


def _other(value: Any) -> Moment:
    if not isinstance(value, Moment):
        raise TypeError("a time is needed")
    return value


def _form(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a layout such as `15:04` is needed")
    return value


METHODS: dict[str, Callable[..., Any]] = {
    "Year": lambda at: at.date.year,
    "Month": lambda at: _named(at.date.month, _MONTHS, 1),
    "Day": lambda at: at.date.day,
    "Hour": lambda at: at.date.hour,
    "Minute": lambda at: at.date.minute,
    "Second": lambda at: at.date.second,
    "Nanosecond": lambda at: at.nanoseconds % 10**9,
    "Weekday": lambda at: _named(at.date.isoweekday() % 7, _DAYS, 0),
    "YearDay": lambda at: at.date.timetuple().tm_yday,
    "Unix": lambda at: at.nanoseconds // 10**9,
    "UnixMilli": lambda at: at.nanoseconds // 10**6,
    "UnixMicro": lambda at: at.nanoseconds // 10**3,
    "UnixNano": lambda at: at.nanoseconds,
    "UTC": lambda at: at,
    "IsZero": lambda _: False,
    "String": str,
    "Format": lambda at, form: layout(at, _form(form)),
    "Before": lambda at, other: at.nanoseconds < _other(other).nanoseconds,
    "After": lambda at, other: at.nanoseconds > _other(other).nanoseconds,
    "Equal": lambda at, other: at.nanoseconds == _other(other).nanoseconds,
}
"""The methods of a time that a template may use."""
