"""Whether a name is a launch flag of a version of vLLM or of SGLang, and what a flag of the one is called in the other.

Versions between those whose flags are listed differ: a name that is in no list is judged only where it is a flag of the
other engine, a misspelling, or where the version is a near one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.engines.flag_forms import OPTIONS
from gpuwatch.engines.flag_history import EARLIER, came_later, lasts
from gpuwatch.engines.flag_lists import COMPLETE
from gpuwatch.engines.flag_versions import FlagProblem, available, unknown_flag
from gpuwatch.engines.flags import FLAGS
from gpuwatch.engines.version import parse_version, show_version

if TYPE_CHECKING:
    from gpuwatch.engines.version import Version

# Of the other engine | what it is called here
_SAME_IN_VLLM = """
context-length | max-model-len
mem-fraction-static | gpu-memory-utilization
max-running-requests | max-num-seqs
chunked-prefill-size | max-num-batched-tokens
max-prefill-tokens | max-num-batched-tokens
tp-size | tensor-parallel-size
tp | tensor-parallel-size
dp-size | data-parallel-size
dp | data-parallel-size
pp-size | pipeline-parallel-size
pp | pipeline-parallel-size
model-path | model
page-size | block-size
disable-radix-cache | no-enable-prefix-caching
disable-cuda-graph | enforce-eager
"""

_SAME_IN_SGLANG = """
max-model-len | context-length
gpu-memory-utilization | mem-fraction-static
max-num-seqs | max-running-requests
max-num-batched-tokens | chunked-prefill-size
enforce-eager | disable-cuda-graph
block-size | page-size
enable-prefix-caching | (on by default)
enable-chunked-prefill | (on by default)
"""


def _same(rows: str) -> dict[str, str]:
    pairs = (row.partition("|") for row in rows.strip().splitlines())
    return {name.strip(): here.strip() for name, _, here in pairs}


SAME: dict[str, dict[str, str]] = {"vllm": _same(_SAME_IN_VLLM), "sglang": _same(_SAME_IN_SGLANG)}
"""By engine: the flags of the other one, and what does the same here."""
_TITLES = {"vllm": "vLLM", "sglang": "SGLang"}
_OTHER = {"vllm": "sglang", "sglang": "vllm"}
NEAR = {"vllm": ((0, 31, 0), (0, 33, 0)), "sglang": ((0, 5, 22), (0, 5, 23))}
_ALIKE = 0.87
_SLIP = 0.92
_EARLIER = ("max-num-partial-prefills", "max-long-partial-prefills", "speculative-num-steps", "cuda-graph-bs")
"""Names of earlier versions that are near another flag's."""


def misnamed_flag(engine: str, version: str, name: str, *, refused: bool = False) -> FlagProblem | None:
    """Return why `name` (without dashes) is no flag of this engine; None where it is one, or where nobody knows.

    A beginning of a flag's name counts, as argparse takes it, and so do ``no-`` and the key of a nested setting behind
    a dot. A version that is older than the list may have flags that are in neither list; they are judged where the
    engine has `refused` the name, or where it is a slip of a flag that lasts.
    """
    name = name.partition(".")[0].replace("_", "-")
    bare = name.removeprefix("no-")
    _, known = COMPLETE[engine]
    parsed = parse_version(version)
    low, high = NEAR[engine]
    near = parsed is not None and low <= parsed <= high
    ours = known | FLAGS[engine].keys()
    if name in SAME[engine] and name not in known:
        here = SAME[engine][name]
        text = f"--{name} is a flag of {_TITLES[_OTHER[engine]]}; no version of {_TITLES[engine]} has it"
        return FlagProblem(name, "unknown", "", text, here if here.startswith("(") else f"--{here}")
    judged = refused or parsed is None or parsed >= low
    if beginnings(engine, name) if near else any(each in ours or _begins(each, known) for each in (name, bare)):
        lacking = unknown_flag(engine, version, bare) or _not_yet(engine, parsed, bare)
        return lacking or (_ambiguous(engine, name) if near else None)
    if not judged:
        return unknown_flag(engine, version, bare) or _misspelt(engine, version, name)
    return unknown_flag(engine, version, bare) or _in_no_list(engine, version if near else "", name)


def _not_yet(engine: str, version: Version | None, name: str) -> FlagProblem | None:
    """Return what a flag is that the newest version has and an earlier one, all of whose flags are known, does not."""
    flag = FLAGS[engine].get(name)
    names = {name} if flag is None else {name, flag.name}
    _, known = COMPLETE[engine]
    if version is None or not names & known or not all(came_later(engine, version, each) for each in names):
        return None
    text = f"{_TITLES[engine]} {show_version(version)} does not have --{name}, which came with a later version"
    return FlagProblem(name, "unknown", "", text)


