"""What a start asked for and did not get, in the words of `engines.unmet_log`, which marks its lines with ``lacks``."""

from __future__ import annotations

import math
from pathlib import PurePath
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes.unready import LACKS, no_cuda
from gpuwatch.diagnosis.causes.view import Cause, advise, group, number, ruled_out
from gpuwatch.diagnosis.explanation import Explanation, count, logged
from gpuwatch.engines.sizes import MOST_RANKS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import Run, View
    from gpuwatch.diagnosis.finding import Advice
    from gpuwatch.model import LogEvent

_BACKEND_FLAG = (0, 12, 0)
_V1_ONLY = (0, 11, 0)
TOO_OLD = "The GPU is too old for what the engine asks of it"
OF_VALUE = "A launch flag has a value that this model or machine cannot take"
GB = 10**9
RESERVE = "SGLang leaves 10 GiB of the host's memory alone"


def explained_here(event: LogEvent) -> bool:
    """Whether an event is one that this module explains."""
    return bool(group(event, *LACKS))


def start(view: View) -> Iterator[Cause]:
    """Judge a driver that does not start, a card that cannot compute so, and a model whose files are not there."""
    for events, judge in (
        (view.events("driver_too_old"), lambda event, _: no_cuda(event)),
        (view.events("dtype_unsupported"), _card),
        (view.events("model_not_found"), _files),
    ):
        ours = [event for event in events if explained_here(event) and not survived(view, event)]
        # Which method the checkpoint has says more than that the other one is not known.
        for event in sorted(ours, key=lambda each: not each.field("own"))[:1]:
            yield judge(event, view.run_of(event))


def survived(view: View, event: LogEvent) -> bool:
    """Whether a server took requests after such a line, or before it and did not end: it was no failed start then."""
    run = view.run_of(event)
    ready = run.fact("ready")
    if ready is None:
        return False
    ends = view.events("engine_dead", "engine_start_failed", "worker_dead")
    return (ready.line or 0) > event.line or not any(run.holds(end) and end.line >= event.line for end in ends)


def _capability(text: str) -> str:
    """Return a compute capability as people write it: 80 is 8.0."""
    return f"{text[:-1]}.{text[-1]}" if text.isdigit() and len(text) > 1 else text


def _card(event: LogEvent, run: Run) -> Cause:
    if event.field("own"):
        return _otherwise(event)
    lacks = group(event, *LACKS)
    if event.field("method"):
        return _unknown_method(event, run)
    has, needs = _capability(event.field("has")), _capability(event.field("needs"))
    told = f"it has compute capability {has or 'of less'}, {needs} is needed" if needs else ""
    if lacks == "Quantization scheme":
        cause = f"The GPU cannot compute in the checkpoint's quantisation: {told or 'it is too old for it'}."
        advice = [
            advise(
                "a checkpoint in a quantisation that this card takes"
                + (" (GPTQ or AWQ with 4 bits want 7.5)" if has == "7.5" else "")
                + ", or the one that is not quantised, where it fits"
            ),
            advise(f"or a card of compute capability {needs or '8.0'} or newer"),
        ]
    elif lacks == "FlashAttention":
        cause = "FlashAttention wants a GPU of compute capability 8.0 (Ampere) or newer; this one is older."
        advice = [_backend(run), advise("or a card of compute capability 8.0 or newer")]
    elif lacks == "SGLang":
        cause = "SGLang wants a GPU of compute capability 7.5 (Turing) or newer; this one is older."
        advice = [advise("a newer card, or an engine that still takes this one")]
    else:
        ok = event.field("ok")
        cause = f"The GPU cannot compute in {lacks}, the FP8 type of compute capability 8.9 and newer; it has {ok}."
        advice = [
            advise(
                "a KV cache that is not in FP8 (or fp8_e5m2, where the weights are not FP8)",
                "--kv-cache-dtype",
                run.text("flag.kv-cache-dtype") or None,
                "auto",
            ),
            advise("where the weights are FP8: a checkpoint in another quantisation, or a newer card"),
        ]
        if not run.text("flag.kv-cache-dtype").startswith("fp8"):
            advice = advice[1:]
    return Cause(
        "dtype_unsupported",
        Explanation(cause, 0.95, (logged(event),), tuple(advice)),
        event.time,
        title=TOO_OLD if lacks in ("FlashAttention", "SGLang") else "",
    )


def _backend(run: Run) -> Advice:
    """Return another attention backend than FlashAttention, in the form that the engine's version takes."""
    text = "another attention backend"
    if run.sglang:
        return advise(text, "--attention-backend", run.text("flag.attention-backend") or None, "triton")
    if run.version is not None and run.version >= _BACKEND_FLAG:
        return advise(text, "--attention-backend", run.text("flag.attention-backend") or None, "TRITON_ATTN")
    old = run.version is not None and run.version < _V1_ONLY
    return advise(text, "VLLM_ATTENTION_BACKEND", None, "XFORMERS" if old else "TRITON_ATTN")


