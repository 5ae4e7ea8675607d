"""Processes of this machine that belong to vLLM or SGLang: servers, their parts, their ports, logs and devices."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Literal, TypeAlias

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpuwatch.clock import Clock

# A young process may still run another program, or set its title. In seconds.
_SETTLING = 120.0
# An old process that has nothing to do with an engine is looked at in every sixth scan; its number may be given anew.
_TURNS = 6

Role: TypeAlias = Literal["server", "part"]

_PYTHON = re.compile(r"^python[\d.]*t?$")
_SHELL_WRAPPED = ("-c",)
# Options of the interpreter that take a value of their own.
_PYTHON_VALUES = ("-X", "-W", "--check-hash-based-pycs")
_VLLM_MODULE = re.compile(r"^vllm\.entrypoints\.(?:openai\.)?(?:[\w.]+\.)?api_server$")
_VLLM_MAIN = ("vllm", "vllm.entrypoints.cli.main")
_SGLANG_MODULES = ("sglang.launch_server",)
_SGLANG_MAIN = ("sglang", "sglang.cli.main")
# Titles that the engines give their processes: "VLLM::EngineCore_DP0", "sglang::scheduler_TP0".
_TITLE = re.compile(r"^(?P<engine>VLLM|sglang)::(?P<part>\w+)")
_API_PARTS = ("APIServer", "ApiServer", "http_server", "tokenizer_worker")


@dataclass(frozen=True, slots=True)
class Process:
    """One process. `started` is its start in seconds since the epoch; `arguments` its command line, maybe empty."""

    pid: int
    started: float
    parent: int
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EngineRole:
    """What a process is to an engine; `arguments` are those behind the program, `part` the title of a part."""

    engine: str
    role: Role
    arguments: tuple[str, ...] = ()
    part: str = ""


@dataclass(frozen=True, slots=True)
class ServerTree:
    """A server process with everything below it. `parts` are the titles of its processes, such as ``Worker_TP0``."""

    root: Process
    engine: str
    arguments: tuple[str, ...]
    pids: frozenset[int]
    parts: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class ProcessScan:
    """All processes at one moment; `complete` is False where time ran out."""

    processes: Mapping[int, Process]
    complete: bool


class ProcessTable:
    """Lists processes again and again; what cannot change of a process is read once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[int, Process] = {}
        self._scans = 0

    def scan(self, deadline: float) -> ProcessScan:
        """List all processes, until `deadline` on the monotonic clock."""
        self._scans += 1
        pids = psutil.pids()
        alive = set(pids)
        found: dict[int, Process] = {}
        complete = True
        for pid in pids:
            if self._clock.monotonic() > deadline:
                complete = False
                break
            process = self._look(pid, alive)
            if process is not None:
                found[pid] = process
        self._known = found
        return ProcessScan(found, complete)

    def _look(self, pid: int, alive: set[int]) -> Process | None:
        known = self._known.get(pid)
        if known is not None and not self._turn(known) and known.parent in alive:
            return known
        try:
            handle = psutil.Process(pid)
            started = handle.create_time()
            if known is None or known.started != started:
                return Process(pid, started, handle.ppid(), tuple(_arguments(handle)))
            # A process gets a new parent only when its parent ends. Its title may change while it starts.
            parent = known.parent if known.parent in alive else handle.ppid()
            changing = not self._is_settled(known) and engine_role(known.arguments) is None
            arguments = tuple(_arguments(handle)) if changing else known.arguments
        except psutil.Error:
            return None
        return Process(pid, started, parent, arguments)

    def _turn(self, known: Process) -> bool:
        """Whether to look at a process again: always at those of engines and those that change, in turn at the rest."""
        if known.pid % _TURNS == self._scans % _TURNS or not self._is_settled(known):
            return True
        return engine_role(known.arguments) is not None

    def _is_settled(self, known: Process) -> bool:
        """Whether the title of a process stays as it is."""
        young = known.started > (self._clock.now() - self._clock.ahead()) / 1000 - _SETTLING
        return not young and not _is_interpreter(known.arguments)


def _is_interpreter(arguments: Sequence[str]) -> bool:
    """Whether a child of multiprocessing has not set its title yet."""
    return len(arguments) > 1 and bool(_PYTHON.match(PurePath(arguments[0]).name)) and "-c" in arguments[1:4]


def _arguments(handle: psutil.Process) -> list[str]:
    try:
        return [argument for argument in handle.cmdline() if argument]
    except psutil.AccessDenied:
        return []


def engine_role(arguments: Sequence[str]) -> EngineRole | None:
    """Return what a command line is to an engine; None for everything else.

    Servers are ``vllm serve``, ``python -m vllm.entrypoints.openai.api_server``, ``python -m sglang.launch_server`` and
    ``sglang serve``, however the interpreter is called. A wrapper that only has such words among its arguments (a
    shell, ``docker exec``, ``timeout``) is none: the program it starts is found by itself.
    """
    if not arguments:
        return None
    title = _TITLE.match(arguments[0])
    if title is not None:
        return EngineRole(title["engine"].lower(), "part", part=title["part"])
    program, module, rest = _program(arguments)
    engine, needs_serve = _module(program) if module else _script(PurePath(program))
    if needs_serve:
        engine, rest = (engine, rest[1:]) if rest[:1] == ("serve",) else ("", rest)
    return EngineRole(engine, "server", rest) if engine else None


def _module(name: str) -> tuple[str, bool]:
    """Return (engine, whether the word ``serve`` must follow) of a module that is run."""
    if _VLLM_MODULE.match(name):
        return "vllm", False
    if name in _SGLANG_MODULES:
        return "sglang", False
    return ("vllm" if name in _VLLM_MAIN else "sglang" if name in _SGLANG_MAIN else ""), True


