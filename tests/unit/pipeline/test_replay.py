from __future__ import annotations

import random
import threading
import time
from dataclasses import replace

import pytest
from unit.pipeline import scenario
from unit.pipeline.scenario import HOST, START, page

from gpuwatch.alerts.rulefile import load, shipped_paths
from gpuwatch.clock import SystemClock
from gpuwatch.model import Batch, Fact, LogEvent, LogLine, Reason, series
from gpuwatch.pipeline.core import Pipeline, Settings
from gpuwatch.pipeline.replay import Replay, replay
from gpuwatch.recording import Header, Keep, Reader, Writer, parts_of


@pytest.fixture(scope="module")
def rules():
    return load(shipped_paths())


@pytest.fixture
def recorded(tmp_path):
    """Three ticks of a storm, 50 ms apart."""
    path = tmp_path / "storm.rec"
    writer = Writer(path, Header(HOST, START, 1.0, "test"))
    for number in range(3):
        writer.write(page(0, scenario.STORM[number]))
        writer.tick(START + 50 * number)
    writer.close()
    return path


def play(path, rules, **options):
    """Return the snapshots of a replay up to the one that says that it has ended."""
    got, over = [], threading.Event()

    def take(snapshot):
        got.append(snapshot)
        if snapshot.recording.ended:
            over.set()

    player = Replay(path, rules, SystemClock(), **options)
    player.subscribe(take)
    player.start()
    ended = over.wait(10)
    player.stop()
    assert ended
    return got


def test_a_replay_says_when_it_has_ended(recorded, rules):
    got = play(recorded, rules)
    # On a busy machine a step that is late is left out, never the last one.
    assert [snapshot.recording.ended for snapshot in got] == [False] * (len(got) - 1) + [True]
    assert got[-1].recording.error == ""
    assert got[-1].recording.position == got[-1].recording.length == 0.1
    assert got[-1].answer("kv_usage").samples != ()


def test_a_cut_recording_says_so_at_its_end(recorded, rules):
    data = recorded.read_bytes()
    recorded.write_bytes(data[:-12])
    last = play(recorded, rules)[-1]
    assert last.recording.error == f"{recorded}: the end is missing; read up to the last complete tick"
    assert last.answer("kv_usage").samples != ()


@pytest.mark.parametrize("mode", ["replay", "demo"])
def test_a_recording_with_a_header_only_ends_at_once(tmp_path, rules, mode):
    path = tmp_path / "empty.rec"
    Writer(path, Header(HOST, START, 1.0, "test")).close()
    (only,) = play(path, rules, mode=mode, endless=mode == "demo")
    assert only.recording.error == "holds no complete tick"
    assert (only.time, only.host, only.answers) == (START, HOST, {})


def test_a_header_whose_file_is_cut_says_both(tmp_path, rules):
    path = tmp_path / "cut.rec"
    Writer(path, Header(HOST, START, 1.0, "test"))._file.close()
    (only,) = play(path, rules)
    assert only.recording.error == "holds no complete tick: the end is missing; read up to the last complete tick"


# A replay finds what was found live, at the same times


def silent_engine():
    """Thirty good seconds, then the engine does not answer for thirty, then it does again."""
    rows = [scenario.page(second, scenario.STORM[0]) for second in range(30)]
    rows += [scenario.down(second) for second in range(30, 60)]
    rows += [scenario.page(second, scenario.STORM[0]) for second in range(60, 80)]
    return [(START + 1000 * second, [batch]) for second, batch in enumerate(rows)]


GPU = {"host": HOST, "uuid": "GPU-00000000-0000-0000-0000-000000000001", "gpu": "0"}
XIDS = series("gpuwatch_gpu_xid_errors_total", xid="79", **GPU)
USED = series("gpuwatch_gpu_memory_used_bytes", **GPU)


def falling_gpu():
    """A card reports Xid 79 in the tenth second, and NVML does not answer from the fifteenth on."""
    ticks = []
    for second in range(40):
        now = START + 1000 * second
        batch = Batch("nvml", now, (XIDS, USED), (float(second >= 10), 7e10 + second * 2**20), duration=0.0123456)
        if second >= 15:
            batch = Batch("nvml", now, up=False, reason=Reason.TIMEOUT, detail="no answer for 5 s")
        ticks.append((now, [batch]))
    return ticks


def storm_after_launch():
    """A storm whose launch is known before it is recorded, so that the advice has flags."""
    return [(START, [scenario.LAUNCH]), *((time + 1000, batches) for time, batches in scenario.storm())]


SCENARIOS = {"storm": storm_after_launch, "silent engine": silent_engine, "falling GPU": falling_gpu}


