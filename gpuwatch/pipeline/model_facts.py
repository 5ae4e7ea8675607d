"""What a model's files tell about its engine: KV heads, the context it is made for, and what the ledger needs.

The files are where the engine sees them: a folder that it was given, or the cache of the Hugging Face hub
(``huggingface_hub`` ``constants.py`` and ``file_download.py``: HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME).
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwatch.ledger.fields import ModelConfigError
from gpuwatch.ledger.files import weight_files, with_quantisation
from gpuwatch.ledger.latent import differs_by_engine
from gpuwatch.ledger.portable import portable
from gpuwatch.ledger.reading import read_model
from gpuwatch.model import Fact
from gpuwatch.sources.discovery.processes import environment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MOST_BYTES = 4 << 20
"""A configuration is some kilobytes; a larger file is something else."""
STRETCHED = ("yarn", "linear", "dynamic", "ntk", "su")
"""Kinds of rope scaling whose factor multiplies the trained context (`vllm/config/model.py`)."""


def model_folders(model: str, pid: int, proc: Path = Path("/proc")) -> tuple[Path, ...]:
    """Return the folders in which a running engine may have found its model, the likeliest first.

    Args:
        model: As it was given to the engine: a folder, or a name on the hub.
        pid: The engine's process.
        proc: Where process directories are.
    """
    own = proc / str(pid)
    if not model:
        return ()
    if model.startswith("/"):
        return (own / "root" / model.lstrip("/"),)
    folders = [own / "cwd" / model]
    if model.count("/") == 1 and ".." not in model:
        folders += _snapshots(own / "root", hub_cache(environment(pid, _CACHES)), model)
    return tuple(folders)


_CACHES = ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME")


def hub_cache(environ: Mapping[str, str]) -> str:
    """Return the folder of the hub's cache that these variables name."""
    if environ.get("HF_HUB_CACHE"):
        return environ["HF_HUB_CACHE"]
    home = environ.get("HF_HOME")
    if not home:
        cache = environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME', '/root')}/.cache"
        home = f"{cache}/huggingface"
    return f"{home}/hub"


def _snapshots(root: Path, cache: str, model: str) -> list[Path]:
    """Return the cached copy of a model on the hub: the one that its main branch was, else the only one."""
    folder = root / cache.lstrip("/") / f"models--{model.replace('/', '--')}"
    try:
        revision = (folder / "refs" / "main").read_text()[:64].strip()
    except (OSError, ValueError):
        revision = ""
    if revision and "/" not in revision:
        return [folder / "snapshots" / revision]
    try:
        found = sorted((folder / "snapshots").iterdir())
    except OSError:
        return []
    return found if len(found) == 1 else []


def model_facts(folders: Iterable[Path], server: str, time: int, model: str = "") -> tuple[Fact, ...]:
    """Return facts read from the first of `folders` with a ``config.json``; nothing where none can be read.

    Args:
        folders: Of `model_folders`.
        server: The engine's ``host:port``.
        time: Milliseconds since the epoch.
        model: The model's name.
    """
    for folder in folders:
        path = folder / "config.json"
        config = _read(path)
        if config is None:
            continue
        try:
            config = with_quantisation(folder, config)
            found, text = read_model(config, model), portable(config)
        except ModelConfigError:
            return ()
        values = {
            "model.kv_heads": None if differs_by_engine(found) else found.kv_heads or None,
            "model.context": served_context(config),
            "model.weights_bytes": _weight_files(folder),
            "model.config": text or None,
        }
        return tuple(
            Fact(key, value, str(path), time=time, server=server) for key, value in values.items() if value is not None
        )
    return ()


def _weight_files(folder: Path) -> float | None:
    try:
        return weight_files(folder)[0]
    except (ModelConfigError, OSError):
        return None


def served_context(config: Mapping[str, Any]) -> int | None:
    """Return the longest context that a model is made for, its scaling included; None where it does not say.

    That is ``max_position_embeddings``, or the trained length times the factor of the scaling, whichever is more.
    """
    text = next((config[key] for key in ("text_config", "llm_config") if isinstance(config.get(key), dict)), config)
    declared = _count(text.get("max_position_embeddings"))
    scaling = text.get("rope_scaling") or text.get("rope_parameters")
    if not isinstance(scaling, dict) or declared is None:
        return declared
    kind = str(scaling.get("rope_type") or scaling.get("type") or "")
    factor = scaling.get("factor")
    if kind not in STRETCHED or isinstance(factor, bool) or not isinstance(factor, (int, float)) or factor < 1:
        return declared
    trained = _count(scaling.get("original_max_position_embeddings")) or declared
    return max(declared, int(trained * factor))


def _read(path: Path) -> dict[str, Any] | None:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            return None
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return config if isinstance(config, dict) else None


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 10**12:
        return None
    return value
