"""The report of two or more runs: which is better, by how much, how sure, and what differs between them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.finding import NotEnough
from gpuwatch.report.document import Document, Figure, FindingBlock, Heading, Items, Table, Text
from gpuwatch.report.figures import added_seconds, for_plot, rate, told
from gpuwatch.report.load import shown, summary
from gpuwatch.report.run_report import FOOT, when
from gpuwatch.report.scaling import poor, scaling
from gpuwatch.report.starts import flag_values, pooled
from gpuwatch.report.svg import Line, plot
from gpuwatch.report.versus import busy, value_of, versus
from gpuwatch.units import NONE, percent, seconds, size, with_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuwatch.report.data import EngineRun, RunData, Window
    from gpuwatch.report.document import Block
    from gpuwatch.report.versus import Row, Versus

METHOD = (
    "Intervals are of 95 %: a moving-block bootstrap of the windows with work, as neighbouring windows resemble each "
    "other, and Student's t. A difference is called better or worse where its chance without any cause is below 5 %, "
    "raised for the number of figures (Holm). Quantiles are as fine as the buckets of the engine; of one in the "
    "first bucket no more is known than that it is at most (≤) its end. One run of each kind "
    "does not show how runs differ from day to day."
)
LEADING = ("generated tokens", "time to first token p95", "time between tokens p95", "preemptions")
"""The figures that the first sentence names."""
_SHOWN = ("better", "worse", "differs")


def names_of(runs: Sequence[RunData]) -> list[str]:
    """Return a short name for each run: A, B, C and so on."""
    return [chr(ord("A") + index) for index in range(len(runs))]


def held_against(runs: Sequence[RunData]) -> list[Versus]:
    """Hold each of the runs after the first one against the first one."""
    return [versus(runs[0], other) for other in runs[1:]]


def build(runs: Sequence[RunData], program: str = "", pairs: Sequence[Versus] = ()) -> Document:
    """Return the comparison of the runs after the first one with the first one; `pairs` as of `held_against`."""
    pairs = pairs or held_against(runs)
    names = names_of(runs)
    blocks: list[Block] = []
    for name, pair in zip(names[1:], pairs, strict=True):
        blocks += _verdict(names[0], name, pair)
    blocks += [
        Text(f"{name}: {text}", "warning")
        for name, run in zip(names, runs, strict=True)
        for text in pooled(run.engines)
    ]
    blocks += [Heading("Runs"), _runs(names, runs)]
    blocks += _differences(names, runs)
    scaled = [block for name, pair in zip(names[1:], pairs, strict=True) for block in _scaling(names[0], name, pair)]
    if scaled:
        blocks += [Heading("Tensor-parallel scaling"), *scaled]
    for name, pair in zip(names[1:], pairs, strict=True):
        blocks += [Heading(f"{name} against {names[0]}"), _table(names[0], name, pair.rows)]
        blocks += [Text(caution, "warning") for caution in pair.cautions]
        blocks += _levels(names[0], name, pair)
        blocks += [Heading(f"Load of {names[0]} and {name}", 3), _table(names[0], name, pair.load)]
    blocks += _plots(names, runs)
    blocks += _memory(names, runs)
    blocks += [Heading("Findings"), *_findings(names, runs)]
    blocks += [Heading("Method"), Text(METHOD, "quiet")]
    listed = ", ".join(f"{name}: {run.name}" for name, run in zip(names, runs, strict=True))
    return Document("gpuwatch compare", listed, tuple(blocks), f"{program}. {FOOT}")


def not_compared(pairs: Sequence[Versus]) -> str:
    """Say in one line that none of the runs can be compared with the first one; empty where one can."""
    if any(map(_judged, pairs)):
        return ""
    names = " and ".join(chr(ord("B") + index) for index in range(len(pairs)))
    return f"{names} cannot be compared with A: too little work in at least one of them"


def _judged(pair: Versus) -> bool:
    return any(row.verdict in (*_SHOWN, "no difference shown") for row in _leading(pair))


def _leading(pair: Versus) -> list[Row]:
    """Return the figures that the first sentence names; where a quantile cannot be judged, the mean stands for it.

    Where none of them differs and others do, those are named as well: no difference of the table is passed over.
    """
    by_name = {row.name: row for row in pair.rows}
    found = []
    for name in LEADING:
        row, mean = by_name.get(name), by_name.get(name.replace(" p95", " mean"))
        row = mean if row is not None and row.verdict == "n/a" and mean is not None else row
        found += [row] if row is not None else []
    if not any(row.verdict in _SHOWN for row in found):
        found += [row for row in pair.rows if row.verdict in _SHOWN and row not in found]
    return found


def _verdict(first: str, second: str, pair: Versus) -> list[Block]:
    leading = _leading(pair)
    better = [row for row in leading if row.verdict == "better"]
    worse = [row for row in leading if row.verdict == "worse"]
    alike = [row for row in leading if row.verdict == "no difference shown"]
    short = [row for row in leading if row.verdict == "too short to say" and _unlike(row)]
    differs = [row for row in leading if row.verdict == "differs"]
    words = ", ".join(f"{row.name} {_difference(row)}" for row in (*better, *worse, *differs))
    if differs:
        text = (
            f"Which of {first} and {second} is better cannot be said: their loads differ, and they have no concurrency "
            f"in common. {second} against {first}: {words}."
        )
        tone = "warning"
    elif better and not worse:
        text, tone = f"{second} is better than {first}: {words}.", "good"
    elif worse and not better:
        text, tone = f"{second} is worse than {first}: {words}.", "critical"
    elif better:
        text, tone = f"{second} is better than {first} in some figures and worse in others: {words}.", "warning"
    elif alike:
        which = f" in {_listed([row.name for row in alike])}" if short else ""
        text = f"No difference between {first} and {second} is shown{which}. {_could_hide(alike)}".strip()
        tone = "warning" if short else "info"
    else:
        text, tone = f"{second} cannot be compared with {first}: too little work in at least one of them.", "warning"
    if short and (better or worse or alike or differs):
        unsure = ", ".join(f"{row.name} {_difference(row)}" for row in short)
        text += f" Too short to say whether this is more than chance: {unsure}."
    found: list[Block] = [Text(text, tone)]
    if pair.cautions and (better or worse or differs):
        found.append(Text(f"With care: {pair.cautions[0]}", "warning"))
    return found


def _unlike(row: Row) -> bool:
    """Return whether there is a difference that could be chance."""
    return row.comparison is not None and row.comparison.difference != 0


def _listed(names: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def _could_hide(rows: Sequence[Row]) -> str:
    """Return how large a difference of the first figure may be there all the same."""
    for row in rows:
        known = row.comparison
        if known is not None and known.relative and known.low is not None and known.high is not None:
            return f"{row.name.capitalize()} may still differ by {_percent(known.low)} to {_percent(known.high)}."
    return ""


def _difference(row: Row) -> str:
    known = row.comparison
    if known is None:
        return NONE
    if math.isinf(known.difference) or any(row.at_most):
        return " → ".join(_figure(row, which) for which in (0, 1))
    bounds = " (cannot be bounded)" if known.p is not None else ""
    if known.low is not None and known.high is not None:
        bounds = "" if known.low == known.high else f" ({_more(row, known.low)} to {_more(row, known.high)})"
    return _more(row, known.difference) + bounds


def _more(row: Row, difference: float) -> str:
    """Return a difference of a compared row, or a bound of it, with its sign: in percent or in the row's unit."""
    if row.comparison is not None and row.comparison.relative:
        return _percent(difference)
    return f"{'+' if difference >= 0 else '-'}{with_unit(abs(difference), row.unit)}"


