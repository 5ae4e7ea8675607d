"""What the ledger needs of a ``config.json`` as one short text, so that it travels with the facts about an engine.

A recording is replayed, and a running gpuwatch is looked at, on machines that do not have the model.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from gpuwatch.ledger.reading import read_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatch.ledger.model import Model

LONGEST = 16 * 1024
"""Characters. The configurations of published models need at most a fifth of it."""
_LISTS_OF_MODULES = ("quantization_config", "compression_config")
_NUMBER = re.compile(r"\d+")


class _Read(dict[str, Any]):
    """A dictionary that knows which of its keys were asked for."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__({key: _Read(value) if isinstance(value, dict) else value for key, value in values.items()})
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value and remember that it was asked for."""
        self.asked.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)

    def values(self) -> Any:
        """Return all values and remember that all were asked for."""
        self.asked.update(self)
        return super().values()

    def needed(self) -> dict[str, Any]:
        """Return what was asked for and is there."""
        return {
            key: value.needed() if isinstance(value, _Read) else value
            for key, value in self.items()
            if key in self.asked and value is not None
        }


def portable(config: Mapping[str, Any]) -> str:
    """Return the fields of a config that the ledger reads, as JSON; empty where that is too long.

    Raises:
        ModelConfigError: a field holds what it cannot mean.
    """
    read = _Read(config)
    read_model(read)
    needed = read.needed()
    for name in _LISTS_OF_MODULES:
        if isinstance(needed.get(name), dict):
            needed[name] = {key: _without_numbers(value) for key, value in needed[name].items()}
    text = json.dumps(needed, separators=(",", ":"), allow_nan=False)
    return text if len(text) <= LONGEST else ""


def _without_numbers(value: Any) -> Any:
    """Return names of modules with the number of the layer left out, each once: only parts of names are looked at."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        return value
    return list(dict.fromkeys(_NUMBER.sub("N", item) for item in value))


def from_portable(text: str, name: str = "") -> Model:
    """Return the model that `portable` described.

    Raises:
        ModelConfigError: a field holds what it cannot mean.
        ValueError: it is no JSON object.
    """
    config = json.loads(text)
    if not isinstance(config, dict):
        raise ValueError("the model's description is no JSON object")  # noqa: TRY004  # one kind of error for the caller
    return read_model(config, name)
