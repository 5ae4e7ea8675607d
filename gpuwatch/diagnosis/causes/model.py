"""What model and configuration do to answers and capacity: context, quantised KV, cut prompts, KV heads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes.view import Cause, advise, from_fact, group, number, ruled_out
from gpuwatch.diagnosis.explanation import Explanation, count, logged, told
from gpuwatch.diagnosis.finding import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import Run, View
    from gpuwatch.model import LogEvent

MLA = re.compile(r"Deepseek(?:V[2-9]|ForCausalLMV[2-9])|Kimi|LongcatFlash|MLA", re.IGNORECASE)
"""Architectures whose KV cache is one latent vector per token for all heads."""
MORE = 1.5
"""A layout that holds so many times the requests of another one on the same cards is a clear gain."""
QUANTISED = ("fp8", "int8", "int4", "nvfp4", "mxfp8", "fp4", "turboquant", "octave", "ultraquant")


def rope(view: View) -> Iterator[Cause]:
    """Judge a context beyond what the model was made for, and rope scaling that does not take effect."""
    refused = view.events("rope_beyond_native")
    keys = view.events("rope_key_unknown")
    if keys:
        yield _unknown_keys(view, keys[0])
    elif refused:
        yield _beyond(view, refused[0])
    else:
        yield from _configured(view)


def _unknown_keys(view: View, event: LogEvent) -> Cause:
    field, kind = event.field("field") or "rope_scaling", event.field("type")
    run = view.run_of(event)
    limits = view.events("prompt_too_long")[:1]
    return Cause(
        "rope_context",
        Explanation(
            f"The {field} of the config is not fully applied: {event.field('keys') or 'some of its keys'} are not "
            f"known for {kind}. Files written for older versions say 'type' where newer ones read 'rope_type'; the "
            "context then stays at the model's native length. The warning alone does no harm.",
            0.8,
            (
                logged(event),
                *(logged(each) for each in limits),
                *from_fact(run, "max_model_len", "requests of up to {} tokens are accepted"),
                ruled_out("the KV pool: the limit is the model's", event),
            ),
            (
                advise(
                    "write the scaling with the key rope_type and give it to the engine",
                    "--hf-overrides",
                    None,
                    f'{{"{field}": {{"rope_type": "{kind or "yarn"}", "factor": 4.0, '
                    '"original_max_position_embeddings": 32768}}}}',
                ),
                advise("and set the context that you mean", "--max-model-len"),
            ),
        ),
        event.time,
    )


def _beyond(view: View, event: LogEvent) -> Cause:
    run = view.run_of(event)
    asked, native = number(event, "mml"), number(event, "derived")
    allowed = (
        event.text.lstrip().startswith(("WARNING", "Warning"))
        or " WARNING " in event.text
        or run.fact("kv.tokens") is not None
    )
    shown = f"{count(asked or 0)} tokens are asked for, the model was made for {count(native or 0)}."
    cause = shown + (
        " The engine was told to allow it: beyond its native length the model answers nonsense unless rope scaling "
        "is set."
        if allowed
        else " The engine refuses it."
    )
    flag = "--context-length" if run.sglang else "--max-model-len"
    return Cause(
        "rope_context",
        Explanation(
            cause,
            0.93,
            (logged(event), ruled_out("memory: the limit is the model's, not the KV pool's", event)),
            (
                advise(
                    "accept what the model was made for",
                    flag,
                    int(asked) if asked else None,
                    int(native) if native else None,
                ),
                advise(
                    "or give it rope scaling that it was tested with",
                    "--json-model-override-args" if run.sglang else "--hf-overrides",
                    None,
                    f'{{"rope_scaling": {{"rope_type": "yarn", "factor": '
                    f"{max(2.0, round((asked or 0) / (native or 1) + 0.49))}, "
                    f'"original_max_position_embeddings": {int(native or 0)}}}}}',
                ),
                advise("the environment variable that lifts the check adds no scaling: VLLM_ALLOW_LONG_MAX_MODEL_LEN"),
            ),
        ),
        event.time,
    )


def _configured(view: View) -> Iterator[Cause]:
    """Judge a served length that is beyond the table of positions in config.json, without scaling."""
    native, scaled, evidence = _positions(view)
    if native is None or scaled:
        return
    for run in view.runs:
        served = run.number("max_model_len")
        if served is None or served <= native:
            continue
        evidence += from_fact(run, "max_model_len", "requests of up to {} tokens are accepted", "tokens")
        fact = run.fact("kv.dtype")
        if fact is None or not str(fact.value).startswith(QUANTISED):
            evidence.append(Evidence("Ruled out: a quantised KV cache: its type is that of the model"))
        yield Cause(
            "rope_context",
            Explanation(
                f"{count(served)} tokens are accepted, but the config's table of positions ends at {count(native)} "
                "and no rope scaling is set: positions beyond it are wrong, and the answer becomes gibberish from "
                "there on.",
                0.85,
                tuple(evidence),
                (
                    advise(
                        "correct the model's config.json, if it is made for more",
                        "max_position_embeddings",
                        int(native),
                        int(served),
                    ),
                    advise(
                        "or accept no more",
                        "--context-length" if run.sglang else "--max-model-len",
                        int(served),
                        int(native),
                    ),
                    advise("or set rope scaling", "--hf-overrides"),
                ),
            ),
        )
        return


def _positions(view: View) -> tuple[float | None, bool, list[Evidence]]:
    """Return the native length that config.json gives, whether it is scaled, and where that stands."""
    config = view.incident.config or {}
    inner = config.get("text_config")
    config = inner if isinstance(inner, dict) and "max_position_embeddings" in inner else config
    value = config.get("max_position_embeddings")
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    native = float(value) if isinstance(value, (int, float)) else None
    evidence = (
        [
            Evidence(
                f"config.json: max_position_embeddings is {count(native)}",
                "config.json",
                None,
                "max_position_embeddings",
                native,
            )
        ]
        if native
        else []
    )
    keys = {event.field("key"): event for event in view.events("config_key")}
    if native is None and "max_position_embeddings" in keys:
        native = number(keys["max_position_embeddings"], "value")
    if "max_position_embeddings" in keys:
        evidence = [logged(keys["max_position_embeddings"])]
    if "model_max_length" in keys:
        evidence.append(logged(keys["model_max_length"]))
    words = (scaling.get("rope_type") or scaling.get("type") or "") if isinstance(scaling, dict) else ""
    overridden = any(run.text(flag) for run in view.runs for flag in ("flag.hf-overrides", "flag.rope-scaling"))
    scaled = str(words) not in ("", "default") or (
        keys.get("rope_scaling") is not None and group(keys["rope_scaling"], "value") != "null"
    )
    return native, scaled or overridden, evidence


def quantised_cache(view: View) -> Iterator[Cause]:
    """Judge a quantised KV cache without scales."""
    unscaled = view.events("kv_scale_one", "q_scale_uncalibrated")
    for run in view.runs:
        fact = run.fact("kv.dtype")
        flag = run.fact("flag.kv-cache-dtype")
        named = next(
            (each for each in (fact, flag) if each is not None and str(each.value).startswith(QUANTISED)), None
        )
        if named is None and not unscaled:
            continue
        latent = run.fact("kv.format") is not None
        evidence = [logged(event) for event in unscaled[:2]]
        if named is not None:
            evidence.append(told(named, f"the KV cache is stored as {named.value}"))
        evidence.append(Evidence("Ruled out: the weights: their type does not change what is kept in the cache"))
        yield Cause(
            "fp8_kv_accuracy",
            Explanation(
                "The KV cache is quantised"
                + (
                    ", with scaling factors of 1.0: values out of range are cut off."
                    if unscaled
                    else "; the log does not say that the checkpoint brings scales."
                )
                + " Small models and those with large keys (Qwen) lose most, exact recall over long contexts as well.",
                0.85 if unscaled else 0.7,
                tuple(evidence),
                (
                    advise(
                        "keep it in the model's type where exactness counts",
                        "--kv-cache-dtype",
                        str(named.value) if named is not None else None,
                        "auto",
                    ),
                    advise("or use a checkpoint with calibrated KV scales"),
                ),
            ),
            (unscaled[0].time if unscaled else named.time if named is not None else 0) or 0,
            severity=None if unscaled and not latent else "info",
        )
        return


def truncated(view: View) -> Iterator[Cause]:
    """Judge prompts that vLLM V0 ignored with a warning only."""
    ignored = [event for event in view.events("prompt_too_long") if "Input prompt (" in event.text]
    if not ignored:
        return
    event = max(ignored, key=lambda each: number(each, "n") or 0)
    longest, limit = number(event, "n"), number(event, "limit")
    run = view.run_of(event)
    yield Cause(
        "silent_truncation",
        Explanation(
            f"Prompts longer than the limit{f' of {count(limit)} tokens' if limit else ''} are ignored: the request "
            "ends at once with an empty answer and finish_reason=length, and nobody gets an error. Rope scaling that "
            "was set elsewhere (a trainer, a client) did not reach the engine if the limit is the model's native "
            "length.",
            0.9,
            (
                *(logged(each) for each in ignored[:2]),
                *from_fact(run, "max_model_len", "requests of up to {} tokens are accepted"),
                ruled_out("a full KV pool: the limit is one of length", event),
            ),
            (
                advise(
                    "accept the length that is sent, with rope scaling given to the engine itself",
                    "--max-model-len",
                    int(limit) if limit else None,
                    int(longest) if longest else None,
                ),
                advise("or shorten the prompts, and treat finish_reason=length with 0 tokens as an error"),
            ),
        ),
        event.time,
    )


def kv_heads(view: View) -> Iterator[Cause]:
    """Judge KV heads that are fewer than the ranks: each rank holds a copy, and more ranks give no more pool."""
    for run in view.runs:
        heads, where = _heads(view, run)
        dcp = run.number("dcp") or 1
        if heads is None or run.tp <= heads * dcp or run.tp == 1:
            continue
        copies = run.tp // heads
        twin = _twin(view, run)
        evidence = [
            *where,
            *from_fact(run, "tp", "tensor-parallel ranks: {}"),
            *from_fact(run, "max_concurrency", "requests of full length that fit: {}"),
        ]
        gain = ""
        if twin is not None:
            ours, theirs = (
                run.number("max_concurrency") or 0,
                (twin.number("max_concurrency") or 0) * (twin.number("dp") or 1),
            )
            gain = (
                f" As {twin.number('dp'):.0f} replicas the same cards hold {theirs:.1f} requests of full length, as "
                f"one group {ours:.1f}."
            )
            evidence += from_fact(
                twin, "max_concurrency", f"{twin.number('dp'):.0f} data-parallel replicas hold {{}} each"
            )
        evidence.append(
            Evidence("Ruled out: the memory fraction and the links between the cards: neither changes the copies")
        )
        yield Cause(
            "kv_head_replication",
            Explanation(
                f"The model has {heads} KV head{'s' if heads > 1 else ''} and {run.tp} tensor-parallel ranks: every "
                f"rank keeps {'the full' if heads == 1 else 'a copied part of the'} KV cache, {copies} times in all, "
                f"so that more ranks add no room.{gain}",
                0.9 if twin is not None else 0.75,
                tuple(evidence),
                (
                    advise(
                        "run attention data-parallel (with expert parallelism for a MoE model)",
                        "--data-parallel-size",
                        int(run.number("dp") or 1),
                        copies,
                    ),
                    advise("or share the cache among the ranks", "--decode-context-parallel-size", int(dcp), copies),
                ),
            ),
            _time(run),
            severity=None if twin is not None else "info",
        )
        return


def _time(run: Run) -> int:
    fact = run.fact("max_concurrency") or run.fact("kv.tokens")
    return (fact.time or 0) if fact is not None else 0


def _heads(view: View, run: Run) -> tuple[int | None, list[Evidence]]:
    """Return the KV heads and where they are known from; one for a latent cache."""
    latent = run.fact("kv.format")
    name = run.fact("architecture")
    if latent is not None:
        return 1, [told(latent, f"the KV cache has the latent format {latent.value}: one head for all")]
    if name is not None and MLA.search(str(name.value)):
        return 1, [told(name, f"{name.value} keeps one latent vector per token for all heads")]
    config = view.incident.config or {}
    inner = config.get("text_config")
    config = inner if isinstance(inner, dict) and "num_key_value_heads" in inner else config
    value = config.get("num_key_value_heads")
    if isinstance(value, int) and value > 0:
        return value, [
            Evidence(f"config.json: num_key_value_heads is {value}", "config.json", None, "num_key_value_heads", value)
        ]
    for event in view.events("config_key"):
        if event.field("key") == "num_key_value_heads" and event.field("value").isdigit():
            return int(event.field("value")), [logged(event)]
    return None, []


def _twin(view: View, run: Run) -> Run | None:
    """Return a run of the same model with more replicas and fewer ranks that holds clearly more."""
    for other in view.runs:
        replicas = other.number("dp") or 1
        if other is run or other.text("model") != run.text("model") or replicas <= (run.number("dp") or 1):
            continue
        ours, theirs = run.number("max_concurrency"), other.number("max_concurrency")
        if ours and theirs and theirs * replicas >= MORE * ours:
            return other
    return None
