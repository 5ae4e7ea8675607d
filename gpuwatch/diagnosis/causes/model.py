"""What model and configuration do to answers and capacity: context, quantised KV, cut prompts."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes.view import Cause, advise, from_fact, group, number, ruled_out
from gpuwatch.diagnosis.explanation import Explanation, count, logged, told
from gpuwatch.diagnosis.finding import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import Run, View
    from gpuwatch.diagnosis.finding import Advice
    from gpuwatch.model import LogEvent

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
        severity=None if allowed else "critical",
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
        if _only_asked(run) and not _allowed(run):
            yield _will_refuse(run, served, native, evidence)
            return
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
                    *_native(run, served, native),
                    advise(
                        "or correct the model's config.json, if its card says that it is made for more",
                        "max_position_embeddings",
                        int(native),
                        int(served),
                    ),
                ),
            ),
        )
        return


def _native(run: Run, length: float, native: float) -> tuple[Advice, ...]:
    """Return the advice to keep to the length that the model was made for, or to scale its positions."""
    return (
        advise(
            "accept what the model was made for",
            "--context-length" if run.sglang else "--max-model-len",
            int(length),
            int(native),
        ),
        advise(
            "or set rope scaling that it was tested with",
            "--json-model-override-args" if run.sglang else "--hf-overrides",
        ),
    )


def _only_asked(run: Run) -> bool:
    """Whether a length stands in a launch command only: no log shows that the engine started with it."""
    fact = run.fact("max_model_len")
    started = any(run.fact(key) is not None for key in ("ready", "kv.tokens", "kv.bytes", "kv.blocks"))
    return fact is not None and fact in run.loose.values() and not started


def _lifts_check(run: Run) -> str:
    """Return the environment variable that makes the engine accept a length beyond the model's."""
    return "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN" if run.sglang else "VLLM_ALLOW_LONG_MAX_MODEL_LEN"


def _allowed(run: Run) -> bool:
    """Whether the check of the length is lifted, in the environment or in front of the launch command."""
    name = _lifts_check(run)
    if run.text(f"env.{name}").strip().lower() in ("1", "true"):
        return True
    return re.search(rf"\b{name}=[\"']?(?:1|true)\b", run.text("command"), re.IGNORECASE) is not None


def _will_refuse(run: Run, asked: float, native: float, evidence: list[Evidence]) -> Cause:
    """Tell that a launch command asks for more than the model was made for, which its engine does not start with."""
    name = "SGLang" if run.sglang else "vLLM"
    shown = [
        replace(item, text=f"{count(asked)} tokens are asked for") if item.name == "max_model_len" else item
        for item in evidence
    ]
    return Cause(
        "rope_context",
        Explanation(
            f"{count(asked)} tokens are asked for, the model was made for {count(native)} and no rope scaling is set: "
            f"{name} refuses to start with that unless {_lifts_check(run)}=1 is set, and with it the answers beyond "
            f"{count(native)} tokens are gibberish.",
            0.85,
            tuple(shown),
            (*_native(run, asked, native),),
        ),
    )


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
