"""Requests that a server refuses although they are within the length that it states."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.finding import Advice, Evidence, Finding

if TYPE_CHECKING:
    from gpuwatch.probes.run import Run

_LIMIT = re.compile(r"context length (?:is |\()([0-9]+) tokens")
"""The limit in a refusal: of vLLM ``maximum context length is N tokens``, of SGLang ``context length (N tokens)``."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that was refused: tokens of its prompt, tokens that its answer may have, and the server's words."""

    tokens: int
    output: int
    error: str


def refused(run: Run, bad: Refused, whole: int | None) -> Finding:
    """Return the finding about a refusal within the stated length.

    Args:
        run: The run; its server states a length.
        bad: The shortest request that was refused.
        whole: Tokens of the longest shorter request that was accepted, prompt and answer; None: there was none.
    """
    stated = run.server.max_model_len or 0
    where = f"{run.server.url}/v1/completions"
    said = _LIMIT.search(bad.error)
    told = int(said[1].replace(",", "")) if said is not None else None
    told = told if told is not None and told < bad.tokens + bad.output else None
    real = told if told is not None else whole
    flag = {"vllm": "--max-model-len", "sglang": "--context-length"}.get(run.server.engine, "")
    evidence = [
        Evidence(
            f"the server states {stated:,} tokens",
            f"{run.server.url}/v1/models",
            name="gpuwatch_engine_config_max_model_len_tokens",
            value=float(stated),
            unit="tokens",
        ),
        Evidence(f"a prompt of {bad.tokens:,} tokens and {bad.output} to answer: {bad.error}", where),
    ]
    if whole is not None:
        evidence.append(Evidence(f"a request of {whole:,} tokens was accepted", where))
    keep = (
        f"keep a request with its answer within {real:,} tokens"
        if real is not None
        else f"keep prompts shorter than {bad.tokens:,} tokens; what was sent says no more than that"
    )
    return Finding(
        id="context_refused",
        severity="warning",
        title="Requests within the stated length are refused",
        cause=(
            f"The server states {stated:,} tokens, but refuses {bad.tokens + bad.output:,}, prompt and answer "
            "together. Whether the engine or what stands in front of it refuses, its message says."
        ),
        confidence=0.9,
        evidence=tuple(evidence),
        advice=(
            Advice(keep),
            Advice(
                "have the real length stated, if this limit is meant to be",
                flag if real is not None else "",
                str(stated) if flag and real is not None else None,
                str(real) if flag and real is not None else None,
            ),
        ),
        since=int(run.started * 1000),
    )