def _figure(row: Row, which: int) -> str:
    """Return the figure of the first (0) or second (1) run, with a sign where only its upper bound is known."""
    return f"{'≤ ' if row.at_most[which] else ''}{shown(value_of(row, which), row.unit)}"


def _percent(value: float) -> str:
    """Return a difference in percent with its sign; none has none."""
    text = f"{100 * value:+.1f}"
    return f"{'0.0' if text in ('+0.0', '-0.0') else text} %"


def _table(first: str, second: str, rows: Sequence[Row]) -> Table:
    known = [row for row in rows if row.first is not None or row.second is not None]
    return Table(
        ("", first, second, "difference (95 %)", "p", "verdict"),
        tuple(
            (
                row.name,
                _figure(row, 0),
                _figure(row, 1),
                _difference(row),
                NONE if row.raised is None else f"{row.raised:.3f}" if row.raised >= 0.001 else "<0.001",
                "" if row.comparison is not None and row.raised is None and row.verdict == "n/a" else row.verdict,
            )
            for row in known
        ),
        numbers_from=1,
        tones=tuple(row.verdict if row.verdict in ("better", "worse") else "" for row in known),
    )


def _levels(first: str, second: str, pair: Versus) -> list[Block]:
    if not pair.levels:
        return [Text("The runs had no concurrency in common.", "quiet")]
    found: list[Block] = [Heading(f"{second} against {first} at equal concurrency", 3)]
    rows, tones = [], []
    for level in pair.levels:
        for row in level.rows:
            if row.comparison is not None:
                values = (_figure(row, which) for which in (0, 1))
                rows.append((level.text, row.name, *values, _difference(row), row.verdict))
                tones.append(row.verdict if row.verdict in ("better", "worse") else "")
    head = ("requests running", "", first, second, "difference (95 %)", "verdict")
    found.append(Table(head, tuple(rows), numbers_from=2, tones=tuple(tones)))
    return found


