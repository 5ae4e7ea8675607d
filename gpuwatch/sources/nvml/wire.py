"""Messages between the NVML worker and its parent: one JSON array per line, first element the kind.

``["hello", driver_version, count]`` once after init; ``["id", unit, {…}]`` identity of a GPU or MIG device;
``["keys", unit, number, [name…], {name: code}]`` which values follow and which are absent with which NVML code;
``["tick", unit, monotonic, state, number, [value…], [[pid, bytes|null]…]|null]`` one reading;
``["gone", unit]`` a MIG device that no longer exists; ``["xid", unit, code, epoch_ms]`` an event;
``["beat", monotonic, {unit: [function, seconds]}]`` sign of life, with calls that have not returned;
``["end", code, text]`` the worker gives up.

`unit` is the NVML index as text, with ``:slot`` for a MIG device. Names are those of `gpuwatch.series` without
``gpuwatch_gpu_``, one extra label written as ``name|label=value``. Standard library only.
"""

from __future__ import annotations

import json
from typing import Any

MAX_LINE = 1 << 20

BINDING = -10
NO_GPU = -11
"""Codes of ``end`` that are not NVML's: no usable nvidia-ml-py; the driver lists no GPU. 0 is an error of ours."""


_ENCODER = json.JSONEncoder(separators=(",", ":"))


def encode(message: list[Any]) -> bytes:
    """Return one message as a line."""
    return _ENCODER.encode(message).encode() + b"\n"


class Decoder:
    """Cuts a byte stream into messages. Half lines wait for their rest; lines that are no message are counted."""

    def __init__(self) -> None:
        self._rest = b""
        self.unreadable = 0

    def feed(self, data: bytes) -> list[list[Any]]:
        """Return the messages that `data` completes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            self._rest = b""
            self.unreadable += 1
        messages = []
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                message = None
            if isinstance(message, list) and message and isinstance(message[0], str):
                messages.append(message)
            else:
                self.unreadable += 1
        return messages
