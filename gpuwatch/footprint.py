"""What keeps a program that runs for months small: no TLS where nobody asks for it, one malloc arena, no idle code."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_TLS = "ssl"
_M_ARENA_MAX = -8
"""The parameter of mallopt(3) for the number of arenas."""
_MADV_DONTNEED = 4
_SMAPS = Path("/proc/self/smaps")
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \S+ *(.*)")


def import_without_tls(*modules: str) -> None:
    """Import modules of the standard library that use `ssl` where it is there, as in a Python built without it.

    OpenSSL and its tables are 5 MiB. ``http.client`` then has no HTTPSConnection and ``asyncio`` no TLS of its own;
    `ssl` itself can be imported afterwards. Nothing is left out where `ssl` is loaded already.
    """
    if _TLS in sys.modules:
        return
    sys.modules[_TLS] = None  # type: ignore[assignment]  # documented: the import then fails
    try:
        for name in modules:
            importlib.import_module(name)
    finally:
        del sys.modules[_TLS]


def stay_small(*modules: str) -> None:
    """Do both, for ``http.client`` and further `modules`; to be called before they are imported and threads started."""
    _use_one_arena()
    import_without_tls("http.client", *modules)


def _use_one_arena() -> None:
    """Let all threads share one heap where the C library is glibc: its heap per thread is mostly unused room."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library, another system
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def release_code() -> None:
    """Give back the memory of files that only the start needed, on Linux; what is used again is read again.

    The parser of the rules and much of numpy never run after the start: 3 MiB that the kernel would keep as this
    program's. Only mappings that cannot be written, and have no page that ever was, are advised, madvise(2): the
    file, or the page cache, has all of them.
    """
    with contextlib.suppress(AttributeError, OSError, ValueError):  # another system
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for begin, end in _unwritten(_SMAPS.read_text(errors="replace")):
            madvise(begin, end - begin, _MADV_DONTNEED)


def _unwritten(smaps: str) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the read-only mappings of files in the text of proc_pid_smaps(5) without written pages."""
    mapping: tuple[int, int] | None = None
    for line in smaps.splitlines():
        if match := _MAPPING.match(line):
            begin, end, rights, path = match.groups()
            mapping = (int(begin, 16), int(end, 16)) if rights[1] == "-" and path.startswith("/") else None
        elif mapping and line.startswith("Anonymous:"):
            if line.split()[1] == "0":
                yield mapping
            mapping = None