def _runs(names: Sequence[str], runs: Sequence[RunData]) -> Table:
    rows = []
    for name, run in zip(names, runs, strict=True):
        engines = "; ".join(f"{e.kind} {e.version} {e.model} on {e.title}" for e in run.engines) or "none"
        gpus = f"{len(run.gpus)} x {run.gpus[0].name}" if run.gpus else "none was seen"
        length = f"{seconds(added_seconds(busy(run)))} of {seconds(run.sampled_seconds)}"
        rows.append((name, run.name, run.host, engines, gpus, length, run.note or run.cut))
    return Table(("", "recording", "machine", "engine", "GPUs", "had work", "note"), tuple(rows))


def _differences(names: Sequence[str], runs: Sequence[RunData]) -> list[Block]:
    """Return the settings that are not the same in all runs."""
    known: list[dict[str, str]] = []
    for run in runs:
        settings: dict[str, str] = {"machine": run.host, "gpuwatch": run.program}
        settings["GPUs"] = ", ".join(f"{gpu.name} ({gpu.driver})" for gpu in run.gpus)
        for engine in run.engines[:1]:
            settings |= {"engine": engine.kind, "engine version": engine.version, "model": engine.model}
            settings["tensor-parallel ranks"] = NONE if engine.tensor_parallel is None else str(engine.tensor_parallel)
            settings |= _flags(engine)
            settings |= {item.name: item.value for item in engine.figures}
        known.append(settings)
    keys = list(dict.fromkeys(key for settings in known for key in settings))
    ignored = ("--port", "--host", "gpuwatch")
    rows = []
    for key in keys:
        values = tuple(settings.get(key, _absent(key, settings)) for settings in known)
        if len(set(values)) > 1 and key not in ignored:
            rows.append((key, *values))
    if not rows:
        return [Heading("What differs"), Text("Nothing that was seen: flags, versions and cards are the same.")]
    return [Heading("What differs"), Table(("", *names), tuple(rows))]


def _absent(key: str, settings: dict[str, str]) -> str:
    """Return what stands for a setting that a run does not tell; of a run without any flag none is known."""
    if not key.startswith("--"):
        return NONE
    return "not given" if any(name.startswith("--") for name in settings) else "not known"


