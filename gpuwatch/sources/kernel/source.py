"""The kernel's log as a source (target ``kernel``)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from gpuwatch.model import Batch, Labels, Reason, SourceError, series
from gpuwatch.sources.kernel.book import EVENTS, KernelBook
from gpuwatch.sources.kernel.inputs import KMSG, JournalInput, KernelLine, KmsgInput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuwatch.clock import Clock
    from gpuwatch.sources.nvml.attribution import EngineProcess

Way: TypeAlias = Literal["auto", "kmsg", "journal"]


class KernelInput(Protocol):
    """Where the kernel's lines come from. `note` is a remark about the present state, or empty."""

    note: str

    def read(self) -> list[KernelLine]:
        """Return new lines without waiting; raise `SourceError` where there can be none."""
        ...

    def close(self) -> None:
        """Release what is held."""
        ...


def _nobody(address: str, code: int, time: int) -> bool:
    del address, code, time
    return False


class KernelSource:
    """Follows the kernel's log through /dev/kmsg, or through journalctl where that may not be read.

    Counters start at 0 in the first batch; what was in the log before gives facts ``past.EVENT`` and is not counted.

    Args:
        host: value of the label ``host``.
        clock: the machine's clock.
        way: ``kmsg`` or ``journal`` for one of the two only.
        saw_xid: told each new Xid (PCI address as ``dddd:bb:dd``, code, milliseconds); says whether it knows the GPU
            and counts it. Xids of GPUs that it does not know are counted by this source, under their address.
        engines: the engines on this machine, for telling whose process the kernel killed.
        path: the device.
    """

    target = "kernel"

    def __init__(
        self,
        host: str,
        clock: Clock,
        *,
        way: Way = "auto",
        saw_xid: Callable[[str, int, int], bool] = _nobody,
        engines: Callable[[], Sequence[EngineProcess]] = tuple,
        path: str = KMSG,
    ) -> None:
        self._host, self._clock = host, clock
        self._book = KernelBook(saw_xid, engines)
        self._inputs: list[KernelInput] = []
        if way in ("auto", "kmsg"):
            self._inputs.append(KmsgInput(clock, path))
        if way in ("auto", "journal"):
            self._inputs.append(JournalInput(clock, clock.now()))
        self._chosen: KernelInput | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._shown: set[tuple[str, int]] = set()
        self._keys: tuple[Labels, ...] = ()

    def poll(self) -> Batch:
        """Read what is new; never waits for more."""
        with self._lock:
            begun, now = self._clock.monotonic(), self._clock.now()
            try:
                lines = self._read()
            except SourceError as error:
                took = self._clock.monotonic() - begun
                return Batch(self.target, now, up=False, reason=error.reason, detail=str(error), duration=took)
            assert self._chosen is not None
            taken = self._book.take(lines, now)
            keys, values = self._series()
            return Batch(
                self.target,
                now,
                keys,
                values,
                detail=self._chosen.note,
                duration=self._clock.monotonic() - begun,
                facts=tuple(taken.facts),
                events=tuple(taken.events),
                lines=tuple(taken.lines),
            )

    def close(self) -> None:
        """Close the device, or end journalctl."""
        with self._lock:
            self._closed = True
            for source in self._inputs:
                source.close()

    def _read(self) -> list[KernelLine]:
        if self._closed:
            raise SourceError(Reason.FAILED, "the kernel log is closed")
        if self._chosen is not None:
            try:
                return self._chosen.read()
            except SourceError:
                self._chosen = None
                raise
        failures: list[SourceError] = []
        for source in self._inputs:
            try:
                lines = source.read()
            except SourceError as error:
                failures.append(error)
                continue
            self._chosen = source
            for other in self._inputs:
                if other is not source:
                    other.close()
            return lines
        raise SourceError(failures[0].reason, "; ".join(map(str, failures)))

    def _series(self) -> tuple[tuple[Labels, ...], list[float]]:
        book = self._book
        rows = {series("gpuwatch_kernel_lines_total", host=self._host): float(book.lines)}
        for event in EVENTS:
            rows[series("gpuwatch_kernel_events_total", host=self._host, event=event)] = float(book.counts[event])
        for (address, code), (count, time) in book.xids.items():
            labels = {"host": self._host, "uuid": f"PCI:{address}", "gpu": address, "xid": str(code)}
            # A counter has to be seen at 0 before its first step.
            first = (address, code) not in self._shown
            self._shown.add((address, code))
            rows[series("gpuwatch_gpu_xid_errors_total", **labels)] = 0.0 if first else float(count)
            rows[series("gpuwatch_gpu_xid_last_time_seconds", **labels)] = time / 1000
        keys = tuple(rows)
        if keys != self._keys:
            self._keys = keys
        return self._keys, list(rows.values())
