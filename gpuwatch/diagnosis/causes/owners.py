"""Whose end, kill or fault a line is about: an engine's, or that of another program on the same machine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.xid_table import is_application

if TYPE_CHECKING:
    from gpuwatch.diagnosis.causes.view import View
    from gpuwatch.model import LogEvent

UNIT_WORDS = ("vllm", "sglang", "llm", "inference")
"""What names a unit of systemd that runs an engine."""
ENGINE_NAMES = (
    "VLLM::", "vllm", "VllmWorker", "EngineCore", "APIServer", "python", "pt_main_thread", "sglang", "ray::"
)  # fmt: skip
"""How the names of processes begin that may be an engine's; the kernel cuts names to 15 letters."""
_OWN_NAMES = ("VLLM::", "vllm", "VllmWorker", "EngineCore", "sglang")
HOST_PROGRAMS = ("nvidia-cuda-mps", "tritonserver", "torchrun", "uvicorn", "gunicorn")
"""Programs in whose name, or in whose process, an engine may run."""
_SERVICE = re.compile(r"/system\.slice/(?:[^/]*/)*?(?P<unit>[^/]+)\.service(?:/|$)")
# Services below which other people's programs run: containers, jobs, logins.
_HOSTS = ("docker", "containerd", "crio", "podman", "kube", "k3s", "rke2", "slurm", "ray", "ssh", "supervisor", "user@")


def of_engine(view: View, event: LogEvent) -> bool:
    """Whether who was killed may be an engine: a process by its name and cgroup, a unit, or whoever is not named."""
    name = event.field("name")
    if is_other(event) or (name and not name.startswith(ENGINE_NAMES) and not _is_unit(name)):
        return False
    return name.startswith(_OWN_NAMES) or not _cgroup_of_another(view, event)


def names_engine(event: LogEvent) -> bool:
    """Whether the name of a process is one that only engines give their processes."""
    return event.field("name").startswith(_OWN_NAMES)


def is_other(event: LogEvent) -> bool:
    """Whether a line is about a container of which another one of the same pod is the engine."""
    return event.field("engine") == "no"


def foreign_unit(name: str) -> bool:
    """Whether a name is that of a unit of systemd that does not say that it runs an engine."""
    return name.endswith((".service", ".scope")) and not _is_unit(name)


def foreign_program(event: LogEvent) -> bool:
    """Whether the driver names a program that is no engine's, of an Xid that ends the program that it is about."""
    name = event.field("name").strip("'\"")
    known = name and not name.startswith(("<", "[", *ENGINE_NAMES, *HOST_PROGRAMS))
    return bool(known) and is_application(event.field("code"))


def unnamed_program(event: LogEvent) -> bool:
    """Whether an Xid ends a program that the driver does not name."""
    name = event.field("name").strip("'\"")
    return is_application(event.field("code")) and (not name or name.startswith(("<", "[")))


def _is_unit(name: str) -> bool:
    return any(word in name.lower() for word in UNIT_WORDS)


def _cgroup_of_another(view: View, event: LogEvent) -> bool:
    """Whether the kernel says that a process belonged to a service that is neither an engine's nor runs containers."""
    pid = event.field("pid")
    for each in view.events("oom_constraint"):
        if pid and each.source == event.source and each.field("pid") == pid:
            found = _SERVICE.search(each.field("group"))
            return found is not None and not _is_unit(found["unit"]) and not found["unit"].startswith(_HOSTS)
    return False
