"""Other processes on the card of an engine: who they are, what they hold, and whether they are why memory ran out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import moves
from gpuwatch.diagnosis.causes.view import advise
from gpuwatch.diagnosis.explanation import size
from gpuwatch.diagnosis.finding import Evidence
from gpuwatch.engines.sizes import bytes_of

if TYPE_CHECKING:
    from gpuwatch.diagnosis.causes.oom import Case
    from gpuwatch.diagnosis.causes.view import Cause, Sample, View
    from gpuwatch.model import LogEvent

ENGINES = ("VLLM::", "sglang::")
"""How engines call their processes."""
SHOWN = 3
SAME = 0.1
"""Two readings of what a process holds within this share of each other may be the same process."""
_HELD = re.compile(r"Process (?P<pid>\d+) has (?P<size>[\d.]+ \w+) memory in use")


@dataclass(frozen=True, slots=True)
class Tenant:
    """A process on the card: its name (may be empty), its pid and the bytes that it holds."""

    name: str
    pid: str
    held: float
    evidence: Evidence | None = None

    def __str__(self) -> str:
        """Return the process for a sentence."""
        return f"{self.name or 'a process'} (pid {self.pid}, {size(self.held)})"


def listed(view: View, gpu: str = "", *, engines: bool = False) -> list[Tenant]:
    """Return the processes that nvidia-smi lists on a card (on all where `gpu` is empty).

    Those of engines are left out unless asked for: they may be this engine's own.
    Of several readings the newest one counts. The largest comes first.
    """
    newest: dict[tuple[str, str], Sample] = {}
    for sample in view.samples("gpu_process_memory_bytes"):
        if gpu and sample.labels.get("gpu", gpu) != gpu:
            continue
        newest[sample.labels.get("gpu", ""), sample.labels.get("pid", "")] = sample
    found = []
    for (_, pid), sample in newest.items():
        name = re.split(r"[/\\]", sample.labels.get("process", ""))[-1]
        if (engines or not name.startswith(ENGINES)) and sample.value > 0:
            text = f"{name or 'a process'} (pid {pid}) holds {size(sample.value)}"
            found.append(
                Tenant(name, pid, sample.value, Evidence(text, sample.path, None, sample.name, sample.value, "bytes"))
            )
    return sorted(found, key=lambda tenant: -tenant.held)


def told(view: View, event: LogEvent, gpu: str) -> list[Tenant]:
    """Return the processes that torch's message names beside its own, with their names where nvidia-smi lists them."""
    rows = listed(view, gpu)
    text = event.field("procs")
    held = _HELD.findall(text)
    if "this process has" not in text:
        # In a container the message's own process is one among the others, under the host's pid.
        held = _without_own(held, event)
    names = {row.pid: row for row in rows}
    return [
        names.get(pid, Tenant("", pid, float(bytes_of(amount) or 0)))
        if pid in names
        else _by_size(pid, float(bytes_of(amount) or 0), rows)
        for pid, amount in held
    ]


def _without_own(held: list[tuple[str, str]], event: LogEvent) -> list[tuple[str, str]]:
    """Return the processes without the one that holds about what torch's allocator does: the message's own."""
    allocated, spare = bytes_of(event.field("alloc")), bytes_of(event.field("unalloc"))
    if allocated is None or not held:
        return []
    own = allocated + (spare or 0)
    mine = min(held, key=lambda each: abs((bytes_of(each[1]) or 0) - own))
    return [each for each in held if each is not mine]


def _by_size(pid: str, held: float, rows: list[Tenant]) -> Tenant:
    same = [row for row in rows if _alike(held, row.held)]
    return same[0] if len(same) == 1 else Tenant("", pid, held)


def _alike(one: float, other: float) -> bool:
    return abs(one - other) <= SAME * max(one, other)


def naming(tenants: list[Tenant]) -> str:
    """Return the processes for the end of a sentence: ``: ollama (pid 7, 3.5 GiB)``, or nothing."""
    return ": " + ", ".join(map(str, tenants[:SHOWN])) if tenants else ""


def evidence(tenants: list[Tenant]) -> list[Evidence]:
    """Return the rows of nvidia-smi about some processes."""
    return [tenant.evidence for tenant in tenants[:SHOWN] if tenant.evidence is not None]


def within_share(case: Case) -> float | None:
    """Return the share of the card that the engine may take, where it kept to it and what it asked for was in it."""
    oom, share = case.oom, moves.share_of(case.run)
    if share is None or oom.total is None or oom.requested is None or oom.free is None or oom.others is None:
        return None
    own = oom.total - oom.free - oom.others
    return share if own + oom.requested <= share * oom.total else None


def squeezed(case: Case, share: float) -> Cause:
    """Explain a request that was within the engine's share of the card, and that others had taken."""
    oom = case.oom
    held, total = oom.others or 0, oom.total or 0
    tenants = told(case.view, case.event, oom.gpu)
    own = total - (oom.free or 0) - held
    # What is outside the engine's share already is room for the others.
    beyond = max(0.0, held - (1 - share) * total)
    return case.found(
        "gpu_out_of_memory",
        f"Other processes hold {size(held)} of {case.where}{naming(tenants)}. The engine uses {size(own)} of the "
        f"{size(share * total)} that are its share ({share:g}), and {case.asked} could not be had: not its own peak, "
        "but the others' memory is what is missing.",
        0.85,
        [
            advise("stop the other process, or give it another card; nvidia-smi lists what holds this one"),
            *moves.lower_fraction(case.run, beyond, total, "or leave its memory out of the engine's share"),
        ],
        *evidence(tenants),
    )


def crowded(case: Case) -> Cause:
    """Explain a request that failed on a card that others hold most of, whatever the allocator keeps in pieces."""
    oom = case.oom
    held, total = oom.others or 0, oom.total or 0
    tenants = told(case.view, case.event, oom.gpu)
    return case.found(
        "gpu_out_of_memory",
        f"Other processes hold {size(held)} of the {size(total)} of {case.where}{naming(tenants)}, and {case.asked} "
        f"could not be had. {size(oom.spare or 0)} are reserved and unused in this process: in pieces, they did not "
        "serve it either.",
        0.75,
        [
            advise("stop the other process, or give it another card; nvidia-smi lists what holds this one"),
            advise("or let the allocator join its pieces", "PYTORCH_CUDA_ALLOC_CONF", None, "expandable_segments:True"),
        ],
        *evidence(tenants),
    )
