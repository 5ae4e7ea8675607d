"""The KV pool: preemption storms, SGLang's retractions, saturation, a pool smaller than one request."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.bounds import CONSERVATIVE
from gpuwatch.diagnosis.capacity import Length, Pool, pool_of, typical_length
from gpuwatch.diagnosis.context import ENGINE_SCOPE
from gpuwatch.diagnosis.diagnosis import Diagnosis
from gpuwatch.diagnosis.explanation import (
    Explanation,
    Unknown,
    Verdict,
    count,
    excluded,
    logged,
    measured,
    percent,
    told,
)
from gpuwatch.diagnosis.finding import Advice
from gpuwatch.diagnosis.kv_advice import blocks_override, pool_advice, pool_limit, seats_advice
from gpuwatch.diagnosis.kv_kinds import RECOMPUTED, storm_kind
from gpuwatch.diagnosis.kv_seen import doubtful_evictions, evictions_unseen
from gpuwatch.diagnosis.room import memory_flag, quantised

if TYPE_CHECKING:
    from gpuwatch.diagnosis.context import Subject
    from gpuwatch.diagnosis.finding import Evidence

STORM_CONFIDENCE = 0.85
"""Several evictions while requests queue: measured on five vLLM versions, never without a storm."""
ONE_EVICTION_CONFIDENCE = 0.7
SEEN = 0.5
"""Evictions below this are none: extrapolation makes 1 a little less, and 0 stays 0."""
SEVERAL = 1.5
"""Evictions from which on the rule needs no other sign; extrapolation makes 1 a little more or less."""
DOUBTED_CONFIDENCE = 0.4
"""The engine's own counter should have moved and has not: it may be clients that time out and send again."""
UNSURE_CONFIDENCE = 0.7
"""The pool is full and requests wait, but whether they are thrown out as well could not be seen."""
CONFIRMED_BONUS = 0.1
"""Added when the engine's own counter of preemptions moved as well."""
SLOWER = 0.8
"""Generation below this share of the minute before is mentioned."""


def preemption_storm(subject: Subject) -> Verdict:
    """Explain evictions from the KV pool of vLLM."""
    evicted = subject.over("increase", "engine_evictions_total", "1m")
    preempted = subject.over("increase", "engine_preemptions_total", "1m")
    usage = subject.over("max_over_time", "engine_kv_cache_usage_ratio", "1m")
    if (evicted is None and preempted is None) or usage is None:
        return Unknown("evictions or preemptions and the KV usage of the last minute")
    pool, length = pool_of(subject), typical_length(subject)
    running = subject.now("engine_requests_running")
    waiting = subject.now("engine_requests_waiting")
    limit = subject.config("max_num_seqs", "max_num_seqs")
    doubtful = doubtful_evictions(subject)
    kind = storm_kind(subject, pool, max(evicted or 0.0, preempted or 0.0))
    evidence = [
        *_evicted(evicted, preempted, doubted=doubtful is not None),
        *kind.evidence,
        *_load(running, waiting, limit),
        measured(
            f"KV usage reached {percent(usage)} in the last minute", "engine_kv_cache_usage_ratio", usage, "ratio"
        ),
        *_sizes(subject, pool, length),
        *_speed(subject),
    ]
    seen = evicted is not None and evicted >= SEEN
    evidence += [doubtful] if doubtful is not None else _not_clients(subject) if seen else []
    admitted = _admitted(subject, limit)
    confidence = STORM_CONFIDENCE if max(evicted or 0.0, preempted or 0.0) > SEVERAL else ONE_EVICTION_CONFIDENCE
    confidence += CONFIRMED_BONUS if preempted else 0.0
    cause = kind.cause or _storm_cause(subject, pool, length, admitted, kind.fate)
    if doubtful is not None:
        cause = f"{cause} Or clients time out and send their requests again: the two are not separated here."
    return Explanation(
        cause,
        DOUBTED_CONFIDENCE if doubtful is not None else min(confidence, 0.97),
        tuple(evidence),
        (
            *pool_limit(subject, pool, length, admitted),
            *kind.advice,
            *(() if kind.cause else seats_advice(subject, pool, length, limit, admitted)),
            *pool_advice(subject, pool, length, admitted),
        ),
    )


