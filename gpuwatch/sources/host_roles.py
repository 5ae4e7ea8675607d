"""Which of an engine's processes is the busy one: the API server, the scheduler (engine core), or a worker."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import psutil

from gpuwatch.sources.discovery.processes import engine_role

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatch.sources.discovery.processes import EngineRole

ROLES = (
    ("api_server", ("APIServer", "ApiServer", "http_server", "tokenizer_worker")),
    ("scheduler", ("EngineCore", "scheduler")),
    ("worker", ("Worker", "VllmWorker")),
)
"""Beginnings of the titles that vLLM (``VLLM::EngineCore_DP0``) and SGLang (``sglang::scheduler_TP0``) give."""
OTHER = "other"


def process_role(arguments: Sequence[str]) -> str:
    """Return the role of a process by its command line or title; the server itself answers the API."""
    return _role_of(engine_role(arguments))


def _role_of(found: EngineRole | None) -> str:
    if found is None:
        return OTHER
    if found.role == "server":
        return "api_server"
    return next((role for role, titles in ROLES if found.part.startswith(titles)), OTHER)


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of one process.

    `final` once its command line or title is one of an engine. Until then it may still set its title, which takes
    seconds, and is asked again with the 2nd, 4th, 8th … of its `readings`.
    """

    created: float
    role: str = OTHER
    readings: int = 0
    final: bool = False


class RoleTimes:
    """CPU seconds of the busiest process of each role, added up from reading to reading.

    The rate of such a sum is the number of cores that the role's busiest process uses; of a Python process that is at
    most about 1.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._known: dict[int, _Known] = {}
        self._before: dict[int, tuple[float, float]] = {}

    def add(self, processes: Mapping[int, tuple[float, float]]) -> None:
        """Take one reading: the start time and CPU seconds of each process by its id."""
        known: dict[int, _Known] = {}
        most: dict[str, float] = {}
        for pid, (created, cpu) in processes.items():
            known[pid] = self._look(pid, created)
            role = known[pid].role
            before = self._before.get(pid)
            used = cpu - before[1] if before is not None and before[0] == created else 0.0
            most[role] = max(most.get(role, 0.0), used)
        for role, used in most.items():
            self.seconds[role] = self.seconds.get(role, 0.0) + max(0.0, used)
        self._known, self._before = known, dict(processes)

    def _look(self, pid: int, created: float) -> _Known:
        """Return what is known of a process, whose command line is read as `_Known.readings` says."""
        known = self._known.get(pid)
        if known is None or known.created != created:
            known = _Known(created)
        readings = known.readings + 1
        if known.final or readings & (readings - 1):
            return replace(known, readings=readings)
        try:
            found = engine_role([argument for argument in psutil.Process(pid).cmdline() if argument])
        except psutil.Error:
            found = None
        return _Known(created, _role_of(found), readings, final=found is not None)
