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
# What a command looks for: at the beginning of a line, behind a prompt, a pipe or the mark of a code span.
_SEARCH = re.compile(r"(?:^|[|$#>`;&] *|\bsudo )(?:z?[ef]?grep|rg|ack|awk|sed) ")
# Somebody is told what a log of theirs says, or tells it; "if you see" is what programs say.
_TOLD = re.compile(
    r"\b(?:your|my|our|their) (?:\w+ ){0,2}(?:shows?|says?|said|reads?|contains?|mentions?|prints?|printed)\b[^;]{0,90}$"
    r"|(?<!\bif )(?<!\bwhen )\b(?:you|they|I) (?:saw|see|got|hit|had)\b[^;]{0,90}$",
    re.IGNORECASE,
)
# What people put behind a line that they cite.
_COMMENTED = re.compile(
    r"\b(?:said|says|wrote|writes|answered|replied|explained) (?:the|an?|my|our) (?:\w+ )?"
    r"(?:model|user|assistant|client|customer|bot|agent|ticket|guide|manual)\b"
    r"|\b(?:is|are) how (?:such|that|this|it|these|those|an?)\b"
    r"|\b(?:such|this) (?:an? )?(?:line|error|message) (?:looks|reads)\b",
    re.IGNORECASE,
)
_MARKS = '`"“'


def quoted(message: str, needles: Sequence[str]) -> bool:
    """Return whether each place at which a message holds one of `needles` is within something that it quotes."""
    places = [at for needle in needles if (at := message.find(needle)) >= 0]
    if not places:
        return False
    at = min(places)
    if at >= body_start(message):
        return True
    if _ACCESS.search(message, 0, at) is not None or _SEARCH.search(message, 0, at) is not None:
        return True
    if _TOLD.search(message[:at]) is not None or _COMMENTED.search(message, at) is not None:
        return True
    return _in_speech(message, at)


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
