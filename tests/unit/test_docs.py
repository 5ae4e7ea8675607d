"""The documents keep up with the code."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from gpuwatch.cli import COMMANDS, build_parser
from gpuwatch.config import _ENGINE_KEYS, _KEYS, _LOG_KEYS
from gpuwatch.config_endpoints import PROMETHEUS_KEYS
from gpuwatch.config_serve import ATTACH_KEYS, SERVE_KEYS
from gpuwatch.series import METRICS

ROOT = Path(__file__).resolve().parents[2]


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_metrics_page_is_what_its_generator_writes():
    generator = runpy.run_path(str(ROOT / "tests" / "tools" / "metrics_doc.py"))
    assert read("docs/metrics.md") == generator["text"]()


def test_names_of_other_systems_belong_to_series_that_exist():
    names = runpy.run_path(str(ROOT / "tests" / "tools" / "metric_names.py"))
    assert set(names["ELSEWHERE"]) | set(names["DERIVED"]) <= set(METRICS)
    assert all(names["source"](name) for name in METRICS)


def test_every_command_and_option_is_in_the_manual():
    manual = read("docs/manual.md")
    parser = build_parser()
    actions = parser._subparsers._group_actions[0].choices
    for command in COMMANDS:
        assert f"## `gpuwatch {command}`" in manual
        for action in actions[command]._actions:
            for option in action.option_strings:
                if option.startswith("--") and option != "--help":
                    assert f"`{option}" in manual, (command, option)


def test_every_configuration_key_is_in_the_manual():
    manual = read("docs/manual.md")
    for key in [*_KEYS, *_ENGINE_KEYS, *_LOG_KEYS, *PROMETHEUS_KEYS, *SERVE_KEYS, *ATTACH_KEYS]:
        assert re.search(rf"^#? ?{key} = ", manual, re.MULTILINE), key


def test_the_changelog_has_an_unreleased_part():
    assert "## [Unreleased]" in read("CHANGELOG.md")


def test_every_dependency_has_its_reason():
    names = re.findall(
        r'^    "([A-Za-z-]+)[><=]', read("pyproject.toml").split("optional-dependencies")[0], re.MULTILINE
    )
    architecture = read("docs/architecture.md").lower()
    for name in names:
        assert f"| `{name.lower()}` |" in architecture, name


def test_links_between_documents_lead_somewhere():
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
