"""Prefixes that nobody described before: learned from lines in which an engine's own stamp does not come first.

What collects output puts something before every line: the name of a pod, a time, a level, labels. An engine writes its
own stamp at the beginning of a line, so whatever stands before it, again and again in the same shape, is no part of
the message, nor is the same before lines without a stamp, such as those of a traceback.
"""

from __future__ import annotations

import re
from collections import Counter

from gpuwatch.engines.log_prefixes import strip_prefix
from gpuwatch.engines.log_text import clean

LOOKED_AT = 4 << 20
"""Bytes of a file from which prefixes are learned."""
_LINES = 4000
_ENOUGH = 200
_FEWEST = 2
_SHARE = 0.1
_MOST = 6
_LONGEST = 400

# The stamps of vLLM, SGLang and uvicorn (see `engines.log_prefixes`), and a frame of a traceback.
_TAGS = r"(?:\([\w.:-]+(?: [\w =]+)? pid=\d+(?:, ip=[^)]+)?\) )*"
_STAMP = re.compile(
    rf"(?<![\w-]){_TAGS}(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./-]+:\d+\]"
    r"|(?<!\w)\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{3})?(?: [A-Z_]{2,8}\d+)*\] "
    rf"|(?<![\w-]){_TAGS}INFO:     "
    r"|  File \"[^\"]+\", line \d+, in "
)
_HINT = re.compile(rb"\d\d:\d\d:\d\d|INFO:     |  File \"")
# A bar of progress has no line end: the next line of the engine follows it.
_PROGRESS = re.compile(r"%\||it/s|s/it")
_TOKEN = re.compile(r"[A-Za-z0-9_]+(?:[-.@/]+[A-Za-z0-9_]+)*|[ \t]+|.", re.DOTALL)
_LEVEL = re.compile(r"^(?:trace|debug|info|notice|warn|warning|error|critical|fatal)$", re.IGNORECASE)
_DAY_OR_MONTH = re.compile(r"^(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)$")
_NAME = re.compile(r"^\w.*[\d\W_]|^\d", re.ASCII)
# A time that is read as the line's own stays.
_TIME = re.compile(r"\[?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)\]? $")
_TIME_NEXT = r"(?=\[?\d{4}-\d\d-\d\dT\d\d:)"
# A message in quotes ends with them, and has its own quotes escaped.
_TO_QUOTE = r"(?P<message>[^\n]*?)(?:\"[\]}),; ]*)?\r?$"
# A pane of a terminal has a border on the right as well, behind a padding.
_BORDERS = ("\u2502", "\u2503", "\u2551", "|")
_TO_BORDER = rf"(?P<framed>[^\n]*?)[ \t]*(?:(?:{'|'.join(map(re.escape, _BORDERS))})[ \t]*)?\r?$"
_COLOURS = r"(?:\x1b\[[\d;]*m)*"


class Learner:
    """Learns the prefixes of one file from its beginning, and takes them off.

    Prefixes that `engines.log_prefixes` knows stay, whether they stand before or behind what was learned.
    """

    def __init__(self) -> None:
        self.learned: tuple[re.Pattern[bytes], ...] = ()
        self.open = True
        self._tabs = False
        self._seen = 0
        self._stamped = 0
        self._shapes: Counter[str] = Counter()

    def look(self, text: bytes) -> None:
        """Learn from some more lines, until prefixes are known or it is known that there are none."""
        self._seen += len(text)
        for line in text.split(b"\n", _LINES)[:_LINES]:
            if _HINT.search(line) is not None:
                self._line(line[: LOOKED_AT >> 8].decode("utf-8", "replace"))
            if self._stamped >= _ENOUGH and not self._shapes:
                break
        least = max(_FEWEST, _SHARE * self._stamped)
        chosen = [shape for shape, count in self._shapes.most_common(_MOST) if count >= least]
        self.learned = tuple(re.compile(shape.encode(), re.MULTILINE) for shape in chosen)
        self.open = not chosen and self._stamped < _ENOUGH and self._seen < LOOKED_AT

    def strip(self, text: bytes) -> bytes:
        """Return whole lines without what was learned."""
        if self._tabs:
            text = text.replace(b"\t", b"    ")  # as `clean` does with the lines that were looked at
        for regex in self.learned:
            text = regex.sub(_message if regex.groups > 1 else rb"\g<known>", text)
        return text

    def _line(self, raw: str) -> None:
        raw = raw.rpartition("\r")[2] if "\r" in raw.rstrip("\r") else raw
        line = clean(raw)
        if _STAMP.search(line) is None:
            return
        self._stamped += 1
        message = strip_prefix(line).message
        found = _STAMP.search(message)
        if found is None or not found.start() or not line.endswith(message) or line.startswith('{"'):
            return
        unknown, known = message[: found.start()], line[: len(line) - len(message)]
        if len(unknown) > _LONGEST or _PROGRESS.search(unknown) is not None:
            return
        time = _TIME.search(unknown)
        ahead = _TIME_NEXT if time is not None else ""
        unknown = unknown[: time.start()] if time is not None else unknown
        if not unknown:
            return
        self._tabs = self._tabs or "\t" in raw
        colours = _COLOURS if "\x1b" in raw else ""
        rest = _TO_QUOTE if unknown.endswith('"') else _TO_BORDER if unknown.strip() in _BORDERS else ""
        self._shapes[f"^(?P<known>{_shape(known, colours)}){_shape(unknown, colours)}{ahead}{rest}"] += 1


def _message(found: re.Match[bytes]) -> bytes:
    """Return a line whose message ends with something of the carrier's."""
    if "framed" in found.re.groupindex:
        return found["known"] + found["framed"]
    return found["known"] + found["message"].replace(b'\\"', b'"')


def _shape(text: str, colours: str) -> str:
    """Return an expression for prefixes like this one: numbers, names, levels and times differ."""
    tokens = _TOKEN.findall(text)
    last = len(tokens) - 1
    parts = [_token(token, last=at == last) for at, token in enumerate(tokens)]
    return "".join(part + colours for part in (["", *parts] if colours and parts else parts))


def _token(token: str, *, last: bool) -> str:
    if token.isspace():
        # The indentation of a traceback begins behind the last one.
        return re.escape(token) if last else "[ \\t]+"
    if token.isascii() and token.isdigit():
        return r"\d+"
    if _LEVEL.match(token):
        return "[A-Za-z]+"
    if _DAY_OR_MONTH.match(token):
        return "[A-Z][a-z][a-z]"
    return r"[\w.@/-]+" if _NAME.match(token) else re.escape(token)