def retraction_storm(subject: Subject) -> Verdict:
    """Explain retractions of SGLang."""
    retracted = subject.over("increase", "engine_preemptions_total", "1m")
    lines = subject.events("retraction", "retraction_abort", seconds=120)
    evidence: list[Evidence] = []
    if retracted:
        evidence.append(
            measured(
                f"{count(retracted)} requests were retracted in the last 60 s, as SGLang counts them",
                "engine_preemptions_total",
                retracted,
            )
        )
    evidence += [logged(event) for event in lines[-3:]]
    if not evidence:
        return Unknown("SGLang's counter of retracted requests, or its log")
    pool, length = pool_of(subject), typical_length(subject)
    kind = storm_kind(subject, pool, retracted or 0.0)
    evidence += kind.evidence
    running = subject.now("engine_requests_running")
    waiting = subject.now("engine_requests_waiting")
    limit = subject.config("max_num_seqs", "max_num_seqs")
    usage = subject.over("max_over_time", "engine_kv_cache_usage_ratio", "1m")
    evidence += _load(running, waiting, limit)
    if usage is not None:
        evidence.append(
            measured(
                f"KV usage reached {percent(usage)} in the last minute", "engine_kv_cache_usage_ratio", usage, "ratio"
            )
        )
    evidence += _sizes(subject, pool, length)
    window = subject.now("engine_kv_cache_swa_usage_ratio")
    if window is not None and usage is not None and window < usage:
        evidence.append(
            excluded(
                f"the sliding-window pool: it is used to {percent(window)} only; the full-attention pool is full",
                "engine_kv_cache_swa_usage_ratio",
                window,
                "ratio",
            )
        )
    evidence += _speed(subject)
    admitted = _admitted(subject, limit)
    return Explanation(
        kind.cause or _storm_cause(subject, pool, length, admitted, _retracted(kind.fate)),
        STORM_CONFIDENCE + CONFIRMED_BONUS if retracted else STORM_CONFIDENCE,
        tuple(evidence),
        (
            *pool_limit(subject, pool, length, admitted),
            *kind.advice,
            *(() if kind.cause else seats_advice(subject, pool, length, limit, admitted)),
            Advice(
                f"or admit more carefully: reserve more for output that is still to come (raise to {CONSERVATIVE})",
                "--schedule-conservativeness",
                _flag(subject, "schedule-conservativeness"),
                str(CONSERVATIVE),
            ),
            *pool_advice(subject, pool, length, admitted),
        ),
    )


def _retracted(fate: str) -> str:
    return "retracted and prefilled again" if fate == RECOMPUTED else fate


def pool_saturated(subject: Subject) -> Verdict:
    """Explain a full pool with a queue and without evictions."""
    usage = subject.over("avg_over_time", "engine_kv_cache_usage_ratio", "1m")
    waiting = subject.over("min_over_time", "engine_requests_waiting", "1m")
    if usage is None or waiting is None:
        return Unknown("KV usage and waiting requests of the last minute")
    pool, length = pool_of(subject), typical_length(subject)
    running = subject.now("engine_requests_running")
    limit = subject.config("max_num_seqs", "max_num_seqs")
    evidence = [
        measured(f"KV usage was {percent(usage)} on average over 60 s", "engine_kv_cache_usage_ratio", usage, "ratio"),
        measured(f"never fewer than {count(waiting)} requests waited", "engine_requests_waiting", waiting),
        *_sizes(subject, pool, length),
    ]
    unsure = evictions_unseen(subject)
    if unsure:
        text = f"no eviction was seen in the last 2 minutes, but a preemption storm is not ruled out: {unsure}"
        evidence.append(measured(text, "engine_evictions_total", 0.0))
    else:
        text = "a preemption storm: no request was thrown out in the last 2 minutes"
        evidence.append(excluded(text, "engine_evictions_total", 0.0))
    at_limit = running is not None and limit is not None and running >= limit
    if at_limit:
        assert limit is not None
        cause = (
            f"The KV pool is full, and so is the batch: {count(limit)} requests run, which is the limit. "
            "More requests arrive than this engine can serve."
        )
        evidence.append(measured(f"the batch limit is {count(limit)}", "engine_config_max_num_seqs", limit))
    else:
        cause = "The KV pool is full and requests wait for room in it. More load needs more pool."
    admitted = _admitted(subject, limit)
    return Explanation(
        cause,
        UNSURE_CONFIDENCE if unsure else 0.9,
        tuple(evidence),
        (*pool_limit(subject, pool, length, admitted), *pool_advice(subject, pool, length, admitted)),
    )


