"""The NVML worker: ``python -m gpuwatch.sources.nvml.worker INTERVAL``, a child of `gpuwatch.sources.nvml`.

The only process that loads libnvidia-ml.so.1. It writes messages (`wire`) to standard output and ends when its
standard input is closed, so that it never outlives its parent. GPUs are read in daemon threads (`pool`); the
main thread only watches them and sends a sign of life per tick, with the calls that have not returned. Nothing here
waits for a thread.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from gpuwatch.sources.nvml.pool import Pool
from gpuwatch.sources.nvml.wire import BINDING, NO_GPU, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.sources.nvml.device import Device

EVENT_WAIT_MS = 1000
PATIENCE = 0.5
"""Share of a tick that one GPU may take before the others are read without it."""
ALL_LOST_SECONDS = 30.0
"""After how long without any working GPU the library is loaded anew, which finds GPUs that came back elsewhere."""

STUCK_BEATS = 3
"""A call that so many signs of life in a row meet hangs."""
ALL_GPUS = "all"
"""Stands for the silence of all GPUs among the things that signs of life meet; labels of GPUs are numbers."""

GPU_LOST = 15


class Worker:
    """Reads all GPUs and writes messages to a file descriptor.

    Args:
        out: file descriptor of the pipe to the parent.
        interval: seconds per tick.
    """

    def __init__(self, out: int, interval: float) -> None:
        self._out = out
        self._interval = interval
        self._lock = threading.Lock()
        self._devices: list[Device] = []
        self._init_since: float | None = None
        self._seen: dict[str, tuple[float, int]] = {}
        self.pool = Pool(interval * PATIENCE, self.run)

    def send(self, messages: list[list[Any]]) -> None:
        """Write messages as a whole; the end of the parent is the end of the worker."""
        data = memoryview(b"".join(map(encode, messages)))
        with self._lock:
            try:
                while data:
                    data = data[os.write(self._out, data) :]
            except OSError:
                os._exit(0)

    def give_up(self, code: int, text: str) -> None:
        """Say why and end the process at once, whatever other threads wait for."""
        self.send([["end", code, text]])
        os._exit(3)

    def start(self) -> None:
        """Load the library, initialise it and start the threads of the GPUs. Runs in a thread: all of it may hang."""
        try:
            from gpuwatch.sources.nvml import api  # noqa: PLC0415  # a missing binding must become a message
            from gpuwatch.sources.nvml.device import Device  # noqa: PLC0415  # same
        except ImportError as error:
            self.give_up(BINDING, f"nvidia-ml-py cannot be imported: {error}")
            return
        problem = api.binding_problem()
        if problem:
            self.give_up(BINDING, problem)
        self._init_since = time.monotonic()
        try:
            api.ask("nvmlInit")
            version = api.ask("nvmlSystemGetDriverVersion")
            count = api.ask("nvmlDeviceGetCount")
        except api.CallFailed as failure:
            self.give_up(failure.code, "nvmlInit")
            return
        if count == 0:
            self.give_up(NO_GPU, version)
        try:
            events = api.ask("nvmlEventSetCreate")
        except api.CallFailed:
            events = None
        self.send([["hello", version, count]])
        driver = api.version_tuple(version)
        self._devices = [
            Device(
                i,
                driver,
                send=self.send,
                give_up=self.give_up,
                events=events,
                interval=self._interval,
            )
            for i in range(count)
        ]
        self._init_since = None
        now = time.monotonic()
        for device in self._devices:
            device.due = now
            self.pool.begin(device)
        if events is not None:
            self.run(self._watch_events, events)

    def run(self, function: Any, *args: Any) -> None:
        """Run a function in a daemon thread."""
        threading.Thread(target=self._guard, args=(function, *args), daemon=True).start()

    def _guard(self, run: Any, *args: Any) -> None:
        """Run a thread's function; an error of ours ends the worker with a message instead of a silent thread."""
        try:
            run(*args)
        except Exception as error:  # noqa: BLE001  # whatever it is, the parent has to hear of it
            self.give_up(0, f"{type(error).__name__}: {error}")

    def _watch_events(self, events: Any) -> None:
        """Pass on Xid errors. Other event types arrive too, with data 0, and are no Xid."""
        from gpuwatch.sources.nvml import api  # noqa: PLC0415  # loaded by `start`

        while True:
            try:
                event = api.ask("nvmlEventSetWait_v2", events, EVENT_WAIT_MS)
            except api.CallFailed as failure:
                if failure.code != api.TIMEOUT:
                    # A lost GPU makes the wait return at once.
                    time.sleep(EVENT_WAIT_MS / 1000)
                continue
            if event.eventType & api.XID_EVENT:
                address = api.address(event.device)
                for device in self._devices:
                    if device.address == address:
                        self.send([["xid", device.label, event.eventData, time.time_ns() // 1_000_000]])

    def beat(self) -> None:
        """Send the sign of life, with the calls that three of them in a row have met.

        Not their age alone counts: where the processor is short, this process stands still, and its calls with it.
        """
        now = time.monotonic()
        stuck: dict[str, list[Any]] = {}
        last_ok = max((device.asker.ok_at for device in self._devices), default=0.0)
        lost = last_ok and now - last_ok > ALL_LOST_SECONDS and not any(d.asker.doing for d in self._devices)
        if self._met(ALL_GPUS, last_ok if lost else None):
            self.give_up(GPU_LOST, "no GPU answers any more")
        for device in self._devices:
            doing, since = device.asker.doing, device.asker.since
            if self._met(device.label, since if doing else None):
                stuck[device.label] = [doing, round(now - since, 3)]
        begun = self._init_since
        if self._met("", begun) and begun is not None:
            stuck[""] = ["nvmlInit", round(now - begun, 3)]
        self.send([["beat", now, stuck]])

    def _met(self, label: str, since: float | None) -> bool:
        """Count the signs of life in a row that met what began at `since`; say whether they are enough."""
        if since is None:
            self._seen.pop(label, None)
            return False
        before, times = self._seen.get(label, (since, 0))
        times = times + 1 if before == since else 1
        self._seen[label] = (since, times)
        return times >= STUCK_BEATS


def main(argv: Sequence[str]) -> None:
    """Run until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    interval = float(argv[0])
    # Standard output belongs to the messages; whatever a library prints goes to standard error.
    out = os.dup(1)
    os.dup2(2, 1)
    worker = Worker(out, interval)
    worker.run(worker.start)
    next_beat = time.monotonic() + interval
    while True:
        ready, _, _ = select.select([0], [], [], interval * PATIENCE / 2)
        if ready and not os.read(0, 4096):
            os._exit(0)
        worker.pool.watch()
        if time.monotonic() >= next_beat:
            worker.beat()
            next_beat = max(next_beat + interval, time.monotonic() + interval / 2)


if __name__ == "__main__":
    main(sys.argv[1:])
