"""The folder list is the architecture: imports go one way, files stay small, no name of another world leaks."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "gpuwatch"

# Each layer may import from itself and from the layers before it; parts in one tuple never import each other.
LAYERS = (
    (
        *("model", "clock", "config", "config_checks", "config_endpoints", "config_serve"),
        *("series", "units", "footprint", "__init__"),
    ),
    ("engines", "recording"),
    ("ledger",),
    ("sources", "store"),
    ("promql",),
    ("queries",),
    ("alerts",),
    ("diagnosis",),
    ("snapshot",),
    ("exporter", "report", "probes", "dashboards", "tui"),
    ("pipeline",),
    ("cli",),
    ("__main__",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# `snapshot` is data that findings are part of; these two leaf modules hold plain dataclasses only.
DATA_MODULES = {"gpuwatch.diagnosis.finding", "gpuwatch.promql.values"}
OWNERS = {
    "pynvml": ("gpuwatch/sources/nvml/",),
    "textual": ("gpuwatch/tui/",),
    "promql_parser": ("gpuwatch/promql/",),
    "prometheus_client": ("gpuwatch/exporter/",),
    "requests": ("gpuwatch/sources/api_client.py", "gpuwatch/probes/"),
}
FILES = sorted(PACKAGE.rglob("*.py"))
MAX_FILE_LINES = 420
MAX_FUNCTION_LINES = 65


def imports(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names] if node.module else []
    return names


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    mine = part(path)
    for name in imports(path):
        if not name.startswith("gpuwatch.") or any(name.startswith(data) for data in DATA_MODULES):
            continue
        other = name.split(".")[1]
        if other not in LEVEL:
            other = "__init__"
        allowed = other == mine or LEVEL[other] < LEVEL[mine] or mine in LAYERS[0]
        assert allowed, f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_each_foreign_library_stays_in_its_own_folder(path):
    here = str(path.relative_to(ROOT))
    for name in imports(path):
        owners = OWNERS.get(name.split(".")[0])
        assert owners is None or here.startswith(owners), f"{here} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_and_functions_stay_small(path):
    text = path.read_text()
    assert text.count("\n") <= MAX_FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < MAX_FUNCTION_LINES, f"{path.name}: {node.name}"


def test_rules_dashboards_and_screens_know_no_engine_names():
    own = (f"gpuwatch/{name}" for name in ("dashboards", "tui", "alerts", "exporter"))
    for folder in ("rules", "dashboards", *own):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".yml", ".json"):
                assert not re.search(r"\b(vllm|sglang):[a-z_]+", path.read_text()), path


def test_no_path_of_a_machine_is_in_the_tree():
    for path in [*FILES, *(ROOT / "rules").rglob("*.yml"), *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        assert not re.search(r"/(work|root)/[a-z]", path.read_text()), path