def _flags(engine: EngineRun) -> dict[str, str]:
    """Return the flags of an engine; one that was not the same in all of its starts with the value of each."""
    each = [start.flags for start in engine.starts] or [engine.settings]
    return {name: " → ".join(values) for name, values in flag_values(each).items()}


def _scaling(first: str, second: str, pair: Versus) -> list[Block]:
    gained = scaling(pair)
    if gained is None:
        return []
    if isinstance(gained, NotEnough):
        return [Text(f"{second} against {first} cannot be judged: it needs {gained.missing}.", "quiet")]
    bounds = "" if gained.low is None or gained.high is None else f" (95 %: {gained.low:.2f} to {gained.high:.2f})"
    text = (
        f"{gained.many} ranks generate {gained.speedup:.2f} times as much as {gained.few}{bounds}, {gained.ideal:g} "
        f"times would be ideal: {percent(gained.efficiency)} efficiency, compared {gained.basis}."
    )
    finding = poor(pair, gained)
    return [Text(text), *([FindingBlock(finding, "over both runs")] if finding is not None else [])]


def _plots(names: Sequence[str], runs: Sequence[RunData]) -> list[Block]:
    """Return courses of all runs over the time since each began to work."""
    kinds: tuple[tuple[str, str, Callable[[Window], float | None]], ...] = (
        ("Generated tokens per second", "tokens/s", lambda window: rate(window, "generation_tokens")),
        ("Time to first token, p95", "seconds", lambda window: _p95(window, "ttft")),
        ("Time between tokens, p95", "seconds", lambda window: _p95(window, "itl")),
        ("Requests running", "count", lambda window: window.running),
    )
    points = [for_plot(busy(run)) for run in runs]
    span = (0.0, max([1.0, *((known[-1].end - known[0].start) / 1000 for known in points if known)]))
    found: list[Block] = []
    for title, unit, ask in kinds:
        lines = []
        for name, known in zip(names, points, strict=True):
            pairs = (((window.start + window.end) / 2000 - known[0].start / 1000, ask(window)) for window in known)
            lines.append(Line(name, tuple((x, y) for x, y in pairs if y is not None)))
        if any(line.points for line in lines):
            legend = tuple((f"c{index % 8}", line.label) for index, line in enumerate(lines))
            text = tuple((line.label, summary(line, unit)) for line in lines if line.points)
            found.append(Figure(title, plot(lines, unit, span, title=title), legend, text))
    return [Heading("Over time, since each run began to work"), *found] if found else []


def _p95(window: Window, kind: str) -> float | None:
    return told(0.95, window.histograms[kind]) if kind in window.histograms else None


def _memory(names: Sequence[str], runs: Sequence[RunData]) -> list[Block]:
    most = max(len(run.gpus) for run in runs)
    if not most:
        return []
    head = ("", *(f"GPU {index}" for index in range(most)))
    rows = []
    for name, run in zip(names, runs, strict=True):
        cells = [f"{size(gpu.peak)} of {size(gpu.total)}" for gpu in run.gpus]
        rows.append((name, *cells, *[NONE] * (most - len(cells))))
    return [Heading("Highest use of GPU memory"), Table(head, tuple(rows), numbers_from=1)]


def _findings(names: Sequence[str], runs: Sequence[RunData]) -> list[Block]:
    keys = list(dict.fromkeys(finding.id for run in runs for finding in run.findings))
    if not keys:
        return [Text("None in any run.")]
    rows = []
    for key in keys:
        cells = []
        for run in runs:
            seen = [when(run, finding) for finding in run.findings if finding.id == key]
            cells.append("; ".join(seen) if seen else "no")
        rows.append((key, *cells))
    found: list[Block] = [Table(("", *names), tuple(rows))]
    hints = _advice(names, runs)
    return [*found, Items(tuple(hints))] if hints else found


def _advice(names: Sequence[str], runs: Sequence[RunData]) -> list[str]:
    return [
        f"{name}: gpuwatch report {run.name} says what to change"
        for name, run in zip(names, runs, strict=True)
        if any(finding.advice for finding in run.findings)
    ]
