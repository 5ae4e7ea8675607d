"""Every finding id that alerts can raise. Each family module of diagnoses declares its own; here they come together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis import cache, gpus, kv, memory, observation

if TYPE_CHECKING:
    from gpuwatch.diagnosis.diagnosis import Diagnosis

_FAMILIES = (kv, memory, gpus, cache, observation)

DIAGNOSES: dict[str, Diagnosis] = {diagnosis.id: diagnosis for family in _FAMILIES for diagnosis in family.DIAGNOSES}
"""Every diagnosis by id."""
