"""A model by folder, ``config.json`` or known name, and the size of its weights where an index says it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwatch.ledger.fields import NESTED, ModelConfigError
from gpuwatch.ledger.known import alike, find, known_models
from gpuwatch.ledger.reading import read_model
from gpuwatch.ledger.weights import Split, weight_bytes
from gpuwatch.units import GIB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatch.ledger.model import Model

LARGEST_FILE = 64 * 2**20
PLAUSIBLE = 1.5
"""Largest ratio of the size of weight files and the computed one that nobody need be told of."""
_STORED = re.compile(r"[-_](awq|gptq|fp8|int8|int4|nvfp4|mxfp4|w8a8)(?![a-z])", re.IGNORECASE)
"""How weights are stored, in the name of a model."""
_INDEX = "model.safetensors.index.json"
_QUANTISED = "hf_quant_config.json"
"""Where ModelOpt to 0.29 says how weights and KV cache are stored, beside a config that does not."""


def load(name: str, overrides: Mapping[str, Any] | None = None) -> tuple[Model, float | None]:
    """Return a model, and the bytes of its weight files where they are known; `overrides` replace fields of its config.

    Raises:
        ModelConfigError: there is no such model, or its config cannot be used; the message says what and where.
    """
    path = Path(name)
    if path.is_dir():
        config = path / "config.json"
        if not config.exists():
            raise ModelConfigError(f"{name} has no config.json")
        model, (weights, notes) = read_model(overridden(_config(config), overrides or {}), name), weight_files(path)
        return replace(model, notes=(*model.notes, *notes, *_implausible(model, weights))), weights
    if path.is_file():
        return read_model(overridden(_config(path), overrides or {}), name), None
    known = find(name)
    if known is not None:
        model = read_model(overridden(known.config, overrides or {}), known.name)
        if name.lower().rstrip("/").rsplit("/", 1)[-1] != known.name.lower().rsplit("/", 1)[-1]:
            same = f"{name[:80]} has the shape of {known.name}; its own declared length may differ (--context)"
            model = replace(model, notes=(*model.notes, same))
        return model, None
    near = alike(name)
    if near:
        hint = f"nearest: {', '.join(near)}"
        stored = _STORED.search(name)
        if stored is not None:
            hint += f"; with --weights {stored[1].lower()} its weights are counted in that type"
        raise ModelConfigError(f"{name!r} is neither a folder nor a file nor a model known by name; {hint}")
    names = [entry.name for entry in known_models().values()]
    raise ModelConfigError(
        f"{name!r} is neither a folder nor a file nor one of the {len(names)} models known by name; give the folder or "
        f"config.json of the model (known, for example: {', '.join(names[:3])})"
    )


def overridden(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with fields replaced, as ``--hf-overrides`` does: parts of several models field by field."""
    changed = {**config, **overrides}
    for name in set(NESTED) & overrides.keys():
        old, new = config.get(name), overrides[name]
        if isinstance(old, dict) and isinstance(new, dict):
            changed[name] = overridden(old, new)
    for name, other in (("rope_scaling", "rope_parameters"), ("rope_parameters", "rope_scaling")):
        if name in overrides and other not in overrides:
            changed.pop(other, None)  # two names of the same setting
    return changed


def _implausible(model: Model, found: float | None) -> tuple[str, ...]:
    """Say where the weight files and the shape in the config disagree by more than half."""
    known = model.quantisation is None or model.quantisation.known
    if found is None or not known or not model.complete:
        return ()
    computed = weight_bytes(model, Split())
    if computed / PLAUSIBLE <= found <= computed * PLAUSIBLE:
        return ()
    seen, shape = f"{found / GIB:.1f} GiB", f"{computed / GIB:.1f} GiB"
    return (f"the weight files say {seen} and the shape in the config {shape}: one is wrong; the files' size is used",)


def _config(path: Path) -> dict[str, Any]:
    found = _json(path)
    return with_quantisation(path.parent, found) if path.name == "config.json" else found


def with_quantisation(folder: Path, found: dict[str, Any]) -> dict[str, Any]:
    """Return the config of a model in `folder`, with what the file beside it says where it has no quantisation itself.

    Source: vLLM's ``transformers_utils/config.py``.

    Raises:
        ModelConfigError: the file beside it cannot be used.
    """
    beside = folder / _QUANTISED
    if found.get("quantization_config") is not None or not beside.is_file():
        return found
    stated = _json(beside).get("quantization")
    if not isinstance(stated, dict):
        raise ModelConfigError(f"{beside} has no object 'quantization'")
    return {**found, "quantization_config": {"quant_method": "modelopt", **stated}}


def _json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise ModelConfigError(f"{path} has {path.stat().st_size:,} bytes; a config has less than {LARGEST_FILE:,}")
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ModelConfigError(f"{path} is not JSON: {str(error)[:120]}") from None
    if not isinstance(found, dict):
        raise ModelConfigError(f"{path} holds a {type(found).__name__}; a config.json is an object")
    return found


def weight_files(folder: Path) -> tuple[float | None, tuple[str, ...]]:
    """Return the bytes of all weight files in a folder, None where it has none, and notes on what is missing of them.

    Raises:
        ModelConfigError: the index cannot be read.
    """
    index = folder / _INDEX
    if index.exists():
        found = _json(index)
        names = (
            sorted(set((found.get("weight_map") or {}).values())) if isinstance(found.get("weight_map"), dict) else []
        )
        missing = [name for name in names if not (folder / str(name)).exists()]
        total = (found.get("metadata") or {}).get("total_size") if isinstance(found.get("metadata"), dict) else None
        gone = f"{len(missing)} of {len(names)} weight files of the index are not in the folder"
        size = float(total) if isinstance(total, (int, float)) and total > 0 else None
        used = "the size that it states is used" if size else "it states no size, so the shape in the config is used"
        return size, ((f"{gone}; {used}",) if missing else ())
    files = sorted(folder.glob("*.safetensors"))
    files = [file for file in files if not file.name.startswith("consolidated")] or files  # the same weights again
    return (float(sum(file.stat().st_size for file in files)) if files else None), ()
