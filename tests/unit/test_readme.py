"""The README in Chinese says what the English one says: the same headings, commands, flags and links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENGLISH = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def headings(text):
    return [line.split(" ")[0] for line in BLOCK.sub("", text).splitlines() if re.match(r"#+ ", line)]


def blocks(text):
    """Return the blocks of code without comments."""
    return [re.sub(r"\s+# .*", "", block) for block in BLOCK.findall(text)]


def code(text):
    """Return what is written as code in running text, section by section and in order within each."""
    sections = re.split(r"^## ", BLOCK.sub("", text), flags=re.MULTILINE)
    return [sorted(re.findall(r"`([^`]+)`", section)) for section in sections]


def links(text):
    own = ("README.md", "README.zh-CN.md")
    return [target for target in re.findall(r"\]\(([^)]+)\)", text) if target not in own]


def rows(text):
    return [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `")]


@pytest.mark.parametrize("part", [headings, blocks, code, links, rows], ids=lambda part: part.__name__)
def test_both_readmes_have_the_same(part):
    assert part(CHINESE) == part(ENGLISH)
    assert part(ENGLISH)


def test_each_points_to_the_other():
    assert "(README.zh-CN.md)" in ENGLISH
    assert "(README.md)" in CHINESE


def test_the_other_readme_is_in_chinese():
    sentences = [
        line for line in BLOCK.sub("", CHINESE).splitlines() if len(line) > 20 and not line.startswith(("![", "|--"))
    ]
    assert all(re.search(r"[\u4e00-\u9fff]", line) for line in sentences)
