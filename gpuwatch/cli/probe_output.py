"""What ``gpuwatch probe`` prints: the JSON of a result, and its table for people."""

from __future__ import annotations

import math
import shutil
import sys
from typing import TYPE_CHECKING, Any

from gpuwatch.cli.output import SCHEMA, advice_text, finding_json, finding_lines
from gpuwatch.engines.log_text import clean
from gpuwatch.sources.engine.http import show_url
from gpuwatch.units import GIB, percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatch.probes.result import Result, Value

_BAR = 24


def result_json(result: Result) -> dict[str, Any]:
    """Return the documented JSON object of a result."""
    server = result.server
    return {
        "schema": SCHEMA,
        "probe": result.probe,
        "server": {
            "url": show_url(server.url),
            "engine": server.engine,
            "version": server.version,
            "model": server.model,
            "max_model_len": server.max_model_len,
            "takes_token_ids": server.takes_token_ids,
            "has_metrics": server.has_metrics,
        },
        "started": round(result.started, 3),
        "seconds": round(max(0.0, result.ended - result.started), 3),
        "complete": result.complete,
        "stopped_because": result.stopped_because,
        "facts": [{"name": name, "value": _plain(value), "unit": unit} for name, value, unit in result.facts],
        "rows": [{key: _plain(value) for key, value in row.items()} for row in result.rows],
        "findings": [finding_json(finding) for finding in result.findings],
        "conclusion": list(result.conclusion),
        "advice": [
            {"text": item.text, "flag": item.flag, "from": item.current, "to": item.proposed} for item in result.advice
        ],
        "drawing": list(result.drawing),
    }


def _plain(value: Value) -> Value:
    """Return a value that JSON has; what is not finite is not known."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def result_lines(result: Result) -> list[str]:
    """Return the result as text: who was asked, the points, what they mean, what to change."""
    server = result.server
    who = {"vllm": "vLLM", "sglang": "SGLang"}.get(server.engine, "OpenAI-compatible server")
    lines = [f"probe {result.probe}: {who} {server.version}".rstrip() + f", {server.model} at {show_url(server.url)}"]
    if not result.complete:
        lines.append(f"Not complete: {result.stopped_because}.")
    if result.rows:
        lines += ["", *table(result.rows)]
    if result.drawing:
        lines += ["", *result.drawing]
    if result.conclusion:
        lines += ["", *result.conclusion]
    for finding in result.findings:
        lines += ["", *finding_lines(finding)]
    told = {advice_text(item) for finding in result.findings for item in finding.advice}
    more = [text for item in result.advice if (text := advice_text(item)) not in told]
    if more:
        lines += ["", *(f"→ {text}" for text in more)]
    return [clean(line) if line else "" for line in lines]


def table(rows: Sequence[Mapping[str, Value]]) -> list[str]:
    """Return rows as aligned columns; columns in which nothing is known are left out."""
    keys = [
        key for key in dict.fromkeys(key for row in rows for key in row) if any(_known(row.get(key)) for row in rows)
    ]
    cells = [[_heading(key) for key in keys], *([_cell(key, row.get(key)) for key in keys] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(keys))]
    left = [any(isinstance(row.get(key), str) for row in rows) for key in keys]
    return [
        "  ".join(
            text.ljust(width) if to_left else text.rjust(width)
            for text, width, to_left in zip(row, widths, left, strict=True)
        ).rstrip()
        for row in cells
    ]


def _known(value: Value) -> bool:
    return value is not None and value != ""


def _heading(key: str) -> str:
    for suffix, unit in (("_tokens_per_s", " tok/s"), ("_bytes", " GiB"), ("_ratio", ""), ("_s", " s")):
        if key.endswith(suffix):
            return key[: -len(suffix)].replace("_", " ") + unit
    return key.replace("_", " ")


def _cell(key: str, value: Value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value or "-"
    return "-" if value is None or not math.isfinite(value) else _number(key, value)


def _number(key: str, value: float) -> str:
    if key.endswith("_bytes"):
        return f"{value / GIB:.2f}"
    if key.endswith("_ratio"):
        return percent(value)
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1000 else f"{value:.3g}"


class Bar:
    """A progress bar on stderr; nothing where stderr is no terminal, or is to be quiet."""

    def __init__(self, *, quiet: bool) -> None:
        self._shown = 0
        self._on = not quiet and sys.stderr.isatty()

    def __call__(self, done: int, of: int, words: str) -> None:
        """Show that `done` of `of` steps are done, and what is being done."""
        if not self._on:
            return
        filled = min(_BAR, _BAR * done // max(1, of))
        width = shutil.get_terminal_size().columns - 1
        text = f"{'█' * filled}{'░' * (_BAR - filled)} {done}/{of}  {clean(words)}"[:width]
        sys.stderr.write("\r" + text.ljust(self._shown))
        sys.stderr.flush()
        self._shown = len(text)

    def clear(self) -> None:
        """Take the bar away."""
        if self._shown:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            sys.stderr.flush()
            self._shown = 0
