"""The numbers of NVIDIA's Xid errors: what each means, whose fault it is, and what to do.

Source: NVIDIA, Xid Errors and its catalogue (docs.nvidia.com/deploy/xid-errors).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["hardware", "program", "follows", "repaired"]

RESET = "drain the card and reset it: stop what uses it, then nvidia-smi --gpu-reset -i INDEX, or reboot"
AT_LEISURE = "reset the card when its work allows (nvidia-smi --gpu-reset -i INDEX), which completes the repair"
REPLACE = "if the same card reports it again after that, have it replaced; do not tune the engine"
LINK = "check the card's seat, riser, power cables and power supply; it is often load that brings it about"
BRIDGE = (
    "see nvidia-smi nvlink -s and nvidia-smi nvlink -e; reseat bridges, check the fabric manager, reset the node's GPUs"
)
FIRMWARE = "update driver and firmware; after a GSP time-out the card answers only after a reset or a reboot"
PROGRAM = "find the program that ran there (dmesg prints its pid); update engine and driver, try without new flags"
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
_BUS = (LINK, RESET)
_NVLINK = (BRIDGE, REPLACE)
_GSP = (FIRMWARE, RESET)
_SOFT = (PROGRAM, REPEATS)

TABLE: dict[int, Xid] = {
    8: Xid("GPU stopped processing", "program", _SOFT),
    13: Xid("graphics engine exception: a kernel read or wrote out of bounds, or was illegal", "program", _SOFT),
    31: Xid("GPU memory page fault: a kernel touched an address that is not mapped", "program", _SOFT),
    32: Xid("invalid or corrupted push buffer", "program", _SOFT),
    38: Xid("driver firmware error", "hardware", _GSP),
    43: Xid("the GPU stopped a program's work", "program", _SOFT),
    45: Xid("a program's work was removed early: it ended, or an earlier error ended it", "follows", _SOFT),
    48: Xid("double-bit ECC error: memory contents are lost", "hardware", MEMORY),
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
    109: Xid("context switch time-out", "program", _SOFT),
    110: Xid("security fault", "hardware", _GSP),
    119: Xid("the GPU's own processor (GSP) does not answer the driver", "hardware", _GSP),
    120: Xid("error of the GPU's own processor (GSP)", "hardware", _GSP),
    121: Xid("error of the chip-to-chip link", "hardware", _NVLINK),
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
    156: Xid("a part of the card was retired", "repaired", _REPAIR),
    157: Xid("a part of the card could not be retired", "hardware", MEMORY),
    158: Xid("fatal time-out of the GPU", "hardware", _BUS),
    160: Xid("a memory channel was retired", "repaired", _REPAIR),
    161: Xid("a memory channel could not be retired", "hardware", MEMORY),
    171: Xid("details of an ECC error in DRAM", "hardware", MEMORY),
    172: Xid("details of an ECC error in SRAM", "hardware", MEMORY),
}
"""What is known by number."""

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
    """Whether the number names a fault of the card, its memory or its links."""
    known = xid_of(code)
    return known is not None and known.kind == "hardware"


def is_application(code: str) -> bool:
    """Whether the number is about one program on the card, and the others go on: those of programs, and 94."""
    known = xid_of(code)
    return known is not None and (known.kind in ("program", "follows") or code == CONTAINED)


def is_repair(code: str) -> bool:
    """Whether the number names a repair after which the card goes on working."""
    known = xid_of(code)
    return known is not None and known.kind == "repaired"
