"""The commands in the documents are commands that exist, with options that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from gpuwatch.cli import build_parser

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "docs" / "recipes").glob("*.md")), ROOT / "docs" / "probes.md"]


def commands(page):
    """Return the gpuwatch commands in the shell blocks of a page, as lists of words."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line.rstrip("& "), comments=True) for line in lines if line.startswith("gpuwatch ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_are_accepted(page):
    found = commands(page)
    assert found or page.name == "README.md"
    for words in found:
        args = build_parser().parse_args(words[1:])
        assert args.command == words[1]


def test_the_recipes_record_before_and_report_after_the_load():
    for page in PAGES[:-1]:
        names = [words[1] for words in commands(page)]
        assert page.name == "README.md" or names[:2] == ["record", "report"], page.name


def test_links_in_the_recipes_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