def length_exceeds_pool(subject: Subject) -> Verdict:
    """Explain a pool that is smaller than the longest request that is accepted."""
    lines = subject.events("max_model_len_exceeds_kv")
    pool = pool_of(subject)
    longest = subject.config("max_model_len_tokens", "max_model_len")
    if lines:
        return _refused(
            lines[-1].field("mml"), lines[-1].field("fit") or lines[-1].field("cap"), subject, [logged(lines[-1])]
        )
    if pool is None or longest is None:
        return Unknown("the size of the KV pool and the maximum model length")
    flag = "--context-length" if subject.sglang else "--max-model-len"
    evidence = [
        measured(f"the KV pool holds {count(pool.tokens)} tokens", "engine_kv_cache_tokens", pool.tokens, "tokens"),
        measured(
            f"requests of up to {count(longest)} tokens are accepted",
            "engine_config_max_model_len_tokens",
            longest,
            "tokens",
        ),
    ]
    eight = "" if quantised(subject) else ", an 8-bit KV cache"
    limited = pool_limit(subject, pool, Length(longest, "limit", ""), 1)
    larger = Advice(f"or enlarge the pool: more memory for it{eight}, or more GPUs", *memory_flag(subject))
    return Explanation(
        f"A request of {count(longest)} tokens can never be served: the KV pool holds {count(pool.tokens)}.",
        0.9,
        tuple(evidence),
        (
            *limited,
            Advice(f"accept no more than fits: {count(pool.usable)} tokens", flag, f"{longest:.0f}", str(pool.usable)),
            *(() if limited else (larger,)),
        ),
    )


def _refused(asked: str, fits: str, subject: Subject, evidence: list[Evidence]) -> Explanation:
    length = f"{int(asked):,} tokens" if asked.isdigit() else "full length"
    room = f"; at most {int(fits):,} would" if fits.isdigit() else ""
    eight = "" if quantised(subject) else ", or store it in 8 bits"
    limited = pool_limit(subject, None, None, None)
    shorter = "or accept shorter requests" + (f": {int(fits):,} tokens fit" if fits.isdigit() else "")
    advice = [*limited, Advice(shorter, "--max-model-len", asked or None, fits if fits.isdigit() else None)]
    if not limited:  # more memory changes nothing where a flag limits the pool
        advice.append(Advice(f"or give the KV cache more memory{eight}", *memory_flag(subject)))
    return Explanation(
        f"The engine did not start: one request of {length} does not fit into the KV cache{room}.",
        0.97,
        tuple(evidence),
        tuple(advice),
    )


def _admitted(subject: Subject, limit: float | None) -> int | None:
    """Return how many requests the engine tries to hold at once: the most that were open, up to the batch limit."""
    running, waiting = subject.select("engine_requests_running"), subject.select("engine_requests_waiting")
    wanted = subject.ask(f"max_over_time(({running} + {waiting})[2m:5s])")
    if wanted is None and (wanted := subject.now("engine_requests_running")) is None:
        return None
    return max(1, int(min(wanted, limit) if limit is not None else wanted))


def _storm_cause(subject: Subject, pool: Pool | None, length: Length | None, admitted: int | None, fate: str) -> str:
    if pool is None:
        return f"The KV pool is exhausted: requests are {fate}. Its size is not known."
    override = blocks_override(subject)
    profiled = subject.config("kv_cache_profiled_blocks", "kv.blocks_profiled")
    start = f"The KV pool of {count(pool.tokens)} tokens"
    if override:
        start = (
            f"--num-gpu-blocks-override limits the KV pool to {count(override)} blocks ({count(pool.tokens)} tokens)"
        )
        if profiled is not None and profiled > override:
            start += f" although there is room for {count(profiled)}"
        start += ". It"
    if length is None:
        return f"{start} is exhausted: requests are {fate}."
    holds = math.floor(pool.share(length.tokens) * 10) / 10
    about = {"finished": "", "held": "at least "}.get(length.basis, "about ")
    limit = subject.config("max_num_seqs", "max_num_seqs")
    wanted = "admitted" if limit is not None and admitted is not None and admitted >= limit else "open"
    many = f", and up to {count(admitted)} are {wanted} at once" if admitted is not None and admitted > holds else ""
    return f"{start} holds {holds:.1f} requests of {about}{count(length.tokens)} tokens{many}: requests are {fate}."


