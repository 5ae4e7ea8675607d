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
# sglang/srt/utils/common.py: "[YYYY-MM-DD HH:MM:SS[.mmm][ DPx][ PPx]…[ TPx]] message"; its server for diffusion models
# (multimodal_gen/runtime/utils/logging_utils.py) prints no year.
_SGLANG = re.compile(
    r"^\[(?=[\dA-Z])(?P<ts>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{3})?|(?:\d\d-\d\d )?\d\d:\d\d:\d\d)?(?P<ranks>(?: ?[A-Z_]{2,8}\d+)*)\] "
    r"(?P<msg>.*)$",
    re.DOTALL,
)
_UVICORN = re.compile(r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL): +(?P<msg>.*)$", re.DOTALL)
# What collects the output of containers (CRI) adds the stream, and whether the line is full or a part.
_ISO = re.compile(
    r"^\[?(?P<ts>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d))\]? (?:std(?:out|err) [FP] )?(?P<msg>.*)$",
    re.DOTALL,
)
_SYSLOG = re.compile(
    r"^(?P<ts>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)(?:\.\d+)? (?P<msg>\S+ [\w./@:-]+(?:\[\d+\])?: .*)$", re.DOTALL
)
# journalctl -o short-full
_JOURNAL = re.compile(
    r"^[A-Z][a-z]{2} (?P<ts>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d+)? (?:[A-Z]{3,5}|[+-]\d\d) "
    r"(?P<msg>\S+ [\w./@:-]+(?:\[\d+\])?: .*)$",
    re.DOTALL,
)
# dmesg -T
_CTIME = re.compile(r"^\[(?P<ts>[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\] (?P<msg>.*)$", re.DOTALL)
# Kibana's table of documents
_KIBANA = re.compile(r"^(?P<ts>[A-Z][a-z]{2} \d{1,2}, \d{4} @ \d\d:\d\d:\d\d\.\d{3})\s+(?P<msg>.*)$", re.DOTALL)
# Python's logging with the level behind the time, as Ray and many launchers write it.
_PYTHON = re.compile(
    r"^(?P<ts>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d{3}) (?:- [\w.]+ - )?\[?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)\]?"
    r"(?: -)? (?:\S+:\d+ -- )?(?P<msg>.*)$",
    re.DOTALL,
)
_UNIT = re.compile(r"^[\w.-]+ (?:kernel|[\w./@-]+\[(?P<pid>\d+)\]): (?P<msg>.*)$", re.DOTALL)
_KERNEL = re.compile(r"^\[ *\d+\.\d{6}\] (?P<msg>.*)$", re.DOTALL)
_COMPOSE = re.compile(r"^[\w.-]+-\d+ +\| (?P<msg>.*)$", re.DOTALL)
_POD = re.compile(r"^\[pod/[^\]]+\] (?P<msg>.*)$", re.DOTALL)
_TORCH_RANK = re.compile(r"^\[(?:rank|default)(?P<rank>\d+)\]: ?(?P<msg>.*)$", re.DOTALL)
# mpirun --tag-output
_MPI = re.compile(r"^\[\d+,\d+\]<std(?:out|err)>: ?(?P<msg>.*)$", re.DOTALL)
# RFC 5424: "<PRI>1 TIME HOST APP PID MSGID DATA message"; and a bare priority, as the kernel's own buffer has it.
_SYSLOG_5424 = re.compile(
    r"^<\d{1,3}>1 (?P<ts>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)) \S+ \S+ "
    r"(?:(?P<pid>\d+)|\S+) \S+ (?:-|(?:\[[^\]]*\])+) ?\ufeff?(?P<msg>.*)$",
    re.DOTALL,
)
_PRIORITY = re.compile(r"^<\d{1,3}>(?P<msg>(?:\[ *\d+\.\d{6}\]|[A-Z][a-z]{2} [ \d]\d ).*)$", re.DOTALL)
# What follows the names that some tools put before a line, without a sign between them: a line of an engine, or one of
# a traceback. Two words of prose look the same.
_ENGINES_OWN = (
    r"(?P<msg>(?:\([\w.:-]+(?: [\w=]+)* pid=|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b|\[|Traceback \(|  "
    r"|[\w.]+(?:Error|Exception|Interrupt)\b).*)$"
)
# stern: pod and container, the namespace before them with -A.
_STERN = re.compile(
    rf"^(?:[a-z0-9][\w-]* )?[a-z0-9]+(?:[.-][a-z0-9]+)+ [a-z0-9][a-z0-9-]* ?(?:[\u203a|] )?{_ENGINES_OWN}", re.DOTALL
)
# srun --label
_TASK = re.compile(rf"^\d{{1,5}}: {_ENGINES_OWN}", re.DOTALL)
_RAY_REPEAT = re.compile(r" \[repeated (?P<n>\d+)x across cluster\](?: \(Ray deduplicates.*)?$")

