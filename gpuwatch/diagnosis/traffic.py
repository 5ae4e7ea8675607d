"""Traffic against capacity: a queue that grows, throughput that fell, replicas that are loaded unevenly."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.baseline import baseline
from gpuwatch.diagnosis.capacity import pool_of, typical_length
from gpuwatch.diagnosis.context import ENGINE_SCOPE, GPU_SCOPE, SERVER_SCOPE
from gpuwatch.diagnosis.diagnosis import Diagnosis
from gpuwatch.diagnosis.explanation import Explanation, Unknown, Verdict, count, excluded, measured, percent, rate
from gpuwatch.diagnosis.finding import Advice
from gpuwatch.engines.flag_versions import available
from gpuwatch.engines.version import show_version
from gpuwatch.model import label

if TYPE_CHECKING:
    from gpuwatch.diagnosis.baseline import Baseline
    from gpuwatch.diagnosis.context import Subject
    from gpuwatch.diagnosis.finding import Evidence

REPLICA_SCOPE = ("host", "server", "model_name")
POOL_FULL = 0.85
"""KV usage from which the pool, not the batch limit, keeps requests waiting."""
LOOK_AHEAD = 600.0
"""Seconds after which the waiting time is told if nothing changes."""
WORTH_WAITING = 30.0
"""Seconds that a client is taken to wait for its turn before it is better refused."""
CHANGED = 1.3
"""A cost per request that rose by this factor is named."""
THROTTLED = 0.1
"""Share of time with lowered clocks from which it is named beside a fall of throughput."""


def queue_growth(subject: Subject) -> Verdict:
    """Explain a queue that grows: both rates, what a new request waits, and what keeps the engine from taking more."""
    running, waiting = subject.now("engine_requests_running"), subject.now("engine_requests_waiting")
    growth = _growth(subject)
    ended = subject.total("increase", "engine_requests_finished_total", "1m")
    if running is None or waiting is None or growth is None:
        return Unknown("running and waiting requests of the last 30 seconds")
    evidence = [
        measured(f"{count(waiting)} requests wait", "engine_requests_waiting", waiting),
        measured(f"{count(running)} requests run", "engine_requests_running", running),
        measured(f"open requests grow by {rate(growth)} per second", "engine_requests_waiting", growth, "requests/s"),
    ]
    if ended is None:
        return Explanation(
            f"Requests arrive faster than they end: open requests grow by {rate(growth)} per second.",
            0.6,
            tuple(evidence),
            _take_more(subject, running),
        )
    served = ended / 60
    arrivals = served + growth
    evidence.append(
        measured(f"{rate(served)} requests per second end", "engine_requests_finished_total", served, "requests/s")
    )
    cause = f"{rate(arrivals)} requests per second arrive and {rate(served)} end"
    if served > 0:
        now, later = waiting / served, (waiting + growth * LOOK_AHEAD) / served
        cause += f": a request that arrives now waits about {now:.0f} s, in 10 minutes {later:.0f} s if nothing changes"
    advice = list(_take_more(subject, running))
    if served > 0 and growth > 0:
        cause += "; clients that a load test starts one after the other look alike until all of them have started"
        replicas = math.ceil(arrivals / served)
        advice.append(
            Advice(
                f"or serve it with {replicas} replicas: {rate(arrivals)} requests per second are "
                f"{arrivals / served:.1f} times what this one ends"
            )
        )
    if waiting >= 1 and served > 0:
        advice.append(_refuse(subject, served))
    return Explanation(cause + ".", 0.85, tuple(evidence), tuple(advice))


def _growth(subject: Subject) -> float | None:
    running, waiting = subject.select("engine_requests_running"), subject.select("engine_requests_waiting")
    grown = subject.ask(f"({running} + {waiting}) - ({running} offset 30s + {waiting} offset 30s)")
    return None if grown is None else grown / 30


def _take_more(subject: Subject, running: float) -> tuple[Advice, ...]:
    """Return what lets the engine take more requests: a higher batch limit where the pool has room for it."""
    limit = subject.config("max_num_seqs", "max_num_seqs")
    usage = subject.over("avg_over_time", "engine_kv_cache_usage_ratio", "1m")
    if limit is None or running < limit or usage is None:
        return ()
    if usage >= POOL_FULL:
        return (Advice(f"a higher batch limit does not help: the KV pool is {percent(usage)} full"),)
    pool, length = pool_of(subject), typical_length(subject)
    fits = pool.holds(length.tokens) if pool is not None and length is not None else None
    if fits is None:
        fits = int(limit / usage) if usage > 0 else None
    if fits is None or fits <= limit:
        return ()
    text = (
        f"the batch is at its limit of {count(limit)} and the KV pool is {percent(usage)} full: it holds {count(fits)}"
    )
    flag = "--max-running-requests" if subject.sglang else "--max-num-seqs"
    return (Advice(text, flag, f"{limit:.0f}", str(fits)),)


def _refuse(subject: Subject, served: float) -> Advice:
    """Return the queue that is worth having: as many as end, at `served` per second, within `WORTH_WAITING`."""
    most = max(1, round(served * WORTH_WAITING))
    takes = f"{count(most)} that wait take {most / served:.0f} s"
    text = f"or refuse early instead of letting clients time out: {takes}"
    if subject.sglang:
        return Advice(text, "--max-queued-requests", None, str(most))
    flag, version = "max-num-queued-reqs", subject.version
    if version is not None and not available("vllm", version, flag):
        return Advice(f"{text}; at the gateway, vLLM {show_version(version)} cannot (0.29 and newer can)")
    return Advice(text + (" (vLLM 0.29 and newer)" if version is None else ""), f"--{flag}", None, str(most))


def throughput_collapse(subject: Subject) -> Verdict:
    """Explain output that fell under the same load, by what else changed. What did not is ruled out."""
    series = subject.select("engine_generation_tokens_total")
    past = baseline(subject, "engine_generation_tokens_total", 60)
    now, before = subject.ask(f"rate({series}[1m])"), subject.ask(f"rate({series}{past.window})")
    if now is None or not before:
        return Unknown("generated tokens of the last 11 minutes")
    evidence = [
        measured(f"{count(now)} tokens/s over 1 minute", "engine_generation_tokens_total", now, "tokens/s"),
        measured(f"{count(before)} tokens/s in {past.words}", "engine_generation_tokens_total", before, "tokens/s"),
    ]
    for name in ("running", "waiting"):
        mean = subject.over("avg_over_time", f"engine_requests_{name}", "1m")
        earlier = subject.ask(f"avg_over_time({subject.select(f'engine_requests_{name}')}{past.window})")
        if mean is not None and earlier is not None:
            text = f"{mean:.1f} requests {name} on average, {earlier:.1f} before"
            evidence.append(measured(text, f"engine_requests_{name}", mean))
    causes = [found for look in (_throttled, _fewer_accepted, _longer, _idle_gpus) if (found := look(subject, past))]
    evidence += [item for _, item, _ in causes]
    fell = f"Output fell from {count(before)} to {count(now)} tokens/s under the same load"
    if not causes:
        cause = f"{fell}; clocks, lengths and the use of the GPUs do not explain it."
        return Explanation(cause, 0.5, tuple(evidence), (Advice("compare the engine's log and dmesg of that minute"),))
    cause = f"{fell}: {'; '.join(text for text, _, _ in causes)}."
    return Explanation(cause, 0.75, tuple(evidence), tuple(advice for _, _, advice in causes))


def _throttled(subject: Subject, past: Baseline) -> tuple[str, Evidence, Advice] | None:
    """Look for a GPU of the engine whose clocks were lowered for a good part of the minute, and more than before."""
    worst = (THROTTLED, "", "")
    for placed, _ in subject.context.samples(subject.select("gpu_engine", SERVER_SCOPE)):
        gpu = subject.context.about(dict(placed))
        throttle = gpu.select("gpu_throttle_seconds_total", GPU_SCOPE)
        before = dict(subject.context.samples(f"rate({throttle}{past.window})"))
        for labels, share in subject.context.samples(f"rate({throttle}[1m])"):
            if share > max(worst[0], CHANGED * before.get(labels, 0.0)):
                worst = (share, label(labels, "gpu"), label(labels, "reason"))
    share, index, reason = worst
    if not reason:
        return None
    text = f"GPU {index} runs with lowered clocks {percent(share)} of the time ({reason})"
    advice = Advice("see the finding throttling, or raise the power limit and check the cooling of that card")
    return text, measured(text, "gpu_throttle_seconds_total", share, "ratio"), advice


def _fewer_accepted(subject: Subject, past: Baseline) -> tuple[str, Evidence, Advice] | None:
    """Look for speculative decoding whose drafts are accepted less than before."""
    drafted, accepted = (subject.select(f"engine_spec_decode_{name}_tokens_total") for name in ("draft", "accepted"))
    now = subject.ask(f"rate({accepted}[1m]) / (rate({drafted}[1m]) > 0)")
    before = subject.ask(f"rate({accepted}{past.window}) / (rate({drafted}{past.window}) > 0)")
    if now is None or before is None or now * CHANGED >= before:
        return None
    text = f"drafts are accepted less often ({percent(before)} before, {percent(now)} now)"
    evidence = measured(text, "engine_spec_decode_accepted_tokens_total", now, "ratio")
    return text, evidence, Advice("draft fewer tokens per step: rejected ones cost time and give nothing")


def _longer(subject: Subject, past: Baseline) -> tuple[str, Evidence, Advice] | None:
    """Look for requests that hold more KV cache than before: each token then costs more."""
    seen = subject.select("engine_kv_cache_usage_ratio")
    running = subject.select("engine_requests_running")
    now = subject.ask(f"avg_over_time({seen}[1m]) / (avg_over_time({running}[1m]) > 0)")
    before = subject.ask(f"avg_over_time({seen}{past.window}) / (avg_over_time({running}{past.window}) > 0)")
    if now is None or not before or now <= CHANGED * before:
        return None
    text = f"a running request holds {now / before:.1f} times the KV cache it held before"
    evidence = measured(text, "engine_kv_cache_usage_ratio", now / before)
    return text, evidence, Advice("route very long requests to an engine of their own")


def _idle_gpus(subject: Subject, past: Baseline) -> tuple[str, Evidence, Advice] | None:
    """Look for GPUs that work less than before: then something else is waited for."""
    joined = f"{subject.select('gpu_engine', SERVER_SCOPE)} * on (host, uuid) group_left () "
    now = subject.context.samples(f"max({joined}avg_over_time(gpuwatch_gpu_busy_ratio[1m]))")
    before = subject.context.samples(f"max({joined}avg_over_time(gpuwatch_gpu_busy_ratio{past.window}))")
    if not now or not before or now[0][1] * CHANGED >= before[0][1]:
        return None
    text = f"the GPUs work {percent(now[0][1])} of the time, {percent(before[0][1])} before: they wait for something"
    evidence = measured(text, "gpu_busy_ratio", now[0][1], "ratio")
    return text, evidence, Advice("look at the processor (finding cpu_bound), the network of the ranks, and offloading")


def dp_imbalance(subject: Subject) -> Verdict:
    """Explain replicas behind one address of which one has most of the requests."""
    running = subject.select("engine_requests_running", REPLICA_SCOPE)
    waiting = subject.select("engine_requests_waiting", REPLICA_SCOPE)
    loads = {
        label(labels, "dp_rank"): value
        for labels, value in subject.context.samples(f"avg_over_time({running}[1m]) + avg_over_time({waiting}[1m])")
    }
    if len(loads) < 2:
        return Unknown("running and waiting requests of each data-parallel rank")
    most, least = max(loads, key=lambda rank: loads[rank]), min(loads, key=lambda rank: loads[rank])
    evidence = [
        measured(f"rank {rank}: {loads[rank]:.1f} open requests over 1 minute", "engine_requests_running", loads[rank])
        for rank in sorted(loads, key=lambda rank: (len(rank), rank))
    ]
    usage = {
        label(labels, "dp_rank"): value
        for labels, value in subject.context.samples(subject.select("engine_kv_cache_usage_ratio", REPLICA_SCOPE))
    }
    if most in usage and least in usage:
        text = f"KV usage of rank {most} is {percent(usage[most])}, of rank {least} {percent(usage[least])}"
        evidence.append(measured(text, "engine_kv_cache_usage_ratio", usage[most], "ratio"))
    gone = [rank for rank, load in loads.items() if load == 0]
    if gone:
        text = "ranks without requests that do not answer: they report on the same page"
        evidence.append(excluded(text, "engine_requests_running", float(len(gone))))
    mean = sum(loads.values()) / len(loads)
    cause = (
        f"Rank {most} has {loads[most]:.0f} open requests, rank {least} {loads[least]:.0f} ({mean:.0f} each would be "
        "even): requests are handed out by counts that are old, or by rules that know nothing of their length."
    )
    return Explanation(cause, 0.85, tuple(evidence), _balance(subject))


def _balance(subject: Subject) -> tuple[Advice, ...]:
    if subject.sglang:
        fact = subject.fact("flag.load-balance-method")
        now = str(fact.value) if fact is not None else None
        return (
            Advice(
                "hand requests out by what each rank holds (where this version has it)",
                "--load-balance-method",
                now,
                "total_tokens",
            ),
        )
    return (
        Advice("update vLLM: newer versions report each rank's queue before a long step, not after it"),
        Advice(
            "or give each rank an address of its own and balance outside, by open requests",
            "--data-parallel-external-lb",
        ),
    )


DIAGNOSES = (
    Diagnosis("queue_growth", "warning", "More requests arrive than are served", queue_growth, ENGINE_SCOPE),
    Diagnosis(
        "throughput_collapse",
        "warning",
        "Throughput fell to less than half under the same load",
        throughput_collapse,
        ENGINE_SCOPE,
    ),
    Diagnosis("dp_imbalance", "warning", "Data-parallel replicas are loaded unevenly", dp_imbalance, REPLICA_SCOPE),
)
"""The findings of this family."""
