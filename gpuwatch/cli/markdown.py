"""A report ready to paste into an issue: short, and without what is nobody's business."""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from gpuwatch import __version__
from gpuwatch.cli.output import EVIDENCE_SHOWN, advice_text
from gpuwatch.diagnosis.causes.owners import ENGINE_NAMES, HOST_PROGRAMS
from gpuwatch.engines.log_text import clean, limit, redact

if TYPE_CHECKING:
    from gpuwatch.diagnosis.finding import Evidence, Finding
    from gpuwatch.pipeline.postmortem import PostMortem

_HOME = re.compile(r"(?P<start>/(?:home|[Uu]sers|l?scratch)/|[A-Za-z]:\\Users\\)[^/\\\s'\",;:)]+")
_ROOT = re.compile(r"(?<![\w/])/root(?=/|\b)")
_USER_AT = re.compile(r"\b[\w.+-]+@(?=[\w.-]+)(?!<)[\w.-]+")
_ADDRESS = re.compile(r"(?<![\w.])(?!(?:127\.0\.0\.\d+|0\.0\.0\.0)(?![\d.]))(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_ADDRESS_6 = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{1,4}:){3,7}(?::?[0-9a-fA-F]{1,4})(?![\w:])|\bfe80::[0-9a-fA-F:]+")
_SHORT_6 = re.compile(
    r"(?<![\w:.])(?=[^\s]*\d)[0-9a-fA-F:.]*::[0-9a-fA-F:.]*[0-9a-fA-F](?!\w)|(?<![\w:.])[0-9a-fA-F:]+::(?!\w)"
)
_USER = re.compile(
    r"(?P<start>\b(?:user(?:_?(?:name|id))?|login|owner|author|logname|sudo_user|account)[\"']?(?:=|: ?)[\"']?"
    r"|\bfor (?:invalid )?user |\b[ug]id=\d+\()"
    r"(?!(?:none|null|true|false|root|nobody|vllm)\b)(?=[\w.+-]*[A-Za-z])[\w.+-]+",
    re.IGNORECASE,
)
_AT_HOST = re.compile(r"(?P<start><redacted>@)(?:\[[0-9a-fA-F:.]+\]|[\w.-]+)")
_URL_HOST = re.compile(
    r"(?P<start>\b[a-z][a-z+.-]*://)(?!(?:localhost|127\.0\.0\.1|0\.0\.0\.0|huggingface\.co)\b|<)[^\s/:'\"]+"
)
_DOMAIN = re.compile(
    r"(?<![\w./@-])[A-Za-z][\w-]*(?:\.[\w-]+)*"
    r"\.(?:local|internal|lan|corp|intra|home|com|net|org|io|ai|dev|cloud|edu)\b(?![.(\w])"
)
_PUBLIC = re.compile(r"^(?:[\w-]+\.)*(?:huggingface\.co|github\.com|pytorch\.org|nvidia\.com|vllm\.ai)$")
_SYSLOG_HOST = re.compile(
    r"^(?P<start>(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?|\d{4}-\d\d-\d\dT\S+) )\S+"
    r"(?= [\w./@:-]+(?:\[\d+\])?: )"
)
_NCCL_HOST = re.compile(r"(?:^|(?<=\] ))[\w.-]+(?=:\d+:\d+ \[\d+\])")
_PROMPT = re.compile(r"^(?:\([\w.-]+\) )?[\w.-]+@[\w.-]+(?=[:~ $#])")
_UUID = re.compile(r"\b(?P<start>GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{20,}")
_SERIAL = re.compile(
    r"(?P<start>(?:\bS/N|\b(?:GPU |Board )?[Ss]erial(?: ?[Nn]umber)?)\s*[:=#]?\s*)(?=[\w-]*\d{4})[\w-]{6,}"
)
# The program that an Xid or the OOM killer names, and the driver's own words for none.
_PROGRAM = re.compile(r"(?P<start>\bpid='?\d+'?, name=|\bKilled process \d+ \(|,task=)(?P<name>[^,)\s]+)")
_KNOWN = (*ENGINE_NAMES, *HOST_PROGRAMS, "<", "'<", "[")
_SHOWN = 300


