"""Results of probes, read from the JSON that ``gpuwatch probe -o`` writes, as sections of a report."""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuwatch.report.document import Figure, Heading, Lines, Table, Text
from gpuwatch.report.svg import Line, plot
from gpuwatch.units import NONE, with_unit

SCHEMA = 1
LARGEST_FILE = 32 << 20
LARGEST_NUMBER = sys.float_info.max
MOST_ROWS = 200
_X = ("prompt_tokens", "length_tokens", "tokens", "length", "context_tokens")
_ENDINGS = (("_tokens_per_s", "tokens/s"), ("_s", "seconds"), ("_bytes", "bytes"), ("_ratio", "ratio"))
_PLOTTED = (
    ("ttft", "seconds", "Time to first token"),
    ("prefill", "tokens/s", "Prefill"),
    ("decode", "tokens/s", "Decode"),
    ("kv_usage", "ratio", "KV pool in use"),
)
_GOOD = ("passes", "works", "respects order")
"""Verdicts of probes that say nothing against the model or the server."""
_BROKE = ("failed", "lost", "timeout", "cut", "ignored")
"""How a ramp breaks that is the server's fault; that its pool is full at some length is what a ramp looks for."""


class ProbeFileError(Exception):
    """A file that holds no result of a probe; the message is one line."""


@dataclass(frozen=True, slots=True)
class ProbeData:
    """The result of a probe as its JSON has it."""

    name: str
    data: dict[str, Any]


def read(path: str | Path) -> ProbeData:
    """Read the result of a probe.

    Raises:
        ProbeFileError: the file cannot be read, or is not what ``gpuwatch probe`` writes.
    """
    try:
        if Path(path).stat().st_size > LARGEST_FILE:
            raise ProbeFileError(f"{path}: larger than {LARGEST_FILE >> 20} MiB: not the result of a probe")
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ProbeFileError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ProbeFileError(f"{path}: not JSON; give a file that gpuwatch probe -o wrote") from None
    if not isinstance(data, dict) or not isinstance(data.get("probe"), str):
        raise ProbeFileError(f"{path}: not the result of a probe; give a file that gpuwatch probe -o wrote")
    if data.get("schema") != SCHEMA:
        raise ProbeFileError(f"{path}: schema {str(data.get('schema'))[:20]}; this program reads schema {SCHEMA}")
    return ProbeData(data["probe"], _known(data))


def _known(value: Any) -> Any:
    """Return JSON data in which numbers that say nothing are null: NaN, infinite ones, and whole ones beyond floats."""
    if isinstance(value, dict):
        return {key: _known(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_known(item) for item in value]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value if abs(value) <= LARGEST_NUMBER else None  # NaN is not either
    return value


def _time(value: Any) -> str:
    """Return the local time of seconds since the epoch, or an empty text for what is none."""
    if _number(value) is None:
        return ""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(value))
    except (OverflowError, ValueError, OSError):
        return ""


def blocks(probes: tuple[ProbeData, ...]) -> list[Any]:
    """Return the section of the probes, nothing where there are none."""
    if not probes:
        return []
    found: list[Any] = [Heading("Probes")]
    for probe in probes:
        found += _probe(probe)
    return found


def in_figures(probes: tuple[ProbeData, ...], started: int, ended: int) -> list[Any]:
    """Return what of a run's latencies and counts a ramp made itself, where one ran in it; times in milliseconds.

    The ramp keeps several requests going until all of them are there, and breaks them off then.
    """
    for probe in probes:
        begun = _number(probe.data.get("started"))
        if probe.name != "ramp" or begun is None or not started <= 1000 * begun <= ended:
            continue
        rows = [row for row in _list(probe.data, "rows") if isinstance(row, dict)]
        if any((_number(row.get("concurrency")) or 1) > 1 for row in rows):
            return [
                Text(
                    "Probe ramp ran during this recording. Where it sent several requests at once, it kept them going "
                    "until all were there and broke them off then: they count in the time to first token, not in "
                    "requests finished and arrival to last token, and the wait for those that it kept going is in the "
                    "time to first token and in the queue.",
                    "quiet",
                )
            ]
    return []