def _script(path: PurePath) -> tuple[str, bool]:
    """Return (engine, whether the word ``serve`` must follow) of a program that is run."""
    if path.name == "api_server.py" and path.parts[-3:-1] in (("vllm", "entrypoints"), ("entrypoints", "openai")):
        return "vllm", False
    if path.parts[-2:] == ("sglang", "launch_server.py"):
        return "sglang", False
    return (path.name if path.name in ("vllm", "sglang") else ""), True


def _program(arguments: Sequence[str]) -> tuple[str, bool, tuple[str, ...]]:
    """Return (program or module, whether it is a module, the arguments behind it), looking through an interpreter."""
    if not _PYTHON.match(PurePath(arguments[0]).name):
        return arguments[0], False, tuple(arguments[1:])
    at = 1
    while at < len(arguments):
        argument = arguments[at]
        if argument == "-m":
            return (arguments[at + 1] if at + 1 < len(arguments) else ""), True, tuple(arguments[at + 2 :])
        if argument in _SHELL_WRAPPED:
            break
        if not argument.startswith("-"):
            return argument, False, tuple(arguments[at + 1 :])
        at += 2 if argument in _PYTHON_VALUES else 1
    return "", False, ()


def server_trees(processes: Mapping[int, Process]) -> tuple[tuple[ServerTree, ...], tuple[Process, ...]]:
    """Return (servers with their trees, parts of engines whose server is gone), by process id.

    A process with a server's command line below another server is its child, not a second server.
    """
    roles = {pid: engine_role(process.arguments) for pid, process in processes.items()}
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        parent = processes.get(process.parent)
        # A parent that is younger than its child is another process with a used number.
        if parent is not None and parent.started <= process.started:
            children.setdefault(process.parent, []).append(pid)
    trees = []
    owned: set[int] = set()
    tops = [pid for pid, role in roles.items() if role is not None and role.role == "server"]
    below = {pid for top in tops for pid in _descendants(top, children) if pid != top}
    for pid in sorted(set(tops) - below):
        role = roles[pid]
        assert role is not None
        pids = frozenset(_descendants(pid, children))
        owned |= pids
        parts = tuple((member, found.part) for member in sorted(pids) if (found := roles[member]) and found.part)
        trees.append(ServerTree(processes[pid], role.engine, role.arguments, pids, parts))
    orphans = (pid for pid, role in roles.items() if role is not None and role.role == "part" and pid not in owned)
    return tuple(trees), tuple(processes[pid] for pid in sorted(orphans))


def _descendants(top: int, children: Mapping[int, Sequence[int]]) -> Iterable[int]:
    stack = [top]
    seen = set()
    while stack:
        pid = stack.pop()
        if pid not in seen:
            seen.add(pid)
            yield pid
            stack += children.get(pid, ())


def listening(tree: ServerTree) -> tuple[tuple[str, int], ...] | None:
    """Return (address, port) pairs on which the server or its API processes accept connections; None: not allowed."""
    pids = [tree.root.pid, *(pid for pid, part in tree.parts if part.startswith(_API_PARTS))]
    found = set()
    readable = False
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            handle = psutil.Process(pid)
            # psutil named it `connections` until 6.0.
            sockets = getattr(handle, "net_connections", None) or handle.connections
            for each in sockets("tcp"):
                if each.status == psutil.CONN_LISTEN and each.laddr:
                    found.add((each.laddr.ip, each.laddr.port))
            readable = True
    return tuple(sorted(found, key=lambda pair: pair[1])) if readable else None


def environment(pid: int, names: Sequence[str]) -> dict[str, str]:
    """Return the named variables of a process's environment, as far as they are set and readable; no others."""
    try:
        values = psutil.Process(pid).environ()
    except (psutil.Error, OSError, NotImplementedError, AttributeError):
        return {}
    return {name: values[name] for name in names if name in values}


def output_log(pid: int) -> tuple[str, str]:
    """Return (log spec, remark): where a process's output can be read. The spec is empty where it cannot be.

    A regular file behind standard output or error is a log; output that goes to the journal is ``journal:UNIT``.
    """
    base = Path("/proc") / str(pid)
    remarks = []
    for number in (2, 1):
        descriptor = base / "fd" / str(number)
        try:
            target = str(descriptor.readlink())
            status = descriptor.stat()
        except OSError as error:
            remarks.append(f"its output cannot be seen ({error.strerror})")
            continue
        if stat.S_ISREG(status.st_mode):
            spec = _same_file(base, target, status)
            if spec:
                return spec, f"output goes to {spec}"
            remarks.append("its output goes to a file that has been removed or cannot be reached")
        elif stat.S_ISSOCK(status.st_mode) and (unit := _unit(base)):
            return f"journal:{unit}", f"output goes to the journal of {unit}"
        elif stat.S_ISCHR(status.st_mode):
            remarks.append("its output is discarded" if target == os.devnull else "its output goes to a terminal")
        else:
            remarks.append("its output goes to a pipe or socket of another program")
    return "", remarks[0] if remarks else "its output cannot be seen"


def _same_file(base: Path, target: str, status: os.stat_result) -> str:
    """Return the path of an open file, seen from here: as it is, or through the root of the process's container."""
    for path in (target, f"{base}/root{target}"):
        try:
            found = Path(path).stat()
        except OSError:
            continue
        if (found.st_dev, found.st_ino) == (status.st_dev, status.st_ino):
            return path
    return ""


def _unit(base: Path) -> str:
    """Return the systemd service that a process runs in, or the empty string."""
    try:
        lines = (base / "cgroup").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        name = PurePath(line.rpartition(":")[2]).name
        if name.endswith(".service") and re.fullmatch(r"[\w.@\\-]+", name) and not name.startswith("user@"):
            return name
    return ""
