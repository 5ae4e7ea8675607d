"""How many words each launch flag takes, as the argument parsers of vLLM and SGLang count them.

The switches of earlier versions are switches there as well, but for those that took ``True`` and ``False`` as words
(``StoreBoolean`` in vLLM 0.8.4's ``engine/arg_utils.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from gpuwatch.engines.flag_lists import COMPLETE, SEVERAL, SWITCHES, WITH_OFF
from gpuwatch.engines.flags import FLAGS

if TYPE_CHECKING:
    from gpuwatch.engines.version import Version

Arity: TypeAlias = Literal["none", "one", "several"]

_NAMED_LIKE_SWITCHES = ("disable-access-log-for-endpoints",)
_WITHOUT_OFF = (
    "aggregate-engine-logging",
    "data-parallel-multi-port-external-lb",
    "disable-log-stats",
    "grpc",
    "headless",
    "help",
)
"""Switches of vLLM that have no ``--no-`` form."""
_OFF_SINCE = (0, 9, 0)
"""vLLM all of whose switches have a ``--no-`` form, but for `_WITHOUT_OFF`."""
_OFF_BEFORE = ("enable-prefix-caching", "use-tqdm-on-load")
"""Those that had one in 0.8.4."""
_TRUE_OR_FALSE = ("enable-chunked-prefill", "disable-chunked-mm-input")
_TRUE_OR_FALSE_TO = (0, 8, 99)


def arity(engine: str, name: str) -> Arity | None:
    """Return how many words a long flag (in full, without dashes) takes; None where that is not known."""
    if name.startswith("no-") and arity(engine, name[3:]) == "none":
        return "none"
    flag = FLAGS[engine].get(name)
    if name in SEVERAL[engine] or (flag is not None and flag.kind == "secret"):
        return "several"
    if name not in COMPLETE[engine][1]:
        kinds: dict[str, Arity] = {"bool": "none", "int": "one", "float": "one"}
        return kinds.get(flag.kind) if flag is not None else None
    likely = name.startswith(("enable-", "disable-")) and name not in _NAMED_LIKE_SWITCHES
    return "none" if likely or name in SWITCHES[engine] else "one"


def takes_truth(engine: str, version: Version, name: str) -> bool:
    """Return whether a switch takes ``True`` or ``False`` as a word in `version`."""
    return engine == "vllm" and name in _TRUE_OR_FALSE and version <= _TRUE_OR_FALSE_TO


def has_off(engine: str, version: Version, name: str) -> bool:
    """Return whether a switch has the form ``--no-NAME`` in `version`."""
    if engine == "sglang":
        return name in WITH_OFF
    return name not in _WITHOUT_OFF if version >= _OFF_SINCE else name in _OFF_BEFORE


def options(engine: str) -> frozenset[str]:
    """Return all long options of the newest version, with the ``no-`` forms of its switches."""
    known = COMPLETE[engine][1]
    if engine == "sglang":
        return known  # its list has them
    switches = (name for name in known if arity(engine, name) == "none" and name not in _WITHOUT_OFF)
    return known | {f"no-{name}" for name in switches}


OPTIONS = {engine: options(engine) for engine in COMPLETE}
"""By engine: what `options` returns."""
