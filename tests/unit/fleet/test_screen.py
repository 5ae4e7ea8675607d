"""The fleet on the screen: the table, the way into a machine and back, and what is said when Prometheus fails."""

from __future__ import annotations

import json
import time
from contextlib import asynccontextmanager

import fleet_data
import pytest
from fleet_data import host_name

from gpuwatch.clock import ManualClock
from gpuwatch.model import series
from gpuwatch.promql.local import LocalQuerier
from gpuwatch.queries import CATALOGUE
from gpuwatch.store import Store
from gpuwatch.tui.app import GpuwatchApp
from gpuwatch.tui.feed import Actions
from gpuwatch.tui.view.findings import findings
from gpuwatch.tui.view.fleet import conclusion_of, machines
from tests.unit.fleet.conftest import MACHINES, NOW

MS = NOW * 1000
STORM, GONE = host_name(fleet_data.STORM), host_name(fleet_data.GONE)


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    """UTC, a dark terminal with colours."""
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("COLORFGBG", raising=False)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


PATIENCE = 60.0
"""Seconds after which something that was waited for will not happen any more."""


class Watched:
    """The application on a fleet that looks when it is told to."""

    def __init__(self, fleet):
        self.fleet, self.callback, self.focused = fleet, None, []
        self.pilot = self.app = None

    def subscribe(self, callback):
        self.callback = callback
        return lambda: None

    def at(self, time_ms):
        return self.fleet.at(time_ms)

    def focus(self, machine):
        self.focused.append(machine)

    async def look(self, ms=MS):
        self.fleet.look_at(self.focused[-1] if self.focused else None)
        self.callback(self.fleet.explain(self.fleet.look(ms)).snapshot)
        await self.pilot.pause()
        deadline = time.monotonic() + PATIENCE
        while self.app._mailbox._newest is not None and time.monotonic() < deadline:
            await self.pilot.pause(0.01)
        for _ in range(2):  # one pause ends after a second, whether all is drawn or not
            await self.pilot.pause()

    async def press(self, *keys):
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def settle(self, condition):
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            await self.pilot.pause(0.01)
            if condition():
                return
        pytest.fail(f"it did not happen; the screen:\n{self.text()}")

    def lines(self):
        return [strip.text for strip in self.app.screen._compositor.render_strips()]

    def text(self):
        return "\n".join(self.lines())


@pytest.fixture
def screen(server, fleet_of):
    @asynccontextmanager
    async def start(width=80, height=24):
        watched = Watched(fleet_of(server))
        watched.app = GpuwatchApp(watched, Actions(focus=watched.focus), ManualClock(MS))
        async with watched.app.run_test(size=(width, height)) as pilot:
            watched.pilot = pilot
            await pilot.pause()
            await watched.settle(lambda: watched.callback)
            yield watched

    return start


@pytest.mark.parametrize("size", [(80, 24), (140, 45), (200, 60)])
async def test_the_table_has_a_row_per_machine_the_worst_first_and_says_what_is_wrong(screen, size):
    async with screen(*size) as s:
        assert "asking Prometheus…" in s.text()
        await s.look()
        lines = s.lines()
        assert "6 hosts · 1 lost · 30 GPUs · 1 not ok · 6 engines · 1 silent" in lines[1]
        rows = [next(word for word in line.split() if word.startswith("gpu-")) for line in lines[3:9]]
        assert rows[:4] == [STORM, host_name(fleet_data.DOWN), host_name(fleet_data.GPU_LOST), GONE]
        assert rows[4:] == [host_name(fleet_data.HOT), host_name(0)]
        assert "kv_preemption_storm" in lines[3]
        assert "98 %" in lines[3]
        assert "11/53" in lines[3]
        assert "5 -1" in lines[5]
        assert "not scraped for 2 min 15 s" in lines[6]
        assert all(len(line) == size[0] for line in lines)
        assert "--max-num-seqs 64 → 11" in s.text()  # of the selected machine
        assert "0 fleet" in lines[-1]


async def test_the_selection_shows_the_findings_of_another_machine(screen):
    async with screen() as s:
        await s.look()
        await s.press("j")

        def below():
            title = (n for n, line in enumerate(s.lines()) if line.startswith(f"─ {host_name(fleet_data.DOWN)} "))
            return "\n".join(s.lines()[next(title, len(s.lines())) :])

        await s.settle(lambda: "engine_down" in below())
        assert "kv_preemption_storm" not in below()


