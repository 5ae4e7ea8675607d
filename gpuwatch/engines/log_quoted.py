"""Whether a line only repeats what somebody wrote: the text of a request, an access line, a ticket, a table of a guide.

What a message seems to say then happened in no engine, or not at that time.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuwatch.engines.log_text import body_start

if TYPE_CHECKING:
    from collections.abc import Sequence

# uvicorn, nginx and others: what follows the request is what a client sent or was told.
_ACCESS = re.compile(r"\"(?:GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS) \S+ HTTP/\d")
# Words of people about what they saw or read; programs print none of them in front of a quotation.
_PEOPLE = re.compile(
    r"^(?=.*\b(?:we|you|my|our|says?|said|saw|seen|guide|means?|reported|yesterday|last (?:year|month|week|time))\b)"
    r"(?:<?[\w .-]{1,30}>?: )?(?:[A-Za-z][\w',.!?-]*[ (]+){2,}$",
    re.IGNORECASE,
)
# A span of code that ends in the middle of a line, with the explanation behind it.
_EXPLAINED = re.compile(r"\S`(?:\)|:|,|;)? +(?:[|(=-]|\w)")
_MARKS = '`"“'


def quoted(message: str, needles: Sequence[str]) -> bool:
    """Return whether each place at which a message holds one of `needles` is within something that it quotes."""
    places = [at for needle in needles if (at := message.find(needle)) >= 0]
    if not places:
        return False
    at = min(places)
    if at >= body_start(message):
        return True
    access = _ACCESS.search(message, 0, at)
    return access is not None or _in_speech(message, at)


def _in_speech(message: str, at: int) -> bool:
    """Whether the text from `at` on stands in the quotation marks of a sentence, or in a table of Markdown."""
    # A fence of code is no quotation mark.
    before, message = message[:at].replace("```", ""), message.replace("```", "")
    if not any(mark in before for mark in (*_MARKS, "'")):
        return "`" in message and message.count("`") % 2 == 1 and _EXPLAINED.search(message, len(before)) is not None
    if before.rfind("“") > before.rfind("”"):
        return True
    if before.count("`") % 2 == 1:
        return bool(before[: before.rfind("`")].strip())
    for mark in ('"', " '"):
        if before.count(mark) % 2 == 1:
            lead = before[: before.rfind(mark) + len(mark) - 1]
            return lead.startswith("|") or _PEOPLE.match(lead) is not None
    return False