def _ambiguous(engine: str, name: str) -> FlagProblem | None:
    """Return what the beginning of several flags is: argparse takes none that is not of one alone."""
    meant = beginnings(engine, name)
    if len(meant) < 2:
        return None
    shown = ", ".join(f"--{flag}" for flag in meant[:4]) + (", …" if len(meant) > 4 else "")
    flag = FLAGS[engine].get(name)
    instead = f"--{flag.name}" if flag is not None else ""
    return FlagProblem(name, "unknown", "", f"--{name} is ambiguous: it is the beginning of {shown}", instead)


def beginnings(engine: str, name: str) -> list[str]:
    """Return the options of the newest version whose beginning `name` is; the option alone where it is one."""
    known = OPTIONS[engine]
    return [name] if name in known else sorted(option for option in known if option.startswith(name))


def _in_no_list(engine: str, version: str, name: str) -> FlagProblem | None:
    """Return what a name that the engine does not have is; `version` is one whose flags are all known, or empty."""
    if name.removeprefix("no-") in COMPLETE[_OTHER[engine]][1]:
        return FlagProblem(
            name, "unknown", "", f"--{name} is a flag of {_TITLES[_OTHER[engine]]}, not of {_TITLES[engine]}"
        )
    known = COMPLETE[engine][1]
    alike = sorted(flag for flag in known if _turns_off(flag) == _turns_off(name))
    import difflib  # noqa: PLC0415  # only for a name that is wrong

    close = difflib.get_close_matches(name, alike, n=1, cutoff=_ALIKE)
    if close:
        return FlagProblem(name, "unknown", "", f"{_TITLES[engine]} has no --{name}", f"--{close[0]}")
    if version:
        return FlagProblem(name, "unknown", "", f"{_TITLES[engine]} {version} has no --{name}")
    return None


def is_listed(engine: str, name: str, version: str = "") -> bool:
    """Return whether a flag (without dashes), or the one whose beginning it is, is known to be in a version.

    Without a version, and near the newest, the list of the newest and the flags that gpuwatch reads are asked. Between
    an earlier list and the newest one counts what both share, or what a table of versions names.
    """
    name = name.partition(".")[0].replace("_", "-")
    bare = name.removeprefix("no-")
    parsed = parse_version(version)
    if parsed is None or parsed >= NEAR[engine][0]:
        known = COMPLETE[engine][1] | FLAGS[engine].keys()
        return any(each in known or _begins(each, known) for each in (name, bare))
    meant = {bare, FLAGS[engine][bare].name} if bare in FLAGS[engine] else {bare, *_alone(engine, bare)}
    return any(_was_in(engine, parsed, each) for each in meant)


def _was_in(engine: str, version: Version, name: str) -> bool:
    since, flags = EARLIER[engine]
    if version == since and name in flags:
        return True
    return available(engine, version, name) or (name in COMPLETE[engine][1] and lasts(engine, version, name))


def _alone(engine: str, name: str) -> list[str]:
    """Return the one flag of the newest version that a name begins; nothing where it begins several."""
    meant = beginnings(engine, name)
    return meant if len(meant) == 1 else []


def in_full(engine: str, name: str) -> str:
    """Return the flag whose beginning `name` (without dashes) is, as argparse takes it; `name` where it is none or many.

    `name` may begin with ``no-``.
    """
    read = {spelling for spelling in FLAGS[engine] if not spelling.startswith("-")}
    known = OPTIONS[engine] | read
    if name in known or name.removeprefix("no-") in known:
        return name
    found = [flag for flag in known if flag.startswith(name)]
    return found[0] if len(found) == 1 else name


def _misspelt(engine: str, version: str, name: str) -> FlagProblem | None:
    """Return the flag of an older version that `name` is a slip of: one that gpuwatch uses, as nearly all have it."""
    import difflib  # noqa: PLC0415  # only for a name that is in no list

    lasting = sorted(flag for flag in FLAGS[engine] if flag[:1] != "-" and _turns_off(flag) == _turns_off(name))
    close = difflib.get_close_matches(name, lasting, n=1, cutoff=_SLIP)
    if not close or name in _EARLIER or unknown_flag(engine, version, close[0]) is not None:
        return None
    return FlagProblem(name, "unknown", "", f"{_TITLES[engine]} has no --{name}", f"--{close[0]}")


def _turns_off(name: str) -> bool:
    return name.startswith(("disable-", "no-"))


def _begins(name: str, known: frozenset[str]) -> bool:
    return len(name) > 1 and any(flag.startswith(name) for flag in known)
