"""The samples of the last minutes in memory: one ring of columns per target, a label index, stale markers."""

from __future__ import annotations

from gpuwatch.store.block import HOLE_BITS, STALE_BITS, Block, may_have_nan
from gpuwatch.store.matchers import Matcher
from gpuwatch.store.regex import RegexError, compile_regex
from gpuwatch.store.store import Column, Moved, Rows, Store

__all__ = [
    "HOLE_BITS",
    "STALE_BITS",
    "Block",
    "Column",
    "Matcher",
    "Moved",
    "RegexError",
    "Rows",
    "Store",
    "compile_regex",
    "may_have_nan",
]