async def test_enter_opens_the_usual_overview_of_the_machine_and_escape_leads_back(screen):
    async with screen(140, 45) as s:
        await s.look()
        await s.press("enter")
        await s.settle(lambda: s.focused)
        assert s.focused == [("", STORM)]
        assert "asking Prometheus about this machine…" in s.text()
        await s.look(MS + 5000)
        assert f"gpuwatch  {STORM}" in s.lines()[0]
        assert "5 GPUs · 1 engine" in s.lines()[0]
        assert "KV pool" in s.text()
        assert "kv_preemption_storm" in s.text()
        assert "gpu_lost" not in s.text()  # that is another machine's
        await s.press("2")
        assert "used GiB" in s.text()
        await s.press("escape", "escape")
        await s.settle(lambda: s.focused[-1] is None)
        await s.look(MS + 10_000)
        assert "6 hosts" in s.lines()[0]


async def test_a_number_key_opens_that_page_of_the_selected_machine(screen):
    async with screen(140, 45) as s:
        await s.look()
        await s.press("2")
        await s.settle(lambda: s.focused)
        await s.look(MS + 5000)
        assert "used GiB" in s.text()
        assert s.focused == [("", STORM)]


async def test_all_findings_say_on_which_machine_they_are(screen):
    async with screen(140, 45) as s:
        await s.look()
        await s.press("4")
        text = s.text()
        assert f"{STORM} :8000" in text
        assert f"{host_name(fleet_data.GPU_LOST)} GPU 3" in text
        assert s.focused == []


async def test_a_prometheus_that_stops_answering_is_a_banner_and_old_figures_keep_their_time(screen, server):
    async with screen(140, 45) as s:
        await s.look()
        server.fault = lambda _query: (503, "text/plain", b"busy")
        await s.look(MS + 30_000)
        assert "✗ Prometheus: " in s.lines()[1]
        assert "HTTP 503" in s.lines()[1]
        assert "figures are 30 s old" in s.lines()[1]
        assert "22:20:00" in s.lines()[0]
        assert "kv_preemption_storm" in s.text()


async def test_a_missing_figure_is_named_on_the_screen(screen, server):
    async with screen(140, 45) as s:
        server.fault = lambda query: (422, "text/plain", b"") if "kv_cache_usage" in query else None
        await s.look()
        assert "figures missing: host_kv_highest: " in s.lines()[1]


async def test_a_prometheus_without_our_series_says_so(screen, server):
    async with screen() as s:
        server.fault = lambda query: (
            (200, "application/json", b'{"status":"success","data":{"resultType":"vector","result":[]}}')
            if "gpuwatch" in query or "ALERTS" in query
            else None
        )
        await s.look()
        assert "this Prometheus has no series of gpuwatch" in s.text()


async def test_without_a_fleet_its_keys_do_nothing(server):
    class Nothing:
        def subscribe(self, _callback):
            return lambda: None

    app = GpuwatchApp(Nothing(), Actions(), ManualClock(MS))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.press("0")
        assert list(app._views) == ["overview"]
        assert "0 fleet" not in [strip.text for strip in app.screen._compositor.render_strips()][-1]


def test_a_machine_that_is_lost_or_has_silent_sources_is_not_called_quiet(server, fleet_of):
    server.rules = {"groups": [{"rules": [{"name": "GpuwatchGpuLost", "labels": {}, "state": "inactive"}]}]}
    snapshot = fleet_of(server).look(MS).snapshot
    found = {machine.key[1]: machine for machine in machines(snapshot, ())}
    assert conclusion_of(snapshot, [found[host_name(0)]])[0] == "✓"
    assert conclusion_of(snapshot, [found[GONE]]) == ("?", "cannot tell: not scraped for 2 min 15 s", "warn")
    down = found[host_name(fleet_data.DOWN)]
    assert conclusion_of(snapshot, [down]) == ("·", "no findings; 1 source not answering", "dim")
    every = conclusion_of(snapshot, list(found.values()))
    assert every == ("·", "no findings; 1 host not scraped; 1 source not answering", "dim")


async def test_the_pages_of_a_machine_that_is_lost_do_not_call_it_quiet(screen, server):
    server.rules = {"groups": [{"rules": [{"name": "GpuwatchGpuLost", "labels": {}, "state": "inactive"}]}]}
    async with screen(140, 45) as s:
        await s.look()
        await s.press("j", "j", "j")
        await s.settle(lambda: "cannot tell: not scraped for 2 min 15 s" in s.text())
        await s.press("enter")
        await s.settle(lambda: s.focused)
        await s.look(MS + 5000)
        assert s.focused == [("", GONE)]
        await s.settle(lambda: "cannot tell: not scraped for 2 min 20 s" in s.text())
        assert "all quiet" not in s.text()


async def test_alerts_that_cannot_be_asked_are_not_silence(screen, server):
    server.fault = lambda query: (422, "text/plain", b"") if query.startswith("ALERTS{") else None
    async with screen(140, 45) as s:
        await s.look()
        await s.press("4")
        await s.settle(lambda: "cannot tell: Prometheus does not say which alerts fire" in s.text())


