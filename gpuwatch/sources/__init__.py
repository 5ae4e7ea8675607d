"""Where samples come from: NVML, engines, logs, the host, recordings. A source turns one target into batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gpuwatch.model import Batch


class Source(Protocol):
    """One target that can be polled.

    `target` is unique and starts with the source's kind: ``nvml``, ``engine:HOST:PORT``, ``log:NAME``, ``host``,
    ``kernel``. `poll` may block, but never past its own deadline; it reports a failed poll as a batch with
    ``up=False`` and raises only on a programming error. It is called from one thread only.
    """

    target: str

    def poll(self) -> Batch:
        """Read the target once."""
        ...

    def close(self) -> None:
        """Release files, sockets and children; safe to call twice and from another thread."""
        ...