def watch_live(path, rules, ticks, keep=None, begin=0):
    """Run ticks through a live pipeline that is recorded from the tick `begin` on; return what was found at each."""
    pipeline = Pipeline(Settings(HOST, "live", 1.0, 900_000), rules, START)
    writer, found = None, []
    for number, (now, batches) in enumerate(ticks):
        if number == begin:
            writer = Writer(path, Header(HOST, now, 1.0, "test"), keep)
        result = pipeline.tick(now, batches, writer)
        found.append((now, result.findings, {item.id for item in result.not_enough}))
    writer.close()
    return found


def replayed(path, rules):
    return [(r.time, r.findings, {item.id for item in r.not_enough}) for r in replay(path, rules)]


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_replay_finds_the_same_at_the_same_times(tmp_path, rules, name):
    path = tmp_path / "run.rec"
    live = watch_live(path, rules, SCENARIOS[name]())
    assert {finding.id for _, findings, _ in live for finding in findings if finding.state == "firing"}
    assert replayed(path, rules) == live


def test_a_recording_in_parts_is_replayed_as_if_it_were_one(tmp_path, rules):
    path = tmp_path / "run.rec"
    ticks, dice = storm_after_launch(), random.Random(1)
    wide = tuple(series("gpuwatch_gpu_power_watts", host=HOST, uuid=f"GPU-{n}", gpu=str(n)) for n in range(1500))
    for now, batches in ticks:
        batches.append(Batch("nvml", now, wide, [dice.random() for _ in wide]))
    live = watch_live(path, rules, ticks, Keep(bytes=10_000_000), begin=0)
    writer = Writer(tmp_path / "cut.rec", Header(HOST, START, 1.0, "test"), Keep(bytes=1_000_000))
    for tick in Reader(path).ticks():
        for batch in tick.batches:
            writer.write(batch)
        writer.tick(tick.time)
    writer.close()
    assert len(parts_of(tmp_path / "cut.rec")) >= 2
    assert replayed(tmp_path / "cut.rec", rules) == live


def test_a_recording_that_began_late_knows_the_launch_all_the_same(tmp_path, rules):
    path = tmp_path / "run.rec"
    live = watch_live(path, rules, storm_after_launch(), begin=5)
    found = replayed(path, rules)
    assert [time for time, _, _ in found] == [time for time, _, _ in live][5:]
    assert [finding.advice for finding in found[-1][1]] == [finding.advice for finding in live[-1][1]]


def test_a_target_that_is_given_up_is_not_missed_in_the_replay(tmp_path, rules):
    path = tmp_path / "run.rec"
    pipeline = Pipeline(Settings(HOST, "live", 1.0, 900_000), rules, START)
    writer = Writer(path, Header(HOST, START, 1.0, "test"))
    live = []
    for second in range(60):
        now = START + 1000 * second
        if second == 20:
            pipeline.forget(f"engine:{scenario.SERVER}", now)
            writer.forget(f"engine:{scenario.SERVER}")
        batches = [Batch("nvml", now, (USED,), (1.0,))]
        if second < 20:
            batches.append(scenario.page(second, scenario.STORM[0]))
        live.append((now, pipeline.tick(now, batches, writer).findings))
    writer.close()
    assert [(time, findings) for time, findings, _ in replayed(path, rules)] == live
    assert not [finding for _, findings in live for finding in findings if finding.id == "source_degraded"]


def test_a_clock_that_was_set_back_between_two_runs_begins_a_new_one(tmp_path, rules):
    path = tmp_path / "run.rec"
    writer = Writer(path, Header(HOST, START, 1.0, "test"))
    for day in (1, 0):
        for time_, batches in scenario.storm():
            for batch in batches:
                writer.write(replace(batch, time=batch.time + day * 86_400_000))
            writer.tick(time_ + day * 86_400_000)
    writer.close()
    found = replayed(path, rules)
    half = len(found) // 2
    ids = [{finding.id for finding in findings} for _, findings, _ in found]
    assert "kv_preemption_storm" in ids[half - 1]
    assert ids[half] == ids[0]
    assert ids[half:] == ids[:half]


# Where a person takes a replay


@pytest.fixture
def long(tmp_path):
    """150 seconds of an engine, a storm in the sixtieth; rules may look back over a minute."""
    path = tmp_path / "long.rec"
    writer = Writer(path, Header(HOST, START, 1.0, "test", history_ms=60_000))
    for second in range(150):
        row = scenario.STORM[min(max(second - 60, 0), len(scenario.STORM) - 1)]
        fact = () if second else (Fact("max_num_seqs", 16, "command line", server=scenario.SERVER),)
        page_ = page(second, row)
        writer.write(page_ if second else Batch(page_.target, page_.time, page_.keys, page_.values, facts=fact))
        writer.tick(START + 1000 * second)
    writer.close()
    return path


