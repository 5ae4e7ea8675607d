"""What stands before a message: the prefixes of vLLM, SGLang, uvicorn, Ray, torch, journald, containers and the kernel."""

from __future__ import annotations

import json
import re
from calendar import isleap
from dataclasses import dataclass, replace
from datetime import datetime, timezone


@dataclass(frozen=True, slots=True)
class Prefix:
    """A line taken apart.

    `time` is the outermost time as printed (see `time_of`), `absolute` whether it names its time zone; `proc` and `pid`
    are the process tag of vLLM or Ray, `ranks` parts such as ``TP1``; `repeat` is the number of lines that Ray left
    out; `level` is empty where the line has none.
    """

    message: str
    level: str = ""
    proc: str = ""
    pid: int | None = None
    ranks: tuple[str, ...] = ()
    time: str = ""
    absolute: bool = False
    repeat: int = 0


_RANK = r"(?:DP|PP|PCP|TP|DCP|EP)\d+"
_TAG = rf"\((?P<proc>[\w.:-]+(?: (?:rank=\d+|{_RANK}(?:[ _]{_RANK})*))?) pid=(?P<pid>\d+)(?:, ip=[^)]+)?\) "

# vllm/logger.py: "LEVEL MM-DD HH:MM:SS [file:LINE] message", without the bracket until 0.7.3.
_VLLM = re.compile(
    rf"^(?:{_TAG})*(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<ts>\d\d-\d\d \d\d:\d\d:\d\d) "
    r"\[?[\w./-]+(?:\.\.\.[\w./-]+)?:\d+\](?: (?P<msg>.*))?$",
    re.DOTALL,
)
_TAGGED = re.compile(rf"^{_TAG}(?P<msg>.*)$", re.DOTALL)
_RANKS = re.compile(_RANK)
# sglang/srt/utils/common.py: "[YYYY-MM-DD HH:MM:SS[.mmm][ DPx][ PPx]…[ TPx]] message".
_SGLANG = re.compile(
    r"^\[(?=[\dA-Z])(?P<ts>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{3})?|\d\d:\d\d:\d\d)?(?P<ranks>(?: ?[A-Z_]{2,8}\d+)*)\] "
    r"(?P<msg>.*)$",
    re.DOTALL,
)
_UVICORN = re.compile(r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL): +(?P<msg>.*)$", re.DOTALL)
_ISO = re.compile(
    r"^\[?(?P<ts>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d))\]? (?P<msg>.*)$",
    re.DOTALL,
)
_SYSLOG = re.compile(
    r"^(?P<ts>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) (?P<msg>\S+ [\w./@:-]+(?:\[\d+\])?: .*)$", re.DOTALL
)
_UNIT = re.compile(r"^[\w.-]+ (?:kernel|[\w./@-]+\[(?P<pid>\d+)\]): (?P<msg>.*)$", re.DOTALL)
_KERNEL = re.compile(r"^\[ *\d+\.\d{6}\] (?P<msg>.*)$", re.DOTALL)
_COMPOSE = re.compile(r"^[\w.-]+-\d+ +\| (?P<msg>.*)$", re.DOTALL)
_POD = re.compile(r"^\[pod/[^\]]+\] (?P<msg>.*)$", re.DOTALL)
_TORCH_RANK = re.compile(r"^\[rank(?P<rank>\d+)\]: ?(?P<msg>.*)$", re.DOTALL)
_RAY_REPEAT = re.compile(r" \[repeated (?P<n>\d+)x across cluster\](?: \(Ray deduplicates.*)?$")

# What may open a line, by its first character; everything else is a message already.
_BY_FIRST = {"[": (_ISO, _SGLANG, _KERNEL, _POD, _TORCH_RANK), "(": (_TAGGED,)}
_OTHERS = (_ISO, _UVICORN, _SYSLOG, _UNIT, _COMPOSE)
_MAX_LAYERS = 5


def strip_prefix(line: str) -> Prefix:
    """Take the prefixes off a cleaned line, from the outside in; a line without any comes back as its own message."""
    if line.startswith('{"'):
        return _json(line) or Prefix(line)
    found = Prefix(line)
    for _ in range(_MAX_LAYERS):
        layer = _layer(found)
        if layer is None:
            break
        found = layer
    if "across cluster]" in found.message:
        repeat = _RAY_REPEAT.search(found.message)
        if repeat is not None:
            found = replace(found, message=found.message[: repeat.start()], repeat=int(repeat["n"]))
    return found


