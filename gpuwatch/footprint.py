"""What keeps a program that runs for months small: imports without TLS where nobody asks for it, one malloc arena."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import sys

_TLS = "ssl"
_M_ARENA_MAX = -8
"""The parameter of mallopt(3) for the number of arenas."""


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
