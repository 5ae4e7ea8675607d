"""A recording as the report needs it: its samples thinned to what can be drawn, and what the rules found.

A recording that holds what this program found with these rules is read and no more; any other is replayed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwatch.clock import SystemClock
from gpuwatch.diagnosis.ranking import rank
from gpuwatch.engines.facts import FACTS
from gpuwatch.engines.log_text import clean
from gpuwatch.model import label, name_of
from gpuwatch.pipeline.config_series import ConfigSeries
from gpuwatch.pipeline.health import Health
from gpuwatch.pipeline.replay import Play
from gpuwatch.pipeline.run_gpus import Gpu, by_index, gpu_rows, gpu_run, ledger_of
from gpuwatch.pipeline.run_settings import figure_of, settings_of
from gpuwatch.pipeline.run_starts import Starts
from gpuwatch.pipeline.run_windows import SHORTEST_MS, EngineBook, EngineKey, longest_gap, rows_of
from gpuwatch.pipeline.unjudged import Unjudged
from gpuwatch.pipeline.verdicts import digest, read
from gpuwatch.recording import Reader
from gpuwatch.report.data import EngineRun, RunData, Setting
from gpuwatch.report.svg import clock_text
from gpuwatch.sources.files.read import playable
from gpuwatch.units import age

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpuwatch.alerts.rulefile import RuleSet
    from gpuwatch.diagnosis.finding import Finding
    from gpuwatch.model import Batch, Labels
    from gpuwatch.pipeline.run_windows import Part
    from gpuwatch.recording import Header, Tick

NEAR_PEAK = 0.999
"""The ledger at the peak is that of the last moment with at least this part of the highest use."""
PEAK_EVERY = 10
"""Ticks between two looks at the ledger while the use stays near its peak."""
MOST_HOLES = 3
"""Stretches without a sample that are named one by one."""

_FIGURES = ("gpuwatch_engine_config_", "gpuwatch_engine_kv_cache_tokens", "gpuwatch_engine_kv_block_size_tokens")
_NOT_FIGURES = ("flag_problem", "_unscaled")


class Collector:
    """Takes in the ticks of one run and gives its `RunData`.

    Args:
        header: The first line of the recording.
    """

    def __init__(self, header: Header) -> None:
        self._header = header
        self._width = max(SHORTEST_MS, round(2000 * header.interval))
        self._gap = longest_gap(header.interval)
        self._holes: list[tuple[int, int]] = []
        """From and until, where no tick was recorded."""
        self._engines: dict[EngineKey, EngineBook] = {}
        self._gpus: dict[str, Gpu] = {}
        self._rows: dict[str, tuple[tuple[Labels, ...], dict[EngineKey, list[tuple[int, Labels, Part]]]]] = {}
        self._gpu_rows: dict[str, tuple[tuple[Labels, ...], list[tuple[int, str, str, Labels]]]] = {}
        self._findings: dict[Any, Finding] = {}
        self._present: set[Any] = set()
        self._episodes: dict[Any, list[tuple[int, int | None]]] = {}
        self._newest: dict[str, Batch] = {}
        """The last batch of each target that answers."""
        self._told: dict[str, Batch] = {}
        """The last batch of each target, whether it answers now or not."""
        self._answered: dict[str, int] = {}
        """When each target answered last, if it does now."""
        self._starts = Starts()
        self._config = ConfigSeries(header.host)
        self._health = Health(header.host, header.interval)
        self._ticks = 0
        self._first = self._last = self._last_tick = 0
        self._shift = 0
        """Milliseconds that are added to times, so that they go on where a clock was set back."""
        self._problems: list[str] = []

    def take(self, tick: Tick) -> None:
        """Take in the samples of one tick."""
        if self._ticks == 0:
            self._first = tick.time
        elif tick.time + self._shift < self._last:
            back = self._last - tick.time - self._shift
            self._shift += back + self._width // 2
            self._problems.append(f"the clock went back by {back / 1000:,.0f} s; times after that are moved on")
        elif tick.time + self._shift - self._last > self._gap:
            self._holes.append((self._last, tick.time + self._shift))
        for target in tick.forgotten:
            self._health.forget(target)
            self._newest.pop(target, None)
            self._answered.pop(target, None)
        for batch in tick.batches:
            self._health.update(batch)
            self._config.saw(batch)
            self._starts.take(batch, batch.time + self._shift)
            if batch.up:
                if batch.keys:
                    self._newest[batch.target] = self._told[batch.target] = batch
                self._take_engines(batch)
                self._take_gpus(batch)
            else:
                self._newest.pop(batch.target, None)
                self._answered.pop(batch.target, None)
        self._look_at_peaks()
        self._ticks += 1
        self._last, self._last_tick = tick.time + self._shift, tick.time

    def found(self, time: int, findings: Sequence[Finding]) -> None:
        """Take in all findings there are at `time` in the recording's own time."""
        now = time + self._shift
        shown = {finding.key: finding for finding in findings if finding.state != "pending"}
        active = {key for key, finding in shown.items() if finding.state == "firing"}
        for key in self._present - active:
            ended = shown[key].until if key in shown else None
            begun = self._episodes[key][-1][0]
            self._episodes[key][-1] = (begun, now if ended is None else ended + self._shift)
            self._findings[key] = replace(self._findings[key], state="resolved", until=self._episodes[key][-1][1])
        for key in active:
            finding = replace(shown[key], since=shown[key].since + self._shift)
            times = self._episodes.setdefault(key, [])
            if key not in self._present:
                times.append((max(finding.since, times[-1][1] or 0) if times else finding.since, None))
            self._findings[key] = replace(finding, since=times[0][0], until=None)
        self._present = active

    def result(self, name: str, cut: str, unjudged: Unjudged, problems: Iterable[str]) -> RunData:
        """Return what was taken in."""
        header = self._header
        silent = [
            Setting(
                state.name,
                clean(f"{state.reason}: {state.detail}"),
                "",
            )
            for state in self._health.states(self._last_tick)
            if not state.up
        ]
        states = {key: finding.state for key, finding in self._findings.items()}
        ordered = rank(replace(finding, state="firing") for finding in self._findings.values())
        config = self._config.batch(self._last_tick, self._starts.facts)
        figures = self._figures(config)
        at_end = ledger_of(tuple(self._newest.values()), config)
        return RunData(
            name=name,
            host=header.host,
            started=self._first,
            ended=self._last,
            interval=header.interval,
            ticks=self._ticks,
            program=header.program,
            note=header.note,
            cut=cut,
            engines=tuple(self._engine(key, book, figures) for key, book in sorted(self._engines.items()) if key[2]),
            gpus=tuple(gpu_run(uuid, gpu, config, at_end) for uuid, gpu in sorted(self._gpus.items(), key=by_index)),
            findings=tuple(replace(finding, state=states[finding.key]) for finding in ordered),
            episodes={key: tuple(times) for key, times in self._episodes.items()},
            not_enough=unjudged.throughout,
            not_at_end=unjudged.at_end,
            silent=tuple(silent),
            problems=(*self._problems, *self._gaps(), *self._mixed(), *problems),
            unsampled=sum(end - start for start, end in self._holes) / 1000,
        )

    def _gaps(self) -> Iterator[str]:
        """Say for how long nothing was sampled: nothing at all, and then nothing of one engine."""
        lost = "what was counted in that time is in no figure"
        for start, end in self._holes[:MOST_HOLES]:
            after = clock_text((start - self._first) / 1000)
            yield f"no samples for {age((end - start) / 1000)} after {after}, or the clock was set on: {lost}"
        more = self._holes[MOST_HOLES:]
        if more:
            length = sum(end - start for start, end in more) / 1000
            yield f"no samples in {len(more)} further stretch{'es' if len(more) > 1 else ''}, {age(length)} in all"
        for (server, engine_rank, _, _), book in sorted(self._engines.items()):
            own = [
                hole for hole in book.holes if not any(start < hole[1] and hole[0] < end for start, end in self._holes)
            ]
            if own:
                length = sum(end - start for start, end in own) / 1000
                times = "" if len(own) == 1 else f" in {len(own)} stretches"
                of = f"{server} rank {engine_rank}" if engine_rank not in ("", "0") else server
                yield f"no samples of {of} for {age(length)}{times}: {lost}"

    def _take_engines(self, batch: Batch) -> None:
        known = self._rows.get(batch.target)
        if known is None or known[0] is not batch.keys:
            known = self._rows[batch.target] = (batch.keys, rows_of(batch))
        time, before = batch.time + self._shift, self._answered.get(batch.target)
        self._answered[batch.target] = time
        new = [engine for engine in known[1] if engine not in self._engines]
        if new:
            servers = {engine[0] for engine in self._engines}
            recent = before if before is not None and time - before <= self._gap else None
            for engine in new:
                since = recent if engine[0] not in servers else None
                self._engines[engine] = EngineBook(self._width, self._gap, since)
        for engine, rows in known[1].items():
            self._engines[engine].take(time, rows, batch.values)

    def _take_gpus(self, batch: Batch) -> None:
        known = self._gpu_rows.get(batch.target)
        if known is None or known[0] is not batch.keys:
            known = self._gpu_rows[batch.target] = (batch.keys, gpu_rows(batch.keys))
        used: dict[str, float] = {}
        for row, uuid, kind, labels in known[1]:
            gpu = self._gpus.setdefault(uuid, Gpu())
            value = float(batch.values[row])
            if kind == "used":
                used[uuid] = max(value, used.get(uuid, 0.0))
            elif kind == "info":
                gpu.index, gpu.name, gpu.driver = (label(labels, key) for key in ("gpu", "name", "driver_version"))
            elif kind == "total":
                gpu.total = value
            else:
                (gpu.busy if kind == "busy" else gpu.power).add(batch.time + self._shift, value)
        for uuid, value in used.items():
            gpu = self._gpus[uuid]
            gpu.used.add(batch.time + self._shift, value)
            if gpu.peak is None or value > gpu.peak:
                gpu.peak, gpu.peak_time = value, batch.time + self._shift
            gpu.near = value >= NEAR_PEAK * gpu.peak

    def _look_at_peaks(self) -> None:
        """Keep what all targets say at the moment when a GPU is near its peak."""
        batches: tuple[Batch, ...] = ()
        for gpu in self._gpus.values():
            if not gpu.near or gpu.peak is None:
                continue
            if NEAR_PEAK * gpu.peak > gpu.looked or self._ticks - gpu.looked_tick >= PEAK_EVERY:
                batches = batches or tuple(self._newest.values())
                gpu.at_peak, gpu.looked, gpu.looked_tick = batches, gpu.peak, self._ticks

    def _figures(self, config: Batch) -> dict[Labels, float]:
        """Return the figures of engines that seldom change, as they are at the end of their last start."""
        told = (batch for target, batch in self._told.items() if not self._starts.unanswered(target))
        return {
            labels: float(value)
            for batch in (*told, config)
            for labels, value in zip(batch.keys, batch.values, strict=True)
            if name_of(labels).startswith(_FIGURES) and not name_of(labels).endswith(_NOT_FIGURES)
        }

    def _models(self, server: str) -> list[str]:
        """Return the engines and models of which a server has figures."""
        found = ((key[2:], book) for key, book in sorted(self._engines.items()) if key[0] == server and key[2])
        kinds = dict.fromkeys(kind for kind, book in found if book.windows())
        return [clean(f"{kind} {model}".strip()) for kind, model in kinds]

    def _mixed(self) -> Iterator[str]:
        """Say which servers were started with another model."""
        for server in sorted({key[0] for key in self._engines}):
            starts = self._starts.of(server)
            models = self._models(server) if starts else []
            if len(models) > 1:
                listed = " and ".join(models)
                yield f"{server} was started {len(starts)} times, with {listed}: each has figures of its own"

    def _engine(self, key: EngineKey, book: EngineBook, known: dict[Labels, float]) -> EngineRun:
        server, rank_name, kind, model = key
        facts, windows, starts = self._starts.facts.of(server), book.windows(), self._starts.of(server)
        version, settings = self._config.engines.get(server, ("", ""))[1], settings_of(facts)
        if starts and len(self._models(server)) > 1:
            starts, last = self._starts.own(server, windows)
            if not last:  # what is known is of another model
                facts, known, version, settings = {}, {}, "", starts[-1].flags if starts else ()
            starts = starts if len(starts) > 1 else ()
        figures: dict[str, float] = {}
        for labels, value in known.items():
            if label(labels, "server") == server and label(labels, "dp_rank") in ("", rank_name):
                figures[name_of(labels)] = value
        ranks = figures.get("gpuwatch_engine_config_tensor_parallel_size")
        admitted = figures.get("gpuwatch_engine_config_max_num_seqs")
        stated = {f"gpuwatch_engine_config_{FACTS[name].series}" for name in facts if name in FACTS}
        if not version and "version" in facts:
            version = str(facts["version"].value)
        return EngineRun(
            server=server,
            rank=rank_name,
            kind=kind,
            model=clean(model),
            version=version,
            tensor_parallel=None if ranks is None else int(ranks),
            limit=None if admitted is None else int(admitted),
            settings=settings,
            starts=starts,
            figures=tuple(figure_of(name, value) for name, value in sorted(figures.items()) if name not in stated),
            windows=windows,
            curves={name: points.curve() for name, points in book.points.items()},
        )


