"""From a snapshot to the rows of the screen."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwatch.tui.history import FORGET_SECONDS
from gpuwatch.tui.view import engines as engine_view
from gpuwatch.tui.view import fleet as fleet_view
from gpuwatch.tui.view import gpus as gpu_view
from gpuwatch.tui.view.findings import findings
from gpuwatch.tui.view.model import Model
from gpuwatch.tui.view.table import in_number_order

if TYPE_CHECKING:
    from gpuwatch.snapshot import Snapshot
    from gpuwatch.tui.history import History
    from gpuwatch.tui.view.engines import Engine
    from gpuwatch.tui.view.gpus import Gpu
    from gpuwatch.tui.view.model import Quiet


def build(snapshot: Snapshot, history: History, quiet: Quiet, *, live: bool) -> Model:
    """Return the rows of `snapshot`; a live one is remembered by `history`, and gaps are filled from it."""
    engines = engine_view.engines(snapshot)
    gpus = gpu_view.gpus(snapshot)
    if live:
        history.record(snapshot, gpus, engines)
    fleet = snapshot.mode == "prometheus"
    rows = findings(snapshot, quiet.acknowledged, quiet.silenced, hosts=fleet and snapshot.focus is None)
    rows = tuple(replace(row, earlier=history.episodes(row.key, row.finding.since)) for row in rows)
    machines = fleet_view.machines(snapshot, rows) if fleet else ()
    if fleet and snapshot.focus is not None:
        rows = tuple(row for row in rows if fleet_view.machine_of(row, snapshot.cluster_label) == snapshot.focus)
    return Model(
        history=history,
        snapshot=snapshot,
        gpus=fill_gpus(snapshot, gpus, history),
        engines=fill_engines(snapshot, engines, history),
        findings=rows,
        machines=machines,
    )


def fill_gpus(snapshot: Snapshot, rows: tuple[Gpu, ...], history: History) -> tuple[Gpu, ...]:
    """Return `rows` with the last known figures, marked as stale, where a GPU has none now."""
    out = {row.key: row for row in rows}
    why = gpu_view.nvml_problem(snapshot)
    for key, (time, last) in history.last_gpus().items():
        seconds = (snapshot.time - time) / 1000
        row = out.get(key)
        if row is None and why:
            row = gpu_view.Gpu(key, last.host, last.index, last.uuid, last.name, problem=why)
        if row is None or not 0 < seconds <= FORGET_SECONDS:
            continue
        if row.get("gpu_memory_used") is None and row.problem:
            out[key] = gpu_view.keep_last(row, last, seconds)
    return tuple(sorted(out.values(), key=lambda row: (row.host, in_number_order(row.index), row.uuid)))


def fill_engines(snapshot: Snapshot, rows: tuple[Engine, ...], history: History) -> tuple[Engine, ...]:
    """Return `rows` with the last known figures, marked as stale, where an engine does not answer."""
    known = history.last_engines()
    by_server = {key[1]: found for key, found in known.items()}
    out = []
    for row in rows:
        found = known.get(row.key) or by_server.get(row.server)
        seconds = (snapshot.time - found[0]) / 1000 if found else 0.0
        old = found is not None and not row.ranks and 0 < seconds <= FORGET_SECONDS
        out.append(engine_view.keep_last(row, found[1], seconds) if old and found else row)
    return tuple(out)
