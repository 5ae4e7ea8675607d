"""A model's ``config.json``: a file of its own, or printed in the middle of something else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.sources.files.samples import Found

MARKS = ('"architectures"', '"model_type"', '"max_position_embeddings"', '"num_hidden_layers"')
_MOST_TRIES = 50
_KEYS = ("architectures", "model_type", "num_hidden_layers", "max_position_embeddings", "text_config")


def is_config(document: Any) -> bool:
    """Return whether a JSON document is a model's configuration."""
    return isinstance(document, dict) and sum(key in document for key in _KEYS) >= 2


def read_config(lines: Sequence[tuple[int, str]], found: Found) -> None:
    """Find a configuration in (number, text) lines; the first one counts."""
    decoder = json.JSONDecoder()
    tries = 0
    for place, (_, text) in enumerate(lines):
        if not text.lstrip().startswith("{") or tries >= _MOST_TRIES:
            continue
        tries += 1
        body = "\n".join(text for _, text in lines[place : place + 3000])
        try:
            document, _ = decoder.raw_decode(body.lstrip())
        except (ValueError, RecursionError):
            continue
        if is_config(document):
            found.is_kind("model_config")
            found.config = document
            return
