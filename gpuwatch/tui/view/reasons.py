"""Why something is absent, in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatch.snapshot import SourceState

REASONS: Mapping[str, str] = {
    "never_seen": "never seen",
    "not_supported": "not supported",
    "no_permission": "no permission",
    "lost": "lost",
    "hung": "does not answer",
    "resetting": "needs a reset",
    "no_driver": "no driver",
    "driver_mismatch": "driver was replaced",
    "unreachable": "unreachable",
    "timeout": "timed out",
    "unauthorized": "not authorised",
    "not_metrics": "not a metrics page",
    "too_large": "page too large",
    "not_found": "not found",
    "failed": "failed",
}
"""`model.Reason` values in plain words."""


def source_problem(state: SourceState) -> str:
    """Return one sentence about a source that is down, without its age."""
    words = REASONS.get(state.reason, state.reason)
    if state.detail and words and words not in state.detail:
        return f"{words}: {state.detail}"
    return state.detail or words or "no reason given"
