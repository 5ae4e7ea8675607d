"""How one engine metric becomes one of ours: the row type of the metric tables, and their reader."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gpuwatch.engines.version import Span, parse_span
from gpuwatch.series import METRICS, SERVER
from gpuwatch.units import GIB

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatch.engines.version import Version
    from gpuwatch.series import Kind as MetricKind

Kind: TypeAlias = Literal["vllm", "sglang"]

PREFIX = "gpuwatch_engine_"


@dataclass(frozen=True, slots=True)
class Condition:
    """A page label must have (or, negated, must not have) one of some values; the empty value means: no such label."""

    label: str
    values: frozenset[str]
    negated: bool = False

    def holds(self, labels: dict[str, str]) -> bool:
        """Return whether a series with `labels` meets the condition."""
        return (labels.get(self.label, "") in self.values) is not self.negated


@dataclass(frozen=True, slots=True)
class EngineMetric:
    """One row of a table: `upstream` (without prefix and histogram suffix) is exported as `target`.

    A target that starts with ``~`` is only an input of derived values. Several rows with one target are aliases: per
    series the earliest row that the page has wins. `spans` maps the generation (``v0``, ``v1``; SGLang: empty) to the
    versions that have the metric. `zero` marks counters that appear with their first event: ``scheduler`` or
    ``tokenizer`` says which of the engine's processes counts it. `note` says on what else the metric depends.
    """

    upstream: str
    target: str
    kind: MetricKind
    spans: tuple[tuple[str, Span], ...]
    where: tuple[Condition, ...] = ()
    rename: tuple[tuple[str, str], ...] = ()
    const: tuple[tuple[str, str], ...] = ()
    factor: float = 1.0
    offset: float = 0.0
    total: bool = False
    unless: frozenset[str] = frozenset()
    unless_label: str = ""
    zero: str = ""
    note: str = ""

    @property
    def per_server(self) -> bool:
        """Whether the series belongs to the server, not to a model and rank."""
        metric = METRICS.get(self.target)
        return metric is not None and metric.labels[: len(SERVER)] == SERVER and "model_name" not in metric.labels

    @property
    def conditional(self) -> bool:
        """Whether a page may lack the metric although the version has it."""
        return bool(self.note or self.zero or self.unless or self.unless_label)

    def available(self, generation: str, version: Version) -> bool:
        """Return whether `version` of the engine has the metric; `generation` is v0, v1 or empty."""
        return any(version in span for of, span in self.spans if not generation or of in ("", generation))

    def versions(self) -> str:
        """Return the versions that have the metric, for people."""
        return ", ".join(f"{of.upper()} {span}".strip() for of, span in self.spans)


def read_table(rows: str) -> tuple[EngineMetric, ...]:
    """Read rows of ``upstream | target | versions | options | note``. Raises ValueError on a row it cannot read.

    Versions are ``V0 0.2.7-0.11.0, V1 0.9.2-`` or plain ranges. Options, separated by spaces: ``reason<-their_label``
    (keep their label under our name), ``reason=abort`` (add a label), ``if:source=a/b`` and ``if:source!a`` (only
    these series; an empty alternative: no such label), ``gib`` (GiB to bytes), ``not`` (1 - value), ``total`` (the
    series of a gauge add up), ``unless:name`` and ``unless-label:name`` (not where the page has that), ``zero:who``.
    """
    return tuple(_read_row(row) for row in rows.strip().splitlines())


def _read_row(row: str) -> EngineMetric:
    upstream, target, versions, options, note = (part.strip() for part in row.split("|", 4))
    hidden = target.startswith("~")
    name = target if hidden else PREFIX + target
    kind: MetricKind = "gauge" if hidden else METRICS[name].kind
    return _with_options(EngineMetric(upstream, name, kind, tuple(_spans(versions)), note=note), options.split(), row)


def _spans(versions: str) -> Iterable[tuple[str, Span]]:
    for part in versions.split(","):
        generation, _, span = part.strip().rpartition(" ")
        yield generation.lower(), parse_span(span)


_FLAGS: dict[str, dict[str, Any]] = {
    "gib": {"factor": GIB},
    "not": {"factor": -1.0, "offset": 1.0},
    "total": {"total": True},
}


def _with_options(metric: EngineMetric, options: list[str], row: str) -> EngineMetric:
    for option in options:
        key, _, value = option.partition(":")
        if option in _FLAGS:
            metric = replace(metric, **_FLAGS[option])
        elif key == "if":
            metric = replace(metric, where=(*metric.where, _condition(value)))
        elif key == "unless":
            metric = replace(metric, unless=frozenset(value.split("/")))
        elif key == "unless-label":
            metric = replace(metric, unless_label=value)
        elif key == "zero" and value in ("scheduler", "tokenizer"):
            metric = replace(metric, zero=value)
        else:
            metric = _with_label(metric, option, row)
    return metric


def _with_label(metric: EngineMetric, option: str, row: str) -> EngineMetric:
    ours, arrow, theirs = option.partition("<-")
    if arrow:
        return replace(metric, rename=((theirs, ours),))
    ours, equals, constant = option.partition("=")
    if equals:
        return replace(metric, const=((ours, constant),))
    raise ValueError(f"unknown option {option!r} in {row!r}")


def _condition(text: str) -> Condition:
    negated = "!" in text
    label, _, alternatives = text.partition("!" if negated else "=")
    return Condition(label, frozenset(alternatives.split("/")), negated)


def words(text: str) -> frozenset[str]:
    """Return the words of `text`."""
    return frozenset(text.split())
