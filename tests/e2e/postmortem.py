"""`gpuwatch diagnose` on the logs that real servers leave behind."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from vllm_server import ROOT
from watcher import GPUWATCH


def diagnose(*files: Path | str) -> list[dict]:
    """Return the findings, first cause first."""
    command = [*GPUWATCH, "diagnose", "--json", *map(str, files)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)["findings"]


def above_info(*files: Path | str) -> list[str]:
    """Return the ids of the findings above info."""
    return [finding["id"] for finding in diagnose(*files) if finding["severity"] != "info"]


def judge(found: list[dict], id_: str, *words: str) -> None:
    """Want a finding to be the first, with evidence that names a line, and some words in it."""
    first = found[0]
    text = json.dumps(first, ensure_ascii=False)
    assert first["id"] == id_, text
    assert any(piece.get("line") for piece in first["evidence"])
    for word in words:
        assert word in text
