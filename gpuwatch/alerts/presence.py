"""What a rule cannot judge: which of the series it needs do not exist, on the whole or for one engine.

An expression over series that do not exist gives nothing, which looks like "all is well". So each rule's needs are
read off its plan and compared with the series that live.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from gpuwatch.alerts.rulefile import AlertRule, RecordRule, Rule
from gpuwatch.model import label
from gpuwatch.promql.analysis import requirements, selectors
from gpuwatch.promql.values import PromQLError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpuwatch.model import Labels
    from gpuwatch.promql.nodes import Selector
    from gpuwatch.promql.plan import Plan
    from gpuwatch.promql.values import Querier

REFRESH_MS = 5_000
"""How often the live series are looked up: the answer is at most this old."""
EAGER_MS = 15_000
"""How long after the first look they are looked up at every tick: sources give their first answers then."""

ENGINE = "gpuwatch_engine_"
SOURCE_UP = "gpuwatch_source_up"
KIND = "engine_kind"

_FAMILIES = {
    "gpuwatch_gpu_": ("gpuwatch_gpu_state", "no GPU is seen"),
    ENGINE: ("", "no engine is seen"),
    "gpuwatch_log_": ("gpuwatch_log_lines_total", "no log is read"),
    "gpuwatch_host_": ("gpuwatch_host_memory_total_bytes", "the host is not read"),
}
STEP = "gpuwatch_gpu_memory_step_bytes"
"""Exists for the GPUs of engines that are seen and answer."""
_USED_BY_UNSEEN = f"""
    gpuwatch_gpu_memory_used_bytes > 0.05 * gpuwatch_gpu_memory_total_bytes unless on (host, uuid) {STEP}
