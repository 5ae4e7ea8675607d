"""The numbers of NVIDIA's Xid errors: what each means, whose fault it is, and what to do.

Source: NVIDIA, Xid Errors and its catalogue (docs.nvidia.com/deploy/xid-errors). The kinds follow the immediate action
that the catalogue asks for: "stopped" is a reset although no part of the card is known to have failed, "repaired" and
"endured" are errors with which the card goes on working.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

Kind: TypeAlias = Literal["hardware", "stopped", "program", "follows", "repaired", "endured"]

RESET = "drain the card and reset it: stop what uses it, then nvidia-smi --gpu-reset -i INDEX, or reboot"
AT_LEISURE = "reset the card when its work allows (nvidia-smi --gpu-reset -i INDEX), which completes the repair"
REPLACE = "if the same card reports it again after that, have it replaced; do not tune the engine"
LINK = "check the card's seat, riser, power cables and power supply; it is often load that brings it about"
BRIDGE = (
    "see nvidia-smi nvlink -s and nvidia-smi nvlink -e; reseat bridges, check the fabric manager, reset the node's GPUs"
)
FIRMWARE = "update driver and firmware; after a GSP time-out the card answers only after a reset or a reboot"
PROGRAM = "find the program that ran there (dmesg prints its pid); update engine and driver, try without new flags"
AGAIN = "if it comes back after that, run nvidia-bug-report.sh before the next reset, and ask NVIDIA's support"
SPARES = "plan the replacement of the card: its work may go on, and the same error may come again"
RETRAIN = "nothing now; a reset of the card at its next service trains the link anew, a newer VBIOS may help"
REPEATS = "suspect the card only if this PCI address alone repeats it across programs and driver versions"


@dataclass(frozen=True, slots=True)
class Xid:
    """One number of the catalogue."""

    meaning: str
    kind: Kind
    advice: tuple[str, ...]


MEMORY = (RESET, REPLACE)
"""What is to be done about memory of the card that fails."""
_REPAIR = (AT_LEISURE, REPLACE)
_STOPPED = (RESET, AGAIN)
_BUS = (LINK, RESET)
_NVLINK = (BRIDGE, REPLACE)
_GSP = FIRMWARE_STEPS = (FIRMWARE, RESET)
"""What is to be done about the card's own processors: their firmware may stop over what a program did."""
_SOFT = (PROGRAM, REPEATS)

