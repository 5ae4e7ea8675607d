"""The report of one run: verdict, what to change, findings, load, memory, probes, flags."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.finding import SEVERITY_ORDER
from gpuwatch.report import load, memory, probes
from gpuwatch.report.document import Document, FindingBlock, Heading, Items, Table, Text
from gpuwatch.report.starts import pooled
from gpuwatch.report.svg import clock_text
from gpuwatch.report.texts import advice_text
from gpuwatch.units import age, seconds

if TYPE_CHECKING:
    from gpuwatch.diagnosis.finding import Finding
    from gpuwatch.report.data import EngineRun, EngineStart, RunData, Setting
    from gpuwatch.report.document import Block
    from gpuwatch.report.probes import ProbeData

FOOT = "Prompts, completions, keys and tokens are in no recording and in no report."


def build(run: RunData, results: tuple[ProbeData, ...] = (), program: str = "") -> Document:
    """Return the report of `run` with the results of probes; `program` made it."""
    blocks: list[Block] = [verdict(run, results), *_shortcomings(run)]
    changes = _changes(run, results)
    if changes:
        blocks += [Heading("What to change next"), Items(tuple(changes), ordered=True)]
    blocks += [Heading("What ran"), _what_ran(run)]
    blocks.append(Heading("Findings"))
    if run.findings:
        blocks += [FindingBlock(finding, when(run, finding) + own(run, finding, results)) for finding in run.findings]
    else:
        blocks.append(Text("None."))
    blocks += load.blocks(run)
    blocks += probes.in_figures(results, run.started, run.ended)
    blocks += memory.blocks(run)
    blocks += probes.blocks(results)
    for engine in run.engines:
        blocks += _settings(run, engine)
    blocks += _not_judged(run)
    return Document(
        f"gpuwatch report: {run.name}",
        f"{run.host}, {_date(run.started)} to {_until(run)}, {seconds(run.seconds)}",
        tuple(blocks),
        f"{program} from a recording of {run.program}. {FOOT}".strip(),
    )


def verdict(run: RunData, results: tuple[ProbeData, ...] = ()) -> Text:
    """Return the one sentence that somebody reads who reads only one; findings and bad verdicts of probes count."""
    known_ids = {finding.id for finding in run.findings}
    tested = [item for item in probes.weighty(results) if item[1] not in known_ids]
    if not run.engines and not run.gpus and not run.findings and not tested:
        return Text("Nothing was judged: no engine and no GPU answered during this run.", "warning")
    worst = max((SEVERITY_ORDER[finding.severity] for finding in run.findings), default=-1)
    most = max((SEVERITY_ORDER[severity] for severity, *_ in tested), default=-1)
    if worst <= 0 and most <= 0:
        known = f" {len(run.findings)} worth knowing." if run.findings else ""
        seen = " and ".join(
            part
            for part in (
                f"{len(run.engines)} engine{'s' if len(run.engines) > 1 else ''}" if run.engines else "",
                f"{len(run.gpus)} GPU{'s' if len(run.gpus) > 1 else ''}" if run.gpus else "",
            )
            if part
        )
        bad = probes.shortfalls(results)
        where = " in the recording" if bad else ""
        text = f"Nothing wrong was found{where} in {seconds(run.sampled_seconds)} with {seen}.{known}"
        return Text(" ".join((text, *bad)), "warning" if bad else "good")
    more = sum(SEVERITY_ORDER[finding.severity] >= 1 for finding in run.findings) + len(tested) - 1
    rest = f" {more} more finding{'s' if more > 1 else ''} of weight." if more else ""
    if most > worst:
        severity, name, title, probe = next(item for item in tested if SEVERITY_ORDER[item[0]] == most)
        return Text(f"{severity.capitalize()}: {name}, found by probe {probe}. {title}.{rest}", severity)
    first = next(finding for finding in run.findings if SEVERITY_ORDER[finding.severity] == worst)
    return Text(f"{first.severity.capitalize()}: {first.id}, {when(run, first)}. {first.title}.{rest}", first.severity)


def when(run: RunData, finding: Finding) -> str:
    """Return when a finding was there, as times since the start of the run."""

    def clock(time: int) -> str:
        return clock_text((time - run.started) / 1000) if time >= run.started else "before the run"

    times = run.times_of(finding)
    first, last = times[0][0], times[-1][1]
    if len(times) == 1:
        return f"from {clock(first)}, still there at the end" if last is None else f"{clock(first)} to {clock(last)}"
    total = sum((run.ended if end is None else end) - max(start, run.started) for start, end in times) / 1000
    end = "the end" if last is None else clock(last)
    return f"{len(times)} times from {clock(first)} to {end}, {age(total)} in all"


def own(run: RunData, finding: Finding, results: tuple[ProbeData, ...]) -> str:
    """Return that every time of a finding began while a probe ran, whose prompts may be all that it is about."""
    names = [probes.running_at(results, begun) for begun, _ in run.times_of(finding)]
    return f", begun while probe {names[0]} ran: its requests may be the cause" if all(names) else ""


def _shortcomings(run: RunData) -> list[Block]:
    found: list[Block] = []
    if run.cut:
        found.append(Text(f"The recording ends early: {run.cut}", "warning"))
    found += [Text(f"{source.name} did not answer at the end: {source.value}", "warning") for source in run.silent]
    found += [Text(text, "warning") for text in pooled(run.engines)]
    found += [Text(problem, "warning") for problem in run.problems]
    return found


def _changes(run: RunData, results: tuple[ProbeData, ...]) -> list[str]:
    """Return the advice of root causes first, each once, then that of the probes, then what they may have caused."""
    ordered = sorted(run.findings, key=lambda finding: finding.caused_by is not None)
    texts = [
        (f"{advice_text(item)} ({finding.id}{own(run, finding, results)})", bool(own(run, finding, results)))
        for finding in ordered
        if finding.caused_by is None or not any(other.id == finding.caused_by for other in ordered)
        for item in finding.advice
    ]
    first, last = ([text for text, mark in texts if mark is which] for which in (False, True))
    return list(dict.fromkeys([*first, *probes.advice(results), *last]))


def _what_ran(run: RunData) -> Table:
    rows = [("machine", run.host), ("recorded", f"{_date(run.started)}, every {run.interval:g} s, by {run.program}")]
    if run.note:
        rows.append(("note", run.note))
    listed: set[tuple[str, str]] = set()
    for engine in run.engines:
        ranks = f", tensor parallel {engine.tensor_parallel}" if engine.tensor_parallel else ""
        rows.append(
            ("engine", f"{engine.kind} {engine.version or '(version unknown)'}, {engine.model}, {engine.title}{ranks}")
        )
        for number, start in enumerate(engine.starts if (engine.server, engine.model) not in listed else (), 1):
            rows.append((f"start {number}", f"{_served(run, start)}: {_flags(start.flags) or 'flags not known'}"))
        if not engine.starts and _flags(engine.settings):
            rows.append(("flags", _flags(engine.settings)))
        listed.add((engine.server, engine.model))
    if not run.engines:
        rows.append(("engine", "none answered"))
    names: dict[tuple[str, str], list[str]] = {}
    for gpu in run.gpus:
        names.setdefault((gpu.name, gpu.driver), []).append(gpu.index)
    for (name, driver), indexes in names.items():
        rows.append(("GPUs", f"{len(indexes)} x {name or 'unknown'}, driver {driver or 'unknown'}"))
    if not run.gpus:
        rows.append(("GPUs", "none was seen"))
    return Table(("", ""), tuple(rows))


def _served(run: RunData, start: EngineStart) -> str:
    """Return from when to when an engine answered in one of its starts."""
    if start.served is None:
        return f"from {clock_text((start.begun - run.started) / 1000)}, never answered"
    return "answered from {} to {}".format(*(clock_text((time - run.started) / 1000) for time in start.served))


def _flags(settings: tuple[Setting, ...]) -> str:
    return " ".join(f"{flag.name} {flag.value}".strip() for flag in settings if flag.name.startswith("--"))


def _settings(run: RunData, engine: EngineRun) -> list[Block]:
    name = f": {engine.title}" if len(run.engines) > 1 else ""
    last = " of the last start" if engine.starts else ""
    found: list[Block] = [Heading(f"Flags and versions{last}{name}")]
    rows = [(item.name, item.value, item.source) for item in (*engine.settings, *engine.figures)]
    if not rows:
        return [*found, Text("Neither a command line nor a log of this engine was seen.", "quiet")]
    return [*found, Table(("", "value", "from"), tuple(rows))]


def _not_judged(run: RunData) -> list[Block]:
    ended: dict[str, dict[str, None]] = {}
    for item in run.not_at_end:
        ended.setdefault(item.missing, {})[item.id] = None
    words = "Judged before, and not at the end any more"
    at_end: list[Block] = [Text(f"{words} ({why}): {', '.join(ids)}.", "quiet") for why, ids in ended.items()]
    if not run.not_enough:
        return [Heading("Not judged at the end"), *at_end] if at_end else []
    rows: dict[tuple[str, str], None] = {}
    for item in run.not_enough:
        rows[item.id, item.missing] = None
    return [Heading("Could not be judged"), Table(("", "what is missing"), tuple(rows)), *at_end]


def _date(milliseconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(milliseconds / 1000))


def _until(run: RunData) -> str:
    """Return the end of a run: without the day where it is that of the start."""
    begun, ended = _date(run.started), _date(run.ended)
    return ended[11:] if begun[:10] == ended[:10] else ended
