"""The one-line summaries: what the screen shows, how fresh it is, which sources answer, what was concluded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.snapshot import PARTIAL, PLAYED, in_part
from gpuwatch.tui.text import clean
from gpuwatch.tui.view.reasons import source_problem
from gpuwatch.units import age, clock, seconds, size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatch.snapshot import Mode, Snapshot, SourceState
    from gpuwatch.tui.view.findings import Row

LATE_INTERVALS = 3.0
"""A screen without a new snapshot for this many intervals (at least `LATE_SECONDS`) says so."""
LATE_SECONDS = 5.0

MODES: Mapping[Mode, str] = {
    "live": "live",
    "demo": "demo",
    "replay": "replay",
    "attached": "attached",
    "prometheus": "Prometheus",
}


@dataclass(frozen=True, slots=True)
class Pulse:
    """How the screen follows the world. Times in milliseconds since the epoch, ages in seconds.

    `paused` and `viewing` belong to the screen: paused shows `viewing` (None: the moment of the pause) while the
    world goes on; `silent` is how long no snapshot has come.
    """

    paused: bool = False
    silent: float = 0.0
    newest: int = 0


def state_text(snapshot: Snapshot | None, pulse: Pulse) -> tuple[str, str, str]:
    """Return (glyph, words, tone) of the screen's state: starting, live, late, paused, demo, replay, …."""
    if snapshot is None:
        return "◌", "starting", "info"
    if pulse.paused:
        behind = (pulse.newest - snapshot.time) / 1000
        return "‖", f"paused -{age(behind)}" if behind >= 1 else "paused", "warn"
    if snapshot.recording is not None and snapshot.recording.ended:
        return "■", "end of the recording", "warn" if snapshot.recording.error else "info"
    if snapshot.mode == "attached" and link_trouble(snapshot):
        return "✗", f"stale since {clock(snapshot.time)}" if snapshot.answers else "not connected", "crit"
    if pulse.silent >= max(LATE_INTERVALS * snapshot.interval, LATE_SECONDS):
        return "✗", f"no data for {age(pulse.silent)}", "crit"
    return "●", f"{MODES[snapshot.mode]} {snapshot.interval:.1f} s", "ok"


def banner(snapshot: Snapshot | None) -> str:
    """Return the sentence that stays on screen while what is shown is not this machine, now."""
    if snapshot is None:
        return ""
    recording = snapshot.recording
    position = ""
    if recording is not None and recording.length > 0:
        position = f"  {seconds(float(round(recording.position)))} of {seconds(float(round(recording.length)))}"
    if recording is not None and recording.speed != 1:
        position += f"  {recording.speed:g} times as fast"
    if snapshot.mode == "prometheus":
        return prometheus_trouble(snapshot)[0]
    if snapshot.mode == "attached" and link_trouble(snapshot):
        return f"ATTACHED  ✗ {link_trouble(snapshot)}"
    if snapshot.mode == "demo":
        return f"DEMO: recorded run, simulated GPUs{position}"
    if snapshot.mode == "replay":
        error = clean(recording.error.removeprefix(f"{recording.path}: ")) if recording is not None else ""
        name = clean(recording.path) if recording is not None else "a recording"
        return f"REPLAY: {name}{position}{f'  ✗ {error}' if error else ''}"
    return ""


def link_trouble(snapshot: Snapshot) -> str:
    """Return why the program that this screen is attached to does not answer, or the empty string."""
    return next((clean(source.detail) for source in snapshot.sources if source.kind == "attach"), "")


def prometheus_trouble(snapshot: Snapshot | None) -> tuple[str, str]:
    """Return (sentence, tone) about the Prometheus that is asked; empty while all is well.

    It says that nothing is answered and how old the figures are, which figures are missing and why, or that it is slow.
    """
    if snapshot is None or snapshot.mode != "prometheus":
        return "", ""
    for source in snapshot.sources:
        if source.kind != "prometheus":
            continue
        if not source.up:
            old = f"; figures are {age(source.age)} old" if source.age is not None else ""
            return f"✗ Prometheus: {clean(source_problem(source))}{old}", "crit"
        if source.reason == PARTIAL:
            return f"▲ Prometheus answers only in part, sums may be too low: {clean(source.detail)}", "warn"
        if source.detail.startswith("slow"):
            return f"▲ Prometheus is {clean(source.detail)}", "warn"
        if source.detail:
            return f"▲ figures missing: {clean(source.detail)}", "warn"
    return "", ""


