"""Models whose layers differ by design: each block says what attention and what feed-forward part it has.

Source: ``block_configs`` of ``modeling_decilm.py`` (Nemotron-NAS).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.ledger.fields import Fields, ModelConfigError
from gpuwatch.ledger.model import Layers

if TYPE_CHECKING:
    from collections.abc import Mapping

_MULTIPLE = 256


@dataclass(frozen=True, slots=True)
class Blocks:
    """Layers with attention by KV heads, the widths of the feed-forward parts, and matrices that replace a part."""

    layers: tuple[Layers, ...]
    widths: tuple[int, ...]
    matrices: int


def blocks_of(fields: Fields) -> Blocks | None:
    """Return what the blocks are made of; None where the config lists none.

    Raises:
        ModelConfigError: a block holds what it cannot mean, or there are not as many as layers.
    """
    listed = [block for block in fields.listed("block_configs") if isinstance(block, dict)]
    if not listed:
        return None
    count = fields.number("num_hidden_layers")
    if count is not None and count != len(listed):
        raise ModelConfigError(f"block_configs has {len(listed):,} blocks; num_hidden_layers is {count:,}")
    heads: Counter[int] = Counter()
    widths: list[int] = []
    matrices = 0
    for block in listed:
        attention, forward = (_part(block, name) for name in ("attention", "ffn"))
        matrices += (attention.flag("replace_with_linear") is True) + (forward.flag("replace_with_linear") is True)
        if not _left_out(attention):
            shared = attention.number("n_heads_in_group") or 1
            heads[max(1, fields.q_heads // shared)] += 1
        if not _left_out(forward):
            widths.append(_width(forward, fields.hidden))
    head = fields.head_dim
    layers = tuple(Layers("full", count, kv, head, head) for kv, count in sorted(heads.items(), reverse=True))
    return Blocks(layers, tuple(widths), matrices)


def _part(block: Mapping[str, object], name: str) -> Fields:
    part = block.get(name)
    return Fields(part if isinstance(part, dict) else {})


def _left_out(part: Fields) -> bool:
    return part.flag("no_op") is True or part.flag("replace_with_linear") is True


def _width(part: Fields, hidden: int) -> int:
    """Return the width of a feed-forward part: ``ffn_mult`` is of two thirds of the model's, rounded up to 256."""
    stated = part.number("intermediate_size")
    if stated:
        return stated
    times = part.value("ffn_mult")
    if isinstance(times, bool) or not isinstance(times, (int, float)) or not 0 < times <= 1000:  # of any model
        raise ModelConfigError(f"ffn_mult is {str(times)[:40]!r}; a number above 0 is expected")
    return -(-int(2 * times * hidden / 3) // _MULTIPLE) * _MULTIPLE
