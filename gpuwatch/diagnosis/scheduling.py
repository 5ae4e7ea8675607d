"""What holds up requests that run: a long prompt, the processor, histories computed again, a full context."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.baseline import baseline
from gpuwatch.diagnosis.bounds import SMALLEST_CHUNK
from gpuwatch.diagnosis.context import ENGINE_SCOPE, HOST_SCOPE, SERVER_SCOPE
from gpuwatch.diagnosis.diagnosis import Diagnosis
from gpuwatch.diagnosis.explanation import Explanation, Unknown, Verdict, count, excluded, logged, measured, percent
from gpuwatch.diagnosis.finding import Advice
from gpuwatch.engines.flag_versions import available

if TYPE_CHECKING:
    from gpuwatch.diagnosis.context import Subject
    from gpuwatch.diagnosis.finding import Evidence

STEP_SECONDS = 0.2
"""The longest step that is proposed: five tokens a second reach each reader while a prompt is computed."""
ROLES = {
    "api_server": "the API server, which tokenises, checks and streams",
    "scheduler": "the scheduler (engine core)",
    "other": "a process of the engine",
}
LONG_CONTEXTS = (("100000.0", 100_000), ("500000.0", 500_000))
"""Bounds of vLLM's histogram of prompt lengths above which the share of requests is told."""


def head_of_line(subject: Subject) -> Verdict:
    """Explain running requests that get hardly a token while a prompt is computed."""
    tokens, free = subject.select("engine_generation_tokens_total"), subject.select("engine_kv_cache_free_tokens")
    prefilled = _most(subject, f"({free} offset 15s - {free})")
    least = _least(subject, f"({tokens} - {tokens} offset 15s)")
    usual = subject.ask(f"rate({tokens}[5m] offset 30s)")
    running = subject.now("engine_requests_running")
    if prefilled is None or least is None or usual is None or running is None:
        return Unknown("generated tokens, running requests and free KV tokens of the last minutes")
    rate, speed = least / 15, prefilled / 15
    evidence = [
        measured(
            f"{count(rate)} tokens/s for {count(running)} running requests, {count(usual)} tokens/s before",
            "engine_generation_tokens_total",
            rate,
            "tokens/s",
        ),
        measured(
            f"meanwhile the KV pool took in {count(prefilled)} tokens within 15 s: {count(speed)} prompt tokens/s",
            "engine_kv_cache_free_tokens",
            prefilled,
            "tokens",
        ),
    ]
    longest = _longest_prompt(subject)
    if longest is not None:
        text = f"prompts of more than {count(longest)} tokens came in the last 5 minutes"
        evidence.append(measured(text, "engine_prompt_length_tokens", longest, "tokens"))
    waiting = subject.now("engine_requests_waiting")
    if waiting:
        text = f"{count(waiting)} requests wait behind it"
        evidence.append(measured(text, "engine_requests_waiting", waiting))
    usage = subject.now("engine_kv_cache_usage_ratio")
    if usage is not None:
        text = f"a full KV pool: {percent(usage)} of it is used"
        evidence.append(excluded(text, "engine_kv_cache_usage_ratio", usage, "ratio"))
    chunk = subject.config("max_num_batched_tokens", "max_num_batched_tokens")
    step = f": a step of {count(chunk)} tokens takes {chunk / speed:.1f} s" if chunk and speed > 0 else ""
    if chunk is not None:
        text = f"a step may take up to {count(chunk)} tokens"
        evidence.append(measured(text, "engine_config_max_num_batched_tokens", chunk, "tokens"))
    cause = (
        f"A long prompt takes the whole token budget of each step{step}, and every running request gets one token per "
        f"step: {count(rate)} instead of {count(usual)} tokens/s for {count(running)} requests."
    )
    return Explanation(cause, 0.8, tuple(evidence), _smaller_steps(subject, chunk, speed))


def _most(subject: Subject, expr: str) -> float | None:
    """Return the highest value of `expr` within the last minute."""
    return subject.ask(f"max_over_time({expr}[1m:5s])")


