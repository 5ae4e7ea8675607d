"""Which of an engine's processes is the busy one: the API server, the scheduler (engine core), or a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil

from gpuwatch.sources.discovery.processes import engine_role

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROLES = (
    ("api_server", ("APIServer", "ApiServer", "http_server", "tokenizer_worker")),
    ("scheduler", ("EngineCore", "scheduler")),
    ("worker", ("Worker", "VllmWorker")),
)
"""Beginnings of the titles that vLLM (``VLLM::EngineCore_DP0``) and SGLang (``sglang::scheduler_TP0``) give."""
OTHER = "other"


def process_role(arguments: Sequence[str]) -> str:
    """Return the role of a process by its command line or title; the server itself answers the API."""
    found = engine_role(arguments)
    if found is None:
        return OTHER
    if found.role == "server":
        return "api_server"
    return next((role for role, titles in ROLES if found.part.startswith(titles)), OTHER)


class RoleTimes:
    """CPU seconds of the busiest process of each role, added up from reading to reading.

    The rate of such a sum is the number of cores that the role's busiest process uses; of a Python process that is at
    most about 1.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._known: dict[int, tuple[float, str]] = {}
        self._before: dict[int, tuple[float, float]] = {}

    def add(self, processes: Mapping[int, tuple[float, float]]) -> None:
        """Take one reading: the start time and CPU seconds of each process by its id."""
        known = {}
        most: dict[str, float] = {}
        for pid, (created, cpu) in processes.items():
            role = self._role(pid, created)
            known[pid] = (created, role)
            before = self._before.get(pid)
            used = cpu - before[1] if before is not None and before[0] == created else 0.0
            most[role] = max(most.get(role, 0.0), used)
        for role, used in most.items():
            self.seconds[role] = self.seconds.get(role, 0.0) + max(0.0, used)
        self._known, self._before = known, dict(processes)

    def _role(self, pid: int, created: float) -> str:
        """Return the role of a process; one that has no title yet is asked again."""
        known = self._known.get(pid)
        if known is not None and known[0] == created and known[1] != OTHER:
            return known[1]
        try:
            return process_role([argument for argument in psutil.Process(pid).cmdline() if argument])
        except psutil.Error:
            return OTHER
