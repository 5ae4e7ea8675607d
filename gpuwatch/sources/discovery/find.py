"""Finding the engines that run on this machine, and saying what was looked for where there are none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from gpuwatch.engines.flags import PRESENT, parse_flags
from gpuwatch.engines.log_text import redact
from gpuwatch.engines.sizes import count_of
from gpuwatch.sources.discovery.ports import LOOPBACK, PortAnswer, ask_ports, open_ports
from gpuwatch.sources.discovery.processes import (
    ProcessTable,
    ServerTree,
    environment,
    listening,
    output_log,
    server_trees,
)
from gpuwatch.sources.nvml.attribution import EngineProcess

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatch.clock import Clock
    from gpuwatch.sources.discovery.processes import Process

Basis: TypeAlias = Literal["process", "port"]
Sockets: TypeAlias = "Sequence[tuple[str, int]]"
"""(address, port) pairs on which a server accepts connections."""

PORTS = (*range(8000, 8011), *range(30000, 30006))
_DEFAULT_PORT = {"vllm": 8000, "sglang": 30000}
_ANY_ADDRESS = ("0.0.0.0", "::", "", "localhost", "::1", "127.0.0.1")  # noqa: S104  # compared with, not bound to
_DEVICES = "CUDA_VISIBLE_DEVICES"
_ORDER = "CUDA_DEVICE_ORDER"
_KEY = "VLLM_API_KEY"
# A port that answered like no engine is asked again after this many seconds.
_ASK_AGAIN = 60.0
_NAMES = {"vllm": "vLLM", "sglang": "SGLang"}


@dataclass(frozen=True, slots=True)
class FoundEngine:
    """An engine on this machine.

    `server` is its ``host:port`` and `url` the address to scrape. `pid` is its topmost process, None where only the
    port is known; `pids` the whole tree. `flags` are the launch flags by canonical name, a secret's value being
    ``set``. `log` is a log spec or empty, `log_remark` why. `visible_devices` and `device_order` are
    CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, None where unset or unreadable. `tp` are the tensor-parallel ranks and
    `ranks` those of all kinds on this machine. `ready` is False while nothing accepts connections at `server`.
    """

    server: str
    url: str
    kind: str
    pid: int | None = None
    pids: frozenset[int] = frozenset()
    flags: tuple[tuple[str, str], ...] = ()
    log: str = ""
    log_remark: str = ""
    visible_devices: str | None = None
    device_order: str | None = None
    tp: int = 1
    ranks: int = 1
    ready: bool = True
    basis: Basis = "process"

    def flag(self, name: str) -> str:
        """Return a launch flag as given, or the empty string."""
        return dict(self.flags).get(name, "")


@dataclass(frozen=True, slots=True)
class Discovered:
    """What was found; `looked_for` are (what, result) in words, for a screen that has nothing else to show."""

    engines: tuple[FoundEngine, ...]
    looked_for: tuple[tuple[str, str], ...]


class Discovery:
    """Looks for engines: first the processes of this machine, then a few ports on loopback that no process explains.

    A port that listens is given `patience` seconds to answer.
    """

    def __init__(self, clock: Clock, ports: Sequence[int] = PORTS, *, patience: float = 1.0) -> None:
        self._clock = clock
        self._patience = patience
        self._ports = tuple(ports)
        self._table = ProcessTable(clock)
        self._answers: dict[int, tuple[float, PortAnswer]] = {}
        self._sockets: dict[Process, Sockets] = {}

    def find(self, seconds: float = 3.0) -> Discovered:
        """Look once, for about `seconds` at most."""
        deadline = self._clock.monotonic() + seconds
        scan = self._table.scan(deadline)
        trees, orphans = server_trees(scan.processes)
        rows: list[tuple[str, str]] = [_process_row(len(scan.processes), trees, complete=scan.complete)]
        rows += [_orphan_row(orphan) for orphan in orphans]
        engines: dict[str, FoundEngine] = {}
        for tree in trees:
            if self._clock.monotonic() > deadline:
                rows.append((_name(tree), "not looked at: no time was left"))
                continue
            flags = parse_flags(tree.engine, tree.arguments)
            if flags.get("headless") == "true":
                rows.append((_name(tree), "runs with --headless: it serves no API on this machine"))
                continue
            engine = _engine(tree, flags, self._listening(tree, flags))
            rows += _engine_rows(tree, engine, engines.get(engine.server))
            engines.setdefault(engine.server, engine)
        self._sockets = {tree.root: self._sockets[tree.root] for tree in trees if tree.root in self._sockets}
        by_port = self._by_port({_port(engine.server) for engine in engines.values()}, deadline, rows)
        return Discovered((*engines.values(), *by_port), tuple(rows))

    def _listening(self, tree: ServerTree, flags: dict[str, str]) -> Sockets | None:
        """Return where a server accepts connections. One that listens on its port does so until it ends.

        The kernel walks through the table of all connections for each reading, which takes 20 ms on a large machine.
        """
        if tree.root in self._sockets:
            return self._sockets[tree.root]
        sockets = listening(tree)
        wanted = _wanted_port(tree.engine, flags)
        if sockets and any(port == wanted for _, port in sockets):
            self._sockets[tree.root] = sockets
        return sockets

    def _by_port(self, explained: set[int], deadline: float, rows: list[tuple[str, str]]) -> list[FoundEngine]:
        """Ask the ports that no found process explains."""
        ports = [port for port in self._ports if port not in explained]
        if not ports:
            return []
        what = f"ports {_ranges(ports)} on {LOOPBACK}"
        left = deadline - self._clock.monotonic()
        if left <= 0:
            rows.append((what, "not tried: no time was left"))
            return []
        answering = open_ports(ports, min(0.3, left))
        if not answering:
            rows.append((what, "none listens"))
        now = self._clock.monotonic()
        due = [port for port in answering if port not in self._answers or self._answers[port][0] <= now]
        for answer in ask_ports(due, self._clock, max(0.2, min(self._patience, deadline - now))):
            self._answers[answer.port] = (now if answer.engine else now + _ASK_AGAIN, answer)
        self._answers = {port: self._answers[port] for port in answering}
        found = []
        for port in answering:
            answer = self._answers[port][1]
            rows.append((f"port {LOOPBACK}:{port}", answer.text))
            if answer.engine:
                server = f"{LOOPBACK}:{port}"
                remark = "its process was not found; give its log with --log"
                found.append(FoundEngine(server, f"http://{server}", answer.engine, log_remark=remark, basis="port"))
        return found


def engine_process(found: FoundEngine) -> EngineProcess | None:
    """Return a found engine as the attribution of GPU memory wants it; None where its processes are not known."""
    if found.pid is None:
        return None
    return EngineProcess(
        found.server,
        found.pid,
        found.pids,
        environ_visible_devices=found.visible_devices,
        tensor_parallel_size=found.ranks,
        engine_kind=found.kind,
        environ_device_order=found.device_order,
    )


def _engine(tree: ServerTree, flags: dict[str, str], sockets: Sockets | None) -> FoundEngine:
    """Describe one server from its command line, its sockets, its environment and its open files."""
    flags = dict(flags)
    # `vllm serve MODEL` takes the model as a bare word.
    if tree.engine == "vllm" and "model" not in flags and tree.arguments and not tree.arguments[0].startswith("-"):
        flags["model"] = tree.arguments[0]
    values = environment(tree.root.pid, (_DEVICES, _ORDER, _KEY))
    if _KEY in values:
        flags["api-key"] = PRESENT
    address, port, ready = choose_address(tree.engine, flags, sockets)
    server = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    scheme = "https" if "ssl-certfile" in flags or "ssl-keyfile" in flags else "http"
    log, remark = output_log(tree.root.pid)
    tp, ranks = _ranks(tree.engine, flags)
    return FoundEngine(
        server,
        f"{scheme}://{server}",
        tree.engine,
        tree.root.pid,
        tree.pids,
        tuple(sorted((name, redact(value)) for name, value in flags.items())),
        log,
        remark,
        values.get(_DEVICES),
        values.get(_ORDER),
        tp,
        ranks,
        ready,
    )


def choose_address(engine: str, flags: dict[str, str], sockets: Sockets | None) -> tuple[str, int, bool]:
    """Return (host, port, whether it accepts connections) of a server's API.

    Of several listening sockets (engines open others between their processes) it is the one on the flag's port, else on
    the default port, else the lowest. Without a socket the flags say; whether it listens is then found by connecting
    (`sockets` None: not allowed to look) or known to be false.
    """
    wanted = _wanted_port(engine, flags)
    host = flags.get("host", "")
    if sockets:
        ip, port = next((pair for pair in sockets if pair[1] == wanted), sockets[0])
        if "port" in flags and port != wanted:
            return _reachable(host), wanted, False
        return _reachable(ip), port, True
    host = _reachable(host)
    ready = host == LOOPBACK and bool(open_ports([wanted]))
    return host, wanted, ready


def _wanted_port(engine: str, flags: dict[str, str]) -> int:
    return count_of(flags.get("port", "")) or _DEFAULT_PORT[engine]


def _reachable(host: str) -> str:
    """Return the address to use from this machine for one that a server is bound to."""
    return LOOPBACK if host in _ANY_ADDRESS else host.removeprefix("::ffff:")


def _ranks(engine: str, flags: dict[str, str]) -> tuple[int, int]:
    """Return (tensor-parallel ranks, ranks on this machine).

    vLLM adds data-parallel engines of tp x pp each; SGLang's data parallelism lies within its tp ranks with
    ``--enable-dp-attention`` and multiplies them without.
    """

    def number(name: str) -> int:
        return max(1, count_of(flags.get(name, "")) or 1)

    if engine == "sglang":
        tp = number("tp-size")
        copies = 1 if flags.get("enable-dp-attention") == "true" else number("dp-size")
        return tp, max(1, tp * number("pp-size") * copies // number("nnodes"))
    tp = number("tensor-parallel-size")
    copies = number("data-parallel-size-local") if "data-parallel-size-local" in flags else number("data-parallel-size")
    return tp, max(1, tp * number("pipeline-parallel-size") * copies // number("nnodes"))


def _name(tree: ServerTree) -> str:
    return f"{_NAMES[tree.engine]} server, process {tree.root.pid}"


def _process_row(count: int, trees: Iterable[ServerTree], *, complete: bool) -> tuple[str, str]:
    kinds = [tree.engine for tree in trees]
    result = f"{count} looked at: {kinds.count('vllm')} vLLM and {kinds.count('sglang')} SGLang servers"
    return "processes", result if complete else f"{result}; not all, the time was over"


def _orphan_row(orphan: Process) -> tuple[str, str]:
    title = orphan.arguments[0] if orphan.arguments else "?"
    return f"process {orphan.pid}", f"{title} runs without a server: left over, and may hold GPU memory"


def _engine_rows(tree: ServerTree, engine: FoundEngine, other: FoundEngine | None) -> list[tuple[str, str]]:
    """Say what is known of one server, and where another one claims the same address."""
    state = "" if engine.ready else "; nothing accepts connections there (it starts, or runs in a network of its own)"
    rows = [(_name(tree), f"{engine.url}{state}")]
    if other is not None:
        rows.append((_name(tree), f"shares {engine.server} with process {other.pid}: only that one is followed"))
    if engine.flag("uds"):
        rows.append((_name(tree), f"serves on the Unix socket {engine.flag('uds')}, which cannot be scraped"))
    rows.append((f"log of {engine.server}", engine.log_remark))
    if not engine.log:
        rows[-1] = (rows[-1][0], f"{engine.log_remark}; write it to a file, or give it with --log")
    return rows


def _port(server: str) -> int:
    return int(server.rpartition(":")[2])


def _ranges(ports: Sequence[int]) -> str:
    """Write ports as ranges: ``8000-8010, 30000``."""
    spans: list[list[int]] = []
    for port in sorted(ports):
        if spans and port == spans[-1][1] + 1:
            spans[-1][1] = port
        else:
            spans.append([port, port])
    return ", ".join(f"{low}-{high}" if high > low else str(low) for low, high in spans)
