"""Every key of the screen in one table: what it is called, what it does, and when it is offered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.tui.draw.frame import VIEWS, KeyHint

if TYPE_CHECKING:
    from gpuwatch.tui.feed import Actions

PAGES = {
    "fleet": ("gpuwatch.tui.screens.fleet", "Fleet"),
    "overview": ("gpuwatch.tui.screens.overview", "Overview"),
    "gpus": ("gpuwatch.tui.screens.gpus", "Gpus"),
    "engine": ("gpuwatch.tui.screens.engine", "EngineView"),
    "findings": ("gpuwatch.tui.screens.findings", "Findings"),
    "logs": ("gpuwatch.tui.screens.logs", "Logs"),
    "ledger": ("gpuwatch.tui.screens.ledger", "Ledger"),
    "rules": ("gpuwatch.tui.screens.rules", "Rules"),
}
"""The module and class of each page."""

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""How many times faster than it was recorded a replay can be played."""

BINDINGS: tuple[tuple[str, str], ...] = (
    *((str(i), f"view('{name}')") for i, name in enumerate(VIEWS, 1)),
    ("question_mark", "help"),
    ("space", "pause"),
    ("left", "walk(-5)"),
    ("right", "walk(5)"),
    ("shift+left", "walk(-60)"),
    ("shift+right", "walk(60)"),
    ("ctrl+left", "walk(-600)"),
    ("ctrl+right", "walk(600)"),
    ("r", "record"),
    ("a", "acknowledge"),
    ("s", "silence"),
    ("y", "copy"),
    ("slash", "filter_logs"),
    ("e", "next_engine"),
    ("d", "demo"),
    ("w", "report"),
    ("t", "colours"),
    ("plus,equals_sign", "faster(1)"),
    ("minus", "faster(-1)"),
    ("escape", "home"),
    ("0", "view('fleet')"),
    ("q", "quit"),
)
"""(key, action) pairs."""


def offered(actions: Actions, action: str, *, empty: bool, replay: bool) -> bool:
    """Return whether a key is offered: one whose action is missing is not."""
    return {
        "record": actions.start_recording is not None and actions.stop_recording is not None and not replay,
        "acknowledge": actions.acknowledge is not None,
        "silence": actions.silence is not None,
        "demo": actions.demo is not None and empty and not replay,
        "report": actions.write_report is not None,
        "faster": actions.speed is not None and replay,
        "fleet": actions.focus is not None,
    }.get(action, True)


def hints(
    view: str,
    own: list[KeyHint],
    actions: Actions,
    *,
    empty: bool,
    replay: bool,
    paused: bool,
    recording: bool,
    finding: bool,
    narrow: bool,
) -> list[KeyHint]:
    """Return the entries of the footer, the most important first where it is narrow."""

    def can(action: str) -> bool:
        return offered(actions, action, empty=empty, replay=replay)

    entries = [KeyHint(str(i), name, f"view('{name}')", name == view) for i, name in enumerate(VIEWS, 1)]
    if can("fleet"):
        entries.insert(0, KeyHint("0", "fleet", "view('fleet')", view == "fleet"))
    on_finding = [KeyHint(key, name, action) for key, name, action in _ON_FINDING if finding and can(action)]
    if narrow and view in ("findings", "logs"):
        entries = [next(entry for entry in entries if entry.active), KeyHint("1-7", "views", "view('overview')")]
        own = [*on_finding, *own] if view == "findings" else own
    if can("demo"):
        entries.insert(0, KeyHint("d", "demo", "demo"))
    entries += [KeyHint("?", "help", "help"), *own]
    entries += [KeyHint("space", "resume" if paused else "pause", "pause"), KeyHint("←→", "time", "walk(-5)")]
    if can("record"):
        entries.append(KeyHint("r", "stop" if recording else "record", "record"))
    entries += [hint for hint in on_finding if hint not in entries]
    if can("report"):
        entries.append(KeyHint("w", "report", "report"))
    if can("faster"):
        entries.append(KeyHint("+-", "speed", "faster(1)"))
    return [*entries, KeyHint("q", "quit", "quit")]


_ON_FINDING = (("a", "ack", "acknowledge"), ("s", "silence", "silence"), ("y", "copy", "copy"))


def help_entries(actions: Actions, *, empty: bool, replay: bool) -> list[tuple[str, str]]:
    """Return (key, what it does) for the help page, only those that work."""
    rows = [
        ("1 … 7", "overview, GPUs, engine, findings, logs, ledger, rules", ""),
        ("0", "the fleet: a row for each machine; enter opens one", "fleet"),
        ("tab  shift+tab", "next and previous part of the page", ""),
        ("↑ ↓  j k", "move in the part that has the focus; page up, page down, home, end too", ""),
        ("enter  click", "open what is selected", ""),
        ("space", "pause and resume; nothing is lost meanwhile", ""),
        ("← →", "walk back and forth in time by 5 s, with shift 1 min, with ctrl 10 min", ""),
        ("+  -", "play the recording faster or slower", "faster"),
        ("r", "start and stop a recording", "record"),
        ("a", "acknowledge the finding under the cursor", "acknowledge"),
        ("s", "silence the finding under the cursor for an hour", "silence"),
        ("y", "copy the finding with its evidence to the clipboard (OSC 52)", ""),
        ("w", "write a report of what was seen", "report"),
        ("/  h", "logs: filter by words, recognised lines only", ""),
        ("e", "next engine", ""),
        ("d", "demo: a recorded run with simulated GPUs", "demo"),
        ("t", "light or dark colours", ""),
        ("escape", "back to the overview, from there to the fleet where there is one", ""),
        ("q  ctrl+c", "quit", ""),
    ]
    return [
        (key, what) for key, what, action in rows if not action or offered(actions, action, empty=empty, replay=replay)
    ]
