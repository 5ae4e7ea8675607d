"""Launches that an engine refuses whatever the memory: a length beyond the model's, and steps of a size it cannot use.

Sources: ``verify_max_model_len`` in vLLM's ``config/scheduler.py``, ``validation_hook.py`` in SGLang's ``arg_groups``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.ledger.defaults import takes_whole_prompts
from gpuwatch.ledger.lengths import Refusal, too_long

if TYPE_CHECKING:
    from gpuwatch.ledger.budget import Deployment
    from gpuwatch.ledger.model import Model

PAGES_CHECKED_SINCE = (0, 4, 6)
"""SGLang of which that is known; the size that is checked is that of a group of DP attention since `SHARED_SINCE`."""
SHARED_SINCE = (0, 5, 23)
"""SGLang that is known to divide its step among the groups before; 0.4.6 did it behind, those in between either way."""
_STARTS_NOT = "so the engine will not start"


def refusals(model: Model, deployment: Deployment) -> tuple[Refusal, ...]:
    """Return why the engine refuses its settings, whatever its ranks and its memory; the length first."""
    found = (too_long(model, deployment), too_many_sequences(deployment), prompt_beyond_step(deployment))
    return tuple(one for one in (*found, step_between_pages(deployment)) if one is not None)


def too_many_sequences(deployment: Deployment) -> Refusal | None:
    """Return why vLLM refuses a batch with more sequences than a step has tokens; None where it has not."""
    sequences, step = deployment.sequences, deployment.chunk
    if deployment.engine != "vllm" or sequences <= step:
        return None
    words = f"{sequences:,} sequences in a batch are more than the {step:,} tokens of a step, {_STARTS_NOT}"
    return Refusal(words, f"--max-num-seqs {step} at most, or --max-num-batched-tokens {sequences}")


def prompt_beyond_step(deployment: Deployment) -> Refusal | None:
    """Return why vLLM refuses a step smaller than the longest request without chunked prefill; None if it does not."""
    step, context = deployment.chunk, deployment.context
    whole = takes_whole_prompts(deployment.version, context, asked=deployment.chunked)
    if deployment.engine != "vllm" or not whole or context <= step:
        return None
    words = f"{step:,} tokens of a step hold no prompt of {context:,} without chunked prefill, {_STARTS_NOT}"
    return Refusal(words, f"--max-num-batched-tokens {context}, or a --max-model-len of {step}")


def step_between_pages(deployment: Deployment) -> Refusal | None:
    """Return why SGLang refuses a step that is no multiple of its pages; None where it takes it."""
    step, page, groups = deployment.chunk, deployment.block_size, deployment.dp_attention
    if deployment.engine != "sglang" or deployment.version < PAGES_CHECKED_SINCE or not page:
        return None
    checked = (step // groups,) if deployment.version >= SHARED_SINCE else (step, step // groups)
    if not deployment.paged_steps or any(size % page == 0 for size in checked):
        return None
    words = f"a step of {step:,} tokens" + (f" in {groups} groups of DP attention" if groups > 1 else "")
    return Refusal(
        f"{words} is no multiple of the {page:,} of a page, {_STARTS_NOT}",
        f"--chunked-prefill-size {paged_step(deployment)}",
    )


def paged_step(deployment: Deployment) -> int:
    """Return the largest step up to its own, or the smallest, that SGLang can divide into pages in every group."""
    whole = deployment.block_size * deployment.dp_attention
    return max(1, deployment.chunk // whole) * whole