def public(text: str) -> str:
    """Return a text without keys, tokens, prompts, user names, hosts, addresses and home folders."""
    text = redact(clean(text))
    text = _SYSLOG_HOST.sub(r"\g<start><host>", text)
    text = _NCCL_HOST.sub("<host>", text)
    text = _PROMPT.sub("<user>@<host>", text)
    text = _HOME.sub(r"\g<start><user>", text)
    text = _ROOT.sub("~", text)
    text = _USER.sub(r"\g<start><user>", text)
    text = _USER_AT.sub("<user>@<host>", text)
    text = _AT_HOST.sub(r"\g<start><host>", text)
    text = _URL_HOST.sub(r"\g<start><host>", text)
    text = _ADDRESS.sub("<address>", _ADDRESS_6.sub("<address>", _SHORT_6.sub(_address, text)))
    text = _DOMAIN.sub(lambda found: found[0] if _PUBLIC.match(found[0]) else "<host>", text)
    text = _UUID.sub(r"\g<start>-<uuid>", text)
    text = _SERIAL.sub(r"\g<start><serial>", text)
    text = _PROGRAM.sub(_program, text)
    for name in _own_names():
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "<host>", text)
    return text


def _program(found: re.Match[str]) -> str:
    """Return what stands for the name of a program; that of an engine, or the driver's word for none, stays."""
    return found[0] if found["name"].startswith(_KNOWN) else found["start"] + "<program>"


def _address(found: re.Match[str]) -> str:
    """Return what stands for an abbreviated IPv6 address; what only looks like one, and this machine's own, stays."""
    try:
        address = ipaddress.IPv6Address(found[0])
    except ValueError:
        return found[0]
    return found[0] if address.is_loopback or address.is_unspecified else "<address>"


def _own_names() -> list[str]:
    """Return the names of this machine and its user, where they are long enough to be no common word."""
    node = os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")
    user = os.environ.get("USER", os.environ.get("USERNAME", ""))
    return [name for name in (node, user) if len(name) > 3 and name not in ("localhost", "root", "vllm")]


def report(result: PostMortem) -> str:
    """Return the findings as Markdown."""
    parts = ["### gpuwatch diagnose", ""]
    parts += [f"* `{_cell(_name(given.path))}`: {_what(given)}" for given in result.inputs]
    parts += [f"* `{_cell(_name(path))}`: not read: {public(why)}" for path, why in result.refused]
    parts.append("")
    for finding in result.findings:
        parts += [*_finding(finding), ""]
    if not result.findings:
        parts += ["No findings.", ""]
    if result.not_enough:
        parts.append("**Could not be judged**")
        parts += [f"* {item.id}: {public(item.missing)}" for item in result.not_enough]
        parts.append("")
    parts.append(f"<sub>gpuwatch {__version__}; keys, prompts, users, hosts and addresses were cut out</sub>")
    return "\n".join(parts)


def _finding(finding: Finding) -> list[str]:
    after = f", caused by {finding.caused_by}" if finding.caused_by else ""
    state = "" if finding.state == "firing" else f", {finding.state}"
    lines = [f"#### {public(finding.title)}", f"`{finding.id}` ({finding.severity}{state}{after})", ""]
    lines += [public(finding.cause), ""]
    shown = [line for item in finding.evidence[:EVIDENCE_SHOWN] for line in _evidence(item)]
    if shown:
        lines += ["```text", *shown, "```"]
    lines += [f"* {public(advice_text(item))}" for item in finding.advice]
    return lines


def _evidence(item: Evidence) -> list[str]:
    text = limit(public(item.text), _SHOWN).replace("```", "'''")
    if item.line is None:
        return [text]
    return [f"{_name(item.source)}:{item.line}: {text}"]


def _what(given: object) -> str:
    from gpuwatch.cli.diagnose import input_line  # noqa: PLC0415  # the two modules are parts of one command

    return public(input_line(given).partition(": ")[2])  # type: ignore[arg-type]  # an Input of the result


def _name(path: str) -> str:
    """Return the last part of a path: the folders are nobody's business."""
    return path if path.startswith("--") or path == "stdin" else public(PurePath(path).name)


def _cell(text: str) -> str:
    return text.replace("`", "'")
