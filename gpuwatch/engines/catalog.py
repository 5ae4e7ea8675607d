"""The engines that are known: how their pages are recognised, which metrics they have, and which of them are used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.engines import sglang, vllm
from gpuwatch.engines.version import parse_version, show_version
from gpuwatch.series import METRICS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatch.engines.metric import EngineMetric, Kind
    from gpuwatch.engines.version import Version

SUFFIXES = ("_bucket", "_sum", "_count")


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine: `prefixes` of its names, its metric table, names that are known and not used.

    `rank_label` is the page's label for the data-parallel rank; `running` the gauge that every scheduler has.
    """

    kind: Kind
    title: str
    prefixes: tuple[str, ...]
    rank_label: str
    running: str
    table: tuple[EngineMetric, ...]
    known: frozenset[str]
    known_families: tuple[str, ...]

    def strip(self, name: str) -> str | None:
        """Return `name` without the engine's prefix, or None where it has none of them."""
        for prefix in self.prefixes:
            if name.startswith(prefix):
                return name[len(prefix) :]
        return None

    def families(self, names: Iterable[str]) -> frozenset[str]:
        """Return the engine's names among page names: without prefix, and without ``_created`` and bucket suffixes."""
        index = SAMPLES[self.kind]
        found = set()
        for name in names:
            short = self.strip(name)
            if short is None or short.endswith("_created"):
                continue
            rows = index.get(short)
            found.add(rows[0][0].upstream if rows else _without_suffix(short))
        return frozenset(found)

    def knows(self, family: str) -> bool:
        """Return whether `family` (without prefix) is in the table or among the names that are known and not used."""
        return family in UPSTREAM[self.kind] or family in self.known or family.startswith(self.known_families)


# `ray_` comes from Ray's metrics agent, `_` for `:` from Ray and from OpenMetrics without UTF-8 names.
ENGINES: dict[Kind, Engine] = {
    "vllm": Engine(
        "vllm",
        "vLLM",
        ("vllm:", "ray_vllm:", "ray_vllm_", "vllm_"),
        "engine",
        "num_requests_running",
        vllm.TABLE,
        vllm.KNOWN,
        vllm.KNOWN_FAMILIES,
    ),
    "sglang": Engine(
        "sglang",
        "SGLang",
        ("sglang:", "ray_sglang:", "ray_sglang_", "sglang_"),
        "dp_rank",
        "num_running_reqs",
        sglang.TABLE,
        sglang.KNOWN,
        sglang.KNOWN_FAMILIES,
    ),
}


def _without_suffix(name: str) -> str:
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


def _samples(table: tuple[EngineMetric, ...]) -> dict[str, tuple[tuple[EngineMetric, str], ...]]:
    """Map sample names without prefix to the rows that use them and the suffix that the sample has."""
    found: dict[str, list[tuple[EngineMetric, str]]] = {}
    for row in table:
        if row.kind == "histogram":
            for suffix in SUFFIXES:
                found.setdefault(row.upstream + suffix, []).append((row, suffix))
        else:
            found.setdefault(row.upstream, []).append((row, ""))
    for row in table:
        # Ray and some proxies give counters without their suffix.
        if row.kind == "counter" and row.upstream.endswith("_total"):
            bare = found.setdefault(row.upstream.removesuffix("_total"), [])
            if all(other.upstream == row.upstream for other, _ in bare):
                bare.append((row, ""))
    return {name: tuple(rows) for name, rows in found.items()}


SAMPLES = {kind: _samples(engine.table) for kind, engine in ENGINES.items()}
"""Per engine: sample name without prefix -> rows that use it, with the sample's suffix."""
UPSTREAM = {kind: frozenset(row.upstream for row in engine.table) for kind, engine in ENGINES.items()}
PRIORITY = {id(row): place for engine in ENGINES.values() for place, row in enumerate(engine.table)}
"""Place of each row in its table; among aliases the lowest wins."""

_V1_ONLY = frozenset({"prefix_cache_queries_total", "gpu_prefix_cache_queries_total"})


