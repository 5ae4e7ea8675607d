"""What to change about requests or flags, from what the prefix probe measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis.finding import Advice
from gpuwatch.probes.prefix_own import moving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.probes.prefix_verdict import Case, Measured
    from gpuwatch.probes.run import Run

LONG_BLOCK = 64
"""Tokens of a block from which it is worth filling it up."""
PRESSURE = "tokens of other prompts"


def after(case: Case) -> int:
    """Return the tokens of other prompts in the name of a case."""
    return int(case.name.split()[1].replace(",", ""))


def advice(run: Run, measured: Measured, answer: str) -> Iterator[Advice]:
    """Yield what to change, from the verdict `answer`."""
    if answer == "never hits":
        yield from _switch_on(run, measured)
    elif answer == "by replica":
        yield Advice(
            "route requests that share a beginning to the same replica (by prefix, or by session or user), instead of "
            "in turn or at random"
        )
    elif answer in ("works", "partly"):
        yield from _construction(measured)


def _switch_on(run: Run, measured: Measured) -> Iterator[Advice]:
    if measured.enabled is not False:
        if measured.ranks > 1:
            yield Advice("route requests that share a beginning to the same replica")
        return
    if run.server.engine == "sglang":
        yield Advice("let the radix cache be", "--disable-radix-cache", "true", "(none)")
    else:
        yield Advice("switch prefix caching on", "--enable-prefix-caching", "false", "true")


def _construction(measured: Measured) -> Iterator[Advice]:
    """Say how requests have to be built for this cache, from what was measured."""
    size = measured.size
    if measured.parting is not None:
        yield from moving(measured.parting)
    if measured.cached("random head") == 0:
        yield Advice(
            "put what all requests share first (system prompt, tools, documents, examples) and what differs last: one "
            "differing token at the start (a time, an id, a user's name) cost the whole prompt here"
        )
    if size is not None and size >= LONG_BLOCK:
        yield Advice(
            f"a difference costs everything from its block on: make the common beginning at least {size:,} tokens "
            f"long, and fill it up to a multiple of {size:,} where it is a little short"
        )
    if measured.cached("another salt") == 0 and measured.cached("same salt"):
        yield Advice("use one cache_salt for each tenant, not for each request")
    if measured.cached("LoRA adapter, first time") == 0 and measured.cached("LoRA adapter, repeated"):
        yield Advice("requests for different adapters share nothing: keep requests of one adapter together")
    together = next((case for case in measured.cases if case.name.endswith("new, at the same moment")), None)
    if together is not None and together.best and together.cached is not None and together.cached < together.best / 2:
        yield Advice("send one request first and its companions after its first token, so that they find its blocks")
    gone = [after(case) for case in measured.cases if case.name.endswith(PRESSURE) and case.cached == 0]
    if gone:
        yield Advice(
            f"a prompt that comes back after more than about {min(gone):,} tokens of others is computed again: give "
            "the KV cache more memory, or send requests with a common beginning close together"
        )
