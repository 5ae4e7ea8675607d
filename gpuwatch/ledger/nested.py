"""Settings in flags that hold an object: in dotted form, with lost quotes, and from flags that became fields of it.

Sources: ``utils/argparse_utils.py``, ``config/speculative.py`` and ``engine/arg_utils.py`` of vLLM.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from gpuwatch.engines.flag_names import in_full
from gpuwatch.engines.flag_versions import FlagProblem
from gpuwatch.engines.sizes import count_of
from gpuwatch.engines.version import parse_version, show_version
from gpuwatch.ledger.beside import settings_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatch.engines.log_pattern import Value

DOTTED_SINCE = (0, 9, 0)
"""vLLM that takes ``--flag.key value`` for a setting of a flag; SGLang takes none."""
INTO: dict[str, tuple[str, str]] = {
    "rope-scaling": ("hf-overrides", "rope_scaling"),
    "rope-theta": ("hf-overrides", "rope_theta"),
    "speculative-model": ("speculative-config", "model"),
    "num-speculative-tokens": ("speculative-config", "num_speculative_tokens"),
    "speculative-draft-tensor-parallel-size": ("speculative-config", "draft_tensor_parallel_size"),
    "speculative-model-quantization": ("speculative-config", "quantization"),
    "speculative-max-model-len": ("speculative-config", "max_model_len"),
    "ngram-prompt-lookup-max": ("speculative-config", "prompt_lookup_max"),
    "ngram-prompt-lookup-min": ("speculative-config", "prompt_lookup_min"),
}
"""Flags that became fields of another flag: that one, and the field."""
_OBJECTS = ("hf-overrides", "rope-scaling", "json-model-override-args", "speculative-config", "kv-transfer-config")
"""Flags whose value is a JSON object in every version."""
_BARE = re.compile(r"(?<=[{,:\[])\s*(?!(?:true|false|null|True|False|None)\s*[,}\]])([A-Za-z_][\w./-]*)\s*(?=[,:}\]])")
"""A word where JSON has a string."""
_DOTTED = re.compile(r"(?P<flag>--[A-Za-z][\w-]*)\.(?P<keys>[\w.-]+)(?P<more>\+?)")


def folded(engine: str, arguments: Sequence[str]) -> list[str]:
    """Return the arguments with settings in dotted form as one JSON object for each flag, behind the others."""
    if engine != "vllm":
        return list(arguments)
    words, found = [], dict[str, dict[str, object]]()
    rest = iter(arguments)
    for word in rest:
        spelling, equals, text = word.partition("=")
        dotted = _DOTTED.fullmatch(spelling)
        if dotted is None:
            words.append(word)
            continue
        value = _value(text if equals else next(rest, ""))
        if dotted["more"]:
            value = (text if equals else str(value)).split(",")
        flag = dotted["flag"].replace("_", "-").removeprefix("--")
        _merge(found.setdefault(in_full(engine, flag), {}), _object(dotted["keys"].split("."), value))
    return [*words, *(word for flag, fields in found.items() for word in (f"--{flag}", json.dumps(fields)))]


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        number = count_of(text)
        return text if number is None else number


def _object(keys: Sequence[str], value: object) -> dict[str, object]:
    for key in reversed(keys[1:]):
        value = {key: value}
    return {keys[0]: value}


def _merge(into: dict[str, object], more: Mapping[str, object]) -> None:
    for key, value in more.items():
        old = into.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            _merge(old, value)
        elif isinstance(old, list) and isinstance(value, list):
            old += value
        else:
            into[key] = value


def settings_meant(value: object) -> dict[str, object]:
    """Return the settings of a flag that holds a JSON object, also where a shell has taken its quotes away."""
    found = settings_in(value)
    return dict(found) if found else _without_quotes(str(value))


def _without_quotes(text: str) -> dict[str, object]:
    return dict(settings_in(_BARE.sub(r'"\1"', text.replace("'", '"'))))


def nesting_problems(
    engine: str, version: str, arguments: Sequence[str], flags: Mapping[str, Value]
) -> list[FlagProblem]:
    """Return what is wrong with flags that hold an object: a form that the version does not take, and lost quotes."""
    found = []
    parsed = parse_version(version)
    dotted = [match for word in arguments if (match := _DOTTED.fullmatch(word.partition("=")[0]))]
    takes = engine == "vllm" and (parsed is None or parsed >= DOTTED_SINCE)
    names = dict.fromkeys(in_full(engine, one["flag"][2:].replace("_", "-")) for one in dotted) if not takes else {}
    for name in names:
        words = f"settings behind a dot came with vLLM {show_version(DOTTED_SINCE)}: the engine takes no --{name}.…"
        whole = str(flags.get(name, "")) or json.dumps(_folded_alone(name, arguments))
        found.append(FlagProblem(name, "risky", "", words, "", whole))
    for name in _OBJECTS:
        value, meant = flags.get(name), {}
        if value is not None and name not in names and not settings_in(value):
            meant = _without_quotes(str(value))
        if meant:
            words = "it is no JSON, as its quotes are lost: the engine will not start"
            found.append(FlagProblem(name, "risky", str(value), words, "", json.dumps(meant)))
    return found


def _folded_alone(name: str, arguments: Sequence[str]) -> object:
    words = folded("vllm", arguments)
    return next((settings_in(words[at + 1]) for at in range(len(words) - 1, -1, -1) if words[at] == f"--{name}"), {})


def moved(flags: Mapping[str, Value], renamed: Mapping[str, str], target: str) -> list[str]:
    """Return the flags of a command that are to become fields of `target`, by the new names of flags."""
    return [flag for flag, (into, _) in INTO.items() if into == target == renamed.get(flag) and flag in flags]


def drafting(flags: Mapping[str, Value]) -> dict[str, object]:
    """Return ``--speculative-config`` with the settings of the flags that it replaced; empty where nothing drafts."""
    fields: dict[str, object] = {}
    for flag, (into, field) in INTO.items():
        if into == "speculative-config" and flag in flags:
            fields[field] = flags[flag]
    if fields.get("model") in ("ngram", "[ngram]"):
        fields = {"method": "ngram", **{field: value for field, value in fields.items() if field != "model"}}
    fields |= settings_meant(flags.get("speculative-config"))
    return fields if fields.keys() & {"model", "method"} else {}
