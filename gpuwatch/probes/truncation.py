"""Prompts that a server accepts, and reads only in part or not at all, without an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from gpuwatch.diagnosis.finding import Advice, Evidence, Finding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.probes.client import Reply
    from gpuwatch.probes.run import Run

TEXT_TOLERANCE = 0.1
"""Share by which text prompts may be off from what their words should cost; random sentences vary less."""
Fate: TypeAlias = Literal["whole", "cut", "ignored", "not counted"]
"""All tokens were counted; fewer than were sent; not one token was generated; the server counts nothing."""


@dataclass(frozen=True, slots=True)
class Short:
    """A prompt that was not read whole: tokens sent, tokens that the server counts (None: it does not), its fate."""

    sent: int
    counted: int | None
    fate: Fate


def fate(reply: Reply, sent: int, *, exact: bool) -> Fate:
    """Return what became of a prompt of `sent` tokens whose answer is complete; `exact`: it was sent as token ids."""
    if not reply.token_times and not reply.completion_tokens:
        return "ignored"
    if reply.prompt_tokens is None:
        return "not counted"
    least = sent if exact else round(sent * (1 - TEXT_TOLERANCE))
    return "whole" if reply.prompt_tokens >= least else "cut"


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
    worst, exact, stated = short[-1], run.vocabulary.exact, run.server.max_model_len
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
    flag = {"vllm": "--max-model-len", "sglang": "--context-length"}.get(run.server.engine, "")
    return (
        Finding(
            id="silent_truncation",
            severity="warning",
            title="Prompts are cut or ignored without an error",
            cause=f"A prompt of {worst.sent:,} tokens gets no error: {how}.",
            confidence=0.95 if exact else 0.85,
            evidence=tuple(evidence),
            advice=(
                Advice(
                    "accept the length that is sent",
                    flag,
                    None if stated is None else str(stated),
                    str(worst.sent + output),
                ),
                Advice(
                    "or have longer prompts refused: without --allow-auto-truncate"
                    if run.server.engine == "sglang"
                    else "or shorten prompts, and compare usage.prompt_tokens with what was sent"
                ),
            ),
            since=int(run.started * 1000),
        ),
    )