@dataclass(frozen=True, slots=True)
class Detection:
    """What the names of a page say: the engine, vLLM's generation (v0, v1), and the first version with all of them."""

    kind: Kind
    generation: str
    since: Version | None

    def __str__(self) -> str:
        title = ENGINES[self.kind].title
        generation = f" {self.generation.upper()}" if self.generation else ""
        return f"{title}{generation}{f', {show_version(self.since)} or newer' if self.since else ''}"


def detect(names: Iterable[str], prefer: Kind | None = None) -> Detection | None:
    """Return which engine a page with series `names` belongs to, or None where it has no metric of a known engine.

    A page with names of both (behind a gateway) is taken for `prefer`, else for the one with more of them.
    """
    names = list(names)
    families = {kind: engine.families(names) for kind, engine in ENGINES.items()}
    counted = {kind: sum(map(ENGINES[kind].knows, found)) for kind, found in families.items()}
    kinds = [kind for kind, count in counted.items() if count]
    if not kinds:
        return None
    kind = prefer if prefer in kinds else max(kinds, key=counted.__getitem__)
    assert kind is not None
    found = families[kind]
    generation = ("v1" if found & _V1_ONLY else "v0") if kind == "vllm" else ""
    if generation == "v0" and "gpu_cache_usage_perc" not in found and "kv_cache_usage_perc" in found:
        generation = "v1"
    return Detection(kind, generation, _since(ENGINES[kind], generation, found))


def _since(engine: Engine, generation: str, families: frozenset[str]) -> Version | None:
    """Return the first version that has all of `families`. Removals say nothing: removed names can be switched on."""
    first: dict[str, Version] = {}
    for row in engine.table:
        for of, span in row.spans:
            if row.upstream in families and of in ("", generation):
                first[row.upstream] = min(span.low, first.get(row.upstream, span.low))
    return max(first.values(), default=None)


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of what a version should export a page has. Names are the engine's own, without prefix.

    `conditional` are metrics that the page lacks and may lack (a feature that is off, no request yet);
    `unknown` are names on the page that gpuwatch has never heard of.
    """

    kind: Kind
    version: str
    present: tuple[str, ...]
    missing: tuple[str, ...]
    conditional: tuple[str, ...]
    unknown: tuple[str, ...]

    def __str__(self) -> str:
        expected = len(self.present) + len(self.missing)
        of = f"{ENGINES[self.kind].title} {self.version}".strip()
        text = f"{of}: {len(self.present)} of {expected} known metrics present"
        if self.missing:
            text += f"; missing: {', '.join(self.missing)}"
        return text


def coverage(names: Iterable[str], kind: Kind, version: str = "") -> Coverage:
    """Compare the series `names` of a page with what `version` of the engine exports, as far as gpuwatch uses it.

    Without a version, what the page should have is taken from the first version that has all of its names.
    """
    names = list(names)
    engine = ENGINES[kind]
    found = engine.families(names)
    detected = detect(names, kind)
    parsed = parse_version(version)
    if parsed is None and detected is not None and detected.since is not None:
        parsed = detected.since
        version = f"{show_version(parsed)} or newer"
    generation = detected.generation if detected is not None else ""
    rows = [row for row in engine.table if parsed is not None and row.available(generation, parsed)]
    expected = dict.fromkeys(row.upstream for row in rows if not row.conditional)
    conditional = dict.fromkeys(row.upstream for row in rows if row.conditional and row.upstream not in expected)
    return Coverage(
        kind=kind,
        version=version,
        present=tuple(sorted({*expected, *conditional} & found)),
        missing=tuple(name for name in expected if name not in found),
        conditional=tuple(name for name in conditional if name not in found),
        unknown=tuple(sorted(name for name in found if not engine.knows(name))),
    )


def needs(target: str) -> str:
    """Return which engines export what becomes `target`, for people: ``vLLM V1 0.16.0 on; SGLang 0.5.7 on``."""
    assert target in METRICS, target
    parts = []
    for engine in ENGINES.values():
        rows = [row for row in engine.table if row.target == target]
        if rows:
            parts.append(f"{engine.title} {', '.join(dict.fromkeys(row.versions() for row in rows))}")
    return "; ".join(parts)
