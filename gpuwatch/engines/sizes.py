"""Sizes and counts as engines print them, read into bytes and numbers. One place for the units of all logs and flags.

Every ``GB`` that vLLM (to 0.8.2), SGLang and Ray print is 2**30 bytes, as is ``GiB``.
"""

from __future__ import annotations

import re

from gpuwatch.units import GIB

MOST_RANKS = 65_536
"""No engine runs on more GPUs: a larger number in a file or a command is none of ranks."""

_BYTES = {
    "b": 1,
    "bytes": 1,
    "byte": 1,
    "kb": 2**10,
    "kib": 2**10,
    "mb": 2**20,
    "mib": 2**20,
    "gb": 2**30,
    "gib": 2**30,
    "tb": 2**40,
    "tib": 2**40,
}
_SIZE = re.compile(r"^(-?[\d,]*\.?\d+)\s*([A-Za-z]+)$")

_SUFFIX = {
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
}
_GROUPED = re.compile(r"(?<=\d)_(?=\d+(?:_\d+)*$)")
"""What Python's ``int`` reads over in a whole number: an underscore between two digits."""
_COUNT = re.compile(r"^(-?\d+(?:\.\d+)?)([kmgtKMGT])?$")


def bytes_of(text: str) -> int | None:
    """Return the bytes in a size with its unit, such as ``75.34 GiB``, ``18.97 MiB`` or ``512 bytes``; None if none."""
    found = _SIZE.match(text.strip())
    if found is None:
        return None
    factor = _BYTES.get(found[2].lower())
    return None if factor is None else round(float(found[1].replace(",", "")) * factor)


def bytes_of_gib(text: str) -> int | None:
    """Return the bytes in a number of GiB; None for a negative number, which engines print where nothing is left."""
    value = float(text)
    return round(value * GIB) if value >= 0 else None


def count_of(text: str) -> int | None:
    """Return a count as launch flags take it: ``8192``, ``16k`` (16,000) or ``16K`` (16,384); None for anything else.

    Source: vLLM's ``human_readable_int`` in ``engine/arg_utils.py``. A capital suffix allows no decimal point.
    """
    found = _COUNT.match(_GROUPED.sub("", text.strip()))
    if found is None or (found[2] and found[2].isupper() and "." in found[1]):
        return None
    value = float(found[1]) * _SUFFIX.get(found[2] or "", 1)
    return int(value) if value == int(value) else None