class Watched:
    """A replay with everything that it showed."""

    def __init__(self, path, rules, **options) -> None:
        self.shown = []
        self.came = threading.Condition()
        self.player = Replay(path, rules, SystemClock(), **options)
        self.player.subscribe(self._take)

    def _take(self, snapshot):
        with self.came:
            self.shown.append(snapshot)
            self.came.notify_all()

    def until(self, wanted, since=0):
        """Return the first snapshot after the first `since` that is wanted."""
        with self.came:
            found = []

            def there():
                found[:] = [snapshot for snapshot in self.shown[since:] if wanted(snapshot)]
                return bool(found)

            assert self.came.wait_for(there, 60), [s.recording for s in self.shown[-3:]]
            return found[0]

    def seek(self, position):
        """Go to a position and return what is shown there."""
        since = len(self.shown)
        self.player.seek(position)
        return self.until(lambda s: s.recording.position == position, since)

    def __enter__(self):
        self.player.start()
        return self

    def __exit__(self, *exc):
        self.player.stop()


def test_a_seek_shows_what_was_found_there_wherever_it_comes_from(long, rules):
    at = {(r.time - START) // 1000: r.findings for r in replay(long, rules)}
    with Watched(long, rules) as screen:
        screen.player.pause(paused=True)
        screen.until(lambda s: True)
        for second in (70, 65, 63, 140, 10, 65, 149):
            snapshot = screen.seek(float(second))
            assert snapshot.time == START + 1000 * second
            assert snapshot.findings == at[second], second
            assert snapshot.recording.length == 149.0
            assert not snapshot.recording.ended
            assert snapshot.answer("kv_usage").samples[0][1] == scenario.STORM[min(max(second - 60, 0), 8)][0]
            assert [fact.key for fact in snapshot.facts] == ["max_num_seqs"]
            assert [source.kind for source in snapshot.sources] == ["engine"]


def test_a_position_outside_ends_at_the_nearest(long, rules):
    with Watched(long, rules) as screen:
        screen.player.pause(paused=True)
        screen.until(lambda s: True)
        screen.player.seek(999.0)
        screen.until(lambda s: s.recording.position == 149.0)
        since = len(screen.shown)
        screen.player.seek(-5.0)
        screen.until(lambda s: s.recording.position == 0.0, since)


def test_a_paused_replay_stands_still_until_it_goes_on(long, rules):
    with Watched(long, rules) as screen:
        screen.player.set_speed(100.0)
        screen.until(lambda s: s.recording.position >= 5)
        screen.player.pause(paused=True)
        screen.player.at(START).exception(20)  # answered after the pause was seen
        screen.seek(50.0)
        count = len(screen.shown)
        assert screen.player.at(START + 45_000).result(20).time == START + 45_000
        assert [s.recording.position for s in screen.shown[count:]] == []
        screen.player.pause(paused=False)
        screen.until(lambda s: s.recording.position > 50, count)


def test_an_ended_replay_can_be_taken_back_and_plays_on(long, rules):
    with Watched(long, rules) as screen:
        screen.player.set_speed(100.0)
        screen.player.seek(148.0)
        screen.until(lambda s: s.recording.ended)
        since = len(screen.shown)
        screen.player.seek(140.0)
        again = screen.until(lambda s: s.recording.position == 140.0, since)
        assert not again.recording.ended
        screen.until(lambda s: s.recording.ended, since + 1)


def test_speed_is_what_it_says(recorded, rules):
    """Two gaps of 50 ms last a second at a tenth of the speed."""
    screen = Watched(recorded, rules)
    screen.player.set_speed(0.01)
    assert screen.player.speed == 0.1
    begun = time.monotonic()
    with screen:
        screen.until(lambda s: s.recording.ended)
        assert time.monotonic() - begun >= 1
        assert screen.shown[-1].recording.speed == 0.1
        screen.player.set_speed(1e6)
        assert screen.player.speed == 100.0


def test_a_recording_that_is_gone_when_it_should_be_read_again_says_so(long, rules):
    with Watched(long, rules) as screen:
        screen.player.pause(paused=True)
        screen.seek(100.0)
        long.unlink()
        since = len(screen.shown)
        screen.player.seek(0.0)
        last = screen.until(lambda s: s.recording.ended, since)
        assert last.recording.error == f"{long}: No such file or directory"


def test_the_recognised_lines_of_a_recording_are_there_to_be_read(tmp_path, rules):
    told = LogEvent("torch_oom", "CUDA out of memory", "live.log", 2, START, "s:1")
    line = LogLine("live.log", 2, START, "ERROR", "CUDA out of memory", "torch_oom")
    path = tmp_path / "log.rec"
    writer = Writer(path, Header(HOST, START, 1.0, "test"))
    writer.write(Batch("log:live.log", START, events=(told,), lines=(line,)))
    writer.tick(START)
    writer.close()
    (*_, last) = play(path, rules)
    assert last.lines == (replace(line, level=""),)
