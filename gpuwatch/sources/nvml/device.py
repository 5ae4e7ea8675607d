"""One GPU in the NVML worker: looked up, identified and read.

A call that hangs silences this GPU only (`pool`), and a call that fails loses one value. What is asked how often
follows the costs of the calls: memory ten times per tick, counters and gauges every tick, links, limits, errors and
MIG layout every tenth tick, but every 10 seconds at least, identity whenever the handle is new.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from gpuwatch.sources.nvml.api import (
    GPU_NOT_FOUND,
    NO_PERMISSION,
    RESET_REQUIRED,
    UNKNOWN,
    UNSUPPORTED,
    XID_EVENT,
    CallFailed,
    ProcessLister,
    address,
    ask,
    text,
)
from gpuwatch.sources.nvml.fields import Gpm
from gpuwatch.sources.nvml.memory import Memory
from gpuwatch.sources.nvml.readings import ARCHITECTURES, Readings
from gpuwatch.sources.nvml.unit import GONE, RETRY_TICKS, Asker, Unit

if TYPE_CHECKING:
    from collections.abc import Callable

READS_PER_TICK = 10
SLOW_TICKS = 10
SLOW_SECONDS = 10.0
"""A link that rested when it was read must be read again before load is held against it."""


def slow_ticks(interval: float) -> int:
    """Return every how many ticks of `interval` seconds the slow values are read."""
    return max(1, min(SLOW_TICKS, int(SLOW_SECONDS / interval)))


def judge(codes: set[int], answers: int) -> str:
    """Return the state of a GPU whose calls of one tick gave `codes` and so many answers."""
    codes = codes - UNSUPPORTED
    if codes & GONE:
        return "lost"
    if RESET_REQUIRED in codes:
        return "resetting"
    if answers or not codes:
        return "ok"
    return "no_permission" if NO_PERMISSION in codes else "failed"


class Device:
    """One GPU of the library.

    Args:
        index: NVML's index.
        driver: driver version as numbers.
        send: takes a list of messages.
        give_up: ends the worker; takes an NVML code and a text.
        events: the event set for Xid errors, or None.
        interval: seconds per tick.
    """

    def __init__(
        self,
        index: int,
        driver: tuple[int, ...],
        *,
        send: Callable[[list[list[Any]]], None],
        give_up: Callable[[int, str], None],
        events: Any,
        interval: float,
    ) -> None:
        self.label = str(index)
        self.address = 0
        self.asker = Asker(give_up)
        self._index, self._driver, self._send = index, driver, send
        self._events = events
        self._step = interval / READS_PER_TICK
        self._slow_ticks = slow_ticks(interval)
        self._slot = self._tick_at = 0
        self.due = 0.0
        self._uuid = ""
        self._unit: Unit | None = None
        self._migs: dict[str, Unit] = {}
        self._slow: dict[str, float] | None = None
        self._others: dict[int, int | None] = {}
        self._gpm: Gpm | None = None
        self._was_ok = False

    def step(self) -> None:
        """Do what is due now, a whole tick or one reading of memory, and set when the next step is due.

        Steps lie on a grid that all GPUs share; those missed during a hang are left out, and a tick that is among
        them comes with the next step.
        """
        if self._slot >= self._tick_at:
            self._tick_at = (self._slot // READS_PER_TICK + 1) * READS_PER_TICK
            self.tick()
        elif self._unit is not None:
            for unit in (self._unit, *self._migs.values()):
                unit.read_memory()
        self._slot += 1
        self.due += self._step
        late = time.monotonic() - self.due
        if late > 0:
            missed = int(late / self._step) + 1
            self._slot += missed
            self.due += missed * self._step

    def tick(self) -> None:
        """Read everything that is due and send it."""
        asker = self.asker
        asker.start_tick()
        if self._unit is None and not self._find():
            return
        unit = self._unit
        assert unit is not None
        values: dict[str, float] = {}
        processes: dict[int, int | None] | None = None
        try:
            values = self._read(unit)
            processes = self._processes(unit)
        except CallFailed:
            values = {}
        state = judge(asker.codes, asker.answers)
        if state == "lost":
            if GPU_NOT_FOUND in asker.codes and self._was_ok:
                asker.give_up(GPU_NOT_FOUND, "a GPU is no longer found")
            self._forget()
            values, processes = {}, None
        if state == "ok":
            self._was_ok, self.asker.ok_at = True, time.monotonic()
        messages = unit.messages(state, values, processes)
        for mig in self._migs.values():
            mig_values = mig.memory_values() if state == "ok" else {}
            listed = mig.processes(self._compute) if state == "ok" and mig.memory else None
            messages += mig.messages(state, mig_values, listed)
        self._send(messages)

    def _read(self, unit: Unit) -> dict[str, float]:
        tick = self.asker.tick
        if tick % RETRY_TICKS == 0:
            self._readings.retry()
        values = unit.memory_values()
        values.update(self._readings.fast(unit, self._gpm))
        if self._slow is None or tick % self._slow_ticks == 0:
            self._slow = self._readings.slow(unit)
            self._find_migs(unit)
            self._others = {}
            for lister in self._rare:
                self._others.update(self.asker.optional("RunningProcesses", partial(lister.read, unit.handle)) or {})
        values.update(self._slow)
        return values

    def _processes(self, unit: Unit) -> dict[int, int | None] | None:
        found = unit.processes(self._compute)
        return None if found is None else {**self._others, **found}

    def _forget(self) -> None:
        """Let go of a handle that is no longer good; the next tick looks it up again."""
        self._unit, self._slow = None, None
        if self._gpm is not None:
            self._gpm.free()
            self._gpm = None

    # -- finding and identifying ----------------------------------------------------------------------------------

    def _find(self) -> bool:
        """Look the handle up by UUID, or by index the first time, and identify the device."""
        by_uuid = ("nvmlDeviceGetHandleByUUID", self._uuid)
        function, key = by_uuid if self._uuid else ("nvmlDeviceGetHandleByIndex", self._index)
        try:
            self._identify(self.asker.call(function, lambda: ask(function, key)))
        except CallFailed as failure:
            # A GPU that fell off the bus answers a look-up with 15 or, on some drivers, with 999.
            gone = GONE | UNSUPPORTED | ({UNKNOWN} if self._uuid else frozenset())
            states = {NO_PERMISSION: "no_permission", RESET_REQUIRED: "resetting"}
            state = states.get(failure.code, "lost" if failure.code in gone else "failed")
            unit = Unit(self.label, None, {"uuid": self._uuid}, self.asker)
            unit.absent["state"] = failure.code
            self._send([["id", self.label, unit.identity], *unit.messages(state, {}, None)])
            return False
        return True

    def _identify(self, handle: Any) -> None:
        asker = self.asker
        uuid = asker.call("nvmlDeviceGetUUID", lambda: text("nvmlDeviceGetUUID", handle))
        name = asker.optional("nvmlDeviceGetName", lambda: text("nvmlDeviceGetName", handle)) or ""
        pci = asker.optional("nvmlDeviceGetPciInfo", lambda: ask("nvmlDeviceGetPciInfo_v3", handle).busId)
        architecture = asker.optional("nvmlDeviceGetArchitecture", lambda: ask("nvmlDeviceGetArchitecture", handle))
        memory = Memory(handle)
        if not self._mig_enabled(handle):
            asker.optional("nvmlDeviceGetMemoryInfo", lambda: memory.decide(name))
        self._uuid, self.address = uuid, address(handle)
        self._gpm = asker.optional("nvmlGpmQueryDeviceSupport", lambda: Gpm(handle))
        self._readings = Readings(self._driver)
        self._compute = ProcessLister("Compute", self._driver)
        self._rare = [ProcessLister(kind, self._driver) for kind in ("Graphics", "MPSCompute")]
        identity = {
            "uuid": uuid,
            "name": name,
            "pci_bus_id": pci.decode("ascii", "replace") if isinstance(pci, bytes) else str(pci or ""),
            "architecture": ARCHITECTURES.get(architecture, ""),
            "memory_kind": "unified" if memory.unified else "dedicated",
            "xid": bool(asker.optional("nvmlDeviceRegisterEvents", lambda: self._register(handle))),
        }
        self._unit = Unit(self.label, handle, identity, asker)
        self._unit.memory = memory
        self._send([["id", self.label, identity]])

    def _register(self, handle: Any) -> bool:
        if self._events is None:
            return False
        ask("nvmlDeviceRegisterEvents", handle, XID_EVENT, self._events)
        return True

    # -- MIG ------------------------------------------------------------------------------------------------------

    def _mig_enabled(self, handle: Any) -> bool:
        mode = self.asker.optional("nvmlDeviceGetMigMode", lambda: ask("nvmlDeviceGetMigMode", handle))
        return bool(mode) and mode[0] == 1

    def _find_migs(self, unit: Unit) -> None:
        """List the MIG devices. A slot may be empty (NOT_FOUND) and a later one filled."""
        found: dict[str, Unit] = {}
        if self._mig_enabled(unit.handle):
            function = "nvmlDeviceGetMaxMigDeviceCount"
            instances: set[int] = set()
            for slot in range(self.asker.optional(function, lambda: ask(function, unit.handle)) or 0):
                mig = self._mig(unit, slot, instances)
                if mig is not None:
                    uuid = mig.identity["uuid"]
                    found[uuid] = self._migs.get(uuid, mig)
        messages: list[list[Any]] = [["gone", mig.label] for uuid, mig in self._migs.items() if uuid not in found]
        messages += [["id", mig.label, mig.identity] for uuid, mig in found.items() if uuid not in self._migs]
        self._migs = found
        if messages:
            self._send(messages)

    def _mig(self, unit: Unit, slot: int, instances: set[int]) -> Unit | None:
        asker = self.asker
        function = "nvmlDeviceGetMigDeviceHandleByIndex"
        handle = asker.optional(function, lambda: ask(function, unit.handle, slot))
        uuid = handle and asker.optional("nvmlDeviceGetUUID", lambda: text("nvmlDeviceGetUUID", handle))
        if not uuid:
            return None
        name = asker.optional("nvmlDeviceGetName", lambda: text("nvmlDeviceGetName", handle)) or ""
        identity = {**unit.identity, "uuid": uuid, "name": name, "memory_kind": "mig", "xid": False}
        mig = Unit(f"{self.label}:{slot}", handle, identity, asker)
        function = "nvmlDeviceGetGpuInstanceId"
        instance = asker.optional(function, lambda: ask("nvmlDeviceGetGpuInstanceId", handle))
        # Memory belongs to the GPU instance; its second compute instance would repeat the same bytes.
        if instance is None or instance not in instances:
            mig.memory = Memory(handle)
        instances.add(instance)
        return mig
