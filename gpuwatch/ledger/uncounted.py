"""Flags of a launch command that change what an engine takes and have no part in a plan's figures.

Sources: ``engine/arg_utils.py`` of vLLM, ``srt/server_args.py`` of SGLang.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.ledger.beside import settings_in
from gpuwatch.ledger.nested import settings_meant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatch.engines.log_pattern import Value

_WITHOUT_WEIGHTS = ("ngram", "ngram_gpu", "suffix", "[ngram]")
"""Ways of drafting that need no weights."""

OVERRIDES = ("hf-overrides", "rope-scaling", "json-model-override-args")
"""Flags that replace fields of the model's config, which is computed with them."""

# flag | values that matter (none: any) | what is not counted
_VLLM = """
speculative-config | | weights, KV cache and graphs of the draft model
speculative-model | | weights, KV cache and graphs of the draft model
enable-lora | | the adapters' part of a step, and their places in experts
hf-overrides | | what these settings change of the model's config
rope-scaling | | what it changes of the model's config
config | | the settings in the file
enable-dbo | | the second batch under way
max-cudagraph-capture-size | | graphs of other sizes than the usual ones
cudagraph-capture-sizes | | graphs of other sizes than the usual ones
kv-cache-dtype-skip-layers | | layers whose KV cache has the type of the model
mm-ipc-gpu-memory-gb | | GPU memory of images on their way
"""

_SGLANG = """
speculative-algorithm | EAGLE EAGLE3 NEXTN STANDALONE DFLASH DSPARK | weights, KV cache and graphs of the draft model
enable-lora | | the places for adapters, and their part of a step
lora-paths | | the places for adapters, and their part of a step
json-model-override-args | | what these settings change of the model's config
config | | the settings in the file
swa-full-tokens-ratio | | another share of the sliding-window pool than 0.8
mamba-full-memory-ratio | | another share of the pool of states than 0.9
enable-two-batch-overlap | | the second batch under way
ep-num-redundant-experts | | the copies of experts
moe-dense-tp-size | | dense layers that are divided over fewer ranks
enable-unified-memory | | one pool for all kinds of layers
"""


def _table(rows: str) -> dict[str, tuple[tuple[str, ...], str]]:
    split = ([part.strip() for part in row.split("|")] for row in rows.strip().splitlines())
    return {flag: (tuple(values.split()), what) for flag, values, what in split}


_ROWS = {"vllm": _table(_VLLM), "sglang": _table(_SGLANG)}


def not_counted(engine: str, flags: Mapping[str, Value], *, draft: bool = False) -> list[str]:
    """Return what the plan leaves out of a command, a note each; `draft`: its draft model is known and counted."""
    notes = []
    for name, (values, what) in _ROWS[engine].items():
        value = flags.get(name)
        if value is None or value is False or (values and str(value).upper() not in values):
            continue
        if name in OVERRIDES and settings_meant(value):
            continue
        method = settings_in(value).get("method") if name == "speculative-config" else value
        if name.startswith("speculative-") and method in _WITHOUT_WEIGHTS:
            continue
        left = "graphs of the draft model" if draft and name.startswith("speculative-") else what
        notes.append(f"not counted: {left} (--{name})")
    return notes