def test_a_silenced_finding_does_not_lift_its_machine(server, fleet_of):
    snapshot = fleet_of(server).look(MS).snapshot
    rows = findings(snapshot)
    storm = next(row for row in rows if row.finding.labels["host"] == STORM)
    quiet = machines(snapshot, findings(snapshot, silenced={storm.key: MS + 1000}))
    assert machines(snapshot, rows)[0].key == ("", STORM)
    assert quiet[0].key != ("", STORM)
    assert next(machine for machine in quiet if machine.key == ("", STORM)).severity == ""


def test_a_machine_of_which_only_a_finding_is_known_has_a_row_and_no_invented_figures(server, fleet_of):
    server.fault = lambda query: (503, "text/plain", b"") if "by (cluster, host)" in query else None
    snapshot = fleet_of(server).look(MS).snapshot
    found = machines(snapshot, findings(snapshot))
    assert {machine.key[1] for machine in found} < {host_name(number) for number in MACHINES}
    assert all(machine.figures == {} and machine.lost is None for machine in found)


async def test_a_partial_answer_shows_what_came_with_the_words_of_the_warning(screen, server):
    server.warnings = ["store-2 is unavailable"]
    async with screen(200, 60) as s:
        await s.look()
        assert "▲ Prometheus answers only in part, sums may be too low: " in s.lines()[1]
        assert "store-2 is unavailable" in s.lines()[1]
        assert "kv_preemption_storm" in s.text()
        assert "6 hosts" in s.lines()[2]


def test_no_machine_is_quiet_in_a_partial_answer_and_an_absent_series_does_not_make_it_lost(server, fleet_of):
    server.warnings = ["store-2 is unavailable"]
    empty = b'{"status":"success","data":{"resultType":"vector","result":[]}}'
    server.fault = lambda query: (
        (200, "application/json", empty) if query == "max by (cluster, host) (gpuwatch_build_info)" else None
    )
    snapshot = fleet_of(server).look(MS).snapshot
    found = {machine.key[1]: machine for machine in machines(snapshot, ())}
    assert {name for name, machine in found.items() if machine.lost is not None} == {GONE}
    assert conclusion_of(snapshot, [found[host_name(0)]])[1] == "cannot tell: Prometheus answers only in part"


async def test_a_figure_that_could_not_be_asked_is_not_shown_like_one_that_a_machine_does_not_have(screen, server):
    failing = ('gpuwatch_gpu_state{state!="ok"', 'gpuwatch_source_up{source="engine"}', "generation_tokens")
    async with screen(140, 45) as s:
        await s.look()
        lost = next(line for line in s.lines() if f"{host_name(fleet_data.GPU_LOST)} " in line)
        silent = next(line for line in s.lines() if f"{host_name(fleet_data.DOWN)} " in line)
        assert "5 -1" in lost
        assert " - " in silent  # no engine answers there: no KV pool, no tokens
        assert "n/a" not in silent
        server.fault = lambda query: (503, "text/plain", b"") if any(part in query for part in failing) else None
        await s.look(MS + 5000)
        lost = next(line for line in s.lines() if f"{host_name(fleet_data.GPU_LOST)} " in line)
        assert "5 ?" in lost
        assert lost.count("n/a") == 2  # engines, tokens per second
        assert "engines n/a" in s.lines()[2]
        assert "not ok n/a" in s.lines()[2]


async def test_two_programs_of_one_name_are_not_shown_as_one_machine(screen, server):
    def doubled(query):
        if "without (version)" not in query:
            return None
        row = {"metric": {"host": host_name(0)}, "value": [NOW, "2"]}
        answer = {"status": "success", "data": {"resultType": "vector", "result": [row]}}
        return 200, "application/json", json.dumps(answer).encode()

    server.fault = doubled
    async with screen(140, 45) as s:
        await s.look()
        row = next(line for line in s.lines() if f"{host_name(0)} " in line)
        assert "2 of this name" in row
        assert sum("of this name" in line for line in s.lines()) == 1
        await s.press("end")
        await s.settle(lambda: "2 programs have this name and are added up" in s.text())


def test_only_programs_that_run_at_the_same_time_share_a_name():
    store = Store()
    store.append(
        "t",
        MS,
        (
            series("gpuwatch_build_info", host="node-a", instance="a:1", version="0.1"),
            series("gpuwatch_build_info", host="node-a", instance="a:1", version="0.2"),
            series("gpuwatch_build_info", host="node-b", instance="b:1", version="0.2"),
            series("gpuwatch_build_info", host="node-b", instance="c:1", version="0.2"),
        ),
        (1.0, 1.0, 1.0, 1.0),
    )
    found = LocalQuerier(store).instant(CATALOGUE["host_instances"].template, MS)
    assert {dict(labels)["host"]: value for labels, value in found.items()} == {"node-a": 1, "node-b": 2}


def test_a_machine_that_is_scraped_once_is_one(server, fleet_of):
    assert {machine.programs for machine in machines(fleet_of(server).look(MS).snapshot, ())} == {1}