TABLE: dict[int, Xid] = {
    8: Xid("GPU stopped processing", "program", _SOFT),
    13: Xid("graphics engine exception: a kernel read or wrote out of bounds, or was illegal", "program", _SOFT),
    31: Xid("GPU memory page fault: a kernel touched an address that is not mapped", "program", _SOFT),
    32: Xid("invalid or corrupted push buffer", "program", _SOFT),
    38: Xid("driver firmware error", "hardware", _GSP),
    43: Xid("the GPU stopped a program's work", "program", _SOFT),
    45: Xid("a program's work was removed early: it ended, or an earlier error ended it", "follows", _SOFT),
    46: Xid("the GPU stopped processing and did not end its work in time", "stopped", _STOPPED),
    48: Xid("double-bit ECC error: memory contents are lost", "hardware", MEMORY),
    54: Xid("auxiliary power is not connected to the card", "hardware", _BUS),
    56: Xid("display engine error", "hardware", MEMORY),
    57: Xid("error while programming the video memory interface", "hardware", MEMORY),
    58: Xid("unstable video memory interface", "hardware", MEMORY),
    61: Xid("internal microcontroller breakpoint", "hardware", _GSP),
    62: Xid("internal microcontroller halt", "hardware", _GSP),
    63: Xid("a row of memory was marked for remapping, or a page retired", "repaired", _REPAIR),
    64: Xid("a row could not be remapped, or a page not retired", "hardware", MEMORY),
    68: Xid("video decoder exception", "program", _SOFT),
    69: Xid("graphics engine class error", "program", _SOFT),
    74: Xid("NVLink error", "hardware", _NVLINK),
    79: Xid("the GPU has fallen off the bus", "hardware", _BUS),
    92: Xid("high rate of single-bit ECC errors", "hardware", MEMORY),
    94: Xid("contained ECC error: the program that used the memory is lost", "hardware", MEMORY),
    95: Xid("uncontained ECC error: results of all programs on the card are in doubt", "hardware", MEMORY),
    109: Xid("context switch time-out", "stopped", _STOPPED),
    110: Xid("security fault", "hardware", _GSP),
    119: Xid("the GPU's own processor (GSP) does not answer the driver", "hardware", _GSP),
    120: Xid("error of the GPU's own processor (GSP)", "hardware", _GSP),
    121: Xid("errors of the chip-to-chip link, which were corrected", "endured", (RETRAIN,)),
    136: Xid("NVLink training error", "hardware", _NVLINK),
    137: Xid("NVLink fault that another GPU or program caused", "program", _SOFT),
    140: Xid("unrecovered ECC error", "hardware", MEMORY),
    143: Xid("the GPU could not be initialised", "hardware", _GSP),
    144: Xid("NVLink error (SAW)", "hardware", _NVLINK),
    145: Xid("NVLink error (RLW)", "hardware", _NVLINK),
    146: Xid("NVLink error (TLW)", "hardware", _NVLINK),
    147: Xid("NVLink error (TREX)", "hardware", _NVLINK),
    148: Xid("NVLink error (NVLPW)", "hardware", _NVLINK),
    149: Xid("NVLink error (NETIR)", "hardware", _NVLINK),
    150: Xid("NVLink error (MSE)", "hardware", _NVLINK),
    154: Xid("the driver now asks for a recovery action", "hardware", (RESET,)),
    155: Xid("NVLink error", "hardware", _NVLINK),
    156: Xid("a part of the card was retired, which a reset completes", "repaired", (RESET, REPLACE)),
    157: Xid("a part of the card could not be retired: no spare is left", "endured", (SPARES,)),
    158: Xid("fatal time-out of the GPU", "hardware", _BUS),
    160: Xid("a memory channel was retired", "repaired", _REPAIR),
    161: Xid("a memory channel could not be retired", "endured", (SPARES,)),
    171: Xid("details of an ECC error in DRAM", "hardware", MEMORY),
    172: Xid("details of an ECC error in SRAM", "hardware", MEMORY),
}
"""What is known by number."""

RECOVERY = "154"
"""The driver asks for a recovery, or, with "None", no longer does."""
CONTAINED = "94"
"""An ECC error that ends the program whose memory it is, and no other."""
DETAILS = frozenset({63, 154, 171, 172})
"""Xids that tell more about another one, or what came of it."""


def xid_of(code: str) -> Xid | None:
    """Return what is known of a number as it is printed; None for an unknown one."""
    return TABLE.get(int(code)) if code.isdigit() else None


def meaning_of(code: str) -> str:
    """Return what an Xid means in a few words; the empty string for an unknown number."""
    known = xid_of(code)
    return known.meaning if known is not None else ""


def is_hardware(code: str) -> bool:
    """Whether the number names a fault of the card, its memory or its links, or one that only a reset ends."""
    known = xid_of(code)
    return known is not None and known.kind in ("hardware", "stopped")


def is_stopped(code: str) -> bool:
    """Whether the card needs a reset, and no part of it is known to have failed."""
    known = xid_of(code)
    return known is not None and known.kind == "stopped"


def is_application(code: str) -> bool:
    """Whether the number is about one program on the card, and the others go on: those of programs, and 94."""
    known = xid_of(code)
    return known is not None and (known.kind in ("program", "follows") or code == CONTAINED)


def is_repair(code: str) -> bool:
    """Whether the number names a repair, or an error that needs none: the card goes on working."""
    known = xid_of(code)
    return known is not None and known.kind in ("repaired", "endured")


def repair_of(where: str, codes: Sequence[int], *, several: bool = False) -> str:
    """Return what to say of numbers of repairs, and of errors that need none: of the card `where`, or `several`."""
    told = "; ".join(f"Xid {code}, {TABLE[code].meaning}" for code in codes[:3])
    if all(TABLE[code].kind == "endured" for code in codes):
        return f"{where} {'go' if several else 'goes'} on working: {told}."
    pending = any(RESET in TABLE[code].advice for code in codes)
    after = "A reset has to complete that" if pending else "They go on working" if several else "It goes on working"
    return f"{where} took a part of {'their' if several else 'its'} memory out of use: {told}. {after}."
