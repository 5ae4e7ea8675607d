"""Engines that answer and stand still: requests are open, and no value of the page moves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.capacity import pool_of
from gpuwatch.diagnosis.context import ENGINE_SCOPE, SERVER_SCOPE
from gpuwatch.diagnosis.diagnosis import Diagnosis
from gpuwatch.diagnosis.explanation import Explanation, Unknown, Verdict, count, excluded, logged, measured, told
from gpuwatch.diagnosis.finding import Advice
from gpuwatch.model import label

if TYPE_CHECKING:
    from gpuwatch.diagnosis.context import Subject
    from gpuwatch.diagnosis.finding import Evidence

TRANSFER = ("flag.kv-transfer-config", "flag.kv-offloading-size", "flag.disaggregation-mode")
"""The flags that let requests wait for a KV cache from another server, or from the host."""
STALLS = ("nccl_timeout", "sglang_watchdog", "rpc_timeout", "shm_broadcast_stall", "nccl_error", "xid")
IDLE = 0.2
"""A GPU that is busy for less than this does not compute."""
SPINS = 0.99
EMPTY = 0.01
"""KV usage below this is none: a block or two that stay behind."""


def engine_stalled(subject: Subject) -> Verdict:
    """Explain a page that stands still while requests are open."""
    frozen = subject.now("engine_page_frozen_seconds")
    if frozen is None:
        return Unknown("the engine's page, read twice")
    running, waiting = subject.now("engine_requests_running"), subject.now("engine_requests_waiting")
    evidence: list[Evidence] = [
        measured(
            f"no value of the page has changed for {count(frozen)} s", "engine_page_frozen_seconds", frozen, "seconds"
        )
    ]
    for name, value in (("running", running), ("waiting", waiting)):
        if value is not None:
            evidence.append(measured(f"{count(value)} requests {name}", f"engine_requests_{name}", value))
    cause = (
        "The front end still answers, but the engine behind it makes no step: a scheduler or worker is dead or hangs."
    )
    left = subject.now("engine_processes", SERVER_SCOPE)
    before = subject.over("max_over_time", "engine_processes", f"{math.ceil(frozen) + 60}s", SERVER_SCOPE)
    ended = left is not None and before is not None and left < before
    if left is not None and before is not None and ended:
        gone = f"{count(before - left)} of {count(before)} processes of the engine ended"
        evidence.append(measured(f"{gone} about the time the page stood still", "engine_processes", left))
        cause = f"The front end still answers, but a part of the engine behind it has died: {gone}."
    events = subject.events(*STALLS, seconds=900)
    evidence += [logged(event) for event in events[-3:]]
    if any(event.event == "nccl_timeout" for event in events):
        cause = "A collective operation between the ranks never ended; the engine makes no step."
    busy = _busy(subject)
    if busy is not None:
        evidence.append(_told_busy(*busy))
    restart = Advice("restart the engine; before that, save the stacks (py-spy dump) of its scheduler and workers")
    hung = _hung_driver(subject)
    if hung is not None and not ended:
        cause = (
            "The front end still answers, but the engine behind it makes no step, and calls to the GPU driver do not "
            "return: what asks the driver waits with it."
        )
        text = "settle driver_unresponsive first: processes that hang in the driver do not end, and a restart waits too"
        return Explanation(cause, 0.85, (*evidence, hung), (Advice(text),))
    if running == 0 and not events and not ended:
        return _nothing_runs(subject, cause, evidence, restart)
    return Explanation(cause, 0.9 if events or ended else 0.75, tuple(evidence), (restart,))


def _nothing_runs(subject: Subject, cause: str, evidence: list[Evidence], restart: Advice) -> Explanation:
    """Explain requests that wait where none runs: for a KV cache, for a grammar, or for room that there never is."""
    transfer = _takes_kv_caches(subject)
    if transfer is not None:
        cause = (
            "Nothing runs and requests wait: either the KV cache that they need does not come from the prefill server, "
            "or the scheduler hangs. The page does not tell which."
        )
        first = Advice("look at the prefill server, and at the link and the log lines of the transfer")
        return Explanation(cause, 0.5, (*evidence, transfer), (first, restart))
    deferred = subject.now("engine_requests_waiting_by_reason", reason="deferred")
    unfit = None if deferred else _never_fits(subject, evidence)
    if unfit is not None:
        return unfit
    known = subject.now("engine_config_kv_transfer", SERVER_SCOPE) == 0 or bool(subject.flags())
    if deferred is None and not known:
        cause += " Or it is a decode server whose prefill server does not deliver: its launch flags are not known."
        return Explanation(cause, 0.5, tuple(evidence), (restart,))
    if not deferred:
        return Explanation(cause, 0.75, tuple(evidence), (restart,))
    text = f"{count(deferred)} of the requests that wait are deferred: the engine puts them off itself"
    evidence.append(measured(text, "engine_requests_waiting_by_reason", deferred))
    grammar = "a grammar (structured output: a JSON schema, a regular expression) that is not compiled to its end"
    if known:
        evidence.append(
            excluded("a KV cache from elsewhere: no launch flag names one", "engine_config_kv_transfer", 0.0)
        )
        cause = f"Nothing runs, and the requests that wait are put off: they wait for {grammar}."
    else:
        cause = (
            f"Nothing runs, and the requests that wait are put off: they wait for {grammar}, or for a KV cache from "
            "another server. The launch flags, which tell which, are not known."
        )
    first = Advice("look for the request with structured output that came before the stall, and keep it out")
    return Explanation(cause, 0.8 if known else 0.5, tuple(evidence), (first, restart))


def _never_fits(subject: Subject, evidence: list[Evidence]) -> Explanation | None:
    """Explain requests that wait although the pool is empty, where longer ones are accepted than it holds.

    None where the pool holds some request, where every request that is accepted fits, or where that is not known.
    """
    usage = subject.now("engine_kv_cache_usage_ratio")
    waiting = subject.now("engine_requests_waiting")
    pool = pool_of(subject)
    longest = subject.config("max_model_len_tokens", "max_model_len")
    if usage is None or usage > EMPTY or not waiting or pool is None or longest is None or longest <= pool.usable:
        return None
    found = [
        *evidence,
        measured("the KV pool is empty", "engine_kv_cache_usage_ratio", usage, "ratio"),
        measured(
            f"the KV pool has room for {count(pool.usable)} tokens", "engine_kv_cache_tokens", pool.tokens, "tokens"
        ),
        measured(
            f"requests of up to {count(longest)} tokens are accepted",
            "engine_config_max_model_len_tokens",
            longest,
            "tokens",
        ),
    ]
    capacity = subject.now("engine_requests_waiting_by_reason", reason="capacity")
    if capacity:
        text = f"{count(capacity)} of the requests wait for room, as the engine says"
        found.append(measured(text, "engine_requests_waiting_by_reason", capacity))
    cause = (
        f"Nothing runs and the KV pool is empty, but {count(waiting)} wait: the first of them needs more "
        f"than the {count(pool.usable)} tokens that the pool has room for. It never fits, and the others wait behind it"
    )
    cause += "." if capacity else ". Or the scheduler hangs: the page does not tell which."
    flag = "--context-length" if subject.sglang else "--max-model-len"
    advice = (
        Advice("end that request (stop its client): a restart helps only until it is sent again"),
        Advice(f"accept no more than fits: {count(pool.usable)} tokens", flag, f"{longest:.0f}", str(pool.usable)),
        Advice("or enlarge the pool: max_model_len_exceeds_kv says how"),
    )
    return Explanation(cause, 0.85 if capacity else 0.65, tuple(found), advice)


def _takes_kv_caches(subject: Subject) -> Evidence | None:
    """Return what says that the engine takes KV caches from elsewhere; None where nothing does."""
    for key in TRANSFER:
        fact = subject.fact(key)
        if fact is not None and fact.value not in ("", "null", 0):
            return told(fact, f"the engine takes KV caches from elsewhere (--{key.removeprefix('flag.')})")
    if subject.now("engine_config_kv_transfer", SERVER_SCOPE) == 1:
        text = "the engine takes KV caches from elsewhere, as its launch flags say"
        return measured(text, "engine_config_kv_transfer", 1.0)
    asked = subject.now("engine_external_prefix_cache_queries_total")
    if asked:
        text = f"the engine has looked for {count(asked)} tokens in a KV connector"
        return measured(text, "engine_external_prefix_cache_queries_total", asked, "tokens")
    for labels, _ in subject.context.samples(subject.select("engine_info", SERVER_SCOPE)):
        role = label(labels, "role")
        if role in ("prefill", "decode"):
            return measured(f"the engine is the {role} server of a pair", "engine_info", 1.0)
    return None


def _hung_driver(subject: Subject) -> Evidence | None:
    """Return for how long the driver of the engine's GPUs has not answered; None where it does."""
    placed = f"max_over_time({subject.select('gpu_engine', SERVER_SCOPE)}[10m])"
    one = f"max(gpuwatch_gpu_unresponsive_seconds and on (host, uuid) {placed}) > 5"
    here = f"({placed} or {subject.select('engine_processes', SERVER_SCOPE)} > 0)"
    whole = f"max({subject.select('host_nvml_unresponsive_seconds', ('host',))} and on (host) {here}) > 5"
    for name, expr, what in (
        ("host_nvml_unresponsive_seconds", whole, "an NVML call on this machine"),
        ("gpu_unresponsive_seconds", one, "a driver call to a GPU of the engine"),
    ):
        seconds = subject.ask(expr)
        if seconds is not None:
            return measured(f"{what} has not returned for {count(seconds)} s", name, seconds, "seconds")
    return None


