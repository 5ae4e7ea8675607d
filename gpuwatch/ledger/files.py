"""A model by folder, ``config.json`` or known name, and the size of its weights where an index says it."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from stat import S_ISDIR, S_ISREG
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
UNLIKE = 8.0
"""Ratio from which on no way of storing weights explains that their files are smaller: 16 bits in two."""
LARGEST_WEIGHTS = 1e15
"""Bytes; no model has more."""
_PART = re.compile(r"-\d{5}-of-(?P<all>\d{5})\.safetensors$")
_POINTER = re.compile(rb"version https://git-lfs\S*\n(?:.*\n)*?size (?P<size>\d{1,15})\n")
_STORED = re.compile(r"[-_](awq|gptq|fp8|int8|int4|nvfp4|mxfp4|w8a8)(?![a-z])", re.IGNORECASE)
"""How weights are stored, in the name of a model."""
_INDEX = "model.safetensors.index.json"
_QUANTISED = "hf_quant_config.json"
"""Where ModelOpt to 0.29 says how weights and KV cache are stored, beside a config that does not."""
_DESCRIBED = "quant_model_description.json"
"""Where msModelSlim says of each tensor how it is stored, for NPUs."""
_OTHER_EXPERT = re.compile(r"\.experts\.[1-9]\d*\.")
_WAY = re.compile(r"W(?P<bits>\d{1,2})A\d+")


def load(name: str, overrides: Mapping[str, Any] | None = None) -> tuple[Model, float | None]:
    """Return a model, and the bytes of its weight files where they are known; `overrides` replace fields of its config.

    Raises:
        ModelConfigError: there is no such model, or its config cannot be used; the message says what and where.
    """
    path = Path(name)
    kind = _mode(path)
    if S_ISDIR(kind):
        config = path / "config.json"
        if not _mode(config):
            raise ModelConfigError(f"{name} has no config.json")
        model, (weights, notes) = read_model(overridden(_config(config), overrides or {}), name), weight_files(path)
        weights, doubts = _plausible(model, weights)
        return replace(model, notes=(*model.notes, *notes, *doubts)), weights
    if S_ISREG(kind):
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


def _plausible(model: Model, found: float | None) -> tuple[float | None, tuple[str, ...]]:
    """Return the bytes of the weight files, and a note where they and the shape in the config are far apart.

    None in place of bytes that are no model's of that shape.
    """
    known = model.quantisation is None or model.quantisation.known
    if found is None or not known or not model.complete:
        return found, ()
    computed = weight_bytes(model, Split())
    if computed / PLAUSIBLE <= found <= computed * PLAUSIBLE:
        return found, ()
    seen, shape = f"{found / GIB:.1f} GiB", f"{computed / GIB:.1f} GiB"
    words = f"the weight files say {seen} and the shape in the config {shape}: one is wrong"
    if found < computed / UNLIKE:
        return None, (f"{words}; the shape is used, as the files are too small for it in any type",)
    return found, (f"{words}; the files' size is used",)


def _mode(path: Path) -> int:
    """Return what kind of file a path is, as `stat` says it; 0 where it is none or cannot be looked at."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return 0


def _config(path: Path) -> dict[str, Any]:
    found = _json(path)
    return with_quantisation(path.parent, found) if path.name == "config.json" else found


def with_quantisation(folder: Path, found: dict[str, Any]) -> dict[str, Any]:
    """Return the config of a model in `folder`, with what the file beside it says where it has no quantisation itself.

    Sources: vLLM's ``transformers_utils/config.py``, SGLang's ``modelslim.py``, vLLM-Ascend's ``modelslim_config.py``.

    Raises:
        ModelConfigError: the file beside it cannot be used.
    """
    stated = found.get("quantization_config")
    method = stated.get("quant_method") if isinstance(stated, dict) else None
    described = folder / _DESCRIBED
    if (stated is None or method in ("ascend", "modelslim")) and S_ISREG(_mode(described)):
        return {**found, "quantization_config": _described(described)}
    beside = folder / _QUANTISED
    if found.get("quantization_config") is not None or not S_ISREG(_mode(beside)):
        return found
    stated = _json(beside).get("quantization")
    if not isinstance(stated, dict):
        raise ModelConfigError(f"{beside} has no object 'quantization'")
    return {**found, "quantization_config": {"quant_method": "modelopt", **stated}}