def recording_text(snapshot: Snapshot | None) -> tuple[str, str]:
    """Return (words, tone) about a recording in progress; empty while none is."""
    if snapshot is None or snapshot.recording is None or snapshot.mode in PLAYED:
        return "", ""
    if snapshot.recording.error:
        return "rec ✗", "crit"
    return f"rec ● {size(float(snapshot.recording.bytes))}", "crit"


def _short(source: SourceState) -> str:
    """Return how a source is called in the header: its kind, or the engine's port."""
    name = source.server or source.target.partition(":")[2] or source.target
    return f":{name.rpartition(':')[2]}" if source.kind == "engine" else source.kind


def _down(snapshot: Snapshot) -> list[SourceState]:
    """Return the sources that fail, without a kernel log that could never be read: most users may not read it."""
    never = [source for source in snapshot.sources if source.kind == "kernel" and source.age is None]
    return [source for source in snapshot.sources if not source.up and source not in never]


def sources_text(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Return (words, tone) of the sources that are down, then per kind of source beside GPUs and engines that is up."""
    down = _down(snapshot)
    parts = [(f"{clean(_short(source))} ✗", "warn") for source in down]
    if len(down) > 2:
        parts = [(f"{len(down)} sources ✗", "warn")]
    for kind, name in (("log", "log"), ("kernel", "kernel log")):
        own = [source for source in snapshot.sources if source.kind == kind]
        if own and all(source.up for source in own):
            parts.append((f"{name} ✓" if len(own) == 1 else f"{len(own)} {name}s ✓", "ok"))
    return parts


def plural(number: int, word: str) -> str:
    """Return ``1 engine`` or ``2 engines``."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def conclusion(snapshot: Snapshot, rows: tuple[Row, ...]) -> tuple[str, str, str]:
    """Return (glyph, words, tone): what can be said when there is no finding; unknown is never healthy."""
    if any(row.finding.state != "resolved" for row in rows):
        return "", "", ""
    if silent := _unanswered(snapshot):
        return "?", f"cannot tell: Prometheus {silent}", "warn"
    rules = snapshot.rules
    blind = [rule for rule in rules if rule.status in ("not_evaluable", "error")]
    down = _down(snapshot)
    if not rules or not snapshot.answers:
        return "◌", "nothing to judge yet", "dim"
    if len(blind) == len(rules):
        return "?", f"cannot tell: none of {plural(len(rules), 'rule')} can be evaluated yet", "warn"
    if blind or down or snapshot.problems:
        parts = [f"{len(rules) - len(blind)} of {plural(len(rules), 'rule')} find nothing"]
        if blind:
            parts.append(f"{len(blind)} cannot be evaluated (key 7)")
        if down:
            parts.append(f"{plural(len(down), 'source')} not answering")
        return "·", "; ".join(parts), "dim"
    return "✓", f"no findings: {plural(len(rules), 'rule')} evaluated, all quiet", "ok"


def _unanswered(snapshot: Snapshot) -> str:
    """Return what a Prometheus does instead of saying all that fires; empty where it says it, or none is asked."""
    if prometheus_trouble(snapshot)[1] == "crit":
        return "does not answer"
    if snapshot.answer("alerts").error:
        return "does not say which alerts fire"
    return "answers only in part" if in_part(snapshot) else ""


def problems_text(snapshot: Snapshot) -> str:
    """Return how many rule files were refused and rules fail, in one sentence; empty when none."""
    return f"✗ {plural(len(snapshot.problems), 'rule problem')} (key 7)" if snapshot.problems else ""


def source_rows(snapshot: Snapshot) -> list[tuple[str, str, str, str]]:
    """Return (glyph, target, state, tone) of every source."""
    rows = []
    for source in sorted(snapshot.sources, key=lambda s: (s.up, s.kind, s.target)):
        fresh = f"{age(source.age)} ago" if source.age is not None else "never"
        if source.up:
            rows.append(("✓", clean(source.target), f"last data {fresh}", "ok"))
        else:
            rows.append(("✗", clean(source.target), f"{clean(source_problem(source))}; last data {fresh}", "warn"))
    return rows