def collect(path: str | Path, rules: RuleSet, *, replayed: bool = False) -> RunData:
    """Return a recording as data; `replayed`: do not believe what was found live.

    Raises:
        RecordingError: the file cannot be read or is no recording.
    """
    with playable(path) as file:
        data = _collect(file, rules, replayed=replayed)
    problems = tuple(problem.replace(file, str(path)) for problem in data.problems)
    return replace(data, name=Path(path).name, cut=data.cut.replace(file, str(path)), problems=problems)


def _collect(path: str, rules: RuleSet, *, replayed: bool) -> RunData:
    now = SystemClock().now()
    if not replayed:
        data = _read(path, rules, now)
        if data is not None:
            return data
    reader = Reader(path)
    play = Play(reader.header, rules)
    collector = Collector(reader.header)
    unjudged = Unjudged()
    for tick in reader.ticks():
        result = play.tick(tick)
        collector.take(tick)
        collector.found(tick.time, result.findings)
        unjudged.saw(result.not_enough)
    return collector.result(Path(path).name, reader.cut, unjudged, _problems(reader, rules, now))


def _problems(reader: Reader, rules: RuleSet, now: int) -> list[str]:
    ahead = reader.ahead(now)
    return [*([f"{reader.path}: {ahead}"] if ahead else []), *map(str, rules.problems)]


def _read(path: str | Path, rules: RuleSet, now: int) -> RunData | None:
    """Return a recording with what was found live, or None where that is not known throughout."""
    reader = Reader(path)
    collector = Collector(reader.header)
    wanted = digest(rules)
    unjudged = Unjudged()
    for number, tick in enumerate(reader.ticks()):
        line = tick.found
        if line is not None:
            said = read(line, wanted)
            if said is None:
                return None
            collector.found(*said[:2])
            if said[2] is not None:
                unjudged.saw(said[2])
        elif number == 1:
            return None
        collector.take(tick)
    last = read(reader.found, wanted) if reader.found is not None else None
    if last is not None:
        collector.found(*last[:2])
    return collector.result(Path(path).name, reader.cut, unjudged, _problems(reader, rules, now))
