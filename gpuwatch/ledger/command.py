"""A launch command as a deployment: the flags that memory depends on, and the command with its faults repaired."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuwatch.engines.flag_forms import arity
from gpuwatch.engines.flag_lists import SHORT
from gpuwatch.engines.flag_names import in_full, is_listed, misnamed_flag
from gpuwatch.engines.flag_secrets import shown_words
from gpuwatch.engines.flag_versions import flag_problems
from gpuwatch.engines.flags import FLAGS, flag_facts, parse_flags
from gpuwatch.engines.sizes import count_of
from gpuwatch.ledger.beside import draft_name, settings_in
from gpuwatch.ledger.command_refused import in_digits, is_undated_type
from gpuwatch.ledger.command_values import check_values
from gpuwatch.ledger.nested import INTO, drafting, folded, moved, nesting_problems, settings_meant
from gpuwatch.ledger.uncounted import not_counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from gpuwatch.engines.flag_versions import FlagProblem
    from gpuwatch.engines.log_pattern import Value

_NUMBERS = {
    "tp": ("tensor-parallel-size", "tp-size"),
    "pp": ("pipeline-parallel-size", "pp-size"),
    "dp": ("data-parallel-size", "dp-size"),
    "dcp": ("decode-context-parallel-size", "dcp-size"),
    "pcp": ("prefill-context-parallel-size",),
    "context": ("max-model-len", "context-length"),
    "max_num_seqs": ("max-num-seqs", "max-running-requests"),
    "chunk": ("max-num-batched-tokens", "chunked-prefill-size"),
    "block_size": ("block-size", "page-size"),
    "blocks_override": ("num-gpu-blocks-override",),
    "kv_bytes": ("kv-cache-memory-bytes",),
    "max_total_tokens": ("max-total-tokens",),
}
_COUNTS = frozenset(itertools.chain.from_iterable(_NUMBERS.values()))
MOST_DRAFTED = 1024
_DRAFTED = ("num-speculative-tokens", "spec-tokens", "speculative-num-draft-tokens")

_SHORT = re.compile(r"-[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Command:
    """What a launch command says: engine, model, and the settings that are given (None: left to the engine)."""

    engine: str
    arguments: tuple[str, ...]
    model: str
    numbers: Mapping[str, int]
    fraction: float | None
    kv_dtype: str
    quantisation: str
    eager: bool
    dp_attention: bool
    prefix_caching: bool | None
    hybrid_manager: bool
    flags: Mapping[str, Value]

    @property
    def attention_groups(self) -> int:
        """SGLang's groups of DP attention, which lie within the tensor ranks."""
        inner = self.flags.get("attn-dp-size")
        if isinstance(inner, int) and inner > 1:
            return inner
        return self.numbers.get("dp", 1) if self.dp_attention else 1

    @property
    def longest_that_fits(self) -> bool:
        """Whether vLLM is to choose the longest request by its pool (``--max-model-len auto``, ``-1``)."""
        return self.engine == "vllm" and str(self.flags.get("max-model-len", "")) in ("auto", "-1")

    @property
    def drafted(self) -> int:
        """Tokens that are drafted in a step of speculative decoding."""
        named = (self.flags.get(name) for name in _DRAFTED)
        asked = settings_in(self.flags.get("speculative-config")).get("num_speculative_tokens")
        counts = (value for value in (*named, asked) if isinstance(value, int) and not isinstance(value, bool))
        return next((value for value in counts if 0 < value <= MOST_DRAFTED), 0)

    @property
    def draft(self) -> str:
        """The draft model that it names; empty where it names none."""
        return draft_name(self.flags, self.arguments)

    @property
    def overrides(self) -> dict[str, object]:
        """Fields of the model's config that it replaces."""
        if self.engine == "sglang":
            return settings_meant(self.flags.get("json-model-override-args"))
        scaling, base = settings_meant(self.flags.get("rope-scaling")), self.flags.get("rope-theta")
        found: dict[str, object] = {"rope_scaling": dict(scaling)} if scaling else {}
        if isinstance(base, (int, float)) and not isinstance(base, bool):
            found["rope_theta"] = base
        return {**found, **settings_meant(self.flags.get("hf-overrides"))}

    def unread(self, version: str, *, draft: bool = False) -> list[str]:
        """Return what of the command has no part in the figures, a note each: memory, and names nobody can judge.

        `draft`: its draft model is known and counted.
        """
        notes = not_counted(self.engine, self.flags, draft=draft)
        names = list(dict.fromkeys(filter(None, map(_long_name, self.arguments))))
        faulty = {problem.flag for problem in self.problems(version)}
        if is_undated_type(self.engine, version, self.kv_dtype) and "kv-cache-dtype" not in faulty:
            notes.append(f"not checked: whether {self.engine} {version} takes --kv-cache-dtype {self.kv_dtype}")
        unknown = [name for name in names if name not in faulty and not is_listed(self.engine, name, version)]
        words = shown_words(self.engine, self.arguments, self.model)
        odd = list(dict.fromkeys(word[:60] for word in words if self._is_odd(word)))
        if odd:
            notes.append(f"{self.engine} has no such short flag, and it is not counted: {', '.join(odd[:5])}")
        if unknown:
            shown = ", ".join(f"--{name[:60]}" for name in unknown[:5]) + (", …" if len(unknown) > 5 else "")
            notes.append(f"not checked, as not all flags of {self.engine} {version} are listed here: {shown}")
        return notes

    def _is_odd(self, word: str) -> bool:
        """Return whether a word is a short flag that no version of the engine has."""
        name = re.split(r"[=.]", word, maxsplit=1)[0]
        optimising = self.engine == "vllm" and word.startswith("-O")
        return _SHORT.match(word) is not None and not optimising and name not in SHORT[self.engine]

    def gib(self, *names: str) -> float:
        """Return the first of some flags that holds a number of GiB, else 0."""
        values = (self.flags.get(name) for name in names)
        return next(
            (float(v) for v in values if isinstance(v, (int, float)) and not isinstance(v, bool) and v > 0), 0.0
        )

    def problems(self, version: str) -> tuple[FlagProblem, ...]:
        """Return what is wrong with its flags for a version of the engine, names that it does not have among them."""
        found = list(flag_problems(self.engine, version, self.flags))
        judged = {problem.flag for problem in found}
        forms = nesting_problems(self.engine, version, self.arguments, self.flags)
        found += [problem for problem in forms if problem.flag not in judged]
        for word in self.arguments:
            name = _long_name(word)
            if name and name not in judged:
                judged.add(name)
                problem = misnamed_flag(self.engine, version, name)
                found += [problem] if problem is not None else []
        return tuple(self._carried(problem) for problem in found)

    def _carried(self, problem: FlagProblem) -> FlagProblem:
        """Return a problem; without the flag that replaces its own where the value of that cannot be carried over."""
        target = problem.instead.removeprefix("--")
        if target == problem.instead or (problem.carries and self._takes(problem.flag, target)):
            return problem
        words = f"{problem.text}; its value cannot be carried over to --{target}"
        return replace(problem, text=words, instead="")

    def _takes(self, flag: str, target: str) -> bool:
        """Return whether `target` takes the value that the command gives to `flag`."""
        if INTO.get(flag, ("", ""))[0] == target:
            return bool(self.fields(target)) or flag not in self.flags
        value = _value_of(self.engine, self.arguments, flag)
        try:
            check_values(self.engine, [] if value is None else [f"--{target}={value}"])
        except ValueError:
            return False
        return True

    def fields(self, target: str) -> dict[str, object]:
        """Return the object for `target` (``hf-overrides``, ``speculative-config``), older flags carried over to it."""
        return stretched(self) if target == "hf-overrides" else drafting(self.flags)


