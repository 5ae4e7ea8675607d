"""Metrics pages that mislead: switched off, kept apart by process, ranks or prefix counters missing or renamed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis.context import ENGINE_SCOPE, SERVER_SCOPE
from gpuwatch.diagnosis.diagnosis import Diagnosis
from gpuwatch.diagnosis.explanation import Explanation, Unknown, Verdict, count, excluded, measured, percent, told
from gpuwatch.diagnosis.finding import Advice
from gpuwatch.diagnosis.observation import SOURCE_SCOPE
from gpuwatch.engines.version import show_version
from gpuwatch.units import clock_short

if TYPE_CHECKING:
    from gpuwatch.diagnosis.context import Subject
    from gpuwatch.diagnosis.finding import Evidence
    from gpuwatch.engines.version import Version
    from gpuwatch.model import Fact

IN_BLOCKS = "GpuwatchPrefixMetricsInBlocks"
PER_PROCESS = "GpuwatchMetricsPerProcess"
"""Rules whose findings need words of their own."""
TOKENS_SINCE: Version = (0, 9, 0)
"""From here on vLLM counts look-ups and hits of the prefix cache in tokens (``v1/metrics/loggers.py``)."""
HIDDEN_BETWEEN: tuple[Version, Version] = ((0, 8, 4), (0, 9, 0))
"""vLLM V0 of these versions has the hit rate only with ``--show-hidden-metrics-for-version``."""


def metrics_disabled(subject: Subject) -> Verdict:
    """Explain a server that answers without a single engine metric."""
    reason = subject.labels.get("reason", "")
    failing = subject.now("source_failing", SOURCE_SCOPE, reason=reason) if reason else None
    if failing is None:
        return Unknown("why the polls of the server fail")
    evidence = [
        measured(
            "the server answers, but there is no page at this path"
            if reason == "not_found"
            else "the page is read, and no line of it is a metric of vLLM or SGLang",
            "source_failing",
            failing,
        )
    ]
    processes = subject.now("engine_processes", SERVER_SCOPE)
    if processes:
        text = f"an engine that is down: {count(processes)} processes of it run"
        evidence.append(excluded(text, "engine_processes", processes))
    flag = subject.fact("flag.disable-log-stats")
    if flag is not None and flag.value is True:
        evidence.append(told(flag, "the engine was started with --disable-log-stats"))
        cause = "--disable-log-stats switches the engine's metrics off along with its statistics lines."
        advice = Advice("remove the flag and restart", "--disable-log-stats", "true", "(none)")
        return Explanation(cause, 0.95, tuple(evidence), (advice,))
    age = subject.now("source_age_seconds", SOURCE_SCOPE)
    if age is not None:
        return _no_longer_served(subject, age, evidence)
    other = subject.fact("page.other")
    if reason == "not_metrics" and other is not None and other.value:
        return _another_page(subject, other)
    engine = subject.fact("engine")
    # SGLang without its metrics has no page at all; vLLM without its statistics has one, of Python's own metrics.
    kind = str(engine.value) if engine is not None else ""
    off = []
    if kind == "sglang" or (kind == "" and reason == "not_found"):
        off.append(Advice("SGLang has metrics only when they are switched on", "--enable-metrics", None, "true"))
    if kind == "vllm" or (kind == "" and reason != "not_found"):
        off.append(
            Advice(
                "vLLM has them unless log statistics are off; wrappers and LLM() in Python switch them off by default "
                "(disable_log_stats=False)",
                "--disable-log-stats",
                None,
                "(none)",
            )
        )
    if kind == "":
        off.append(Advice("or the address is that of another program: check the port and the path"))
    cause = f"{subject.server} serves no engine metrics: they are switched off, or this is not the engine's address."
    return Explanation(cause, 0.7, tuple(evidence), tuple(off))


def _another_page(subject: Subject, other: Fact) -> Verdict:
    """Explain a server that answers with what is no metrics page at all: no setting of an engine does that."""
    cause = (
        f"{subject.server} answers, but not with metrics: this is not the address or path of an engine's metrics, or a "
        "proxy or a login stands before it."
    )
    advice = (
        Advice("check the port and the path: ask the engine's own port for /metrics, past any proxy"),
        Advice("where a login is asked for: give token_file or token_env under [[engine]], or lift it for the page"),
    )
    return Explanation(cause, 0.85, (told(other, str(other.value)),), advice)


def _no_longer_served(subject: Subject, age: float, evidence: list[Evidence]) -> Verdict:
    """Explain a server whose page was read until `age` seconds ago: its metrics are not switched off as such."""
    until = clock_short(subject.context.time - round(age * 1000))
    evidence.append(measured(f"the page was read until {until}", "source_age_seconds", age, "seconds"))
    cause = (
        f"{subject.server} served engine metrics until {until} and does not any more: it was started again in another "
        "way, another program answers on its port, or a proxy before it has changed the path."
    )
    advice = (
        Advice(f"compare the command of the engine that runs now with the one before {until}"),
        Advice("ask the engine's own port for its metrics, past any proxy, and set url and path to what answers"),
    )
    return Explanation(cause, 0.8, tuple(evidence), advice)


def metrics_multiproc(subject: Subject) -> Verdict:
    """Explain a page whose values are those of single processes."""
    flag = subject.fact("flag.api-server-count")
    servers = [told(flag, f"--api-server-count {flag.value}")] if flag is not None else []
    if subject.alert == PER_PROCESS:
        processes = subject.now("engine_page_processes", SERVER_SCOPE)
        if processes is None:
            return Unknown("the engine's page")
        text = f"{count(processes)} processes report the same gauge, told apart by the label pid"
        cause = (
            f"{count(processes)} API servers export a gauge each and only one of them is fresh: they are not "
            f"{count(processes)} engines, and their mean or sum means nothing. gpuwatch takes the highest; other "
            "readers of the page may not."
        )
        advice = (
            Advice("in your own queries take max by (engine, model_name) and leave pid out"),
            Advice("or update vLLM: newer versions export the most recent value only"),
        )
        return Explanation(cause, 0.9, (measured(text, "engine_page_processes", processes), *servers), advice)
    falls = [
        value for _, value in subject.context.samples(f"resets({subject.select('engine_prompt_tokens_total')}[5m])")
    ]
    if not falls:
        return Unknown("a counter of the engine over 5 minutes")
    evidence: list[Evidence] = [
        measured(f"a counter fell {count(max(falls))} times in 5 minutes", "engine_prompt_tokens_total", max(falls)),
        excluded("restarts: every poll of the 5 minutes was answered", "source_up", 1.0),
        *servers,
    ]
    cause = (
        "Two or more processes answer on this address in turn, each with counters of its own: rates and sums over this "
        "page are wrong, and so are findings that need them."
    )
    checks = (
        Advice(
            "see who listens (ss -ltnp): up to vLLM 0.24 a second server starts on a taken port without an error; "
            "stop one of them"
        ),
        Advice("behind a load balancer scrape each replica, not the balancer"),
        Advice("several API servers of one engine need one PROMETHEUS_MULTIPROC_DIR"),
    )
    return Explanation(cause, 0.85, tuple(evidence), checks)


def dp_labels(subject: Subject) -> Verdict:
    """Explain a page that shows fewer data-parallel ranks than there are."""
    local = subject.config("data_parallel_size_local", "dp_local")
    ranks = local if local is not None else subject.config("data_parallel_size", "dp")
    running = subject.context.samples(subject.select("engine_requests_running", SERVER_SCOPE))
    shown = {dict(labels).get("dp_rank", "") for labels, _ in running}
    if ranks is None or not shown:
        return Unknown("the number of data-parallel ranks and the engine's page")
    names = ", ".join(sorted(shown)) if shown != {""} else "none has a label"
    evidence = [
        measured(f"{count(ranks)} data-parallel ranks are set", "engine_config_data_parallel_size", ranks),
        measured(f"the page tells {len(shown)} apart ({names})", "engine_requests_running", float(len(shown))),
    ]
    if shown == {""}:
        cause = (
            f"The page has no label for the rank, so that one series stands for {count(ranks)} ranks: a proxy or a "
            "relabelling rule took it off, or only one rank reports."
        )
    else:
        cause = (
            f"Only {len(shown)} of {count(ranks)} ranks report on this page: totals are too low, and a rank that is "
            "missing here is neither idle nor healthy."
        )
    advice = [
        Advice("scrape the address of each node or rank; keep the label engine (SGLang: dp_rank) when relabelling")
    ]
    if subject.sglang:
        text = "or let every scheduler report, and count one tensor-parallel rank only"
        advice.append(Advice(text, "--enable-metrics-for-all-schedulers", None, "true"))
    return Explanation(cause, 0.75, tuple(evidence), tuple(advice))


def prefix_metrics(subject: Subject) -> Verdict:
    """Explain prefix-cache metrics that are missing, or that count blocks."""
    version = subject.version
    shown = show_version(version) if version is not None else ""
    if subject.alert == IN_BLOCKS:
        return _in_blocks(subject, version, shown)
    enabled = subject.now("engine_prefix_cache_enabled")
    running = subject.now("engine_requests_running")
    if enabled is None or running is None:
        return Unknown("the engine's page")
    evidence = [
        measured("prefix caching is on, as the page says", "engine_prefix_cache_enabled", enabled),
        excluded(
            f"a page without metrics: it shows {count(running)} running requests", "engine_requests_running", running
        ),
    ]
    advice = []
    if version is not None and HIDDEN_BETWEEN[0] <= version <= HIDDEN_BETWEEN[1]:
        cause = f"vLLM {shown} hides the hit rate of its V0 engine."
        advice.append(Advice("show it again, or use the V1 engine", "--show-hidden-metrics-for-version", None, "0.8"))
    else:
        cause = (
            f"Look-ups and hits of the prefix cache are not on the page{' of version ' + shown if shown else ''} under "
            "any name that is known: renamed in this version, or filtered on the way. The cache itself may be fine."
        )
        advice.append(
            Advice("look for prefix_cache on the page itself; if it is there under a new name, update gpuwatch")
        )
        advice.append(Advice("if it is not: check for a proxy or a scrape configuration that drops series"))
    return Explanation(cause, 0.7, tuple(evidence), tuple(advice))


def _in_blocks(subject: Subject, version: Version | None, shown: str) -> Verdict:
    queries, tokens = subject.select("engine_prefix_cache_queries_total"), subject.select("engine_prompt_tokens_total")
    share = subject.ask(f"rate({queries}[5m]) / (rate({tokens}[5m]) > 0)")
    block = subject.now("engine_kv_block_size_tokens")
    if share is None or block is None:
        return Unknown("look-ups, prompt tokens and the block size")
    evidence = [
        measured(f"{share:.3f} look-ups are counted per prompt token", "engine_prefix_cache_queries_total", share),
        measured(f"one block holds {count(block)} tokens", "engine_kv_block_size_tokens", block, "tokens"),
    ]
    known = version is not None and version < TOKENS_SINCE
    cause = (
        f"The prefix-cache counters{' of vLLM ' + shown if shown else ''} count blocks of {count(block)} tokens: their "
        f"ratio is right ({percent(share * block)} of the prompt tokens are looked up), their numbers are "
        f"{count(block)} times too small beside versions from 0.9.0 on, which count tokens."
    )
    advice = (Advice(f"compare ratios only, or multiply by {count(block)}; a jump at the update to 0.9.0 is this"),)
    return Explanation(cause, 0.95 if known else 0.7, tuple(evidence), advice)


DIAGNOSES = (
    Diagnosis(
        "metrics_disabled",
        "warning",
        "The server answers, but without engine metrics",
        metrics_disabled,
        SERVER_SCOPE,
    ),
    Diagnosis(
        "metrics_multiproc",
        "warning",
        "The page mixes values of several processes",
        metrics_multiproc,
        SERVER_SCOPE,
    ),
    Diagnosis("dp_labels", "warning", "The page does not tell all data-parallel ranks apart", dp_labels, SERVER_SCOPE),
    Diagnosis(
        "prefix_metrics_wrong",
        "warning",
        "The metrics of the prefix cache are missing or in blocks",
        prefix_metrics,
        ENGINE_SCOPE,
    ),
)
"""The findings of this family."""
