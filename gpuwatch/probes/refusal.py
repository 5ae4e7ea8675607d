"""Requests that a server refuses although they are within the length that it states."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.finding import Advice, Evidence, Finding
from gpuwatch.probes.named_limit import named, requested

if TYPE_CHECKING:
    from gpuwatch.probes.named_limit import Named
    from gpuwatch.probes.run import Run

_FLAGS = {"vllm": "--max-model-len", "sglang": "--context-length"}
_TOO_LARGE = "HTTP 413"
_SPOKEN = re.compile(r"HTTP \d+(?: \([^)]*\))?: ")
"""A status with a message."""
_LONGER = 1.1
"""Factor by which a prompt of text may be longer than its estimate."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that was refused.

    Attributes:
        tokens: Tokens of its prompt.
        output: Tokens that its answer may have.
        error: The server's words.
        sent_bytes: Size of its body; 0: not known.
        exact: Whether `tokens` is exact; of a text it is an estimate.
    """

    tokens: int
    output: int
    error: str
    sent_bytes: int = 0
    exact: bool = False

    @property
    def total(self) -> int:
        """Tokens of prompt and answer."""
        return self.tokens + self.output


def limit_of(bad: Refused, stated: int | None, whole: int | None) -> Named | None:
    """Return the limit that a refusal names; None where it names none, or one that the requests contradict.

    Args:
        bad: The request.
        stated: The length that the server states, in tokens; None: none.
        whole: Tokens of the longest shorter request that was accepted, prompt and answer; None: there was none.
    """
    limit, off = named(bad.error), 1.0 if bad.exact else _LONGER
    if limit is None or (stated is not None and limit.tokens >= stated) or limit.tokens > bad.total * off:
        return None
    prompt = 0 if whole is None else whole - bad.output  # an answer may be cut at the limit without an error
    return limit if limit.tokens * off >= prompt else None


def longer(error: str, stated: int | None, output: int) -> bool:
    """Return whether a refusal names a request that is longer than what the server states: prompt and `output` tokens.

    Then it is right, and the length that was believed to be sent is wrong.
    """
    told = requested(error, output)
    return stated is not None and told is not None and told > stated


def too_large(bad: Refused) -> bool:
    """Return whether it is the size of the body in bytes that was refused: HTTP 413 that names no tokens."""
    return _TOO_LARGE in bad.error and named(bad.error) is None


def refused(run: Run, bad: Refused, whole: int | None, step: int | None = None) -> Finding:
    """Return the finding about a refusal within the stated length.

    Args:
        run: The run; its server states a length.
        bad: The shortest request that was refused.
        whole: Tokens of the longest shorter request that was accepted, prompt and answer; None: there was none.
        step: Tokens between the two where the limit was searched for; None: it was not, and lies anywhere between.
    """
    stated = run.server.max_model_len or 0
    where = f"{run.server.url}/v1/completions"
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
    cause = f"The server states {stated:,} tokens, but refuses {bad.total:,}, prompt and answer together. "
    if too_large(bad):
        cause += (
            "HTTP 413 is about the size of the body in bytes, not about tokens: what stands in front of the engine "
            "takes no larger one."
        )
    elif _SPOKEN.search(bad.error) is not None:
        cause += "Whether the engine or what stands in front of it refuses, its message says."
    else:
        cause += "It does not say why; what stands in front of the engine may have refused."
    return Finding(
        id="context_refused",
        severity="warning",
        title="Requests within the stated length are refused",
        cause=cause,
        confidence=0.9,
        evidence=tuple(evidence),
        advice=_larger_body(bad, stated) if too_large(bad) else _lengths(run, bad, whole, step),
        since=int(run.started * 1000),
    )


def _lengths(run: Run, bad: Refused, whole: int | None, step: int | None) -> tuple[Advice, ...]:
    """Return what to change where tokens are what was refused."""
    stated, flag = run.server.max_model_len or 0, _FLAGS.get(run.server.engine, "")
    limit = limit_of(bad, run.server.max_model_len, whole)
    real = limit.tokens if limit is not None else whole if step is not None else None
    what = "a prompt" if limit is not None and limit.counts != "request" else "a request with its answer"
    if real is not None:
        keep = f"keep {what} within {real:,} tokens"
        keep += f", the longest that was accepted; the limit was searched for to {step:,}" if limit is None else ""
    elif whole is not None:
        keep = (
            f"keep a request with its answer within {whole:,} tokens, which was accepted, until the limit is known: it "
            f"is below {bad.total:,} (gpuwatch probe ramp --concurrency 1 finds it)"
        )
    else:
        keep = f"keep prompts shorter than {bad.tokens:,} tokens; what was sent says no more than that"
    if limit is not None and limit.counts == "pool" and run.server.engine == "sglang":
        more = Advice(
            "SGLang names here the longest prompt that its KV pool and its context hold: make the pool larger",
            "--mem-fraction-static",
        )
        return (Advice(keep), more)
    known = bool(flag) and real is not None and what != "a prompt"
    state = Advice(
        "have the real length stated, if this limit is meant to be",
        flag if known else "",
        str(stated) if known else None,
        str(real) if known else None,
    )
    return (Advice(keep), state)


def _larger_body(bad: Refused, stated: int) -> tuple[Advice, ...]:
    """Return what to change where the size of the body is what was refused."""
    size = math.ceil(bad.sent_bytes / bad.tokens * stated / 1024) if bad.sent_bytes else None
    need = "" if size is None else f": {stated:,} tokens like those of this request have {size:,} KiB"
    return (
        Advice(
            f"have what stands in front of the engine take larger bodies{need} (nginx: client_max_body_size)",
            "client_max_body_size" if size is not None else "",
            None,
            f"{size}k" if size is not None else None,
        ),
        Advice(f"or keep prompts shorter than {bad.tokens:,} tokens"),
    )