def read_command(engine: str, arguments: Sequence[str]) -> Command:
    """Read the arguments behind ``vllm serve`` or ``sglang.launch_server``."""
    texts = parse_flags(engine, folded(engine, in_full_words(engine, arguments)))
    flags = {
        name.removeprefix("flag."): value for name, value in flag_facts(engine, texts).items() if name[:5] == "flag."
    }
    numbers = {
        key: value
        for key, names in _NUMBERS.items()
        for name in names
        if isinstance(value := flags.get(name), int) and not isinstance(value, bool) and value > 0
    }
    fraction = flags.get("gpu-memory-utilization", flags.get("mem-fraction-static"))
    caching = flags.get("enable-prefix-caching")
    if flags.get("disable-radix-cache") is True:
        caching = False
    return Command(
        engine=engine,
        arguments=tuple(arguments),
        model=_model(arguments, flags),
        numbers=numbers,
        fraction=float(fraction) if isinstance(fraction, (int, float)) else None,
        kv_dtype=str(flags.get("kv-cache-dtype", "auto")),
        quantisation=str(flags.get("quantization", "")),
        eager=bool(flags.get("enforce-eager") or flags.get("disable-cuda-graph")),
        dp_attention=bool(flags.get("enable-dp-attention")),
        prefix_caching=caching if isinstance(caching, bool) else None,
        hybrid_manager=not flags.get("disable-hybrid-kv-cache-manager"),
        flags=flags,
    )


