"""Prompts that a server accepts, and reads only in part or not at all, without an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from gpuwatch.diagnosis.finding import Advice, Evidence, Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatch.probes.client import Server
    from gpuwatch.probes.exchange import Reply
    from gpuwatch.probes.run import Run
    from gpuwatch.probes.vocabulary import Vocabulary

TEXT_TOLERANCE = 0.1
"""Share by which text prompts may be off from what their words should cost; random sentences vary less."""
TEXT_ERROR = 0.03
"""Share by which two texts differ in length, however their words fall."""
_FLAGS = {"vllm": "--max-model-len", "sglang": "--context-length"}
Fate: TypeAlias = Literal["whole", "cut", "ignored", "not counted"]
"""All tokens were counted; fewer than were sent; not one token was generated; the server counts nothing, or how many
tokens were sent is a guess."""


@dataclass(frozen=True, slots=True)
class Short:
    """A prompt that was not read whole: tokens sent, tokens that the server counts (None: it does not), its fate."""

    sent: int
    counted: int | None
    fate: Fate


def fate(reply: Reply, sent: int, words: Vocabulary) -> Fate:
    """Return what became of a prompt of `sent` tokens, made of `words`, whose answer is complete."""
    if not reply.token_times and not reply.completion_tokens:
        return "ignored"
    if reply.prompt_tokens is None or words.guessed:
        return "not counted"
    least = sent if words.exact else round(sent * (1 - TEXT_TOLERANCE))
    return "whole" if reply.prompt_tokens >= least else "cut"


def cut_at(prompts: Iterable[tuple[int, int]]) -> int | None:
    """Return the tokens to which prompts of text are cut: what the server counts of two different lengths alike.

    `prompts` are tokens sent, as estimated, and counted. None: no two are alike.
    """
    seen: dict[int, int] = {}
    for sent, counted in sorted(prompts):
        if sent > seen.setdefault(counted, sent) * (1 + TEXT_ERROR):
            return counted
    return None


def finding(run: Run, short: Sequence[Short], whole: int | None, output: int) -> tuple[Finding, ...]:
    """Return the finding about prompts that were cut or ignored, nothing where there are none.

    Args:
        run: The run.
        short: The prompts, the one to judge by last.
        whole: Tokens of the longest prompt that was counted whole; None: none was.
        output: Tokens that an answer may have.
    """
    if not short:
        return ()
    worst, exact = short[-1], run.vocabulary.exact
    where = f"{run.server.url}/v1/completions"
    how = (
        "it is accepted and ends without one token"
        if worst.fate == "ignored"
        else f"it is accepted and only {worst.counted or 0:,} tokens of it are read"
    )
    evidence = [
        Evidence(
            f"sent {each.sent:,} tokens, the server counts {'none' if each.counted is None else f'{each.counted:,}'}",
            where,
            name="usage.prompt_tokens",
            value=None if each.counted is None else float(each.counted),
            unit="tokens",
        )
        for each in short
    ]
    if whole is not None:
        evidence.append(Evidence(f"a prompt of {whole:,} tokens is counted whole", where))
    return (
        Finding(
            id="silent_truncation",
            severity="warning",
            title="Prompts are cut or ignored without an error",
            cause=f"A prompt of {worst.sent:,} tokens gets no error: {how}.",
            confidence=0.95 if exact else 0.85,
            evidence=tuple(evidence),
            advice=changes(run.server, min(short, key=lambda each: each.sent), output),
            since=int(run.started * 1000),
        ),
    )


def changes(server: Server, worst: Short, output: int) -> tuple[Advice, ...]:
    """Return what to change where `worst` was not read whole; an answer has `output` tokens.

    A limit that is stated, and that the request is within, is not what cut the prompt.
    """
    needs, stated = worst.sent + output, server.max_model_len
    flag = _FLAGS.get(server.engine)
    compare = Advice("or shorten prompts, and compare usage.prompt_tokens with what was sent")
    if flag is None:
        window = Advice(
            "have the server run with a context that holds what is sent (Ollama: num_ctx of the model or of the "
            "request, or OLLAMA_CONTEXT_LENGTH; llama.cpp: --ctx-size)",
            "num_ctx",
            None,
            str(needs),
        )
        return (window, compare)
    if stated is None or stated < needs:
        longer = Advice("accept the length that is sent", flag, None if stated is None else str(stated), str(needs))
        refuse = Advice("or have longer prompts refused: without --allow-auto-truncate")
        return (longer, refuse if server.engine == "sglang" else compare)
    within = f"the stated {stated:,} tokens hold the {needs:,} of this request, so {flag} is not what is short"
    if worst.fate == "ignored":
        return (
            Advice(f"{within}: look in the engine's log, and at what stands in front of it, for why nothing comes"),
            compare,
        )
    where = "truncate_prompt_tokens in the requests or in what stands in front of the engine"
    if server.engine == "sglang":
        where = "a proxy that shortens prompts, or --allow-auto-truncate with a KV pool smaller than the context"
    return (Advice(f"{within}: look for {where}"), compare)
