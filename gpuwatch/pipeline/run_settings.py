"""Flags, facts and fixed figures of an engine as a report shows them, without secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.engines.facts import FACTS
from gpuwatch.engines.log_text import clean, limit, redact
from gpuwatch.report.data import Setting
from gpuwatch.series import METRICS
from gpuwatch.units import with_unit

if TYPE_CHECKING:
    from gpuwatch.model import Fact

LONGEST_VALUE = 300
_NOT_SETTINGS = ("model.config", "page.other", "started", "ready")


def figure_of(name: str, value: float) -> Setting:
    """Return a figure of an engine that seldom changes, by the name of its series."""
    metric = METRICS.get(name)
    unit = metric.unit if metric is not None else ""
    shown = name.removeprefix("gpuwatch_engine_").removeprefix("config_")
    return Setting(shown.replace("_", " "), with_unit(value, unit), metric.help if metric is not None else "")


def settings_of(facts: dict[str, Fact]) -> tuple[Setting, ...]:
    """Return launch flags, then what logs and pages told; secrets are cut out."""
    flags, others = [], []
    for key, fact in sorted(facts.items()):
        source = f"{fact.source}:{fact.line}" if fact.line else fact.source
        if key.startswith("flag."):
            name = f"--{key.removeprefix('flag.')}"
            text = redact(clean(name if fact.value is True else f"{name} {fact.value}"))
            flags.append(Setting(name, limit(text[len(name) :].strip(), LONGEST_VALUE), source))
        elif key not in _NOT_SETTINGS and not key.startswith("past."):
            spec = FACTS.get(key)
            value = with_unit(fact.value, spec.unit) if spec is not None and _is_number(fact.value) else str(fact.value)
            others.append(Setting(key, limit(redact(clean(f"{key}: {value}"))[len(key) + 2 :], LONGEST_VALUE), source))
    return (*flags, *others)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
