"""Launch commands and settings of the environment, wherever they stand: shells, containers, units, ``.env``."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.engines.flag_secrets import shown_command
from gpuwatch.engines.flags import FLAGS, PRESENT, flag_facts, parse_flags
from gpuwatch.sources.files import yaml_lists

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuwatch.sources.files.samples import Found
    from gpuwatch.sources.files.text import Text

_LAUNCH = re.compile(
    r"(?:(?P<vllm>(?:^|[\s\"'/])vllm[\"']?,? [\"']?serve\b|\bvllm\.entrypoints\.[\w.]*api_server\b"
    r"|\bvllm/vllm-openai[\w:.@-]*)"
    r"|(?P<sglang>\bsglang\.launch_server\b|(?:^|[\s\"'/])sglang serve\b|\blmsysorg/sglang[\w:.@-]*))[\"']?(?=\s|,|$)"
)
_IMAGE = re.compile(r"\b(?:vllm/vllm-openai|lmsysorg/sglang):v?(?P<version>\d+\.\d+\.\d+(?:\.?post\d+|rc\d+)?)\b")
_NO_COMMAND = re.compile(r"^usage:|--help\b|\[options\]|^\S+: error:|Namespace\(", re.IGNORECASE)
_OPERATORS = frozenset({"|", "||", "&&", ";", "&", ">", ">>", "2>&1", "2>", "<", "|&"})
_WORDS = (
    *("serve", ".entrypoints", "vllm-openai", "launch_server", "lmsysorg", "args:", "command:", "entrypoint:"),
    *('args":', 'command":', '"Args":', '"Cmd":', '"Entrypoint":'),
)
_MOST_LINES = 100
_MOST_TEXT = 8000

_FAMILIES = (
    "VLLM|SGLANG|SGL|NCCL|CUDA|TORCH|PYTORCH|HF|TRANSFORMERS|OMP|MKL|OPENBLAS|RAY|GLOO|LMCACHE|UCX|NVSHMEM|TRITON|FLASHINFER"
    "|TOKENIZERS|NVIDIA|CUBLAS|MOONCAKE"
)
_ENV = re.compile(
    rf"(?<![\w-])(?P<name>(?:{_FAMILIES})_[A-Z0-9_]+|PYTHONHASHSEED)="
    r"(?P<value>\"[^\"]*\"|'[^']*'|[^\s\"';\\]*)"
)
_ENV_LINE = re.compile(
    r"^\s*(?:[-$#+] |export |declare -x |ENV |Environment=|set |env )*[\"']?"
    rf"(?:(?:{_FAMILIES})_[A-Z0-9_]+|PYTHONHASHSEED)="
)
_RUNS = re.compile(r"\b(?:docker|podman) run\b|\bvllm serve\b|\blaunch_server\b|\bapi_server\b|(?:^|\s)(?:-e|--env) ")
_ENV_NAME = re.compile(rf"^\s*- name: [\"']?(?P<name>(?:{_FAMILIES})_[A-Z0-9_]+|PYTHONHASHSEED)[\"']?\s*$")
_ENV_VALUE = re.compile(r"^\s*value: *[\"']?(?P<value>[^\"']*)[\"']?\s*$")
_ENV_COLON = re.compile(rf"^\s+(?P<name>(?:{_FAMILIES})_[A-Z0-9_]+): *[\"']?(?P<value>[^\"'#]+?)[\"']?\s*$")
_FAMILY_HEADS = (*(f"{family}_" for family in _FAMILIES.split("|")), "PYTHONHASHSEED")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL")


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch command: the engine, the words behind the program, and the text as it stands in the file."""

    engine: str
    arguments: tuple[str, ...]
    text: str
    line: int = 0


def parse_launch(text: str) -> Launch | None:
    """Read one command, or the flags alone; None where it is neither."""
    found = _LAUNCH.search(text)
    if found is not None:
        engine = "vllm" if found["vllm"] else "sglang"
        return Launch(engine, tuple(_words(text[found.end() :])), text.strip())
    words = list(_words(text))
    if not any(word.startswith("-") for word in words):
        return None
    known = {engine: len(parse_flags(engine, words)) for engine in FLAGS}
    return Launch("sglang" if known["sglang"] > known["vllm"] else "vllm", tuple(words), text.strip())


def _words(text: str) -> Iterator[str]:
    """Yield the words of a command up to the first operator of the shell."""
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError:
        words = text.split()
    for word in words:
        if word in _OPERATORS:
            return
        bare = word.strip("`,")
        if bare:
            yield bare


def facts_of_launch(launch: Launch) -> dict[str, str | float | int | bool]:
    """Return the facts of a command by key, the command itself among them, without what is secret in it."""
    facts: dict[str, str | float | int | bool] = {"command": shown_command(launch.engine, _from_program(launch.text))}
    facts["engine"] = launch.engine
    facts |= flag_facts(launch.engine, parse_flags(launch.engine, launch.arguments))
    first = launch.arguments[0] if launch.arguments else ""
    if launch.engine == "vllm" and first and not first.startswith("-") and "model" not in facts and first != "MODEL":
        facts["model"] = first
    return facts


def read_commands(text: Text, found: Found) -> None:
    """Read the launch commands in a text."""
    places = text.numbers(_WORDS)
    engine = "sglang" if places and text.has(("sglang",)) else "vllm"
    done = 0
    _read_image(text, places, found)
    for at in places:
        line = text.line(at)
        if at <= done:
            continue
        launch: Launch | None = None
        if (head := yaml_lists.HEAD.match(line)) is not None:
            launch, done = _list(at, head["rest"], text, engine)
        elif _LAUNCH.search(line) is not None and _NO_COMMAND.search(line) is None:
            launch, done = _shell(at, text)
        if launch is not None:
            found.is_kind("flags")
            for key, value in facts_of_launch(launch).items():
                found.tell(key, value, at)


