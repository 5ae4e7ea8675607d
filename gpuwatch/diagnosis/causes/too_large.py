"""Weights that cannot fit: a model's configuration and a launch command against the cards that nvidia-smi lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes.view import Cause, advise, sampled
from gpuwatch.diagnosis.explanation import Explanation, size, told
from gpuwatch.diagnosis.finding import Evidence
from gpuwatch.ledger.fields import ModelConfigError
from gpuwatch.ledger.reading import read_model
from gpuwatch.ledger.weights import Split, weight_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import Run, Sample, View
    from gpuwatch.ledger.model import Model

SURE = 0.97
"""Weights are counted to a few per cent: this part of them has to be more than the card."""
ROOM = 0.8
"""Weights that fill more of a card than this leave little for a KV pool."""
_STARTED = ("ready", "kv.tokens", "kv.bytes", "kv.blocks", "weights.bytes")
_OTHERWISE = (
    "quantization",
    "flag.quantization",
    "flag.cpu-offload-gb",
    "flag.load-format",
    "flag.hf-overrides",
    "flag.json-model-override-args",
    "flag.enable-expert-parallel",
    "flag.ep-size",
)
"""Flags with which the weights of a card are others than those of the configuration over the ranks."""
_MOST_PROPOSED = 64
"""Ranks; more are not proposed."""


def foreseen(view: View) -> Iterator[Cause]:
    """Judge a command that was not seen to start, by the bytes of its weights on each card."""
    cards = view.samples("gpu_memory_total_bytes")
    run = view.last
    if view.incident.config is None or not cards or run.fact("command") is None or _told(view, run):
        return
    try:
        model = read_model(view.incident.config)
    except ModelConfigError:
        return
    if not model.complete:
        return
    largest = max(cards, key=lambda card: card.value)
    stages = max(1, run.counted("pp") or 1)
    ranks = max(1, run.tp)
    each = _bytes(model, ranks, stages)
    if each * SURE > largest.value:
        yield _too_large(run, model, largest, each, (ranks, stages))


def _told(view: View, run: Run) -> bool:
    """Whether a log tells how the start went, or a flag changes what is loaded."""
    if any(given.kind == "engine_log" for given in view.incident.inputs):
        return True
    return any(run.fact(key) is not None for key in (*_STARTED, *_OTHERWISE))


def _bytes(model: Model, ranks: int, stages: int) -> float:
    return weight_bytes(model, Split(tp=ranks, pp=stages, attention_tp=ranks))


def _too_large(run: Run, model: Model, card: Sample, each: float, now: tuple[int, int]) -> Cause:
    ranks, stages = now
    tp = run.fact("tp")
    where = (
        told(tp, f"tensor-parallel ranks: {ranks}")
        if tp is not None
        else Evidence("the command has no number of ranks: one GPU holds the model")
    )
    fits = ranks * 2
    while fits < _MOST_PROPOSED and _bytes(model, fits, stages) > ROOM * card.value:
        fits *= 2
    share = _bytes(model, fits, stages)
    flag = "--tp-size" if run.sglang else "--tensor-parallel-size"
    enough = share <= ROOM * card.value
    text = f"spread the weights over more GPUs: {size(share)} on each of {fits * stages}" if enough else "use more GPUs"
    return Cause(
        "weights_oom",
        Explanation(
            f"The weights will not fit: {size(each)} of them come to each GPU by config.json and the command, and the "
            f"largest card has {size(card.value)}.",
            0.85,
            (
                Evidence("config.json: the sizes of the model's matrices, and the type that they are stored in"),
                where,
                sampled(card, f"the largest card has {size(card.value)}", "bytes"),
            ),
            (
                advise(text, flag, None if tp is None else ranks, fits if enough else None),
                advise("or load a quantised checkpoint (8 or 4 bits)", "--quantization"),
            ),
        ),
    )