def _busy(subject: Subject) -> tuple[float, int] | None:
    """Return how busy the busiest GPU of the engine is, and how many it has; None where that is not known."""
    placed = subject.select("gpu_engine", SERVER_SCOPE)
    busy = subject.context.samples(f"{placed} * on (host, uuid) group_left () gpuwatch_gpu_busy_ratio")
    return (max(value for _, value in busy), len(busy)) if busy else None


def _told_busy(busy: float, gpus: int) -> Evidence:
    """Say how busy the GPUs are, and what that means where it is clear. A collective spins while it waits."""
    if busy < IDLE:
        meaning = ": it computes nothing" if gpus == 1 else ": none of them computes"
    elif busy > SPINS and gpus > 1:
        meaning = ": one that is always busy may wait in a collective for another"
    else:
        meaning = "; whether it computes or waits, that does not tell"
    subject = "the engine's GPU is" if gpus == 1 else f"the busiest of the engine's {gpus} GPUs is"
    return measured(f"{subject} {busy * 100:.0f} % busy{meaning}", "gpu_busy_ratio", busy, "ratio")


DIAGNOSES = (
    Diagnosis("engine_stalled", "critical", "Requests are open and nothing moves", engine_stalled, ENGINE_SCOPE),
)
"""The findings of this family."""
