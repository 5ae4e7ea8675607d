"""What becomes of requests that are thrown out of the KV pool: swapped, computed again, read back, or never done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.explanation import count, logged, measured, percent, size
from gpuwatch.diagnosis.finding import Advice
from gpuwatch.engines.flag_versions import available
from gpuwatch.engines.version import show_version

if TYPE_CHECKING:
    from gpuwatch.diagnosis.capacity import Pool
    from gpuwatch.diagnosis.context import Subject
    from gpuwatch.diagnosis.finding import Evidence
    from gpuwatch.engines.version import Version

FULL = 0.9
"""KV usage that one request alone reaches only if it fills the pool."""
SEEN_FULL = 0.7
"""The same where nobody waits: a request that fills the pool several times a second shows so much on some page."""
LONG_PROMPT = 0.1
"""Prompts of at least this share of the pool are thrown away at a cost when they are evicted half computed."""
RECOMPUTED = "thrown out of it and computed again"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of storm: the `fate` of its victims, a cause of its own where there is one, evidence, advice."""

    fate: str = RECOMPUTED
    cause: str = ""
    evidence: tuple[Evidence, ...] = ()
    advice: tuple[Advice, ...] = ()


def storm_kind(subject: Subject, pool: Pool | None, thrown_out: float) -> Kind:
    """Return which kind of storm the engine is in. `thrown_out` are the evictions of the last minute."""
    return (
        _never_fits(subject, pool)
        or _swapped(subject)
        or _half_computed(subject, pool, thrown_out)
        or _offloaded(subject)
        or Kind()
    )


def _never_fits(subject: Subject, pool: Pool | None) -> Kind | None:
    """Look for a request that fills the pool alone, is thrown out, and starts again: nobody else needs its room."""
    lines = subject.events("request_never_fits")
    most = subject.over("max_over_time", "engine_requests_running", "1m")
    usage = subject.over("max_over_time", "engine_kv_cache_usage_ratio", "1m")
    ended = subject.total("increase", "engine_requests_finished_total", "1m")
    full = SEEN_FULL if subject.over("max_over_time", "engine_requests_waiting", "1m") == 0 else FULL
    alone = most is not None and most <= 1 and usage is not None and usage >= full and ended == 0
    if subject.sglang or pool is None or not (alone or lines):
        return None
    evidence = [logged(line) for line in lines[-1:]]
    if alone:
        assert usage is not None
        text = f"no two requests ran at once in the last minute, none ended, and KV usage reached {percent(usage)}"
        evidence.append(measured(text, "engine_requests_running", 1.0))
    usable = int(pool.tokens - pool.block * pool.null_blocks) if pool.blocks is not None else int(pool.tokens)
    limit = subject.config("max_model_len_tokens", "max_model_len")
    flag = "--context-length" if subject.sglang else "--max-model-len"
    now = f"{limit:.0f}" if limit is not None else None
    text = f"accept no request that the pool cannot hold: {count(usable)} tokens; end the one that runs"
    return Kind(
        cause=(
            f"One request needs more than the whole KV pool of {count(pool.tokens)} tokens: it fills it, is thrown "
            "out, and starts again. It can never end, and what waits behind it never starts."
        ),
        evidence=tuple(evidence),
        advice=(Advice(text, flag, now, str(usable)),),
    )


def _swapped(subject: Subject) -> Kind | None:
    """Look for victims in vLLM V0's swap space on the host."""
    swapped = subject.over("max_over_time", "engine_requests_swapped", "1m")
    lines = subject.events("preempted_v0", "swap_abort_v0")
    aborted = [line for line in lines if line.event == "swap_abort_v0"]
    by_swap = [line for line in lines if line.field("mode").upper() == "SWAP"]
    if not (swapped or aborted or by_swap):
        return None
    evidence = [logged(line) for line in (*by_swap[-1:], *aborted[-1:])]
    if swapped:
        evidence.append(
            measured(f"up to {count(swapped)} requests were swapped out", "engine_requests_swapped", swapped)
        )
    space = subject.fact("flag.swap-space")
    now = str(space.value) if space is not None else "4"
    text = "vLLM's own swap space on the host, not the system's: enlarge it" if aborted else "or enlarge the swap space"
    return Kind(
        fate="swapped to the host and read back"
        + (", until the swap space is full and requests are aborted" if aborted else ""),
        evidence=tuple(evidence),
        advice=(
            Advice("only requests with n > 1 or beam search are swapped: send n requests instead"),
            Advice(text, "--swap-space", now, _doubled(now)),
        ),
    )


def _doubled(text: str) -> str | None:
    try:
        return f"{2 * float(text):g}"
    except ValueError:
        return None


def _half_computed(subject: Subject, pool: Pool | None, thrown_out: float) -> Kind | None:
    """Look for long prompts that are thrown out before their first token: more leave than get one."""
    first = subject.over("increase", "engine_time_to_first_token_seconds_count", "1m")
    prompt = subject.mean("engine_prompt_length_tokens", "10m") or _prompted(subject)
    if pool is None or first is None or prompt is None or prompt < LONG_PROMPT * pool.tokens or first >= thrown_out:
        return None
    version = subject.version
    evidence = (
        measured(
            f"{count(first)} prompts got their first token in the last minute, fewer than were thrown out",
            "engine_time_to_first_token_seconds_count",
            first,
        ),
        measured(
            f"prompts have {count(prompt)} tokens on average, {percent(prompt / pool.tokens)} of the pool",
            "engine_prompt_length_tokens",
            prompt,
            "tokens",
        ),
    )
    return Kind(
        fate="admitted when their first chunk fits, thrown out half computed, and computed again",
        evidence=evidence,
        advice=() if subject.sglang else (_whole_prompts(subject, version),),
    )


def _prompted(subject: Subject) -> float | None:
    """Return the mean length of the prompts that got their first token in ten minutes, before any of them has ended."""
    prompts = subject.over("increase", "engine_prompt_tokens_total", "10m")
    first = subject.over("increase", "engine_time_to_first_token_seconds_count", "10m")
    return prompts / first if prompts and first else None


def _whole_prompts(subject: Subject, version: Version | None) -> Advice:
    if not available("vllm", version, "scheduler-reserve-full-isl"):
        known = f" ({show_version(version)} does not)" if version is not None else ""
        return Advice(f"update to vLLM 0.19 or newer, which admits a prompt only if all of it fits{known}")
    fact = subject.fact("flag.scheduler-reserve-full-isl")
    off = fact is not None and fact.value is False
    text = "admit a prompt only if all of it fits" + (
        "" if off else " (on by default: look whether it was switched off)"
    )
    return Advice(text, "--scheduler-reserve-full-isl", "false" if off else None, "true")


def _offloaded(subject: Subject) -> Kind | None:
    """Look for KV cache that is read back from the host: victims are then restored in part."""
    read = subject.over("increase", "engine_kv_offload_loaded_bytes_total", "1m")
    tokens = subject.over("increase", "engine_kv_offload_loaded_tokens_total", "1m")
    if not read and not tokens:
        return None
    text, name, value = (
        (f"{size(read)} of KV cache were read back from the host in 60 s", "engine_kv_offload_loaded_bytes_total", read)
        if read
        else (
            f"the KV cache of {count(tokens or 0)} tokens was read back from the host in 60 s",
            "engine_kv_offload_loaded_tokens_total",
            tokens or 0.0,
        )
    )
    return Kind(
        fate="thrown out of it, and read back from the host or computed again",
        evidence=(measured(text, name, value),),
    )