def running_at(probes: tuple[ProbeData, ...], time: int) -> str:
    """Return the name of the probe that ran at a time in milliseconds; empty where none did, or none says how long."""
    for probe in probes:
        begun, length = _number(probe.data.get("started")), _number(probe.data.get("seconds"))
        if begun is not None and length is not None and 1000 * begun <= time <= 1000 * (begun + length):
            return probe.name
    return ""


def advice(probes: tuple[ProbeData, ...]) -> list[str]:
    """Return what the probes say should change."""
    found = []
    for probe in probes:
        own = [item["advice"] for item in _list(probe.data, "findings") if isinstance(item, dict) and "advice" in item]
        told: dict[str, None] = {}
        for items in (*own, _list(probe.data, "advice")):
            texts = [text for text in map(_advice, items if isinstance(items, list) else ()) if text]
            told |= dict.fromkeys(text for text in texts if text not in told)
        found += [f"{text} (probe {probe.name})" for text in _alternatives(list(told))]
    return found


def _advice(item: Any) -> str:
    """Return one advice as a line: the flag with its values first, then the words."""
    if isinstance(item, str):
        return item
    if not isinstance(item, dict) or not item.get("text"):
        return ""
    flag, text = str(item.get("flag") or ""), str(item["text"])
    if not flag:
        return text
    now, to = (str(item.get(key) or "") for key in ("from", "to"))
    return f"{' '.join(part for part in (flag, now, f'→ {to}' if to else '') if part)}: {text}"


def _alternatives(texts: list[str]) -> list[str]:
    """Return texts whose first one is no alternative to another one."""
    if texts and re.match(r"(--\S+[^:]*: )?or ", texts[0]):
        return [re.sub(r"^(--\S+[^:]*: )?or ", r"\1", texts[0]), *texts[1:]]
    return texts


def weighty(probes: tuple[ProbeData, ...]) -> list[tuple[str, str, str, str]]:
    """Return the warnings and critical findings of the probes, each once: severity, id, title, name of the probe."""
    found: dict[str, tuple[str, str, str, str]] = {}
    for probe in probes:
        for item in _list(probe.data, "findings"):
            if isinstance(item, dict) and item.get("severity") in ("warning", "critical"):
                name = str(item.get("id"))
                found.setdefault(name, (str(item["severity"]), name, str(item.get("title", "")), probe.name))
    return list(found.values())


def shortfalls(probes: tuple[ProbeData, ...]) -> list[str]:
    """Return in a sentence each what probes say against the model or the server without a finding.

    That is a verdict that is not good, and a server that failed or did not answer.
    """
    found = []
    for probe in probes:
        facts = {item["name"]: item.get("value") for item in _list(probe.data, "facts") if _named(item)}
        said = [str(sentence) for sentence in _list(probe.data, "conclusion")]
        broke = any(key.startswith("broke_how_") and value in _BROKE for key, value in facts.items())
        verdict = facts.get("verdict")
        if broke or facts.get("answered") is False or (verdict is not None and verdict not in _GOOD):
            found.append(f"Probe {probe.name}: {said[0] if said else verdict or 'no request was answered.'}")
        elif probe.data.get("complete") is False and "server" in str(probe.data.get("stopped_because")):
            found.append(f"Probe {probe.name} ended early: {str(probe.data['stopped_because']).rstrip('.')}.")
    return found


def _named(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("name"), str)


