"""Active findings as series: ``gpuwatch_finding_info`` carries cause and advice to wherever an alert is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.engines.log_text import clean, limit
from gpuwatch.model import Batch, Labels, series

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatch.diagnosis.finding import Advice, Finding

TARGET = "findings"
SETTLED_MS = 20_000
"""The first text, of the second in which the alert fired, is replaced after this time: by then more is known."""
REFRESH_MS = 300_000
"""A later text stays for this long, so that changing figures in it do not make a new series each time."""
CAUSE_LENGTH = 400
ADVICE_LENGTH = 300
VALUE_LENGTH = 80
MOST = 200
"""The most findings that become series; the first ones of the ranking do."""


@dataclass(frozen=True, slots=True)
class _Fixed:
    """A text that stays for `stays` milliseconds from `time` on."""

    time: int
    stays: int
    labels: Labels


class FindingSeries:
    """Remembers the texts of findings while they are active."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._fixed: dict[object, _Fixed] = {}
        self._keys: tuple[Labels, ...] = ()

    def batch(self, time: int, findings: Iterable[Finding]) -> Batch:
        """Return one series with the value 1 for each firing finding at `time` (milliseconds)."""
        active: dict[object, _Fixed] = {}
        for finding in findings:
            if finding.state != "firing" or len(active) >= MOST:
                continue
            known = self._fixed.get(finding.key)
            if known is None or not 0 <= time - known.time < known.stays:
                known = _Fixed(time, SETTLED_MS if known is None else REFRESH_MS, self._labels(finding))
            active[finding.key] = known
        self._fixed = active
        keys = tuple(dict.fromkeys(fixed.labels for fixed in active.values()))
        if keys != self._keys:
            self._keys = keys
        return Batch(TARGET, time, self._keys, (1.0,) * len(self._keys))

    def _labels(self, finding: Finding) -> Labels:
        advice = _first(finding.advice)
        return series(
            "gpuwatch_finding_info",
            **{
                "host": finding.labels.get("host") or self._host,
                "id": finding.id,
                "severity": finding.severity,
                "server": finding.labels.get("server", ""),
                "uuid": finding.labels.get("uuid", ""),
                "cause": limit(clean(finding.cause), CAUSE_LENGTH),
                "flag": limit(clean(advice.flag), VALUE_LENGTH) if advice else "",
                "from": limit(clean(advice.current or ""), VALUE_LENGTH) if advice else "",
                "to": limit(clean(advice.proposed or ""), VALUE_LENGTH) if advice else "",
                "advice": limit(clean(advice.text), ADVICE_LENGTH) if advice else "",
            },
        )


def _first(advice: tuple[Advice, ...]) -> Advice | None:
    """Return the first change that names a flag, else the first one."""
    return next((item for item in advice if item.flag), advice[0] if advice else None)