def _otherwise(event: LogEvent) -> Cause:
    """Explain a quantisation in the launch command that is not the checkpoint's."""
    own, told = event.field("own"), event.field("told")
    text = "leave the flag out: the engine reads the method from the checkpoint"
    advice = [advise(text, "--quantization", told, "(leave it out)")]
    if told == "gguf":
        advice = [advise("give the configuration of the model that is not quantised", "--hf-config-path")]
    return Cause(
        "dtype_unsupported",
        Explanation(
            f"The engine did not start: the checkpoint is quantised as {own}, and the command says {told}.",
            0.96,
            (logged(event), ruled_out("the GPU: the two are compared before it is asked", event)),
            tuple(advice),
        ),
        event.time,
        title="The checkpoint's quantisation is not the one of the command",
    )


def _unknown_method(event: LogEvent, run: Run) -> Cause:
    method = event.field("method")
    version = run.text("version")
    given = run.text("flag.quantization")
    advice = [advise("a newer version of the engine, or a checkpoint in a method that this one has")]
    if given == method:
        advice.insert(0, advise("or leave it to the checkpoint", "--quantization", given, "(leave it out)"))
    return Cause(
        "dtype_unsupported",
        Explanation(
            f"This version of the engine{f' ({version})' if version else ''} does not know the quantisation {method}.",
            0.94,
            (logged(event),),
            tuple(advice),
        ),
        event.time,
        title="The engine does not know the checkpoint's quantisation",
    )


def _files(event: LogEvent, run: Run) -> Cause:
    lacks = group(event, *LACKS)
    path = event.field("path")
    folder = str(PurePath(path).parent) if path else ""
    name = group(event, "model", "model2") or folder or run.text("model") or run.text("flag.model") or "the model"
    flag = "--model-path" if run.sglang else "--model"
    there = advise("is it there, as this user and inside the container: ls -lL", flag, name)
    fetch = advise("fetch it again, whole: hf download; look whether the shards are there: *.safetensors")
    title = ""
    if lacks.startswith("No space"):
        where = f" of {folder}" if path else ""
        cause = f"The disk{where} is full: the model could not be put there whole."
        advice = [
            advise("how much is free, and what fills it: df -h; du -sh ~/.cache/huggingface/hub/*"),
            advise("or a cache on a larger disk; delete the *.incomplete files of this try", "HF_HOME"),
        ]
        title = "The disk is full: the model cannot be loaded"
    elif lacks.startswith(("Cannot find any", "Error no file")):
        cause = f"{name} has no file of weights in a format that the engine looks for."
        load = run.text("flag.load-format")
        advice = [fetch]
        if load and load != "auto":
            advice.append(advise("or let the engine see which format is there", "--load-format", load, "auto"))
        else:
            advice.append(advise("where there are others (GGUF, consolidated): name the format", "--load-format"))
    elif lacks.startswith(("Unrecognized", "No supported", "Could not detect")):
        cause = f"{name} has no config.json that says what model it is (model_type)."
        advice = [
            advise("is it the folder of the whole model, and not of an adapter or a tokenizer: ls -lL", flag, name),
            advise(
                "Mistral's own files (params.json): also --load-format and --tokenizer-mode mistral",
                "--config-format",
                None,
                "mistral",
            ),
        ]
        if run.sglang:
            advice = advice[:1]
    elif lacks.startswith("Incorrect"):
        cause = f"{name} is neither a folder here nor a name on the hub."
        advice = [there]
    else:
        cause = f"There is no {path}: the path is wrong, not mounted, or the download is incomplete."
        advice = [there, fetch]
    return Cause(
        "model_not_found",
        Explanation(cause, 0.92, (logged(event),), tuple(advice)),
        event.time,
        title=title,
    )


def bad_value(event: LogEvent, run: Run) -> Cause:
    """Explain sizes that do not go with each other."""
    if event.field("whole"):
        cause, advice = _undivided(event, run)
    elif event.field("by"):
        cause, advice = _sizes(event, run)
    else:
        batched, length = int(number(event, "batched") or 0), number(event, "length")
        other = int(length or number(event, "seqs") or 0)
        flag, what = ("--max-model-len", "a prompt") if length else ("--max-num-seqs", "the sequences of a step")
        cause = (
            f"a step takes {count(batched)} tokens, and {what} may have {count(other)}"
            + (", which without chunked prefill has to go into one step." if length else ": each has one at least.")
        )  # fmt: skip
        advice = [advise("a step that takes them; it needs more memory", "--max-num-batched-tokens", batched, other)]
        if length:
            advice.insert(0, advise("cut long prompts into several steps", "--enable-chunked-prefill", None, "(set)"))
        advice.append(advise("or shorter prompts" if length else "or fewer sequences", flag, other, batched))
    return Cause(
        "flag_unknown",
        Explanation(f"The engine did not start: {cause}", 0.93, (logged(event),), tuple(advice)),
        event.time,
        title=OF_VALUE,
    )