def _described(path: Path) -> dict[str, Any]:
    """Return what msModelSlim's description of a checkpoint says of its modules, as compressed-tensors would say it.

    Of a layer's experts the first stands for all.

    Raises:
        ModelConfigError: it cannot be read, or stores nothing in a way that is known.
    """
    ways: dict[int, list[str]] = {}
    plain: list[str] = []
    for name, way in _json(path).items():
        module = name.removesuffix(".weight")
        if module == name or not isinstance(way, str) or _OTHER_EXPERT.search(name):
            continue
        found = _WAY.match(way)
        if found is not None:
            ways.setdefault(int(found["bits"]), []).append(module)
        elif way == "FLOAT":
            plain.append(module)
    if not ways:
        raise ModelConfigError(f"{path} names no weight in fewer bits (such as 'W8A8_DYNAMIC')")
    most = max(ways, key=lambda bits: len(ways[bits]))
    groups = {
        f"w{bits}": {"weights": {"num_bits": bits}, "targets": ["Linear"] if bits == most else names}
        for bits, names in ways.items()
    }
    return {"quant_method": "modelslim", "config_groups": groups, "ignore": plain}


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
        kind = "null" if found is None else f"a {type(found).__name__}"
        raise ModelConfigError(f"{path} holds {kind}; a config.json is an object")
    return found


def weight_files(folder: Path) -> tuple[float | None, tuple[str, ...]]:
    """Return the bytes of all weight files in a folder, and notes on what is missing of them.

    None where it has none, or not all of those that the index or their names (``model-00001-of-00005``) count and
    nothing says how large they are. What Git LFS left in place of a file says its size.

    Raises:
        ModelConfigError: the index cannot be read.
    """
    index = folder / _INDEX
    if _mode(index):
        return _indexed(index)
    files = sorted(folder.glob("*.safetensors"))
    files = [file for file in files if not file.name.startswith("consolidated")] or files  # the same weights again
    if not files:
        return None, ()
    gone = sum(not _mode(file) for file in files)  # links that lead nowhere
    if gone:
        return None, (f"{gone} of {len(files)} weight files cannot be read; the shape in the config is used",)
    sets = Counter(
        (file.name[: found.start()], int(found["all"])) for file in files if (found := _PART.search(file.name))
    )
    missing = sum(max(0, whole - there) for (_, whole), there in sets.items())
    if missing:
        words = f"{missing} of {sum(whole for _, whole in sets)} weight files, by the names of the others, are not in"
        return None, (f"{words} the folder; the shape in the config is used",)
    pointed = [_pointed(file) for file in files]
    sizes = [file.stat().st_size if size is None else size for file, size in zip(files, pointed, strict=True)]
    links = sum(size is not None for size in pointed)
    words = (
        f"{links} of {len(files)} weight files are what Git LFS left in their place; the sizes that they state are used"
    )
    return float(sum(sizes)), ((words,) if links else ())


def _indexed(index: Path) -> tuple[float | None, tuple[str, ...]]:
    """Return what `weight_files` does, from an index.

    Raises:
        ModelConfigError: it cannot be read, or names no file for a tensor.
    """
    found = _json(index)
    files = found.get("weight_map")
    files = files if isinstance(files, dict) else {}
    for tensor, file in files.items():
        if not isinstance(file, str):
            raise ModelConfigError(f"{index}: {tensor[:60]!r} is in {str(file)[:40]!r}; the name of a file is expected")
    names = sorted(set(files.values()))
    missing = [name for name in names if not _mode(index.parent / name)]
    stated = found.get("metadata")
    total = stated.get("total_size") if isinstance(stated, dict) else None
    size = None
    if isinstance(total, (int, float)) and not isinstance(total, bool) and 0 < total <= LARGEST_WEIGHTS:
        size = float(total)
    gone = f"{len(missing)} of {len(names)} weight files of the index are not in the folder"
    used = "the size that it states is used" if size else "it states no size, so the shape in the config is used"
    return size, ((f"{gone}; {used}",) if missing else ())


def _pointed(file: Path) -> int | None:
    """Return the size that a pointer of Git LFS states; None for a file that is none, or cannot be read."""
    try:
        with file.open("rb") as opened:
            found = _POINTER.match(opened.read(1024))
    except OSError:
        return None
    return None if found is None else int(found["size"])