def _probe(probe: ProbeData) -> list[Any]:
    data = probe.data
    server = data.get("server")
    where = server if isinstance(server, dict) else {"url": server}
    words = [str(where[key]) for key in ("url", "engine", "version", "model") if where.get(key)]
    words += [begun] if (begun := _time(data.get("started"))) else []
    found: list[Any] = [Heading(f"Probe {probe.name}", 3), Text(", ".join(words), "quiet")]
    if data.get("complete") is False:
        found.append(Text(f"Not complete: {data.get('stopped_because') or 'it was stopped'}", "warning"))
    found += [Text(str(sentence)) for sentence in _list(data, "conclusion")]
    found += [
        Text(f"{item.get('id')}: {item.get('title', '')}. {item.get('cause', '')}", str(item.get("severity", "")))
        for item in _list(data, "findings")
        if isinstance(item, dict) and item.get("severity") in ("info", "warning", "critical")
    ]
    facts = [pair for pair in map(_fact, _list(data, "facts")) if pair is not None]
    if facts:
        found.append(Table(("", ""), tuple(facts)))
    rows = [row for row in _list(data, "rows") if isinstance(row, dict)]
    found += _plots(rows)
    if _list(data, "drawing"):
        found.append(Lines(tuple(map(str, _list(data, "drawing")))))
    if rows:
        found += _rows(rows)
    return found


def _fact(item: Any) -> tuple[str, str] | None:
    if isinstance(item, dict):
        item = (item.get("name"), item.get("value"), item.get("unit", ""))
    if not isinstance(item, (list, tuple)) or len(item) != 3:
        return None
    name, value, unit = item
    return str(name).replace("_", " "), _value(value, str(unit or ""))


def _rows(rows: list[dict[str, Any]]) -> list[Any]:
    keys = list(dict.fromkeys(key for row in rows for key in row))
    keys = [key for key in keys if any(row.get(key) not in (None, "") for row in rows)]
    table = Table(
        tuple(key.removesuffix(_ending(key)[0]).replace("_", " ") for key in keys),
        tuple(tuple(_value(row.get(key), _ending(key)[1]) for key in keys) for row in rows[:MOST_ROWS]),
        numbers_from=0 if all(isinstance(rows[0].get(key), (int, float, type(None))) for key in keys) else 1,
    )
    left = len(rows) - MOST_ROWS
    return [table, *([Text(f"{left:,} more rows are in the file.", "quiet")] if left > 0 else [])]


def _ending(key: str) -> tuple[str, str]:
    """Return the end of a key that names its unit, and that unit."""
    return next((pair for pair in _ENDINGS if key.endswith(pair[0])), ("", ""))


def _plots(rows: list[dict[str, Any]]) -> list[Any]:
    """Return plots of measured speeds over the prompt length, one line per concurrency."""
    x_key = next((key for key in _X if rows and _number(rows[0].get(key)) is not None), None)
    if x_key is None:
        return []
    found = []
    keys = list(rows[0])
    for start, unit, title in _PLOTTED:
        key = next((key for key in keys if key.startswith(start)), None)
        lengths = sorted({float(row[x_key]) for row in rows if _number(row.get(x_key)) is not None})
        if key is None or len(lengths) < 2:
            continue
        lines = _lines(rows, x_key, key, lengths)
        if lines:
            svg = plot(
                lines,
                unit,
                (-0.3, len(lengths) - 0.7),
                title=title,
                x_text=lambda value, known=lengths: f"{known[int(value)]:,.0f}" if 0 <= value < len(known) else "",  # type: ignore[misc]  # bound at once
                dots=True,
            )
            legend = tuple((f"c{index}", line.label) for index, line in enumerate(lines)) if len(lines) > 1 else ()
            found.append(Figure(f"{title} by prompt length in tokens", svg, legend))
    return found


def _lines(rows: list[dict[str, Any]], x_key: str, y_key: str, lengths: list[float]) -> list[Line]:
    groups: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        x, y = _number(row.get(x_key)), _number(row.get(y_key))
        if x is not None and y is not None:
            label = f"concurrency {row['concurrency']}" if "concurrency" in row else ""
            groups.setdefault(label, []).append((float(lengths.index(x)), y))
    return [Line(label, tuple(sorted(points))) for label, points in groups.items()]


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) <= LARGEST_NUMBER else None


def _value(value: Any, unit: str) -> str:
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return with_unit(_number(value), unit)
    return str(value)


def _list(data: dict[str, Any], key: str) -> list[Any]:
    value = data.get(key)
    return value if isinstance(value, list) else []
