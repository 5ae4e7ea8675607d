"""What a config says of its layers' memory of the past that this package does not read: then nothing is known of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuwatch.ledger.fields import LAYER_LISTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.ledger.fields import Fields

_READ = (
    *LAYER_LISTS,
    "hybrid_layer_pattern",
    "attn_type_list",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)
_ABOUT = re.compile(r"attn|attention|window|kv_|cache|compress|mamba|ssm|mixer|block_type|layer_type|layer_pattern")
"""Fields about what layers keep, told by their names."""
_ELSEWHERE = re.compile(r"^mlp_|moe|mtp|nextn|rope|theta|bias")
"""Such names that are about something else."""
_COMPRESSED = ("compress_ratios", "compress_rates")
_STATES = ("mamba_d_state", "ssm_state_size", "linear_key_head_dim")
_DRAFTING = 8
"""A list for each layer may name as many more, those of drafting layers."""


def check_unread(fields: Fields, kinds: Sequence[str], count: int) -> None:
    """Note as lacking what decides about the `count` layers and is not read; `kinds` are those that keep something.

    A list with an entry for each layer that is about attention, windows or caches; caches that are compressed along the
    context (DeepSeek-V4); and sizes of states in a model none of whose layers is known to keep one.
    """
    for name, value in fields.own.items():
        listed = isinstance(value, list) and 1 < count <= len(value) <= count + _DRAFTING and name not in _READ
        about = _ABOUT.search(name) is not None and _ELSEWHERE.search(name) is None
        compressed = name in _COMPRESSED and value not in (None, [])
        if compressed or (listed and about and len(set(map(str, value))) > 1):
            fields.own.get(name)  # it travels with the model's description
            fields.lack(f"how the KV cache follows from {name[:60]}")
    named = any(fields.value(name) for name in LAYER_LISTS)
    states = next((name for name in _STATES if fields.number(name)), None)
    side_by_side = "falconh1" in fields.architecture.lower()
    if states and kinds and not named and not side_by_side and not any(kind in ("linear", "both") for kind in kinds):
        fields.lack(f"which layers have the states that {states} describes")
