"""The GPUs of this machine through NVML: starts, watches and replaces the worker, and turns its readings into batches.

libnvidia-ml.so.1 is only ever loaded in the worker (`worker`), so a driver call that hangs cannot stop this
process, and a driver that was replaced is picked up by the next worker.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from gpuwatch.model import Absence, Batch, Labels, Reason, series
from gpuwatch.sources.nvml.attribution import attribute
from gpuwatch.sources.nvml.child import Child
from gpuwatch.sources.nvml.gpus import Gpu, placeholder
from gpuwatch.sources.nvml.processes import ProcessTree, in_initial_namespace
from gpuwatch.sources.nvml.reasons import RARE, Failure, driver_traces, failure_detail, in_container, reason_of
from gpuwatch.sources.nvml.xids import pci_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpuwatch.clock import Clock
    from gpuwatch.sources.nvml.attribution import EngineProcess


@dataclass(frozen=True, slots=True)
class Timing:
    """Times in seconds.

    `missed_ticks`: after so many intervals without an answer, but at least `least_late`, a GPU's values are no longer
    exported; it counts as hung where something hangs, else as late. `start_wait`: how long the first poll waits for
    the worker. `replace_after`: silence of the whole worker after which it is replaced. `first_delay` to `last_delay`:
    between two workers, doubled each time. `rare_delay`: between two looks for a driver on a machine without one.
    `healthy_after`: how long a worker has to live to reset the delay. `most_stuck`: workers that may hang in the
    driver, unkillable, before no more are started.
    """

    interval: float = 1.0
    missed_ticks: float = 3.0
    least_late: float = 2.0
    start_wait: float = 1.0
    replace_after: float = 15.0
    first_delay: float = 0.5
    last_delay: float = 60.0
    rare_delay: float = 300.0
    healthy_after: float = 30.0
    most_stuck: int = 3

    @property
    def late(self) -> float:
        """Seconds without an answer after which a GPU is late."""
        return max(self.interval * self.missed_ticks, self.least_late)

    @property
    def hopeless(self) -> float:
        """Seconds of silence of the whole worker after which it is replaced."""
        return max(self.replace_after, 2 * self.late)


class NvmlSource:
    """All NVIDIA GPUs of this machine (target ``nvml``).

    Args:
        host: value of the label ``host``.
        clock: the machine's clock; GPU ages are measured with its monotonic time.
        engines: returns the engines whose processes may use the GPUs, for attribution.
        timing: when to give up on what.
        env: variables to add to the worker's environment.
    """

    target = "nvml"

    def __init__(
        self,
        host: str,
        clock: Clock,
        engines: Callable[[], Sequence[EngineProcess]] = tuple,
        *,
        timing: Timing | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._host, self._clock, self._engines, self._env = host, clock, engines, env
        self._timing = timing or Timing()
        self._lock = threading.Lock()
        self._closed = False
        self._child: Child | None = None
        self._stuck: list[Child] = []
        self._failure: Failure | None = None
        self._started = self._beat = 0.0
        self._silent_since = 0.0
        self._next_start = 0.0
        self._delay = self._timing.first_delay
        self._traces: tuple[float, ...] = ()
        self._driver = ""
        self._count: int | None = None
        self._units: dict[str, Gpu] = {}
        self._gpus: dict[str, Gpu] = {}
        self._ended: Failure | None = None
        self._init_stuck = 0.0
        self._addresses: dict[str, Gpu] = {}
        self._told: deque[tuple[str, int, int]] = deque(maxlen=1000)
        self._tree = ProcessTree(clock)
        self._own_namespace = in_initial_namespace()
        self._keys: tuple[Labels, ...] = ()
        self._late_key = series("gpuwatch_host_nvml_unresponsive_seconds", host=host)

    @property
    def worker_pid(self) -> int | None:
        """Process id of the worker that runs now, for the program's own figures."""
        child = self._child
        return child.pid if child else None

    @property
    def count(self) -> int | None:
        """How many GPUs the driver counts, MIG devices not among them; None as long as it has not said so."""
        return self._count

    def saw_xid(self, address: str, code: int, time: int) -> bool:
        """Take an Xid that the kernel's log tells, seen at `time` (milliseconds since the epoch). From any thread.

        `address` is the PCI address as ``dddd:bb:dd``. Returns whether that GPU is known; it then counts the Xid with
        its next batch, unless NVML tells the same one.
        """
        if address not in self._addresses:
            return False
        self._told.append((address, code, time))
        return True

    def poll(self) -> Batch:
        """Return what the worker has said. Waits only for a new worker's first readings, at most `start_wait`."""
        with self._lock:
            begin = self._clock.monotonic()
            if self._closed:
                return Batch(self.target, self._clock.now(), up=False, reason=Reason.NOT_FOUND, detail="closed")
            self._stuck = [child for child in self._stuck if not child.gone()]
            if self._child is None and self._may_start(begin):
                self._start(begin)
            self._drain()
            self._take_told()
            self._watch(self._clock.monotonic())
            return self._batch(begin)

    def close(self) -> None:
        """End the worker at once, also while a call hangs in the driver."""
        self._closed = True
        child = self._child
        if child is not None:
            child.kill()
        # `poll` may be waiting for a new worker; its death ends that wait.
        if self._lock.acquire(timeout=0.5):
            try:
                if self._child is not None:
                    self._child.close()
                    self._child = None
            finally:
                self._lock.release()

    # -- the worker -----------------------------------------------------------------------------------------------

    def _may_start(self, now: float) -> bool:
        if len(self._stuck) >= self._timing.most_stuck:
            self._failure = Failure(
                Reason.HUNG, f"{len(self._stuck)} NVML workers hang in the driver and cannot be killed; reboot"
            )
            return False
        if self._failure and self._failure.rare and self._traces != driver_traces():
            return True
        return now >= self._next_start

    def _start(self, now: float) -> None:
        self._traces = driver_traces()
        self._units, self._count, self._init_stuck, self._ended = {}, None, 0.0, None
        self._gpus = {key: gpu for key, gpu in self._gpus.items() if gpu.named and not gpu.is_mig}
        self._started = self._beat = now
        if not self._hung_failure():
            self._silent_since = now
        try:
            self._child = Child(self._timing.interval, self._env)
        except OSError as error:
            self._fail(Failure(Reason.FAILED, f"the NVML worker cannot be started: {error.strerror}"))

    def _drain(self) -> None:
        """Take all messages; wait for the first readings of a new worker."""
        deadline = self._started + self._timing.start_wait
        while self._child is not None:
            messages, ended = self._child.read()
            for message in messages:
                self._take(message)
            if ended:
                self._worker_ended()
                return
            left = deadline - self._clock.monotonic()
            if left <= 0 or self._closed or self._complete():
                return
            self._child.wait_readable(left)

    def _complete(self) -> bool:
        """Say whether every GPU of the present worker has been heard of."""
        units = [gpu for gpu in self._units.values() if not gpu.is_mig]
        return self._count is not None and len(units) >= self._count and all(g.answered is not None for g in units)

    def _worker_ended(self) -> None:
        child, self._child = self._child, None
        assert child is not None
        failure = self._ended or Failure(Reason.FAILED, f"the NVML worker {child.how_ended()}")
        if not child.close():
            self._stuck.append(child)
        self._fail(failure)

    def _fail(self, failure: Failure) -> None:
        """Note why there is no worker and when the next one may start."""
        now = self._clock.monotonic()
        if now - self._started > self._timing.healthy_after:
            self._delay = self._timing.first_delay
        self._failure = failure
        self._next_start = now + (self._timing.rare_delay if failure.rare else self._delay)
        if not failure.rare:
            self._delay = min(self._delay * 2, self._timing.last_delay)

    def _watch(self, now: float) -> None:
        """Replace a worker that says nothing, or whose GPUs have all fallen silent."""
        if self._child is None:
            return
        limit = self._timing.hopeless
        heard = max([self._started, *(gpu.answered or 0.0 for gpu in self._units.values())])
        silent = now - self._beat > limit and not self._child.starved()
        if silent or (now - heard > limit and self._hangs(now)):
            child, self._child = self._child, None
            if not child.close(0.0):
                self._stuck.append(child)
            self._fail(Failure(Reason.HUNG, f"the NVIDIA driver has not answered for {now - heard:.0f} s"))

    # -- its messages ---------------------------------------------------------------------------------------------

    def _take(self, message: list[Any]) -> None:
        kind, *rest = message
        if kind in ("tick", "keys", "xid"):
            gpu = self._units.get(rest[0])
            if gpu is not None:
                self._take_reading(gpu, kind, rest[1:])
        elif kind == "beat":
            self._beat = rest[0]
            self._take_stuck(rest[1])
        elif kind == "id":
            self._take_identity(*rest)
        elif kind == "gone":
            gone = self._units.pop(rest[0], None)
            if gone is not None:
                self._gpus.pop(gone.uuid, None)
        elif kind == "hello":
            self._driver, self._count = rest
            self._failure = None
        elif kind == "end":
            code, text = rest
            detail = failure_detail(code, text, container=in_container())
            self._ended = Failure(reason_of(code), detail, code in RARE)

    def _take_reading(self, gpu: Gpu, kind: str, rest: list[Any]) -> None:
        if kind == "tick":
            gpu.take(*rest)
            self._silent_since = max(rest[0], self._silent_since)
        elif kind == "keys":
            gpu.set_keys(*rest)
        else:
            gpu.add_xid(*rest)

    def _take_told(self) -> None:
        """Count the Xids of the kernel's log, after those of NVML."""
        while self._told:
            address, code, time = self._told.popleft()
            gpu = self._addresses.get(address)
            if gpu is not None:
                gpu.add_xid(code, time, "kernel")

    def _take_stuck(self, stuck: Mapping[str, Sequence[Any]]) -> None:
        self._init_stuck = float(stuck[""][1]) if "" in stuck else 0.0
        for label, (function, seconds) in stuck.items():
            gpu = self._units.get(label) or self._unnamed(label)
            for unit in (gpu, *self._units.values()):
                if unit is not None and (unit is gpu or unit.label.startswith(f"{label}:")):
                    unit.stuck = (function, seconds)

    def _unnamed(self, label: str) -> Gpu | None:
        """Return the GPU at `label` that has not said its UUID to this worker: the one of before, or a new one."""
        if not label:
            return None
        claimed = {id(gpu) for gpu in self._units.values()}
        for gpu in self._gpus.values():
            if gpu.label == label and id(gpu) not in claimed:
                break
        else:
            uuid = placeholder(label)
            gpu = self._gpus[uuid] = Gpu(self._host, uuid, label)
        self._units[label] = gpu
        return gpu

    def _take_identity(self, label: str, identity: dict[str, Any]) -> None:
        uuid = identity["uuid"]
        if not uuid:
            gpu = self._units.get(label) or self._unnamed(label)
        else:
            gpu = self._gpus.get(uuid)
            if gpu is None or gpu.label != label:
                gpu = self._gpus[uuid] = Gpu(self._host, uuid, label)
            self._gpus.pop(placeholder(label), None)
        if gpu is not None:
            self._units[label] = gpu
            gpu.identify(identity, self._driver)
            found = {pci_address(one.pci_bus_id): one for one in self._gpus.values()}
            self._addresses = {address: one for address, one in found.items() if address}
        if self._complete_identities():
            present = {id(gpu) for gpu in self._units.values()}
            for known in self._gpus.values():
                known.present = id(known) in present

    def _complete_identities(self) -> bool:
        """Say whether every GPU that the driver counts has said who it is, so that the missing ones are lost."""
        named = [gpu for gpu in self._units.values() if gpu.named and not gpu.is_mig]
        return self._count is not None and len(named) >= self._count

    # -- the batch ------------------------------------------------------------------------------------------------

    def _batch(self, begin: float) -> Batch:
        now = self._clock.monotonic()
        time, late = self._clock.now(), self._timing.late
        silence = now - self._silent_since
        broken = self._failure is not None and not self._hung_failure()
        hanging = silence > late and not broken and self._hangs(now)
        heard = max((gpu.answered or 0.0 for gpu in self._gpus.values()), default=0.0)
        if (broken and now - heard > late) or (not self._gpus and not hanging):
            return self._down(time, now - begin)
        keys: list[tuple[Labels, ...]] = []
        values: list[float] = []
        absent: list[Absence] = []
        if hanging:
            keys.append((self._late_key,))
            values.append(silence)
            absent.append(Absence(self._late_key, Reason.HUNG, self._hang_detail(silence)))
        states = {id(gpu): gpu.state(now, late, hanging=hanging) for gpu in self._gpus.values()}
        owners = self._owners([gpu for gpu in self._gpus.values() if states[id(gpu)] == "ok"])
        for gpu in self._gpus.values():
            state = states[id(gpu)]
            silent = state == "hung" and gpu.present
            since = gpu.silence(now, min(self._started, self._silent_since)) if silent else None
            parts = [gpu.standing(state, since)]
            if state not in ("lost", "hung", "late"):
                parts.append(gpu.readings())
            if gpu.uuid in owners:
                parts.append(gpu.owners(owners[gpu.uuid]))
                if owners[gpu.uuid].hidden:
                    absent.append(gpu.hidden_absence(owners[gpu.uuid].hidden))
            for part_keys, part_values in parts:
                keys.append(part_keys)
                values += part_values
            absent += gpu.absences(state)
        return Batch(
            self.target,
            time,
            self._stable(keys),
            values,
            reason=Reason.HUNG if hanging else None,
            detail=self._hang_detail(silence) if hanging else _troubles(self._gpus.values(), states),
            duration=now - begin,
            absent=tuple(absent),
        )

    def _hangs(self, now: float) -> bool:
        """Say whether it is the driver that keeps the worker silent, and not a machine without processor time.

        The worker names the calls that hang. One that has begun to speak and says nothing any more hangs as a whole,
        unless it only waits for a processor.
        """
        if self._hung_failure() or self._init_stuck or self._child is None:
            return True
        if now - self._beat > self._timing.late:
            spoke = self._beat > self._started or self._count is not None
            return spoke and not self._child.starved()
        cards = [gpu for gpu in self._gpus.values() if gpu.present and not gpu.is_mig]
        return len(cards) >= (self._count or 1) and all(gpu.stuck is not None for gpu in cards)

    def _hung_failure(self) -> bool:
        return self._failure is not None and self._failure.reason is Reason.HUNG

    def _hang_detail(self, silence: float) -> str:
        if self._failure is not None and self._child is None:
            return self._failure.detail
        if self._init_stuck:
            return f"nvmlInit has not returned for {self._init_stuck:.0f} s"
        return f"the NVIDIA driver has not answered for {silence:.0f} s"

    def _stable(self, parts: list[tuple[Labels, ...]]) -> tuple[Labels, ...]:
        """Join the keys, and return the previous object when they are the same."""
        keys = tuple(chain.from_iterable(parts))
        if keys != self._keys:
            self._keys = keys
        return self._keys

    def _owners(self, gpus: Sequence[Gpu]) -> dict[str, Any]:
        uses = [gpu.use() for gpu in gpus]
        pids = {pid for use in uses for pid, _ in use.processes or ()}
        return attribute(uses, self._engines(), self._tree.ancestors(pids), own_namespace=self._own_namespace)

    def _down(self, time: int, duration: float) -> Batch:
        failure = self._failure or Failure(Reason.NEVER_SEEN, "the NVML worker is starting")
        return Batch(self.target, time, up=False, reason=failure.reason, detail=failure.detail, duration=duration)


def _troubles(gpus: Iterable[Gpu], states: Mapping[int, str]) -> str:
    """Say what is wrong with which GPU; MIG devices are in the state of their GPU and left out."""
    cards = sorted((gpu for gpu in gpus if not gpu.is_mig), key=lambda gpu: int(gpu.label))
    return "; ".join(filter(None, (gpu.trouble(states[id(gpu)]) for gpu in cards)))