def image_version(text: str) -> str:
    """Return the version of the engine by the tag of its image; nothing where a text names none, or several."""
    tags = {match["version"] for match in _IMAGE.finditer(text)}
    return tags.pop() if len(tags) == 1 else ""


def _read_image(text: Text, places: Iterable[int], found: Found) -> None:
    """Read the version of the engine from the tag of its image, where a text names one image only."""
    tags = {match["version"]: at for at in places for match in _IMAGE.finditer(text.line(at))}
    if len(tags) == 1:
        version, at = next(iter(tags.items()))
        found.tell("version", version, at)


def _shell(at: int, lines: Text) -> tuple[Launch | None, int]:
    """Return the command that begins in a line, and the last line of it."""
    text, last = lines.line(at), at
    while text.rstrip().endswith("\\") and last < lines.count and last - at < _MOST_LINES:
        last += 1
        text = text.rstrip().removesuffix("\\") + " " + lines.line(last).strip()
    launch = parse_launch(text[:_MOST_TEXT])
    if launch is None or not any(word.startswith("-") for word in launch.arguments):
        return None, at
    return Launch(launch.engine, launch.arguments, _from_program(launch.text), at), last


def _from_program(text: str) -> str:
    """Return a command without the prompt, the log prefix or the table columns in front of it."""
    found = re.search(r"(?:[\w./-]*python[\d.]* -m |docker run |podman run |[\w./-]*(?:vllm|sglang) serve)", text)
    return text[found.start() :] if found is not None else text


def _list(at: int, rest: str, lines: Text, engine: str) -> tuple[Launch | None, int]:
    """Return the command in a list of YAML or JSON, and the last line of it."""
    words, last = _list_words(at, yaml_lists.without_comment(rest).strip(), lines)
    # The words of a shell: what it is given to run is the command.
    inner = next((parse_launch(word) for word in words if " " in word and _LAUNCH.search(word) is not None), None)
    if inner is not None and any(word.startswith("-") for word in inner.arguments):
        return Launch(inner.engine, inner.arguments, _from_program(inner.text)[:_MOST_TEXT], at), last
    if sum(word.startswith("--") for word in words) < 1:
        return None, at
    if words[:1] and words[0] in ("vllm", "sglang") and words[1:2] == ["serve"]:
        engine, words = words[0], words[2:]
    elif any("launch_server" in word for word in words):
        engine = "sglang"
    names = {"vllm": "vllm serve", "sglang": "python -m sglang.launch_server"}
    return Launch(engine, tuple(words), f"{names[engine]} {shlex.join(words)}"[:_MOST_TEXT], at), last


def _list_words(at: int, rest: str, lines: Text) -> tuple[list[str], int]:
    """Return the words of a list whose head is in line `at`, and the last line of it; comments and gaps are none."""
    last, most = at, min(lines.count, at + _MOST_LINES)
    if rest.startswith("["):
        while not yaml_lists.is_closed(rest) and last < most:
            last += 1
            rest += " " + yaml_lists.without_comment(lines.line(last)).strip()
        return list(yaml_lists.flow_words(rest)), last
    if rest and not yaml_lists.is_block(rest):
        return list(_words(rest)), at
    head, script = lines.line(at), ""
    words: list[str] = []
    least = _indent(head) + (1 if rest or head.lstrip().startswith("- ") else 0)
    for number in range(at + 1, most + 1):
        text = yaml_lists.without_comment(lines.line(number))
        item = yaml_lists.item_of(text)
        if not text.strip():
            continue
        if _indent(text) < least or not (rest or item) or (item and not rest and yaml_lists.is_block(item)):
            break
        last = number
        if rest:
            # A line of a script ends a command; a folded one does not.
            line = text.strip()
            script += f"{line.removesuffix(chr(92))} " if rest[0] == ">" or line.endswith(chr(92)) else f"{line} ; "
        else:
            words += _words(item or "")
    if script and _LAUNCH.search(script) is None:
        words = list(_words(script))
    return words or [script] * bool(script), last


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip(" "))


def read_environment(text: Text, found: Found) -> None:
    """Read the settings of the environment in a text."""
    for at in text.numbers(_FAMILY_HEADS):
        line = text.line(at)
        pairs = []
        # In the middle of a sentence a setting is a proposal, as in the texts of torch and NCCL.
        if "=" in line and (_ENV_LINE.match(line) is not None or _RUNS.search(line) is not None):
            pairs = [(match["name"], match["value"].strip("\"',")) for match in _ENV.finditer(line)]
        pair = yaml_lists.pair_of(line)
        if pair is not None and pair[0].startswith(_FAMILY_HEADS):
            pairs.append(pair)
        colon = _ENV_COLON.match(line)
        if colon is not None:
            pairs.append((colon["name"], colon["value"].strip()))
        named = _ENV_NAME.match(line)
        value = _ENV_VALUE.match(text.line(at + 1)) if named is not None else None
        if named is not None and value is not None:
            pairs.append((named["name"], value["value"].strip()))
        for key, setting in pairs:
            found.is_kind("flags")
            found.tell(f"env.{key}", PRESENT if _SECRET.search(key) else setting, at)
