"""Saved ``/metrics`` pages: one, or several in the order of time, as ``gpuwatch_engine_*`` samples.

A page does not say when it was read. The time of a file is taken where somebody collected several pages and the files
were written one after another; otherwise it is unknown, and only the order holds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.engines.catalog import ENGINES, detect
from gpuwatch.engines.derive import compile_page
from gpuwatch.engines.info import EngineInfo
from gpuwatch.model import label, name_of
from gpuwatch.sources.engine.exposition import ExpositionParser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.engines.catalog import Detection
    from gpuwatch.sources.engine.exposition import Page
    from gpuwatch.sources.files.samples import Found

MARKS = (
    "# TYPE ",
    "# HELP ",
    "vllm:",
    "sglang:",
    "vllm_num_requests",
    "sglang_num_",
    "process_resident_memory_bytes",
    "python_info{",
)
_LINE = re.compile(
    r"^(?:# (?:HELP|TYPE) [\w:]+ .+"
    r"|[a-zA-Z_:][\w:]*(?:\{[^}]*\})?\s+[-+]?(?:\d[\d.eE+-]*|NaN|Inf)(?:\s+\d{10,13})?)\s*$"
)
_SUFFIX = re.compile(r"_(?:bucket|sum|count|created)$")
_OTHERS = 8
_STAMPED = re.compile(r"\s(\d{13})\s*$")
_FOREIGN = re.compile(r"^(?:ray_)?(?:vllm|sglang)[:_]|^(?:process|python|http)_")
_OWN = (
    ("process_resident_memory_bytes", "gpuwatch_engine_process_resident_bytes"),
    ("process_cpu_seconds_total", "gpuwatch_engine_process_cpu_seconds_total"),
)
_VERSION = re.compile(r"[\"']?version[\"']?\s*[:=]\s*[\"']?v?(\d+\.\d+\.\d+\w*)")


@dataclass(frozen=True, slots=True)
class SavedPage:
    """The text of one page, and where it begins in its file."""

    first: int
    text: str
    time: int = 0


def split_pages(lines: Sequence[tuple[int, str]]) -> list[SavedPage]:
    """Return the pages in (number, text) lines: a series, or a family's heading, that comes again begins another."""
    pages: list[SavedPage] = []
    body: list[str] = []
    seen: set[str] = set()
    first = time = 0

    def end() -> None:
        if any(_FOREIGN.match(line.removeprefix("# HELP ").removeprefix("# TYPE ")) for line in body):
            pages.append(SavedPage(first, "\n".join(body) + "\n", time))
        body.clear()
        seen.clear()

    for at, text in lines:
        if _LINE.match(text) is None:
            continue
        key = text if text.startswith("#") else text.rpartition("}")[0] or text.partition(" ")[0]
        if key in seen:
            end()
        if not body:
            first, time = at, 0
        stamped = _STAMPED.search(text)
        time = max(time, int(stamped[1])) if stamped is not None and not text.startswith("#") else time
        seen.add(key)
        body.append(text)
    end()
    return pages


def read_pages(lines: Sequence[tuple[int, str]], found: Found) -> None:
    """Read every page in (number, text) lines of one file."""
    for saved in split_pages(lines):
        page = ExpositionParser().parse(saved.text.encode())
        found.is_kind("metrics")
        _describe(page, saved, found)
        detected = detect(page.layout.names())
        found.tell("page.engine", detected.kind if detected else "", saved.first, saved.time)
        if detected is not None:
            _samples(page, detected, saved, found)
        for labels, value in zip(page.layout.keys, page.values.tolist(), strict=True):
            for theirs, ours in _OWN:
                if name_of(labels) == theirs:
                    found.samples.add(ours.removeprefix("gpuwatch_"), value, saved.time)


def _describe(page: Page, saved: SavedPage, found: Found) -> None:
    """Say what the page has: the families, and how many processes speak on it for one series."""
    names = sorted({_SUFFIX.sub("", name) for name in page.layout.names() if _FOREIGN.match(name)})
    found.tell("page.names", " ".join(names), saved.first, saved.time)
    others = sorted({_SUFFIX.sub("", name) for name in page.layout.names() if not _FOREIGN.match(name)})
    if others:
        found.tell("page.others", " ".join(others[:_OTHERS]), saved.first, saved.time)
    pids: dict[tuple[tuple[str, str], ...], set[str]] = {}
    for labels in page.layout.keys:
        if label(labels, "pid"):
            pids.setdefault(tuple(pair for pair in labels if pair[0] != "pid"), set()).add(label(labels, "pid"))
    if pids:
        found.tell("page.pids", max(map(len, pids.values())), saved.first, saved.time)


def _samples(page: Page, detected: Detection, saved: SavedPage, found: Found) -> None:
    info = EngineInfo(detected.kind)
    compiled = compile_page(page.layout.keys, page.layout.names(), info, "", "")
    keys, values = compiled.plan.apply(page.values)
    for labels, value in zip(keys, values.tolist(), strict=True):
        found.samples.add_series(labels, value, saved.time)
    for absence in compiled.absent:
        found.tell(f"page.absent.{name_of(absence.labels)}", absence.detail or absence.reason.value, saved.first)
    title = ENGINES[detected.kind].kind
    found.tell("engine", title, saved.first, saved.time)
