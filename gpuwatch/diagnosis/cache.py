"""The prefix cache: hits that fell, hits that never come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis.baseline import baseline, really_seen
from gpuwatch.diagnosis.context import ENGINE_SCOPE, SERVER_SCOPE
from gpuwatch.diagnosis.diagnosis import Diagnosis
from gpuwatch.diagnosis.explanation import Explanation, Unknown, Verdict, count, excluded, logged, measured, percent
from gpuwatch.diagnosis.finding import Advice

if TYPE_CHECKING:
    from gpuwatch.diagnosis.context import Subject
    from gpuwatch.diagnosis.finding import Evidence

NEARLY_FULL = 0.9
"""KV usage from which cached blocks are likely to be overwritten before they are used again."""
LONG_BLOCK = 256
"""Tokens per block from which a shared system prompt is often shorter than one block (hybrid models: 784 and more)."""
PROMPTS_DIFFER = 1.5
"""Prompts longer or shorter by this factor than before are another workload."""


def collapse(subject: Subject) -> Verdict:
    """Explain a share of cached prompt tokens that fell."""
    hits, queries = (subject.select(f"engine_prefix_cache_{name}_total") for name in ("hits", "queries"))
    now = subject.ask(f"rate({hits}[2m]) / (rate({queries}[2m]) > 0)")
    past = baseline(subject, "engine_prefix_cache_queries_total", 120)
    before = subject.ask(f"rate({hits}{past.window}) / (rate({queries}{past.window}) > 0)")
    if now is None or before is None:
        return Unknown("look-ups and hits of the prefix cache over 12 minutes")
    evidence = [
        measured(
            f"{percent(now)} of the prompt tokens were found in the cache over 2 minutes",
            "engine_prefix_cache_hits_total",
            now,
            "ratio",
        ),
        measured(f"{percent(before)} in {past.words}", "engine_prefix_cache_hits_total", before, "ratio"),
    ]
    cause, more, advice, confidence = _why_fewer(subject)
    fell = f"Prefix-cache hits fell from {percent(before)} to {percent(now)}"
    return Explanation(f"{fell}: {cause}", confidence, (*evidence, *more), advice)


def _why_fewer(subject: Subject) -> tuple[str, list[Evidence], tuple[Advice, ...], float]:
    resets = subject.events("prefix_cache_reset", "sleep", "wake", seconds=600)
    if resets:
        return "the cache was emptied.", [logged(resets[-1])], (), 0.9
    usage = subject.over("max_over_time", "engine_kv_cache_usage_ratio", "5m")
    if usage is not None and usage >= NEARLY_FULL:
        text = f"KV usage reached {percent(usage)} in the last 5 minutes"
        limit = subject.config("max_num_seqs", "max_num_seqs")
        flag, now = "--max-running-requests" if subject.sglang else "--max-num-seqs", _whole(limit)
        return (
            "the pool is nearly full, so cached blocks are overwritten before they are used again.",
            [measured(text, "engine_kv_cache_usage_ratio", usage, "ratio")],
            (Advice("give the KV cache more memory, or let fewer requests run at once", flag, now),),
            0.75,
        )
    tokens = subject.select("engine_prompt_tokens_total")
    first = subject.select("engine_time_to_first_token_seconds_count")
    length = subject.ask(f"rate({tokens}[2m]) / (rate({first}[2m]) > 0)")
    earlier = subject.ask(f"rate({tokens}[10m] offset 2m) / (rate({first}[10m] offset 2m) > 0)")
    more = [] if usage is None else [_not_full(usage)]
    advice = (Advice("compare recent prompts with earlier ones: what stands first must be the same, byte for byte"),)
    if length and earlier and not 1 / PROMPTS_DIFFER < length / earlier < PROMPTS_DIFFER:
        text = f"prompts have {count(length)} tokens on average, {count(earlier)} before"
        more.append(measured(text, "engine_prompt_tokens_total", length, "tokens"))
        why = "the prompts have changed: those who send them do so, or a benchmark took another data set."
        return why, more, advice, 0.7
    why = "the prompts share less of their beginning than before; a benchmark that takes another data set looks alike."
    return why, more, advice, 0.55


def _whole(number: float | None) -> str | None:
    return None if number is None else f"{number:.0f}"


def zero_hit(subject: Subject) -> Verdict:
    """Explain a prefix cache that never hits. It says what is certain, and what it cannot rule out."""
    prompts = subject.over("increase", "engine_time_to_first_token_seconds_count", "10m")
    block = subject.now("engine_kv_block_size_tokens")
    buckets = subject.select("engine_prompt_length_tokens_bucket")
    median = subject.ask(f"histogram_quantile(0.5, rate({buckets}[10m]))")
    if prompts is None or block is None:
        return Unknown("prompts in the last 10 minutes and the block size of the KV cache")
    seen = really_seen(subject, "engine_time_to_first_token_seconds_count", 600)
    queries = subject.over("increase", "engine_prefix_cache_queries_total", "10m")
    usage = subject.over("max_over_time", "engine_kv_cache_usage_ratio", "10m")
    evidence = [
        measured(f"{count(prompts)} prompts in {seen}", "engine_time_to_first_token_seconds_count", prompts),
        measured("0 hits in that time", "engine_prefix_cache_hits_total", 0.0),
        measured(f"one block holds {count(block)} tokens; only full blocks hit", "engine_kv_block_size_tokens", block),
    ]
    if queries is not None:
        text = f"{count(queries)} tokens (or blocks, before 0.9.0) were looked up"
        evidence.append(measured(text, "engine_prefix_cache_queries_total", queries))
    if median is not None:
        text = f"the median prompt has about {count(median)} tokens"
        evidence.append(measured(text, "engine_prompt_length_tokens", median, "tokens"))
    output = subject.over("increase", "engine_generation_tokens_total", "10m")
    asked = subject.over("increase", "engine_prompt_tokens_total", "10m")
    if output is not None and asked is not None:
        text = f"{count(asked)} prompt tokens were asked for, {count(output)} tokens generated: prompts are the work"
        evidence.append(measured(text, "engine_prompt_tokens_total", asked, "tokens"))
    evidence.append(excluded("caching that is switched off", "engine_prefix_cache_enabled", 1.0))
    if usage is not None:
        evidence.append(_not_full(usage))
    cause = (
        f"No two of {count(prompts)} prompts shared a first block of {count(block)} tokens. "
        "Not ruled out: a cache salt or LoRA adapter per request, prompt_logprobs, multimodal items at the start, "
        "repeats that go to another replica."
    )
    advice = [
        Advice(
            "put what is the same in all prompts first and what differs (time, ids, user) last: "
            "a difference in the first block breaks all that follows"
        )
    ]
    if block >= LONG_BLOCK:
        advice.append(
            Advice(
                f"a shared beginning shorter than {count(block)} tokens cannot hit; "
                "a smaller block can, where the model allows it",
                "--page-size" if subject.sglang else "--block-size",
                count(block).replace(",", ""),
            )
        )
    replicas = subject.now("engine_config_data_parallel_size", SERVER_SCOPE)
    if replicas is not None and replicas > 1:
        text = "each data-parallel replica has its own cache: route requests that share a beginning to the same one"
        advice.append(Advice(text))
    return Explanation(cause, 0.8, tuple(evidence), tuple(advice))


def _not_full(usage: float) -> Evidence:
    text = f"a full pool: KV usage was {percent(usage)} at most"
    return excluded(text, "engine_kv_cache_usage_ratio", usage, "ratio")


DIAGNOSES = (
    Diagnosis(
        "prefix_cache_collapse",
        "warning",
        "The prefix cache hits far less than before",
        collapse,
        ENGINE_SCOPE,
    ),
    Diagnosis("prefix_cache_zero_hit", "info", "The prefix cache never hits", zero_hit, ENGINE_SCOPE),
)
"""The findings of this family."""
