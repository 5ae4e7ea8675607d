"""Every finding id that alerts can raise. Each family module of diagnoses declares its own; here they come together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis import (
    cache,
    config_traps,
    gpus,
    growth,
    hang,
    host,
    kv,
    memory,
    observation,
    pages,
    platform,
    ranks,
    scheduling,
    slowdown,
    standing,
    startup,
    traffic,
    xids,
)

if TYPE_CHECKING:
    from gpuwatch.diagnosis.diagnosis import Diagnosis

_FAMILIES = (
    kv,
    memory,
    gpus,
    cache,
    observation,
    standing,
    traffic,
    scheduling,
    config_traps,
    pages,
    growth,
    hang,
    host,
    platform,
    ranks,
    slowdown,
    startup,
    xids,
)

DIAGNOSES: dict[str, Diagnosis] = {diagnosis.id: diagnosis for family in _FAMILIES for diagnosis in family.DIAGNOSES}
"""Every diagnosis by id."""