def in_full_words(engine: str, arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the beginnings of long options, which argparse takes, in full, and counts in digits."""
    words: list[str] = []
    for word in in_digits(engine, arguments):
        name, full = _long_name(word), ""
        if name and "." not in word.partition("=")[0]:
            full = in_full(engine, name)
        words.append(f"--{full}{''.join(word.partition('=')[1:])}" if full and full != name else word)
    return words


def _model(arguments: Sequence[str], flags: Mapping[str, Value]) -> str:
    named = flags.get("model") or flags.get("model-path")
    if isinstance(named, str):
        return named
    first = arguments[0] if arguments else ""
    return "" if first.startswith("-") else first


def repaired(command: Command, problems: Sequence[FlagProblem], more: Mapping[str, str] | None = None) -> str:
    """Return the arguments with faulty flags replaced or left out, and `more` flags (without dashes) set."""
    changes, renamed, gone = _changes(command, problems)
    changes |= more or {}
    words, at = [], 0
    set_anew = frozenset(changes)
    arguments = command.arguments
    while at < len(arguments):
        flag, length = _flag_at(command.engine, arguments, at)
        part = list(arguments[at : at + length])
        if flag in changes and flag not in FLAGS[command.engine] and command.model in part[1:]:
            part = part[: part.index(command.model, 1)]  # a switch that nobody knows, and the model behind it
        length = len(part)
        at += length
        if at == length == 1 and "model-path" in changes and not flag and part[0] == command.model:
            continue  # the model goes behind its flag
        if flag in changes:
            value = changes.pop(flag)
            if value is not None:
                words += [f"--{flag}", value]
        elif flag in gone or flag in set_anew:
            continue  # the last one wins, and there is one by now
        elif flag in renamed or _long_name(part[0]) in renamed:
            name = renamed.get(flag) or renamed[_long_name(part[0])]
            given = {*set_anew, *command.flags} if flag != name else set_anew
            words += _renamed(part, name, given)
        else:
            words += part
    words += [word for flag, value in changes.items() if value is not None for word in (f"--{flag}", value)]
    return shlex.join(words)


def _changes(
    command: Command, problems: Sequence[FlagProblem]
) -> tuple[dict[str, str | None], dict[str, str], frozenset[str]]:
    """Return the new values of flags (None: left out), their new names, and the flags that become part of another."""
    changes: dict[str, str | None] = {}
    renamed: dict[str, str] = {}
    gone: set[str] = set()
    for problem in problems:
        if problem.kind == "unknown" and problem.instead.startswith("--"):
            renamed[problem.flag] = problem.instead.removeprefix("--")
        else:
            changes[problem.flag] = problem.proposed or None
    for target in ("hf-overrides", "speculative-config"):
        if parts := moved(command.flags, renamed, target):
            changes.setdefault(target, json.dumps(command.fields(target)))
            renamed = {flag: name for flag, name in renamed.items() if flag not in parts}
            gone |= {*parts, target}
    return changes, renamed, frozenset(gone)


def _renamed(part: Sequence[str], name: str, given: AbstractSet[str]) -> list[str]:
    """Return the words of one flag under another name; none where that one is `given` with a value of its own."""
    if name in given:
        return []
    _, equals, value = part[0].partition("=")
    values = [_plain(name, word) for word in ([value] if equals else part[1:])]
    return [f"--{name}={values[0]}"] if equals else [f"--{name}", *values]


def _plain(name: str, value: str) -> str:
    """Return the value of a flag; a count in plain digits, as the engines take different suffixes."""
    number = count_of(value) if name in _COUNTS else None
    return value if number is None else str(number)


def stretched(command: Command) -> dict[str, object]:
    """Return the fields of the model's config that a command replaces, with the length that they stretch it to.

    The length of a model with YaRN is the one that its config declares: since 0.32 vLLM computes none from the factor.
    """
    fields = command.overrides
    scaling = fields.get("rope_scaling")
    if isinstance(scaling, dict) and "yarn" in (scaling.get("rope_type"), scaling.get("type")):
        original, factor = scaling.get("original_max_position_embeddings"), scaling.get("factor")
        if isinstance(original, int) and isinstance(factor, (int, float)):
            fields.setdefault("max_position_embeddings", int(original * factor))
    return fields


def _flag_at(engine: str, arguments: Sequence[str], at: int) -> tuple[str, int]:
    """Return (canonical flag, or empty, and how many words it takes) at a place of a command line."""
    word = arguments[at]
    if not word.startswith("-"):
        return "", 1
    name, equals, _ = word.partition("=")
    spelling = in_full(engine, _long_name(word)) or name
    flag = FLAGS[engine].get(spelling)
    values = [] if equals else [*itertools.takewhile(_is_value, arguments[at + 1 :])]
    takes = "none" if flag is not None and flag.kind == "bool" else arity(engine, spelling)
    if takes == "none":
        values = values[:1] if values and values[0].lower() in ("true", "false") else []
    elif takes == "one":
        values = values[:1]
    return (flag.name if flag is not None else spelling), 1 + len(values)


def _is_value(word: str) -> bool:
    return bool(word) and (not word.startswith("-") or word[1:2].isdigit())


def _value_of(engine: str, arguments: Sequence[str], name: str) -> str | None:
    """Return the value of a flag as it was typed, the last one; None where it has none."""
    found, at = None, 0
    while at < len(arguments):
        flag, length = _flag_at(engine, arguments, at)
        if name in (flag, _long_name(arguments[at])):
            _, equals, value = arguments[at].partition("=")
            found = arguments[at + 1] if length > 1 else value if equals else None  # words
        at += length
    return found


def _long_name(word: str) -> str:
    """Return the name of a long option without dashes, value, or the key of a nested setting; empty for other words."""
    name = word.partition("=")[0].partition(".")[0]
    return name[2:].replace("_", "-") if name.startswith("--") and len(name) > 2 else ""
