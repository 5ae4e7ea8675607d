"""The one place where the NVML worker touches pynvml: calls that fail with a number, and raw reads.

Runs in the worker process only. Standard library and pynvml, no dataclasses: every import costs memory twice.
Return codes are those of nvml.h (``nvmlReturn_t``); two of our own are negative.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any


def _find_library(name: str) -> str | None:
    """Stand in for ``ctypes.util.find_library`` until it is called."""
    from ctypes.util import find_library  # noqa: PLC0415  # this is what the worker does without

    return find_library(name)


_SEARCH = "ctypes.util"
_stands_in = _SEARCH not in sys.modules
if _stands_in:
    # pynvml imports `find_library` and never calls it; with subprocess behind it, it costs the worker 1.2 MiB.
    sys.modules[_SEARCH] = type(sys)(_SEARCH)
    vars(sys.modules[_SEARCH])["find_library"] = _find_library
try:
    import pynvml
finally:
    if _stands_in:
        del sys.modules[_SEARCH]

UNINITIALIZED = 1
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
VERSION_MISMATCH = 18
NO_DATA = 21
GPU_NOT_FOUND = 28
UNKNOWN = 999
NOT_TEXT = -1
OUT_OF_RANGE = -2

UNSUPPORTED = frozenset({2, NOT_SUPPORTED, NOT_FOUND, FUNCTION_NOT_FOUND, 25, 26})
"""Codes that mean: this driver or card does not have it. 25 and 26 are wrong struct version and deprecated."""

LIBRARY_GONE = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, VERSION_MISMATCH})
"""Codes after which only a new process helps, because a process cannot load a second libnvidia-ml.so.1."""

XID_EVENT = 8
NO_VALUE = 2**64 - 1


class CallFailed(Exception):  # noqa: N818  # it is an answer of the driver, not a programming error
    """An NVML call that did not answer with a value; `code` says why."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def ask(function: str, *args: Any) -> Any:
    """Call a pynvml function by name.

    Raises:
        CallFailed: for every kind of failure, also for a function that the binding or the driver lacks, and for
            text that is not UTF-8 (which pynvml lets through as UnicodeDecodeError).
    """
    try:
        return getattr(pynvml, function)(*args)
    except pynvml.NVMLError as error:
        # Some drivers make pynvml raise NVMLError(0), "Success", for an empty list.
        raise CallFailed(error.value or NO_DATA) from None
    except UnicodeDecodeError:
        raise CallFailed(NOT_TEXT) from None
    except AttributeError:
        raise CallFailed(FUNCTION_NOT_FOUND) from None


def pointer(symbol: str) -> Any:
    """Return the C function of libnvidia-ml, or None where this driver does not export it."""
    try:
        return pynvml._nvmlGetFunctionPointer(symbol)  # noqa: SLF001  # the only way to ask for a symbol; checked at start
    except pynvml.NVMLError:
        return None


def check(code: int) -> None:
    """Raise CallFailed unless `code` is success."""
    if code:
        raise CallFailed(code)


def text(symbol: str, handle: Any, size: int = 96) -> str:
    """Read a string of a device without trusting its encoding; bytes that are not UTF-8 become U+FFFD."""
    function = pointer(symbol)
    if function is None:
        raise CallFailed(FUNCTION_NOT_FOUND)
    buffer = ctypes.create_string_buffer(size)
    check(function(handle, buffer, ctypes.c_uint(size)))
    return buffer.value.decode("utf-8", "replace")


def address(handle: Any) -> int:
    """Return the address of a device handle, which identifies the device in events."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def binding_problem() -> str:
    """Say what is wrong with the module that answers to ``import pynvml``, or return the empty string.

    Old releases of the package ``pynvml`` are a folder and shadow nvidia-ml-py's single file.
    """
    if not hasattr(pynvml, "_nvmlGetFunctionPointer") or str(pynvml.__file__).endswith("__init__.py"):
        return f"the outdated package pynvml ({pynvml.__file__}) hides nvidia-ml-py: pip uninstall pynvml"
    return ""


def version_tuple(version: str) -> tuple[int, ...]:
    """Split a driver version such as ``580.95.05`` into numbers; parts that are no numbers end it."""
    numbers = []
    for part in version.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


class MemoryV1(ctypes.Structure):
    """``nvmlMemory_t``: `used` contains the driver's reserve."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class MemoryV2(ctypes.Structure):
    """``nvmlMemory_v2_t``."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class Process16(ctypes.Structure):
    """``nvmlProcessInfo_v1_t``."""

    _fields_ = (("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong))


class Process24(ctypes.Structure):
    """``nvmlProcessInfo_v2_t``."""

    _fields_ = (*Process16._fields_, ("gi", ctypes.c_uint), ("ci", ctypes.c_uint))


class Process32(ctypes.Structure):
    """What drivers 535.43 to 535.86 return under the name of the 24-byte struct."""

    _fields_ = (*Process24._fields_, ("protected", ctypes.c_ulonglong))


def process_layout(driver: tuple[int, ...]) -> type[ctypes.Structure]:
    """Return the struct that the newest process-list function of this driver fills.

    Drivers 535.43 to 535.86 export ConfComputeMemSizeInfo and not yet RunningProcessDetailList; both the symbols
    and the version have to say so (XuehaiPan/nvitop#88).
    """
    trap = pointer("nvmlDeviceGetConfComputeMemSizeInfo") and not pointer("nvmlDeviceGetRunningProcessDetailList")
    return Process32 if trap and (535, 43) <= driver < (535, 87) else Process24


class ProcessLister:
    """Lists the processes of one kind (Compute, Graphics, MPSCompute) on a device, in one call."""

    def __init__(self, kind: str, driver: tuple[int, ...]) -> None:
        base = f"nvmlDeviceGet{kind}RunningProcesses"
        self._function, self._layout = pointer(base + "_v3"), process_layout(driver)
        if self._function is None:
            self._function, self._layout = pointer(base + "_v2"), Process24
        if self._function is None:
            self._function, self._layout = pointer(base), Process16
        self._room = 64

    def read(self, handle: Any) -> dict[int, int | None]:
        """Return bytes by process id; None where the driver does not know them. Raises CallFailed."""
        if self._function is None:
            raise CallFailed(FUNCTION_NOT_FOUND)
        for _ in range(3):
            array = (self._layout * self._room)()
            count = ctypes.c_uint(self._room)
            code = self._function(handle, ctypes.byref(count), array)
            if code == INSUFFICIENT_SIZE:
                self._room = max(self._room, count.value) * 2
                continue
            check(code)
            found: dict[int, int | None] = {}
            for entry in array[: count.value]:
                used = None if entry.used == NO_VALUE else entry.used
                known = found.get(entry.pid)
                # Two compute instances of one process: the figures are of the shared GPU instance.
                found[entry.pid] = used if known is None else max(known, used or 0)
            return found
        raise CallFailed(INSUFFICIENT_SIZE)
