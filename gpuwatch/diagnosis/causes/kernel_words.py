"""What the kernel says of a GPU beside its Xids: errors of the PCIe link, processes that wait in it, unknown Xids."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import moments
from gpuwatch.diagnosis.causes.view import Cause, advise
from gpuwatch.diagnosis.explanation import Explanation, logged
from gpuwatch.diagnosis.finding import NotEnough
from gpuwatch.diagnosis.xid_table import xid_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import View
    from gpuwatch.model import LogEvent

_ENGINE = re.compile(r"vllm|sglang|ray::|python|nvidia|cuda", re.IGNORECASE)
"""Names of processes that may be an engine's, or the driver's own; the kernel cuts them after 15 characters."""


def _place(event: LogEvent) -> str:
    return f"{event.text.strip()} [{PurePath(event.source).name}:{event.line}]"


def pcie(view: View) -> Iterator[Cause]:
    """Judge errors of a card's PCIe link that the kernel could not correct."""
    events = view.events("pcie_error")
    broken = [event for event in events if event.field("grade") == "Fatal"]
    if not events:
        return
    main = (broken or events)[0]
    layer = f", in its {main.field('layer').strip().lower()}" if main.field("layer") else ""
    ends = moments.ends(view)
    yield Cause(
        "pcie_degraded",
        Explanation(
            f"The PCIe link of the GPU at {main.field('pci')} had an error that was not corrected"
            + (f" and is fatal{layer}: the card has to be reset, or is gone." if broken else f"{layer}."),
            0.85,
            (*(logged(event) for event in (main, *(each for each in events if each is not main))[:2]),
             *moments.doubt(main, ends), *moments.elsewhere(main, ends)),
            (
                advise("does it still answer, and with which Xid: nvidia-smi; dmesg -T | grep -i -E 'xid|nvrm|aer'"),
                advise("reseat the card; check riser, cables, slot and power; reset the card or reboot"),
            ),
        ),
        main.time,
        severity=(moments.milder(main, ends) or "critical") if broken else None,
        apart=moments.related(main, ends) is False,
        title="The PCIe link of a GPU reported errors",
    )  # fmt: skip


def untold(view: View) -> Iterator[NotEnough]:
    """Quote lines of the kernel that say that something is wrong, and not what."""
    blocked = [event for event in view.events("task_blocked") if _ENGINE.search(event.field("name"))]
    for event in blocked[:1]:
        yield NotEnough(
            "engine_stalled",
            f"what the process waits for in the kernel (the driver, or a disk): {_place(event)}; cat "
            f"/proc/{event.field('pid')}/stack, and what dmesg says above it",
        )
    unknown = [event for event in view.events("xid") if xid_of(event.field("code")) is None]
    for event in unknown[:1]:
        yield NotEnough(
            "xid_hardware",
            f"what Xid {event.field('code')} means, which is not among those known here: {_place(event)}; see "
            "docs.nvidia.com/deploy/xid-errors for this driver",
        )
