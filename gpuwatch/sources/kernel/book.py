"""What the kernel's log has said so far: counters of events, Xids by GPU, killed processes. No I/O."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuwatch.engines.log_prefixes import strip_prefix
from gpuwatch.engines.log_text import clean, limit, redact
from gpuwatch.engines.logs import classify
from gpuwatch.model import Fact, LogEvent, LogLine
from gpuwatch.sources.nvml.xids import pci_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpuwatch.sources.kernel.inputs import KernelLine
    from gpuwatch.sources.nvml.attribution import EngineProcess

EVENTS = ("xid", "gpu_lost", "driver_error", "out_of_memory_killed")
"""The events that the kernel's own log can tell (`engines.events`)."""

NAME = "kernel log"
_TEXT = 300
_MOST_EVENTS = 200
_SHOWN = re.compile(r"NVRM|nvidia|oom-kill:|Out of memory|oom_reaper", re.IGNORECASE)
# mm/oom_kill.c: dump_oom_summary prints "oom-kill:constraint=…,task_memcg=…,task=…,pid=…" before the line of the kill.
_SUMMARY = re.compile(
    r"^oom-kill:constraint=(?P<constraint>\w+),.*?(?:task_memcg=(?P<group>[^,]*),.*)?pid=(?P<pid>\d+)"
)
_RESIDENT = re.compile(r"anon-rss:(?P<anon>\d+)kB, file-rss:(?P<file>\d+)kB, shmem-rss:(?P<shmem>\d+)kB")


@dataclass(slots=True)
class Taken:
    """What one poll adds."""

    events: list[LogEvent] = field(default_factory=list)
    lines: list[LogLine] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)


class KernelBook:
    """Reads the kernel's lines.

    Args:
        saw_xid: told each new Xid with its PCI address, code and time; says whether it knows that GPU. Those that it
            does not know are counted here (`xids`).
        engines: the engines on this machine, for telling whose process was killed.
    """

    def __init__(
        self,
        saw_xid: Callable[[str, int, int], bool],
        engines: Callable[[], Sequence[EngineProcess]] = tuple,
    ) -> None:
        self._saw_xid = saw_xid
        self._engines = engines
        self._summary: dict[str, str] = {}
        self.lines = 0
        self.counts: Counter[str] = Counter()
        self.xids: dict[tuple[str, int], tuple[int, int]] = {}

    def take(self, lines: Iterable[KernelLine], now: int) -> Taken:
        """Take in lines that were read at `now` (milliseconds since the epoch)."""
        taken = Taken()
        for line in lines:
            self.lines += not line.past
            self._line(clean(line.text), now if line.time is None else line.time, taken, past=line.past)
        return taken

    def _line(self, text: str, time: int, taken: Taken, *, past: bool) -> None:
        message = strip_prefix(text).message
        summary = _SUMMARY.match(message)
        if summary is not None:
            self._summary = {key: value or "" for key, value in summary.groupdict().items()}
        match = classify(message)
        event = match.pattern.event if match is not None else ""
        shown = limit(redact(text), _TEXT)
        if event not in EVENTS:
            if _SHOWN.search(text) is not None and not past:
                taken.lines.append(LogLine(NAME, 0, time, "", shown))
            return
        assert match is not None
        if past:
            taken.facts.append(Fact(f"past.{event}", shown, NAME, time=time))
            return
        taken.lines.append(LogLine(NAME, 0, time, "ERROR", shown, event))
        self.counts[event] += 1
        fields = {name: limit(value, _TEXT) for name, value in match.groups}
        server = ""
        if event == "xid":
            self._xid(fields, time)
        elif event == "out_of_memory_killed":
            fields |= self._killed(message, fields.get("pid", ""))
            server = self._owner(fields.get("pid", ""))
        if len(taken.events) < _MOST_EVENTS:
            taken.events.append(LogEvent(event, shown, NAME, 0, time, server, tuple(fields.items())))

    def _xid(self, fields: dict[str, str], time: int) -> None:
        address, code = pci_address(fields.get("pci", "")), int(fields["code"])
        if not address or self._saw_xid(address, code, time):
            return
        count, _ = self.xids.get((address, code), (0, 0))
        self.xids[address, code] = (count + 1, time)

    def _killed(self, message: str, pid: str) -> dict[str, str]:
        """Return what more is known about a kill: resident bytes, and the constraint and group of the summary."""
        found: dict[str, str] = {}
        resident = _RESIDENT.search(message)
        if resident is not None:
            found["resident"] = str(1024 * sum(map(int, resident.groups())))
        if pid and self._summary.get("pid") == pid:
            found |= {key: self._summary[key] for key in ("constraint", "group")}
        return found

    def _owner(self, pid: str) -> str:
        """Return the engine whose process was killed, or the empty string."""
        number = int(pid) if pid else -1
        return next((one.server for one in self._engines() if number == one.root_pid or number in one.pids), "")
