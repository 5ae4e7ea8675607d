"""How sure it is that evictions were evictions, and that none means none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis.explanation import count, measured
from gpuwatch.engines.version import show_version

if TYPE_CHECKING:
    from gpuwatch.diagnosis.context import Subject
    from gpuwatch.diagnosis.finding import Evidence

DOUBT_AFTER = "30s"
"""A counter that moves when a victim runs again moved at most 21 s after the first eviction (vLLM 0.28 to 0.32)."""
COUNTS_SINCE = (0, 24, 0)
"""vLLM from here on was seen to count its preemptions within a storm; 0.10.2 was seen not to."""
DENSE = 40
"""Pages in a minute from which on hardly an eviction hides between two of them."""


def doubtful_evictions(subject: Subject) -> Evidence | None:
    """Return why evictions are in doubt: the engine counts its preemptions, had time to, and counted none."""
    version = subject.version
    before = subject.ask(f"increase({subject.select('engine_evictions_total')}[1m] offset {DOUBT_AFTER})")
    counts = version is not None and version >= COUNTS_SINCE
    if version is None or not counts or not before or subject.over("increase", "engine_preemptions_total", "2m") != 0:
        return None
    text = (
        f"not separated from clients that time out and send again: vLLM {show_version(version)} counts a preemption "
        f"when its victim runs again, and has counted none although more than {DOUBT_AFTER[:-1]} s have passed. "
        "vllm:num_preemptions_total that moves would tell, or aborted requests in the log of the gateway or the clients"
    )
    return measured(text, "engine_preemptions_total", 0.0)


def evictions_unseen(subject: Subject) -> str:
    """Return why evictions might not have been seen, or an empty text where they would have been."""
    if subject.over("increase", "engine_preemptions_total", "2m") is None:
        return "the page has no counter of preemptions"
    if subject.sglang:
        return ""
    pages = subject.over("count_over_time", "engine_requests_running", "1m")
    if pages is None or pages < DENSE:
        return (
            f"only {count(pages or 0)} pages of the last minute are known, and a victim that runs again between two of "
            "them does not show"
        )
    version = subject.version
    if version is None or version < COUNTS_SINCE:
        return (
            "a victim that runs again within 2 s shows in the engine's own counter only, and "
            + (f"vLLM {show_version(version)}" if version is not None else "a vLLM of unknown version")
            + " may count none within a storm; KV usage that falls again and again while nothing ends would tell"
        )
    whole = subject.fact("flag.scheduler-reserve-full-isl")
    if whole is not None and whole.value is False:
        return (
            "--scheduler-reserve-full-isl is off, so a prompt may be thrown out half computed, which the engine's "
            "counter never shows; KV usage that falls again and again while nothing ends would tell"
        )
    return ""
