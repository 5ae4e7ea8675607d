"""Files of one incident: read, joined on time and process, and judged; recordings are replayed through the pipeline."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import judge
from gpuwatch.diagnosis.causes.incident import Incident, Input
from gpuwatch.diagnosis.ranking import rank
from gpuwatch.engines.log_text import redact
from gpuwatch.model import Fact
from gpuwatch.pipeline.unjudged import Unjudged
from gpuwatch.sources.files.commands import facts_of_launch, image_version, parse_launch, read_environment
from gpuwatch.sources.files.opening import UnreadableError
from gpuwatch.sources.files.read import FileText, read_file
from gpuwatch.sources.files.samples import Found
from gpuwatch.sources.files.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpuwatch.alerts.rulefile import RuleSet
    from gpuwatch.diagnosis.finding import Finding, NotEnough
    from gpuwatch.model import LogEvent

FLAGS = "--flags"
"""The source of facts from a command that was given on the command line."""
# Files whose times are nearer to each other were copied or unpacked together: the times say nothing.
_APART = 500


@dataclass(frozen=True, slots=True)
class PostMortem:
    """What came of some files. `refused` are (path, why it could not be read)."""

    inputs: tuple[Input, ...]
    findings: tuple[Finding, ...]
    not_enough: tuple[NotEnough, ...]
    refused: tuple[tuple[str, str], ...] = ()
    empty: tuple[str, ...] = ()
    """Recordings without a complete tick."""


def investigate(
    paths: Sequence[str],
    flags: str,
    now: int,
    rules: Callable[[], RuleSet],
    progress: Callable[[str, int, int], None] | None = None,
) -> PostMortem:
    """Read files and a launch command, and judge them together.

    Args:
        paths: Files, pipes, or ``-`` for standard input; one that is named twice is read once.
        flags: A launch command, or the flags of one; may be empty.
        now: Milliseconds since the epoch.
        rules: Loads the rules, where a recording needs them.
        progress: Called with a path, the bytes read of it and its size (0: unknown).
    """
    texts: list[FileText] = []
    refused: list[tuple[str, str]] = []
    for path in dict.fromkeys(paths):
        step = None if progress is None else (lambda done, size, path=path: progress(path, done, size))
        try:
            texts.append(read_file(path, now, step))
        except UnreadableError as error:
            refused.append((path, str(error)))
    played = [_play(text, rules, now, refused) for text in texts if text.recording]
    plain = in_order([text for text in texts if not text.recording])
    incident = join(plain, flags)
    findings, not_enough = judge(incident) if plain or flags else ((), ())
    for result in played:
        findings += result.findings
        not_enough += result.not_enough
    inputs = incident.inputs + tuple(given for result in played for given in result.inputs)
    empty = tuple(path for result in played for path in result.empty)
    return PostMortem(inputs, findings, not_enough, tuple(refused), empty)


def join(texts: Sequence[FileText], flags: str = "") -> Incident:
    """Return what several files and a launch command say together."""
    inputs = [Input(text.path, text.kind, text.engine, text.version, text.lines, text.note) for text in texts]
    facts = [fact for text in texts for fact in text.facts]
    launch = parse_launch(flags) if flags else None
    if launch is not None:
        told = facts_of_launch(launch)
        version = image_version(flags)
        if version:
            told["version"] = version
        inputs.append(Input(FLAGS, "flags", launch.engine, version))
        facts += [
            Fact(key, redact(value) if isinstance(value, str) and key != "command" else value, FLAGS, 1)
            for key, value in told.items()
        ]
        settings = Found()
        read_environment(Text(flags.encode()), settings)
        facts += [Fact(key, value, FLAGS, 1) for key, value, _, _ in settings.facts]
    samples = [(text.path, labels, value, time) for text in texts for labels, value, time in text.samples]
    config = next((text.config for text in texts if text.config is not None), None)
    return Incident(tuple(inputs), tuple(facts), tuple(_events(texts)), tuple(samples), config)


def _events(texts: Iterable[FileText]) -> list[LogEvent]:
    """Return the events of all files in the order of time; one without a time stays with the one before it."""
    rows: list[tuple[int, int, LogEvent]] = []
    for place, text in enumerate(texts):
        time = next((event.time for event in text.events if event.time), 0)
        for event in text.events:
            time = event.time or time
            rows.append((time, place, event))
    rows.sort(key=lambda row: row[:2])
    return [event for _, _, event in rows]


# Pages that were saved one after another


def in_order(texts: Sequence[FileText]) -> list[FileText]:
    """Return the files with the saved pages among them in the order in which they were saved, and their times.

    The times of the files are taken where they lie apart; otherwise the names, with their numbers, give the order, and
    the times stay unknown.
    """
    pages = [text for text in texts if text.kind == "metrics" and not any(time for _, _, time in text.samples)]
    if len(pages) < 2:
        return list(texts)
    times = sorted(text.modified for text in pages)
    apart = all(after - before >= _APART for before, after in pairwise(times)) and times[0] > 0
    if apart:
        pages = [
            replace(text, samples=tuple((labels, value, text.modified) for labels, value, _ in text.samples))
            for text in sorted(pages, key=lambda text: text.modified)
        ]
    else:
        pages.sort(key=lambda text: natural(text.path))
    others = [text for text in texts if text.path not in {page.path for page in pages}]
    return [*others, *pages]


def natural(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts names by the numbers in them: ``page_9`` before ``page_10``."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name)]


# Recordings


def _play(text: FileText, rules: Callable[[], RuleSet], now: int, refused: list[tuple[str, str]]) -> PostMortem:
    """Replay a recording as fast as it goes; its findings are those that were there live."""
    from gpuwatch.pipeline.replay import Play  # noqa: PLC0415  # the pipeline is needed for recordings only
    from gpuwatch.recording import Reader, RecordingError  # noqa: PLC0415  # as above

    found: dict[object, Finding] = {}
    unjudged = Unjudged()
    engine, version, ticks = "", "", 0
    try:
        reader = Reader(text.recording)
        play = Play(reader.header, rules())
        for tick in reader.ticks():
            result = play.tick(tick)
            ticks += 1
            unjudged.saw(result.not_enough)
            found.update((finding.key, finding) for finding in result.findings if finding.state != "pending")
        if ticks:
            states = play.pipeline.source_states(tick.time)
            engine, version = next(
                ((state.engine_kind, state.engine_version) for state in states if state.engine_kind), ("", "")
            )
    except RecordingError as error:
        refused.append((text.path, str(error).removeprefix(f"{text.recording}: ")))
        return PostMortem((), (), ())
    finally:
        if text.recording != text.path:
            with contextlib.suppress(OSError):
                Path(text.recording).unlink()
    notes = [text.note, "" if ticks else "holds no complete tick", reader.ahead(now)]
    notes.append(reader.cut.removeprefix(f"{text.recording}: "))
    note = "; ".join(filter(None, notes))
    given = Input(text.path, "recording", engine, version, 0, note)
    ended = (replace(item, missing=f"judged before, and not at the end: {item.missing}") for item in unjudged.at_end)
    not_enough = (*unjudged.throughout, *ended)
    return PostMortem((given,), _ranked(found.values()), not_enough, empty=() if ticks else (text.path,))


def _ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Rank the findings of a whole run; one that is over counts like one that is not."""
    listed = list(findings)
    states = {finding.key: finding.state for finding in listed}
    ordered = rank(replace(finding, state="firing") for finding in listed)
    return tuple(replace(finding, state=states[finding.key]) for finding in ordered)
