"""What can be known of one engine beside what it answers: its log, its launch flags, its model's files, its GPUs."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatch.clock import SystemClock
from gpuwatch.ledger.budget import pool_bytes
from gpuwatch.ledger.pool import pool_of
from gpuwatch.ledger.predict import engine_of
from gpuwatch.model import Fact, label, name_of
from gpuwatch.pipeline.launch import launch_facts
from gpuwatch.pipeline.model_facts import model_facts, model_folders, served_context
from gpuwatch.sources.discovery.find import Discovery
from gpuwatch.sources.files.opening import UnreadableError
from gpuwatch.sources.files.read import read_file
from gpuwatch.sources.nvml.source import NvmlSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gpuwatch.model import LogEvent
    from gpuwatch.sources.discovery.find import FoundEngine
    from gpuwatch.sources.files.read import FileText

_DISCOVERY_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Known:
    """Facts by key, the newest of each, and recognised log lines; `problems` are files that could not be read."""

    facts: Mapping[str, Fact] = field(default_factory=dict)
    events: tuple[LogEvent, ...] = ()
    problems: tuple[str, ...] = ()

    def ledger_tokens(self, kind: str, version: str, capacity: float | None) -> float | None:
        """Return the tokens that the memory ledger expects in the KV pool of one rank; None where it cannot tell.

        Args:
            kind: Engine.
            version: Of the engine.
            capacity: Bytes of one GPU.
        """
        if capacity is None or not any(key in self.facts for key in ("model", "model.config")):
            return None
        values = {"version": version, **{key: fact.value for key, fact in self.facts.items()}}
        engine = engine_of(kind, values, capacity)
        if engine is None:
            return None
        try:
            available = pool_bytes(engine.model, engine.deployment, engine.residents)
            return float(pool_of(engine.model, engine.deployment, available).tokens)
        except ValueError:
            return None


def known_of(server: str, files: Sequence[str], *, local: bool) -> Known:
    """Return what is known of the engine at `server` (``host:port``).

    Args:
        server: Where it answers.
        files: Logs and model configurations, by path.
        local: Whether it runs on this machine, so that its process, its log and its model's files can be looked at.
    """
    now = SystemClock().now()
    facts: list[Fact] = []
    paths = list(files)
    if local:
        found = _process(server)
        if found is not None:
            more = _model(found, now)
            facts += launch_facts(found, now, more).facts
            if found.log and not files and Path(found.log).is_file():
                paths.append(found.log)
    texts, problems = _read(paths, now)
    for text in texts:
        facts += [fact for fact in text.facts if fact.server in ("", server)]
        context = served_context(text.config) if text.config is not None else None
        if context is not None:
            facts.append(Fact("model.context", context, text.path))
    events = tuple(event for text in texts for event in text.events)
    return Known({fact.key: fact for fact in facts}, events, tuple(problems))


def _process(server: str) -> FoundEngine | None:
    port = server.rpartition(":")[2]
    engines = Discovery(SystemClock(), ()).find(_DISCOVERY_SECONDS).engines
    return next((one for one in engines if one.pid is not None and one.server.rpartition(":")[2] == port), None)


def _model(found: FoundEngine, now: int) -> tuple[Fact, ...]:
    flags = dict(found.flags)
    model = flags.get("model") or flags.get("model-path") or ""
    assert found.pid is not None
    return model_facts(model_folders(model, found.pid), found.server, now, model)


def _read(paths: Iterable[str], now: int) -> tuple[list[FileText], list[str]]:
    texts, problems = [], []
    for path in paths:
        try:
            texts.append(read_file(path, now))
        except UnreadableError as error:
            problems.append(f"{path}: {error}")
    return texts, problems


@contextmanager
def gpu_memory() -> Iterator[Callable[[], dict[str, tuple[float, float]]]]:
    """Give a function that returns used and total bytes of each GPU of this machine; nothing where none is seen."""
    source = NvmlSource("", SystemClock())
    lock = threading.Lock()

    def read() -> dict[str, tuple[float, float]]:
        with lock:
            batch = source.poll()
        used: dict[str, float] = {}
        total: dict[str, float] = {}
        for labels, value in zip(batch.keys, batch.values, strict=True):
            name = name_of(labels)
            if name == "gpuwatch_gpu_memory_used_bytes":
                used[label(labels, "uuid")] = value
            elif name == "gpuwatch_gpu_memory_total_bytes":
                total[label(labels, "uuid")] = value
        return {gpu: (value, total[gpu]) for gpu, value in used.items() if gpu in total}

    try:
        yield read
    finally:
        source.close()