def _undivided(event: LogEvent, run: Run) -> tuple[str, list[Advice]]:
    whole, parts = int(number(event, "whole") or 0), int(number(event, "parts") or 1)
    fits = math.gcd(whole, parts)
    flag = "--tp-size" if run.sglang else "--tensor-parallel-size"
    ranks = run.told_tp
    if ranks is not None and ranks != parts:
        return (
            f"{count(whole)} of something in the model, as its heads or columns, cannot be shared by {parts}.",
            [advise(f"fewer ranks: their number divides {whole} then", flag, ranks, math.gcd(whole, ranks))],
        )
    return (
        f"{count(whole)} of something in the model, as the heads of an encoder, cannot be shared by {parts} ranks.",
        [
            advise(f"a number of ranks that divides {whole}", flag, parts, fits),
            advise("and use the other GPUs as pipeline stages or replicas", "--pp-size" if run.sglang
                   else "--pipeline-parallel-size", None, parts // fits),
        ],
    )  # fmt: skip


def _sizes(event: LogEvent, run: Run) -> tuple[str, list[Advice]]:
    """Explain ranks that SGLang cannot divide among replicas or nodes."""
    by = event.field("by")
    ranks = run.number("tp")
    nodes = by == "number of nodes"
    parts = run.number("flag.nnodes") if nodes else run.number("dp") if by == "dp_size" else None
    flag = "--nnodes" if nodes else f"--{by.replace('_', '-')}"
    if not ranks or not parts:
        return (
            f"the tensor-parallel ranks cannot be divided by {'the nodes' if nodes else flag}.",
            [advise(f"a number of ranks that {'the nodes divide' if nodes else flag + ' divides'}", "--tp-size")],
        )
    few, many = int(parts), int(ranks)
    more = math.ceil(many / few) * few
    if nodes:
        less = many // few * few
        return (
            f"{many} ranks cannot be shared evenly by {few} nodes.",
            [advise("as many ranks on each node", "--tp-size", many, less or more)],
        )
    fits = next(each for each in range(min(few, many, MOST_RANKS), 0, -1) if many % each == 0)
    return (
        f"{many} tensor-parallel ranks cannot be divided by {flag} {few}.",
        [
            advise(f"a number that divides {many}", flag, few, fits),
            advise("or, where there are so many GPUs, more ranks", "--tp-size", many, more),
        ],
    )


def absent(event: LogEvent) -> Cause:
    """Return the finding of a rank that waited for another one while a group was formed."""
    waited = (number(event, "ms") or 0.0) / 1000
    return Cause(
        "nccl_hang",
        Explanation(
            f"The group never formed: a rank waited {count(waited)} s at the meeting point for what another rank "
            f"writes there ({event.field('keys')}). That rank ended, hangs, or was not started.",
            0.85,
            (
                logged(event),
                ruled_out("the way to the meeting point: it answered, only the other rank's word was missing", event),
            ),
            (
                advise("what is the first error of the other ranks, in this log or on the other nodes"),
                advise("does each rank run: nvidia-smi, ps on every node; py-spy dump --pid of one that stands"),
                advise(
                    "several network cards: name the one that reaches the other node (NCCL_SOCKET_IFNAME as well)",
                    "GLOO_SOCKET_IFNAME",
                ),
            ),
        ),
        event.time,
    )


def host_cache(event: LogEvent, run: Run) -> Cause:
    """Explain a second level of SGLang's KV cache that the host has no room for.

    The size is of each rank, in 10**9 bytes; all ranks of a node take it from the same memory.
    """
    asked, free = number(event, "req") or 0.0, max(0.0, number(event, "free") or 0.0)
    ranks = max(1, int((run.told_tp or 1) / max(1.0, run.number("flag.nnodes") or 1.0)))
    each = int(free / ranks)
    size, ratio = run.number("flag.hicache-size"), run.number("flag.hicache-ratio")
    shared = f", and the {ranks} ranks of this node want as much each" if ranks > 1 else ""
    pool = run.number("kv.bytes")
    small = "; older versions take none below the GPU's own pool" if pool is None or each * GB <= pool else ""
    advice = [
        advise(
            ("what is free, shared by the ranks of this node" if ranks > 1 else "what is free") + small,
            "--hicache-size",
            int(size) if size else None,
            each,
        )
        if each
        else advise("leave the second level out", "--enable-hierarchical-cache", "(set)", "(leave it out)"),
        advise("or memory: what else is on the host, and its container's limit; reserved huge pages are not free"),
    ]
    if not size and ratio and asked:
        fits = math.floor(ratio * free / ranks / asked * 100) / 100
        if fits > 1:  # older versions refuse less
            advice.insert(1, advise("or as a multiple of the GPU's pool", "--hicache-ratio", ratio, fits))
    return Cause(
        "host_memory_oversubscribed",
        Explanation(
            f"SGLang's KV cache in the host's memory (hierarchical cache) wants {asked:g} GB for a rank; {free:g} GB "
            f"can be used{shared}. {RESERVE}.",
            0.93,
            (logged(event), ruled_out("the GPU: this is host memory", event)),
            tuple(advice),
        ),
        event.time,
        severity="critical",  # the engine refuses to start with it
        title="" if ranks > 1 else "The host has too little memory for the KV cache on the CPU",
    )
