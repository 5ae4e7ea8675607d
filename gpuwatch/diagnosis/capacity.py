"""How many requests a KV pool holds: the arithmetic behind the advice on pools and batch limits.

A request of prompt + output tokens takes ceil(tokens / block) blocks of one full-attention group; vLLM keeps one null
block out of use (`vllm/v1/core/kv_cache_utils.py`; SGLang's pages work alike, without the null block).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from gpuwatch.diagnosis.baseline import really_seen
from gpuwatch.diagnosis.explanation import count

if TYPE_CHECKING:
    from gpuwatch.diagnosis.context import Subject

Basis: TypeAlias = Literal["finished", "held", "running", "limit"]

FINISHED_WINDOW = "10m"
ENOUGH_FINISHED = 1.5
"""Finished requests, by increase over the window, from which their mean length says more than a guess."""
LONGER_NOW = 1.3
"""Running requests that hold so many times the mean of the finished ones are of another, longer kind."""
HALF_DONE = 2.0
"""A running request seen at a random moment has on average produced half of its output."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A KV pool in tokens; `blocks` (null block included) and `block` tokens per block where they are known."""

    tokens: float
    blocks: float | None = None
    block: float = 1.0
    null_blocks: int = 1

    @property
    def usable(self) -> int:
        """The tokens of the longest request that fits into the empty pool."""
        return int(self.tokens - self.block * self.null_blocks) if self.blocks is not None else int(self.tokens)

    def blocks_for(self, tokens: float) -> int:
        """Return the blocks that one request of `tokens` takes."""
        return max(1, math.ceil(tokens / self.block))

    def holds(self, tokens: float) -> int:
        """Return how many requests of `tokens` fit at the same time."""
        return int(self.share(tokens))

    def share(self, tokens: float) -> float:
        """Return how many requests of `tokens` fit, with the part of one more; each takes whole blocks."""
        if self.blocks is not None:
            return (self.blocks - self.null_blocks) / self.blocks_for(tokens)
        return self.tokens / tokens

    def blocks_needed(self, requests: int, tokens: float) -> int:
        """Return the blocks of a pool that holds `requests` of `tokens`, null block included."""
        return requests * self.blocks_for(tokens) + self.null_blocks


@dataclass(frozen=True, slots=True)
class Length:
    """A typical request length in tokens and where it comes from; `seen` is a certain lower bound."""

    tokens: float
    basis: Basis
    text: str
    seen: float | None = None


def pool_of(subject: Subject) -> Pool | None:
    """Return the pool of the engine or rank, or None when its size is not known."""
    tokens = subject.now("engine_kv_cache_tokens") or subject.number("kv.tokens")
    blocks = subject.now("engine_kv_cache_blocks")
    block = subject.now("engine_kv_block_size_tokens") or subject.number("kv.block_size")
    if tokens is None and blocks is not None and block is not None:
        tokens = blocks * block
    if tokens is None or tokens <= 0:
        return None
    if block is not None and blocks is not None:
        shared = block * _sharers(subject)
        if tokens == blocks * block:  # a page without the tokens of its own, so that they were taken to be this
            tokens = blocks * shared
        block = shared
    if block is None or blocks is None or abs(blocks * block - tokens) > block:
        # Several attention groups: blocks and tokens do not convert.
        return Pool(tokens)
    return Pool(tokens, blocks, block, 0 if subject.sglang else 1)


def _sharers(subject: Subject) -> float:
    """Return the ranks that share the tokens of one block: those of vLLM's context parallelism."""
    if subject.sglang:
        return 1.0
    decode = subject.config("decode_context_parallel_size", "dcp") or 1.0
    return decode * (subject.config("prefill_context_parallel_size", "pcp") or 1.0)


def typical_length(subject: Subject) -> Length | None:
    """Return the length that requests typically reach, from the best that is known.

    That is the mean of finished requests, or what the running ones hold where that is clearly more; else the running
    ones, which are taken to have produced half of their output; else the longest request that is accepted.
    """
    longest = subject.config("max_model_len_tokens", "max_model_len")
    seen = subject.now("engine_request_length_seen_tokens")
    ended = _ended(subject)
    if ended is not None:
        series, finished, prompt, output = ended
        mean = prompt + output
        seen_for = really_seen(subject, series, 600)
        text = (
            f"{count(finished)} requests finished in the last {seen_for} with {count(prompt)} prompt and "
            f"{count(output)} output tokens on average"
        )
        if seen is not None and seen > LONGER_NOW * mean:
            return Length(seen, "held", f"{text}, but a running one holds {count(seen)} by now", seen)
        return Length(mean, "finished", text, seen)
    if seen is not None:
        arrived = mean_prompt(subject)
        begun = min(arrived, seen) if arrived is not None else 0.0
        guess = begun + HALF_DONE * (seen - begun)
        if longest is not None:
            guess = min(guess, longest)
        counted = subject.now("engine_generation_length_tokens_count") is not None
        text = (
            f"{'hardly any request has finished yet' if counted else 'how long finished requests were is not known'}; "
            f"a running one holds {count(seen)} tokens or more"
            + (f", {count(begun)} of them prompt," if arrived is not None else "")
            + " and is taken to be half done"
        )
        return Length(guess, "running", text, seen)
    if longest is not None:
        return Length(longest, "limit", f"no length was seen; the longest accepted request has {count(longest)} tokens")
    return None


def _ended(subject: Subject) -> tuple[str, float, float, float] | None:
    """Return what is known of finished requests: the series that counts them, how many, and their mean lengths.

    The lengths, prompt and output in tokens, are those of the engine's histograms. SGLang before 0.5.12 has none unless
    asked to; it counts the tokens of a request as it ends or is streamed, beside the requests that ended.
    """
    series = "engine_generation_length_tokens_count"
    finished = subject.over("increase", series, FINISHED_WINDOW)
    prompt = subject.mean("engine_prompt_length_tokens", FINISHED_WINDOW)
    output = subject.mean("engine_generation_length_tokens", FINISHED_WINDOW)
    if finished is None and subject.sglang:
        series = "engine_requests_finished_total"
        finished = subject.over("increase", series, FINISHED_WINDOW, reason="finished")
        taken, made = (
            subject.over("increase", f"engine_{kind}_tokens_total", FINISHED_WINDOW)
            for kind in ("prompt", "generation")
        )
        if finished and taken is not None and made is not None:
            prompt, output = taken / finished, made / finished
    if finished is None or finished <= ENOUGH_FINISHED or prompt is None or output is None:
        return None
    return series, finished, prompt, output


def mean_prompt(subject: Subject) -> float | None:
    """Return the mean prompt of requests that got their first token since the engine started, in tokens."""
    tokens = subject.now("engine_prompt_tokens_total")
    first = subject.now("engine_time_to_first_token_seconds_count")
    return tokens / first if tokens and first else None