def _evicted(evicted: float | None, preempted: float | None, *, doubted: bool) -> list[Evidence]:
    found = []
    if evicted is not None and evicted >= SEEN:
        text = (
            f"{count(evicted)} evictions in 60 s: running requests fell by more than finished and the queue grew, or "
            "the full pool lost a half-computed prompt while nothing ended"
        )
        found.append(measured(text, "engine_evictions_total", evicted))
    if preempted:
        text = f"the engine itself counted {count(preempted)} preemptions in 60 s"
        found.append(measured(text, "engine_preemptions_total", preempted))
    if evicted is not None and evicted < SEEN:
        text = (
            "from outside none was seen: a victim that runs again within 2 s shows in the engine's counter only"
            if preempted
            else "no eviction in the last 60 s: the storm rests or is over"
        )
        found.append(measured(text, "engine_evictions_total", evicted))
    elif preempted == 0 and not doubted:
        text = (
            "the engine's own counter of preemptions has not moved yet; it counts one when its victim runs again, "
            "10 to 20 s later or never within a storm"
        )
        found.append(measured(text, "engine_preemptions_total", 0.0))
    return found


def _not_clients(subject: Subject) -> list[Evidence]:
    """Say that clients which went away do not look like this: they leave no queue behind, or their place is filled."""
    ended = subject.total("increase", "engine_requests_finished_total", "1m")
    if ended is None:
        return []
    text = (
        f"requests that ended ({count(ended)} in 60 s) and clients that went away: neither puts one into the queue, "
        "and the place of a client that sends again is filled at once; these stayed empty for 2 s or more, or what was "
        "lost was half computed when the pool was full, and never while there was room"
    )
    return [excluded(text, "engine_requests_finished_total", ended)]


def _load(running: float | None, waiting: float | None, limit: float | None) -> list[Evidence]:
    found = []
    if running is not None:
        found.append(measured(f"{count(running)} requests run", "engine_requests_running", running))
    if waiting is not None:
        found.append(measured(f"{count(waiting)} requests wait", "engine_requests_waiting", waiting))
    if limit is not None:
        text = f"up to {count(limit)} requests are admitted to the batch"
        found.append(measured(text, "engine_config_max_num_seqs", limit))
    return found


def _sizes(subject: Subject, pool: Pool | None, length: Length | None) -> list[Evidence]:
    found = []
    if pool is not None:
        blocks = f" ({count(pool.blocks)} blocks of {count(pool.block)})" if pool.blocks is not None else ""
        text = f"the KV pool holds {count(pool.tokens)} tokens{blocks}"
        found.append(measured(text, "engine_kv_cache_tokens", pool.tokens, "tokens"))
    fact = subject.fact("kv.blocks_override")
    if fact is not None:
        found.append(told(fact, f"the pool was limited to {fact.value} blocks by --num-gpu-blocks-override"))
    profiled = subject.fact("kv.blocks_profiled")
    if profiled is not None and not isinstance(profiled.value, str):
        found.append(told(profiled, f"memory profiling found room for {count(float(profiled.value))} blocks"))
    if length is not None:
        name = {
            "finished": "engine_generation_length_tokens",
            "held": "engine_request_length_seen_tokens",
            "running": "engine_request_length_seen_tokens",
            "limit": "engine_config_max_model_len_tokens",
        }[length.basis]
        found.append(measured(length.text, name, length.tokens, "tokens"))
    return found


def _speed(subject: Subject) -> list[Evidence]:
    series = subject.select("engine_generation_tokens_total")
    now, before = subject.ask(f"rate({series}[1m])"), subject.ask(f"rate({series}[1m] offset 1m)")
    if now is None or before is None or now >= SLOWER * before:
        return []
    text = f"generation fell from {count(before)} to {count(now)} tokens/s within a minute"
    return [measured(text, "engine_generation_tokens_total", now, "tokens/s")]


def _flag(subject: Subject, name: str) -> str | None:
    fact = subject.fact("flag." + name)
    return str(fact.value) if fact is not None else None


DIAGNOSES = (
    Diagnosis(
        "kv_preemption_storm",
        "critical",
        "Requests are thrown out of the KV pool and computed again",
        preemption_storm,
        ENGINE_SCOPE,
    ),
    Diagnosis(
        "sglang_retraction_storm",
        "critical",
        "SGLang retracts running requests: its KV pool is full",
        retraction_storm,
        ENGINE_SCOPE,
    ),
    Diagnosis("kv_pool_saturated", "info", "The KV pool is full and requests queue", pool_saturated, ENGINE_SCOPE),
    Diagnosis(
        "max_model_len_exceeds_kv",
        "critical",
        "One full-length request does not fit into the KV pool",
        length_exceeds_pool,
        (*ENGINE_SCOPE, "log"),
    ),
)
"""The findings of this family."""