# One member of a record of JSON that is printed over several lines, as cloud consoles export it.
_MEMBER = re.compile(r"^\s*\"(?:textPayload|message|MESSAGE|log|line)\": (?P<text>\"(?:[^\"\\]|\\.)*\"),?$")

# What may open a line, by its first character; everything else is a message already.
_OTHERS = (_ISO, _UVICORN, _SYSLOG, _JOURNAL, _PYTHON, _UNIT, _COMPOSE, _KIBANA)
_BY_FIRST = {
    "[": (_ISO, _SGLANG, _KERNEL, _CTIME, _POD, _TORCH_RANK, _MPI),
    "(": (_TAGGED,),
    "<": (_SYSLOG_5424, _PRIORITY),
    **dict.fromkeys("0123456789", (*_OTHERS, _TASK, _STERN)),
}
_MAX_LAYERS = 5


def strip_prefix(line: str) -> Prefix:
    """Take the prefixes off a cleaned line, from the outside in; a line without any comes back as its own message."""
    if line.startswith('{"'):
        return _json(line) or Prefix(line)
    if '": "' in line and (member := _MEMBER.match(line)) is not None:
        return _member(member["text"]) or Prefix(line)
    found = Prefix(line.removeprefix("^C"))  # what a terminal shows of Ctrl-C stands before the next line
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
        return _take(found, match, match.groupdict().get("level") or "", absolute=regex in (_ISO, _SYSLOG_5424))
    return None


def _lower(found: Prefix) -> Prefix | None:
    """Take off what may open with a lower-case letter: the name of a container or pod, or a host's in a journal."""
    regexes = (_UNIT,) if found.time else (_COMPOSE, _STERN)
    match = next((match for regex in regexes if (match := regex.match(found.message)) is not None), None)
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


# The message and the time in JSON lines: vLLM's own, Docker's, the journal's, and those of common collectors.
_JSON_MESSAGE = ("message", "log", "MESSAGE", "msg", "textPayload", "line")
_JSON_TIME = ("asctime", "time", "timestamp", "ts", "@timestamp")


def _json(line: str) -> Prefix | None:
    """Read a line of JSON: vLLM's format (0.31 on, opt-in), or the line of a log inside that of a collector."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict):
        return None
    key = next((key for key in _JSON_MESSAGE if isinstance(record.get(key), str)), "")
    if not key:
        return None
    message, time = record[key].rstrip("\r\n"), next((str(record[key]) for key in _JSON_TIME if key in record), "")
    if key != "message" or "levelname" not in record:
        inner = strip_prefix(message) if not message.startswith("{") else Prefix(message)
        level = inner.level or str(record.get("level", "")).upper()
        return replace(inner, level=level, time=time or inner.time, absolute=bool(time) or inner.absolute)
    pid, name = record.get("process"), str(record.get("processName", ""))
    return Prefix(
        message=message,
        level=str(record["levelname"]),
        proc=name,
        pid=pid if isinstance(pid, int) else None,
        ranks=tuple(_RANKS.findall(name)),
        time=time,
    )


def _member(text: str) -> Prefix | None:
    """Read the line of a log that is one member of a record."""
    try:
        message = str(json.loads(text)).rstrip("\r\n")
    except ValueError:
        return None
    return Prefix(message) if message.startswith(('{"', '"')) else strip_prefix(message)


def time_of(text: str, near: int) -> int | None:
    """Return the milliseconds since the epoch of a prefix's time; None for none, or for one that is no date.

    Times without a zone are taken as local time. vLLM and syslog print no year: the year is chosen that brings the
    time nearest to `near` (milliseconds since the epoch).
    """
    text = text.replace(",", ".")
    try:
        if text[4:5] == "-":
            if "T" in text:
                return _iso(text)
            return _millis(datetime.strptime(text[:19], "%Y-%m-%d %H:%M:%S").astimezone())
        if " @ " in text:
            return _millis(datetime.strptime(text[:-4], "%b %d, %Y @ %H:%M:%S").astimezone()) + int(text[-3:])
        if len(text) == len("Sun Nov 29 15:43:50 2026"):
            return _millis(datetime.strptime(text[4:], "%b %d %H:%M:%S %Y").astimezone())
        form = _WITHOUT_YEAR.get(len(text))
        return None if form is None else _nearest(text, form, near)
    except (ValueError, OverflowError):
        return None


_WITHOUT_YEAR = {len("11-29 15:43:50"): "%m-%d %H:%M:%S", len("Nov 29 15:43:50"): "%b %d %H:%M:%S"}


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
