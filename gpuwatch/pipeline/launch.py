"""What the command line of a running engine tells, as facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.engines.flags import flag_facts
from gpuwatch.model import Batch, Fact

if TYPE_CHECKING:
    from gpuwatch.sources.discovery.find import FoundEngine


def launch_facts(engine: FoundEngine, time: int, more: tuple[Fact, ...] = ()) -> Batch:
    """Return the facts in the launch flags of a found engine, and `more` that is known of it."""
    source = f"command line of process {engine.pid}"
    facts = [
        Fact(key, value, source, time=time, server=engine.server)
        for key, value in flag_facts(engine.kind, dict(engine.flags)).items()
    ]
    return Batch(f"launch:{engine.server}", time, facts=(*facts, *more))