def _layer(found: Prefix) -> Prefix | None:
    """Take off one layer; None when none is left."""
    text = found.message
    if not text or text[0].islower() or text[0] == " ":
        return _lower(found)
    vllm = _VLLM.match(text)
    if vllm is not None:
        return _take(found, vllm, vllm["level"])
    for regex in _BY_FIRST.get(text[0], _OTHERS):
        # A journal's or container's own fields come after its time only, or they would eat ordinary text.
        if regex is _UNIT and not found.time:
            continue
        match = regex.match(text)
        if match is None or (regex is _SGLANG and not (match["ts"] or match["ranks"])):
            continue
        return _take(found, match, match.groupdict().get("level") or "", absolute=regex is _ISO)
    return None


def _lower(found: Prefix) -> Prefix | None:
    """Take off what may open with a lower-case letter: a container's name, or a host's name in a journal."""
    regex = _UNIT if found.time else _COMPOSE
    match = regex.match(found.message)
    return None if match is None else _take(found, match, "")


def _take(found: Prefix, match: re.Match[str], level: str, *, absolute: bool = False) -> Prefix:
    """Merge one layer into what is known: the outermost time wins, the innermost level, process and ranks."""
    groups = match.groupdict()
    ranks = _RANKS.findall(groups.get("ranks") or groups.get("proc") or "")
    if groups.get("rank"):
        ranks = ["TP" + groups["rank"]]
    return Prefix(
        message=groups["msg"] or "",
        level=level or found.level,
        proc=groups.get("proc") or found.proc,
        pid=int(groups["pid"]) if groups.get("pid") else found.pid,
        ranks=tuple(ranks) or found.ranks,
        time=found.time or groups.get("ts") or "",
        absolute=found.absolute or (absolute and not found.time),
        repeat=found.repeat,
    )


def _json(line: str) -> Prefix | None:
    """Read a line of vLLM's JSON format (0.31 on, opt-in): keys asctime, levelname, processName, process, message."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("message"), str):
        return None
    pid = record.get("process")
    return Prefix(
        message=record["message"],
        level=str(record.get("levelname", "")),
        proc=str(record.get("processName", "")),
        pid=pid if isinstance(pid, int) else None,
        ranks=tuple(_RANKS.findall(str(record.get("processName", "")))),
        time=str(record.get("asctime", "")),
    )


def time_of(text: str, near: int) -> int | None:
    """Return the milliseconds since the epoch of a prefix's time; None for none, or for one that is no date.

    Times without a zone are taken as local time. vLLM and syslog print no year: the year is chosen that brings the
    time nearest to `near` (milliseconds since the epoch).
    """
    text = text.replace(",", ".")
    try:
        if "T" in text:
            return _iso(text)
        if len(text) >= len("YYYY-MM-DD HH:MM:SS") and text[4] == "-":
            return _millis(datetime.strptime(text[:19], "%Y-%m-%d %H:%M:%S").astimezone())
        if len(text) == len("MM-DD HH:MM:SS"):
            return _nearest(text, "%m-%d %H:%M:%S", near)
        if len(text) == len("Nov 29 15:43:50"):
            return _nearest(text, "%b %d %H:%M:%S", near)
    except (ValueError, OverflowError):
        return None
    return None


def _iso(text: str) -> int:
    """Read an ISO time whose fraction may have more digits than Python takes."""
    stamp, zone = re.split(r"(?=Z$|[+-]\d\d:?\d\d$)", text, maxsplit=1)
    base = datetime.strptime(stamp[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
    millis = _millis(base) + round(float("0" + stamp[19:] or "0") * 1000)
    if zone == "Z":
        return millis
    sign = -1 if zone[0] == "-" else 1
    return millis - sign * (int(zone[1:3]) * 60 + int(zone[-2:])) * 60_000


def _nearest(text: str, form: str, near: int) -> int:
    year = datetime.fromtimestamp(near / 1000, tz=timezone.utc).year
    # The 29th of February is a date in some years only.
    years = [each for each in (year - 1, year, year + 1) if isleap(each) or not text.startswith(("02-29", "Feb 29"))]
    choices = [_millis(datetime.strptime(f"{each} {text}", "%Y " + form).astimezone()) for each in years]
    return min(choices, key=lambda millis: abs(millis - near))


def _millis(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
