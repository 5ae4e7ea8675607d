"""What is known about each GPU, kept across worker processes, and its series. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuwatch.model import Absence, Labels, Reason, series
from gpuwatch.sources.nvml.attribution import GpuUse
from gpuwatch.sources.nvml.reasons import CALL_REASON, reason_of, words_of
from gpuwatch.sources.nvml.xids import XidCounts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatch.sources.nvml.attribution import Ownership
    from gpuwatch.sources.nvml.xids import Origin

STATES = ("ok", "lost", "hung", "late", "resetting", "no_permission", "failed")

XIDS = (
    8, 13, 31, 32, 38, 43, 45, 46, 48, 54, 56, 57, 58, 61, 62, 63, 64, 68, 69, 74, 79, 92, 94, 95, 109, 110, 119, 120,
    121, 136, 137, 140, 143, 144, 145, 146, 147, 148, 149, 150, 154, 155, 156, 157, 158, 160, 161, 171, 172,
)  # fmt: skip
"""Xids that are exported at 0 from the first tick, because `increase` never sees a counter that starts at 1.

All whose meaning is known, so that a Prometheus which looks every 15 or 30 seconds alerts at the first of them.
Source: NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors).
"""

UNNAMED = "index:"
"""How the placeholder of an unknown UUID begins."""

LATE = "no new reading: no call of the driver is known to hang, the NVML worker may wait for a processor"

_TROUBLE = {
    "lost": "no longer answers on the bus",
    "late": LATE,
    "resetting": "needs a reset",
    "no_permission": "no permission to read it",
    "failed": "every call fails",
}

WATCHED = ("memory_used_bytes", "busy_ratio", "processes")
"""Readings that findings rest on: where one cannot be had, a series says so and why."""

_INFO = ("name", "pci_bus_id", "memory_kind", "architecture")


def placeholder(label: str) -> str:
    """Return what identifies the GPU at `label` as long as its UUID is not known."""
    return UNNAMED + label


class Gpu:
    """One GPU or MIG device.

    Args:
        host: value of the label ``host``.
        uuid: NVML's UUID; `placeholder` for a GPU that has not been able to say it.
        label: NVML index, with ``:slot`` for a MIG device.
    """

    def __init__(self, host: str, uuid: str, label: str) -> None:
        self.uuid = uuid
        self.label = label
        self.present = True
        self.reported = "failed"
        self.answered: float | None = None
        self.stuck: tuple[str, float] | None = None
        self.processes: tuple[tuple[int, float | None], ...] | None = None
        self.xids = XidCounts()
        self._shown: set[int] = set()
        self._standing: tuple[str, tuple[Labels, ...], list[float]] | None = None
        self._labels = {"host": host, "uuid": uuid, "gpu": label}
        self._cache: dict[tuple[str, ...], Labels] = {}
        self._identity: dict[str, Any] = {}
        self._driver = ""
        self._names: tuple[str, ...] = ()
        self._keys: tuple[Labels, ...] = ()
        self._lacking: tuple[Labels, ...] = ()
        self._number: Any = None
        self._codes: dict[str, int] = {}
        self._absent: tuple[Absence, ...] = ()
        self._values: list[float] = []
        self._low: float | None = None
        self._high: float | None = None

    @property
    def is_mig(self) -> bool:
        """Whether this is a MIG device."""
        return ":" in self.label

    @property
    def named(self) -> bool:
        """Whether its UUID is known."""
        return not self.uuid.startswith(UNNAMED)

    @property
    def pci_bus_id(self) -> str:
        """Its PCI address as NVML prints it; empty where that is not known."""
        return "" if self.is_mig else str(self._identity.get("pci_bus_id", ""))

    @property
    def name(self) -> str:
        """The card's name."""
        return str(self._identity.get("name", ""))

    def key(self, metric: str, /, **labels: str) -> Labels:
        """Return the series ``gpuwatch_gpu_METRIC`` of this GPU; the same object every time."""
        item = (metric, *labels.values())
        found = self._cache.get(item)
        if found is None:
            found = self._cache[item] = series(f"gpuwatch_gpu_{metric}", **self._labels, **labels)
        return found

    # -- what the worker says -------------------------------------------------------------------------------------

    def identify(self, identity: dict[str, Any], driver: str) -> None:
        """Take what an ``id`` message says; a GPU that is lost keeps what it said before."""
        self.present = True
        if identity.get("name") is not None:
            self._identity, self._driver, self._standing = identity, driver, None

    def set_keys(self, number: int, names: Iterable[str], codes: dict[str, int]) -> None:
        """Take the names of the values that follow, and the codes of those that do not."""
        self._number = number
        names = tuple(names)
        if names != self._names:
            self._names = names
            self._keys = tuple(self._value_key(name) for name in names)
        if codes != self._codes:
            self._codes = codes
            self._absent = tuple(
                Absence(self._value_key(name), reason_of(code), words_of(code))
                for name, code in codes.items()
                if name != "state"
            )
            self._lacking = tuple(
                self.key("reading_absent", reading=name, reason=reason_of(codes[name]).value)
                for name in WATCHED
                if name in codes
            )

    def _value_key(self, name: str) -> Labels:
        metric, _, extra = name.partition("|")
        label, _, value = extra.partition("=")
        return self.key(metric, **({label: value} if label else {}))

    def take(self, at: float, state: str, number: int, values: list[float], processes: Any) -> None:
        """Take a reading made at `at` (monotonic seconds). Extremes are kept until the next `series`."""
        if number != self._number or len(values) != len(self._names):
            return
        self.answered, self.reported, self._values = at, state, values
        self.processes = None if processes is None else tuple((pid, used) for pid, used in processes)
        self.stuck = None
        figures = self.figures("memory_used_low_bytes", "memory_used_high_bytes")
        if figures is not None:
            low, high = figures
            self._low = low if self._low is None else min(self._low, low)
            self._high = high if self._high is None else max(self._high, high)

    def figures(self, *names: str) -> list[float] | None:
        """Return the last values of `names`; None when one is absent."""
        try:
            return [self._values[self._names.index(name)] for name in names]
        except (ValueError, IndexError):
            return None

    def add_xid(self, code: int, time: int, origin: Origin = "nvml") -> None:
        """Count an Xid seen at `time` (milliseconds since the epoch), unless the other origin has told it already."""
        if self.xids.add(code, time, origin):
            self._standing = None

    # -- what it comes to -----------------------------------------------------------------------------------------

    def state(self, now: float, late: float, *, hanging: bool) -> str:
        """Return the state at `now`.

        A GPU that has not answered for `late` seconds hangs where one of its calls does, or the driver as a whole
        (`hanging`); else its readings are late.
        """
        if not self.present:
            return "lost"
        if self.answered is not None and now - self.answered <= late:
            return self.reported
        return "hung" if hanging or self.stuck is not None else "late"

    def silence(self, now: float, asked_since: float) -> float:
        """Return the seconds at `now` since its last answer; where there was none, since it is asked.

        A call that hangs was asked no later than it began.
        """
        if self.answered is not None:
            return now - self.answered
        return max(now - asked_since, self.stuck[1] if self.stuck is not None else 0.0)

    def use(self) -> GpuUse:
        """Return what attribution needs. A unified memory is used by the whole machine, so its total says nothing."""
        used = self.figures("memory_used_bytes")
        unified = self._identity.get("memory_kind") == "unified"
        index = None if self.is_mig else int(self.label)
        return GpuUse(self.uuid, index, self.name, used[0] if used and not unified else None, self.processes)

    def standing(self, state: str, since: float | None) -> tuple[tuple[Labels, ...], list[float]]:
        """Return the series that exist in every state: identity, state, Xids, and `since` when it is late."""
        if self._standing is not None and self._standing[0] == state:
            _, keys, values = self._standing
        else:
            keys, values = self._stand(state)
        return (keys, values) if since is None else ((*keys, self.key("unresponsive_seconds")), [*values, since])

    def _stand(self, state: str) -> tuple[tuple[Labels, ...], list[float]]:
        keys: list[Labels] = []
        values: list[float] = []
        if self._identity:
            info = {key: str(self._identity.get(key, "")) for key in _INFO}
            keys.append(self.key("info", **info, driver_version=self._driver))
            values.append(1.0)
        for name in STATES:
            keys.append(self.key("state", state=name))
            values.append(1.0 if name == state else 0.0)
        final = True
        counts = self.xids.counts
        for code in sorted({*(XIDS if self._identity.get("xid") else ()), *counts}):
            count, time = counts.get(code, (0, 0))
            # A code outside the list starts at 0 for one tick.
            first = count > 0 and code not in self._shown
            final = final and not first
            self._shown.add(code)
            keys.append(self.key("xid_errors_total", xid=str(code)))
            values.append(0.0 if first else float(count))
            if time:
                keys.append(self.key("xid_last_time_seconds", xid=str(code)))
                values.append(time / 1000)
        self._standing = (state, tuple(keys), values) if final else None
        return tuple(keys), values

    def readings(self) -> tuple[tuple[Labels, ...], list[float]]:
        """Return the values of the last reading; lowest and highest memory are those since the last call."""
        values = self._values
        if self._low is not None and self._high is not None and "memory_used_low_bytes" in self._names:
            values = list(values)
            values[self._names.index("memory_used_low_bytes")] = self._low
            values[self._names.index("memory_used_high_bytes")] = self._high
            self._low = self._high = None
        if self._lacking:
            return (*self._keys, *self._lacking), [*values, *[1.0] * len(self._lacking)]
        return self._keys, values

    def owners(self, ownership: Ownership) -> tuple[tuple[Labels, ...], list[float]]:
        """Return the series of attribution."""
        keys: list[Labels] = []
        values: list[float] = []

        def put(key: Labels, value: float) -> None:
            keys.append(key)
            values.append(value)

        for server, used in ownership.engine_bytes:
            put(self.key("memory_engine_bytes", server=server), used)
        if ownership.other_bytes is not None:
            put(self.key("memory_other_bytes"), ownership.other_bytes)
        if ownership.unattributed_bytes is not None:
            put(self.key("memory_unattributed_bytes"), ownership.unattributed_bytes)
        if self.processes is not None:
            put(self.key("processes"), float(len(self.processes)))
            put(self.key("processes_hidden"), float(ownership.hidden))
        for server, basis in ownership.engines:
            put(self.key("engine", server=server, basis=basis), 1.0)
        return tuple(keys), values

    def absences(self, state: str) -> tuple[Absence, ...]:
        """Return what is absent and why. A GPU that is lost or hung has lost all it had."""
        reason = CALL_REASON.get(state)
        if state == "resetting" and self._values:
            return self._absent
        if reason is None:
            return self._absent
        detail = {"lost": "the GPU no longer answers on the bus", "hung": self.hang_text(), "late": LATE}.get(state, "")
        return tuple(Absence(key, reason, detail) for key in self._keys or (self.key("memory_used_bytes"),))

    def trouble(self, state: str) -> str:
        """Say in a few words what is wrong in `state`; empty where nothing is."""
        words = self.hang_text() if state == "hung" else _TROUBLE.get(state, "")
        return words and f"GPU {self.label}: {words}"

    def hang_text(self) -> str:
        """Say which call hangs, where the worker could tell."""
        if self.stuck is None:
            return "no answer from the driver"
        return f"{self.stuck[0]} has not returned for {self.stuck[1]:.0f} s"

    def hidden_absence(self, hidden: int) -> Absence:
        """Return the absence of engine memory where NVML lists processes that this machine does not show."""
        return Absence(
            self.key("memory_engine_bytes"),
            Reason.NOT_FOUND,
            f"{hidden} processes on this GPU are not visible here; in a container use --pid=host (hostPID)",
        )