def _least(subject: Subject, expr: str) -> float | None:
    """Return the lowest value of `expr` within the last minute, but no negative one."""
    value = subject.ask(f"min_over_time({expr}[1m:5s])")
    return None if value is None else max(0.0, value)


def _longest_prompt(subject: Subject) -> float | None:
    """Return a lower bound of the longest prompt that ended in the last 5 minutes, from the histogram's buckets."""
    buckets = subject.context.samples(f"increase({subject.select('engine_prompt_length_tokens_bucket')}[5m])")
    found = sorted((float(dict(labels).get("le", "nan")), value) for labels, value in buckets)
    total = found[-1][1] if found else 0.0
    return max((bound for bound, value in found if math.isfinite(bound) and total - value > 0.5), default=None)


def _smaller_steps(subject: Subject, chunk: float | None, speed: float) -> tuple[Advice, ...]:
    wanted = max(SMALLEST_CHUNK, 2 ** math.floor(math.log2(max(1.0, speed * STEP_SECONDS))))
    if chunk is not None and wanted >= chunk:
        wanted = max(SMALLEST_CHUNK, int(chunk) // 2)
    now = f"{chunk:.0f}" if chunk is not None else None
    takes = f"{wanted / speed:.1f} s each" if speed > 0 else "shorter"
    advice = []
    if chunk is None or wanted < chunk:
        text = f"smaller steps, {takes}: readers wait less, the long prompt takes longer"
        advice.append(Advice(text, "--max-num-batched-tokens", now, str(wanted)))
    if available("vllm", subject.version, "long-prefill-token-threshold"):
        text = "or cap one prompt's share of a step, so that short prompts and decoding fit beside it"
        advice.append(Advice(text, "--long-prefill-token-threshold", _flag(subject), str(wanted)))
    advice.append(Advice("or send very long prompts to an engine of their own"))
    return tuple(advice)


def _flag(subject: Subject) -> str | None:
    fact = subject.fact("flag.long-prefill-token-threshold")
    return str(fact.value) if fact is not None else None


def cpu_bound(subject: Subject) -> Verdict:
    """Explain GPUs that idle while requests run: which process uses a whole core, or that all cores are taken."""
    joined = f"{subject.select('gpu_engine', SERVER_SCOPE)} * on (host, uuid) group_left () "
    busy = subject.context.samples(f"max({joined}avg_over_time(gpuwatch_gpu_busy_ratio[1m]))")
    if not busy:
        return Unknown("how busy the engine's GPUs are")
    share = busy[0][1]
    roles = {
        dict(labels).get("role", ""): cores
        for labels, cores in subject.context.samples(
            f"rate({subject.select('engine_role_cpu_seconds_total', SERVER_SCOPE)}[1m])"
        )
    }
    evidence = [measured(f"the busiest GPU works {percent(share)} of the time", "gpu_busy_ratio", share, "ratio")]
    evidence += [
        measured(
            f"the busiest process with the role {role} uses {cores:.2f} cores",
            "engine_role_cpu_seconds_total",
            cores,
            "cores",
        )
        for role, cores in sorted(roles.items(), key=lambda item: -item[1])
    ]
    running = subject.context.samples(f"sum({subject.select('engine_requests_running', SERVER_SCOPE)})")
    if running:
        text = f"{count(running[0][1])} requests run"
        evidence.append(measured(text, "engine_requests_running", running[0][1]))
    host = subject.over("avg_over_time", "host_cpu_busy_ratio", "1m", HOST_SCOPE)
    if host is not None:
        text = f"{percent(host)} of all cores of the machine are in use"
        evidence.append(measured(text, "host_cpu_busy_ratio", host, "ratio"))
    if subject.alert == "GpuwatchHostCpuFull":
        cause = (
            f"All cores of the machine are in use, and the GPUs work {percent(share)} of the time: the engine's "
            "processes do not get the processor time they need."
        )
        advice = (
            Advice("give the engine cores of its own (taskset, CPU requests and limits), or move the other programs"),
        )
        return Explanation(cause, 0.8, tuple(evidence), advice)
    names = [role for role in roles if role != "worker"]
    if not names:
        return Unknown("the processor time of the engine's processes")
    role = max(names, key=lambda name: roles[name])
    cause = (
        f"{ROLES.get(role, ROLES['other'])[0].upper()}{ROLES.get(role, ROLES['other'])[1:]}, uses {roles[role]:.2f} "
        f"cores, and a Python process has hardly more than one; the GPUs work {percent(share)} of the time. "
        "More threads (OMP_NUM_THREADS) do not help."
    )
    return Explanation(cause, 0.8, tuple(evidence), _less_python(subject, role))


def _less_python(subject: Subject, role: str) -> tuple[Advice, ...]:
    advice = []
    lacks = subject.version is not None and not available("vllm", subject.version, "api-server-count")
    if role == "api_server" and not subject.sglang and not lacks:
        fact = subject.fact("flag.api-server-count")
        servers = int(fact.value) if fact is not None and isinstance(fact.value, (int, float)) else 1
        text = "spread tokenising and streaming over more API servers"
        advice.append(Advice(text, "--api-server-count", str(servers), str(2 * servers)))
    eager = subject.fact("enforce_eager")
    if eager is not None and eager.value is True:
        flag = "--disable-cuda-graph" if subject.sglang else "--enforce-eager"
        advice.append(Advice("switch CUDA graphs on: without them each kernel is started by Python", flag, "set", ""))
    scheduling = subject.fact("flag.async-scheduling")
    if role == "scheduler" and not subject.sglang and scheduling is not None and scheduling.value is False:
        text = "schedule the next step while the GPU computes this one"
        advice.append(Advice(text, "--async-scheduling", "false", "true"))
    advice.append(Advice("or a processor with faster single cores, or fewer requests per engine and more engines"))
    return tuple(advice)


def context_growth(subject: Subject) -> Verdict:
    """Explain prompts that grow while the prefix cache does not catch the growth."""
    tokens = subject.select("engine_prompt_tokens_total")
    first = subject.select("engine_time_to_first_token_seconds_count")
    now = subject.ask(f"rate({tokens}[2m]) / (rate({first}[2m]) > 0)")
    past = baseline(subject, "engine_prompt_tokens_total", 120)
    before = subject.ask(f"rate({tokens}{past.window}) / (rate({first}{past.window}) > 0)")
    if now is None or before is None:
        return Unknown("prompts and prompt tokens over 12 minutes")
    evidence = [
        measured(f"prompts have {count(now)} tokens on average over 2 minutes", "engine_prompt_tokens_total", now),
        measured(f"{count(before)} in {past.words}", "engine_prompt_tokens_total", before, "tokens"),
    ]
    hits, queries = (subject.select(f"engine_prefix_cache_{name}_total") for name in ("hits", "queries"))
    found = subject.ask(f"rate({hits}[2m]) / (rate({queries}[2m]) > 0)")
    caching = subject.now("engine_prefix_cache_enabled")
    computed = "all of it" if found is None else f"{percent(1 - found)} of it"
    if found is not None:
        text = f"{percent(found)} of the prompt tokens are found in the prefix cache"
        evidence.append(measured(text, "engine_prefix_cache_hits_total", found, "ratio"))
    elif caching == 0:
        evidence.append(measured("prefix caching is off", "engine_prefix_cache_enabled", 0.0))
    evidence += _long_shares(subject)
    cause = (
        f"Prompts grew from {count(before)} to {count(now)} tokens, and {computed} is computed again each time. "
        "Longer histories of the same conversations and another, longer workload look alike here."
    )
    return Explanation(cause, 0.7, tuple(evidence), _shorter_histories(subject, off=caching == 0))


def _long_shares(subject: Subject) -> list[Evidence]:
    """Return the share of requests with more than 100,000 and 500,000 prompt tokens, where the histogram tells it."""
    buckets = subject.select("engine_prompt_length_tokens_bucket")
    rows = subject.context.samples(f"increase({buckets}[10m])")
    by_bound = {dict(labels).get("le", ""): value for labels, value in rows}
    total = by_bound.get("+Inf", 0.0)
    shares = []
    for bound, tokens in LONG_CONTEXTS:
        if total > 0 and bound in by_bound:
            share = 1 - by_bound[bound] / total
            text = (
                f"{percent(share)} of the requests of the last 10 minutes had more than {count(tokens)} prompt tokens"
            )
            shares.append(measured(text, "engine_prompt_length_tokens", share, "ratio"))
    return shares


def _shorter_histories(subject: Subject, *, off: bool) -> tuple[Advice, ...]:
    advice = []
    if off:
        flag = "--disable-radix-cache" if subject.sglang else "--enable-prefix-caching"
        values = ("true", "false") if subject.sglang else ("false", "true")
        advice.append(Advice("switch prefix caching on: a repeated history is then computed once", flag, *values))
    replicas = subject.config("data_parallel_size", "dp")
    where = (
        f"there are {count(replicas)} replicas" if replicas is not None and replicas > 1 else "where there are several"
    )
    advice += [
        Advice(f"route each conversation to the same replica ({where}): every replica has a cache of its own"),
        Advice("summarise or cut old turns, and keep what comes first the same, byte for byte"),
    ]
    return tuple(advice)


def silent_truncation(subject: Subject) -> Verdict:
    """Explain prompts that fill the context, or that are ignored without an error."""
    lines = subject.events("prompt_too_long")
    limit = subject.config("max_model_len_tokens", "max_model_len")
    if lines:
        asked, accepted = lines[-1].field("n"), lines[-1].field("limit")
        what = f"A prompt of {int(asked):,} tokens" if asked.isdigit() else "A prompt"
        over = f" is over the limit of {int(accepted):,}" if accepted.isdigit() else " is over the limit"
        cause = f"{what}{over}: it ends with the reason length and not one token, without an error."
        return Explanation(cause, 0.9, tuple(logged(line) for line in lines[-3:]), _longer_context(subject, limit))
    mean = subject.mean("engine_prompt_length_tokens", "5m")
    ended = subject.over("increase", "engine_prompt_length_tokens_count", "5m")
    if mean is None or limit is None or ended is None:
        return Unknown("the lengths of finished prompts and the longest request that is accepted")
    output = subject.mean("engine_generation_length_tokens", "5m")
    evidence = [
        measured(
            f"{count(ended)} prompts of the last 5 minutes have {count(mean)} tokens on average",
            "engine_prompt_length_tokens",
            mean,
            "tokens",
        ),
        measured(f"requests of up to {count(limit)} tokens are accepted", "engine_config_max_model_len_tokens", limit),
    ]
    if output is not None:
        text = f"answers have {count(output)} tokens on average"
        evidence.append(measured(text, "engine_generation_length_tokens", output, "tokens"))
    cause = (
        f"Prompts fill the context ({count(mean)} of {count(limit)} tokens): the client or the server cuts them to fit "
        f"(truncate_prompt_tokens{', --allow-auto-truncate' if subject.sglang else ''}), or they leave no room for an "
        "answer. Which of the two is told by the clients' requests only."
    )
    return Explanation(cause, 0.6, tuple(evidence), _longer_context(subject, limit))


def _longer_context(subject: Subject, limit: float | None) -> tuple[Advice, ...]:
    native = subject.config("native_context_tokens", "model.context")
    flag = "--context-length" if subject.sglang else "--max-model-len"
    advice = []
    if native is not None and limit is not None and native > limit:
        text = f"the model is made for {count(native)} tokens: accept longer requests"
        advice.append(Advice(text, flag, f"{limit:.0f}", f"{native:.0f}"))
    advice.append(
        Advice("treat an answer that ends with the reason length and no text as an error, or shorten prompts")
    )
    return tuple(advice)


DIAGNOSES = (
    Diagnosis("head_of_line", "warning", "A long prompt holds up the running requests", head_of_line, ENGINE_SCOPE),
    Diagnosis("cpu_bound", "warning", "The processor limits the engine while its GPUs idle", cpu_bound, SERVER_SCOPE),
    Diagnosis("context_growth", "warning", "Prompts grow and are computed anew", context_growth, ENGINE_SCOPE),
    Diagnosis(
        "silent_truncation",
        "warning",
        "Prompts are cut or ignored without an error",
        silent_truncation,
        (*ENGINE_SCOPE, "log"),
    ),
)
"""The findings of this family."""
