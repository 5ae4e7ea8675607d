"""Watch as `gpuwatch check` does, without an end, and print one line of JSON whenever the list of findings changes.

usage: python follow.py [arguments of `gpuwatch check` that say what is watched]        ends on SIGTERM

As a module it holds `Follow`, which runs this program beside a scenario and waits for what it says.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIG = {"GPUWATCH_CONFIG": str(Path(__file__).with_name("watcher.toml"))}
sys.path.insert(0, str(ROOT))

from gpuwatch.cli import output, watching  # noqa: E402  # the folder is on the path now
from gpuwatch.clock import SystemClock  # noqa: E402
from gpuwatch.diagnosis.ranking import rank  # noqa: E402
from gpuwatch.pipeline.live import Live  # noqa: E402

LEAD_SECONDS = 8.0
"""How long a scenario watches before it does anything: counters need a past."""


@dataclass(frozen=True, slots=True)
class View:
    """The list of findings from `time` (seconds since the epoch) on, root causes first, in the form of ``--json``."""

    time: float
    findings: tuple[dict, ...]

    def firing(self, *, above_info: bool = False) -> list[str]:
        """Return the ids of what is there now, in order."""
        return [
            finding["id"]
            for finding in self.findings
            if finding["state"] == "firing" and not (above_info and finding["severity"] == "info")
        ]

    def finding(self, wanted: str) -> dict | None:
        """Return the first firing finding of that id."""
        return next((f for f in self.findings if f["id"] == wanted and f["state"] == "firing"), None)


class Follow:
    """A watcher beside a scenario. Use it as a context manager; a failed tick fails the scenario at the end."""

    def __init__(self, *args: str, env: dict[str, str] | None = None) -> None:
        command = [sys.executable, str(Path(__file__).resolve()), *args]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **CONFIG, **(env or {})},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,  # the kernel shares the processor among sessions, and the engine has its own
        )  # fmt: skip
        self._views: list[View] = []
        self._news = threading.Condition()
        self._errors: list[str] = []
        self._threads = [threading.Thread(target=read, daemon=True) for read in (self._read, self._read_errors)]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Follow:  # noqa: PYI034  # typing.Self is newer than Python 3.10
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(20)
        for thread in self._threads:
            thread.join(10)
        for stream in (self._process.stdout, self._process.stderr):
            stream.close()
        assert kind is not None or "Traceback" not in self.errors, self.errors

    @property
    def errors(self) -> str:
        """The end of what the watcher wrote to stderr."""
        return "".join(self._errors)[-2000:]

    def _read(self) -> None:
        for line in self._process.stdout:
            view = json.loads(line)
            with self._news:
                self._views.append(View(view["time"], tuple(view["findings"])))
                self._news.notify_all()

    def _read_errors(self) -> None:
        self._errors.extend(self._process.stderr)

    def views(self, since: float = 0.0) -> list[View]:
        """Return what was said from `since` (seconds since the epoch) on."""
        with self._news:
            return [view for view in self._views if view.time >= since]

    def lead(self, seconds: float = LEAD_SECONDS) -> None:
        """Wait for the first tick, then watch for `seconds`."""
        self._wait(lambda: self._views[0] if self._views else None, 300, "the first tick")
        time.sleep(seconds)

    def wait_for(self, wanted: str, seconds: float, since: float = 0.0) -> View:
        """Wait until `wanted` is there and return the first view that has it.

        Raises:
            AssertionError: it did not come within `seconds`.
        """

        def found() -> View | None:
            return next((view for view in self._views if view.time >= since and view.finding(wanted)), None)

        return self._wait(found, seconds, wanted)

    def wait_gone(self, unwanted: str, seconds: float) -> View:
        """Wait until `unwanted` is no longer there and return the first view without it."""

        def found() -> View | None:
            return self._views[-1] if self._views and not self._views[-1].finding(unwanted) else None

        return self._wait(found, seconds, f"the end of {unwanted}")

    def _wait(self, found, seconds: float, what: str) -> View:
        deadline = time.monotonic() + seconds
        with self._news:
            while (view := found()) is None:
                left = deadline - time.monotonic()
                if left <= 0 or self._process.poll() is not None:
                    raise AssertionError(f"{what} did not come within {seconds:g} s; said: {self._said()}{self.errors}")
                self._news.wait(min(left, 1.0))
        return view

    def _said(self) -> list[tuple[float, list[str]]]:
        return [(round(view.time - self._views[0].time, 1), view.firing()) for view in self._views]

    def ever(self, since: float = 0.0, *, above_info: bool = False) -> list[str]:
        """Return every id that was there at some time from `since` on, in the order of appearance."""
        ids = [name for view in self.views(since) for name in view.firing(above_info=above_info)]
        return list(dict.fromkeys(ids))


def main() -> int:
    """Watch until told to stop."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config")
    watching.add_arguments(parser)
    options = parser.parse_args()
    live = Live(watching.config_of(options), SystemClock())
    if options.record:
        live.record(options.record)
    stop = threading.Event()
    last: list[list] = []

    def tell(result) -> None:
        findings = [finding for finding in rank(result.findings) if finding.state != "pending"]
        names = [[finding.id, finding.state, finding.severity, finding.labels] for finding in findings]
        if not last or last[-1] != names:
            last[:] = [names]
            report = output.report_json([], findings, (), [])
            print(json.dumps({"time": time.time(), "findings": report["findings"]}), flush=True)

    live.on_tick = tell
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    live.start()
    stop.wait()
    live.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
