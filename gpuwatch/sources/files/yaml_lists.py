"""Lists of words in YAML and JSON as manifests write commands: in one line, one item per line, or as a block of text.

Files are read line by line and not as YAML: a paste may hold a piece of a manifest between other things.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = re.compile(r"^\s*(?:- )?[\"']?(?P<key>args|command|entrypoint|Args|Cmd|Entrypoint)[\"']?:\s*(?P<rest>.*)$")
"""The line that heads such a list."""
_ITEM = re.compile(r"^\s*-(?:\s+(?P<item>\S.*)|\s*)$")
_BLOCK = re.compile(r"^[|>][+-]?\d*$")
_FLOW = re.compile(r"\"(?P<double>(?:[^\"\\]|\\.)*)\"|'(?P<single>(?:[^']|'')*)'|(?P<bare>[^\s,\[\]\"'][^,\[\]\"']*)")
_PAIR = re.compile(r"[\"']?(?P<key>\w+)[\"']?:\s*(?:\"(?P<double>[^\"]*)\"|'(?P<single>[^']*)'|(?P<bare>[^,}\s]+))")


def without_comment(text: str) -> str:
    """Return a line of YAML without its comment; a ``#`` inside quotes, or right behind a letter, begins none."""
    if "#" not in text:
        return text
    quote = ""
    for at, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter == "#" and (at == 0 or text[at - 1].isspace()):
            return text[:at].rstrip()
    return text


def is_block(rest: str) -> bool:
    """Return whether what stands behind a key or a dash says that a block of text follows."""
    return _BLOCK.match(rest) is not None


def item_of(text: str) -> str | None:
    """Return what an item of a list holds, the empty string for a lone dash, None for a line that is no item."""
    found = _ITEM.match(text)
    return None if found is None else (found["item"] or "").strip()


def flow_words(text: str) -> Iterator[str]:
    """Yield the items of a list in brackets, as they are once quotes and escapes are taken off."""
    for found in _FLOW.finditer(text):
        if found["double"] is not None:
            yield found["double"].replace("\\n", " ").replace('\\"', '"').replace("\\\\", "\\")
        elif found["single"] is not None:
            yield found["single"].replace("''", "'")
        else:
            yield found["bare"].strip()


def is_closed(text: str) -> bool:
    """Return whether a list in brackets ends in this text; a bracket inside quotes ends nothing."""
    bare = re.sub(r"\"(?:[^\"\\]|\\.)*\"|'[^']*'", "", text)
    return bare.count("]") >= bare.count("[")


def pair_of(text: str) -> tuple[str, str] | None:
    """Return the name and the value of an item such as ``- {name: HF_HOME, value: /data}``."""
    item = (item_of(text) or "").strip()
    if not item.startswith("{") or not item.endswith("}"):
        return None
    found = {each["key"]: _text(each) for each in _PAIR.finditer(item)}
    return (found["name"], found["value"]) if "name" in found and "value" in found else None


def _text(found: re.Match[str]) -> str:
    return next((text for text in (found["double"], found["single"], found["bare"]) if text is not None), "")
