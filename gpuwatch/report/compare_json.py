"""The comparison of runs as JSON has it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gpuwatch.diagnosis.finding import NotEnough
from gpuwatch.report.compare_report import held_against, names_of
from gpuwatch.report.figures import added_seconds
from gpuwatch.report.scaling import Scaling, poor, scaling
from gpuwatch.report.versus import busy, value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuwatch.diagnosis.finding import Finding
    from gpuwatch.report.data import RunData
    from gpuwatch.report.versus import Row, Versus


def as_json(
    runs: Sequence[RunData], finding_json: Callable[[Finding], dict[str, Any]], pairs: Sequence[Versus] = ()
) -> dict[str, Any]:
    """Return the comparison as JSON has it; `finding_json` writes a finding, `pairs` are those of `held_against`."""
    pairs = pairs or held_against(runs)
    names = names_of(runs)
    gains = [scaling(pair) for pair in pairs]
    found = [poor(pair, gain) for pair, gain in zip(pairs, gains, strict=True) if isinstance(gain, Scaling)]
    return {
        "schema": 1,
        "runs": [
            {
                "name": name,
                "recording": run.name,
                "host": run.host,
                "seconds": run.seconds,
                "work_seconds": added_seconds(busy(run)),
                "engines": [
                    {
                        "server": e.server,
                        "engine": e.kind,
                        "version": e.version,
                        "model": e.model,
                        "tp": e.tensor_parallel,
                    }
                    for e in run.engines
                ],
                "findings": [finding.id for finding in run.findings],
            }
            for name, run in zip(names, runs, strict=True)
        ],
        "comparisons": [
            {
                "baseline": names[0],
                "run": name,
                "figures": [_row_json(row) for row in pair.rows],
                "load": [_row_json(row) for row in pair.load],
                "levels": [
                    {"running": level.text, "figures": [_row_json(row) for row in level.rows]} for level in pair.levels
                ],
                "cautions": list(pair.cautions),
                "scaling": _scaling_json(gain) if isinstance(gain, Scaling) else None,
            }
            for name, pair, gain in zip(names[1:], pairs, gains, strict=True)
        ],
        "findings": [finding_json(finding) for finding in found if finding is not None],
        "not_enough_evidence": [
            {"id": gain.id, "missing": gain.missing, "labels": {}} for gain in gains if isinstance(gain, NotEnough)
        ],
    }


def _row_json(row: Row) -> dict[str, Any]:
    known = None if any(row.at_most) else row.comparison
    return {
        "name": row.name,
        "unit": row.unit,
        "baseline": _value_json(row, 0),
        "value": _value_json(row, 1),
        "difference": None if known is None or math.isinf(known.difference) else known.difference,
        "relative": None if known is None else known.relative,
        "low": None if known is None else known.low,
        "high": None if known is None else known.high,
        **{
            f"{name}_at_most": value_of(row, which)
            for which, name in enumerate(("baseline", "value"))
            if row.at_most[which]
        },
        "p": row.raised,
        "verdict": row.verdict,
    }


def _value_json(row: Row, which: int) -> float | str | None:
    """Return a figure; one above the highest bucket is the text ``+Inf``, one within the first is not known."""
    if row.at_most[which]:
        return None
    value = value_of(row, which)
    return "+Inf" if value is not None and math.isinf(value) else value


def _scaling_json(gain: Scaling) -> dict[str, Any]:
    return {
        "few": gain.few,
        "many": gain.many,
        "speedup": gain.speedup,
        "low": gain.low,
        "high": gain.high,
        "efficiency": gain.efficiency,
        "basis": gain.basis,
    }