"""
"""GPUs that something uses, and no engine that is seen; contexts and displays take less."""
_OWN = frozenset({"ALERTS", "ALERTS_FOR_STATE"})
_MOST_ALTERNATIVES = 64


@dataclass(frozen=True, slots=True)
class Missing:
    """Series that a rule needs and that do not exist: for one `server`, or at all. `reason` is for people."""

    metrics: tuple[str, ...]
    server: str = ""
    reason: str = ""


def explain_missing(missing: Sequence[Missing]) -> str:
    """Return one line such as ``127.0.0.1:8000: needs gpuwatch_engine_evictions_total``; empty for none."""
    servers: defaultdict[str, list[str]] = defaultdict(list)
    for item in missing:
        servers[item.reason].append(item.server)
    parts = []
    for reason, names in servers.items():
        where = ", ".join(name for name in names if name)
        parts.append(f"{where}: {reason}" if where else reason)
    return "cannot evaluate: " + "; ".join(parts) if parts else ""


@dataclass(frozen=True, slots=True)
class _Live:
    """The live series of one name: whether there are any, and which engines have them."""

    exists: bool
    servers: frozenset[str]


_NOTHING = _Live(exists=False, servers=frozenset())


class Presence:
    """Knows, a few seconds old at most, what each alerting rule of `rules` lacks."""

    def __init__(self, querier: Querier, rules: Iterable[Rule]) -> None:
        self._querier = querier
        rules = list(rules)
        recorded: defaultdict[str, list[Plan]] = defaultdict(list)
        for rule in rules:
            if isinstance(rule, RecordRule):
                recorded[rule.name].append(rule.plan)
        self._rules = [rule for rule in rules if isinstance(rule, AlertRule)]
        self._needs = [_needs(rule.plan, recorded) for rule in self._rules]
        self._kinds = [_kinds(rule.plan) for rule in self._rules]
        names = {name for alternatives in self._needs for names in alternatives for name in names}
        probes = {probe for probe, _ in _FAMILIES.values() if probe}
        self._names = sorted(names | probes)
        self._live: dict[str, _Live] = {}
        self._seen: dict[str, tuple[Labels, ...]] = {}
        self._servers: dict[str, str] = {}
        self._down: frozenset[str] = frozenset()
        self._unseen: tuple[str, ...] = ()
        self._missing: dict[int, tuple[Missing, ...]] = {}
        self._refreshed: int | None = None
        self._first: int | None = None

    def refresh(self, time: int) -> bool:
        """Look up the live series at `time` (milliseconds), at first always, later every five seconds.

        Returns:
            Whether what a rule lacks may have changed.
        """
        self._first = time if self._first is None else self._first
        eager = 0 <= time - self._first < EAGER_MS
        if not eager and self._refreshed is not None and 0 <= time - self._refreshed < REFRESH_MS:
            return False
        self._refreshed = time
        changed = [self._look_up(name, time) for name in self._names]
        if not any([self._look_up_sources(time), self._look_up_unseen(time), *changed]):
            return False
        self._servers = self._known_servers()
        self._missing = {
            id(rule): self._lacking(needs, kinds)
            for rule, needs, kinds in zip(self._rules, self._needs, self._kinds, strict=True)
        }
        return True

    def missing(self, rule: AlertRule) -> tuple[Missing, ...]:
        """Return what `rule` lacked at the last refresh; empty when it can judge everything that is there."""
        return self._missing.get(id(rule), ())

    def _look_up(self, name: str, time: int) -> bool:
        """Look up one name; return whether its series changed."""
        try:
            found = self._querier.instant(name, time).labels
        except PromQLError:
            found = ()
        known = self._seen.get(name)
        if known is not None and (found is known or found == known):
            return False
        self._seen[name] = found
        servers = frozenset(label(labels, "server") for labels in found) - {""}
        self._live[name] = _Live(bool(found), servers)
        return True

    def _look_up_sources(self, time: int) -> bool:
        """Look up which engines should be there and do not answer; return whether that changed."""
        try:
            up = dict(self._querier.instant(f'{SOURCE_UP}{{source="engine"}}', time).items())
        except PromQLError:
            up = {}
        down = frozenset(label(labels, "server") for labels, value in up.items() if value == 0) - {""}
        known = self._seen.get(SOURCE_UP + "{engine}")
        found = tuple(up)
        self._seen[SOURCE_UP + "{engine}"] = found
        changed = down != self._down or found != known
        self._down = down
        return changed

    def _look_up_unseen(self, time: int) -> bool:
        """Look up which GPUs are used by something that is no engine here; return whether that changed."""
        if STEP not in self._names:
            return False
        try:
            found = self._querier.instant(_USED_BY_UNSEEN, time).labels
        except PromQLError:
            found = ()
        unseen = tuple(sorted({label(labels, "gpu") or label(labels, "uuid") for labels in found}))
        changed = unseen != self._unseen
        self._unseen = unseen
        return changed

    def _known_servers(self) -> dict[str, str]:
        """Return every engine by server, with its kind where a series tells it."""
        servers: dict[str, str] = {}
        for name, found in self._seen.items():
            if name.startswith((ENGINE, SOURCE_UP + "{")):
                for labels in found:
                    server = label(labels, "server")
                    if server and not servers.get(server):
                        servers[server] = label(labels, KIND)
        return servers

    def _lacking(
        self, alternatives: tuple[frozenset[str], ...], kinds: Mapping[str, list[Selector]]
    ) -> tuple[Missing, ...]:
        """Return what is missing of `alternatives`, any one of which would do."""
        general = [(names, self._absent(names)) for names in alternatives]
        possible = [names for names, absent in general if not absent]
        if not possible:
            return (self._nowhere(_least(absent for _, absent in general)),)
        engine = [frozenset(name for name in names if name.startswith(ENGINE)) for names in possible]
        if self._unseen and all(STEP in names for names in possible):
            return (self._nowhere(frozenset({STEP})),)
        if not all(engine):
            return ()
        if not self._servers:
            return (Missing(tuple(sorted(_least(engine))), reason=_FAMILIES[ENGINE][1]),)
        missing = []
        concerned = 0
        for server, kind in sorted(self._servers.items()):
            suited = [names for names in engine if all(_suits(kinds.get(name, ()), kind) for name in names)]
            if not suited:
                continue
            concerned += 1
            lacking = _least(
                frozenset(name for name in names if server not in self._live.get(name, _NOTHING).servers)
                for names in suited
            )
            if lacking:
                missing.append(self._on_server(lacking, server))
        if not concerned:
            return (Missing(tuple(sorted(_least(engine))), reason="no engine of the kind it is about is seen"),)
        return tuple(missing)

    def _absent(self, names: frozenset[str]) -> frozenset[str]:
        """Return the names without any series, those of engines left aside."""
        return frozenset(
            name for name in names if not name.startswith(ENGINE) and not self._live.get(name, _NOTHING).exists
        )

    def _nowhere(self, names: frozenset[str]) -> Missing:
        metrics = tuple(sorted(names))
        if self._unseen and metrics == (STEP,):
            return Missing(
                metrics, reason=f"GPU {', '.join(self._unseen)}: not every engine that uses it is polled and answers"
            )
        for prefix, (probe, reason) in _FAMILIES.items():
            if all(name.startswith(prefix) for name in names) and not self._live.get(probe, _NOTHING).exists:
                return Missing(metrics, reason=reason)
        return Missing(metrics, reason="needs " + ", ".join(metrics))

    def _on_server(self, names: frozenset[str], server: str) -> Missing:
        metrics = tuple(sorted(names))
        reason = "the engine does not answer" if server in self._down else "needs " + ", ".join(metrics)
        return Missing(metrics, server, reason)


def needs(rule: AlertRule) -> tuple[frozenset[str], ...]:
    """Return the sets of metric names of which one must exist for `rule` to be decidable."""
    return _needs(rule.plan, {})


def _needs(plan: Plan, recorded: Mapping[str, Sequence[Plan]]) -> tuple[frozenset[str], ...]:
    """Return the alternatives of `plan`; a recorded series needs what its recording rules need, not itself.

    What a recording rule gives may rightly be nothing, and so may ``ALERTS``.
    """
    expanded: list[frozenset[str]] = []
    for names in requirements(plan):
        own = frozenset(name for name in names if name not in recorded and name not in _OWN)
        sources = [
            [alternative for source in recorded[name] for alternative in requirements(source)]
            for name in sorted(names)
            if name in recorded
        ]
        expanded.extend(own.union(*chosen).difference(recorded) for chosen in product(*sources))
    return tuple(dict.fromkeys(expanded))[:_MOST_ALTERNATIVES]


def _kinds(plan: Plan) -> dict[str, list[Selector]]:
    """Return the selectors of each engine metric in `plan`."""
    found: defaultdict[str, list[Selector]] = defaultdict(list)
    for selector in selectors(plan):
        if selector.name and selector.name.startswith(ENGINE):
            found[selector.name].append(selector)
    return dict(found)


def _suits(selectors_of_name: Sequence[Selector], kind: str) -> bool:
    """Return whether any of the selectors can match an engine of this kind; an unknown kind may be any."""
    if not kind or not selectors_of_name:
        return True
    return any(
        all(matcher.matches({KIND: kind}) for matcher in selector.matchers if matcher.name == KIND)
        for selector in selectors_of_name
    )


def _least(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return min(sets, key=lambda names: (len(names), sorted(names)), default=frozenset())
