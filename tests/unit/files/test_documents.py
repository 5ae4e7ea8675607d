"""Texts about log lines are none: nothing that they quote happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwatch.sources.files.documents import kind_of
from gpuwatch.sources.files.read import read_file
from tests.unit.diagnosis.incidents import Verdict

ROOT = Path(__file__).parents[3]
TEXTS = {
    "rules.yml": (
        "groups:\n- name: cards\n  rules:\n  - alert: Lost\n    expr: up == 0\n    annotations:\n"
        '      summary: "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."\n'
    ),
    "board.json": (
        '{"schemaVersion": 39, "panels": [{"title": "Kills", "description": "reason: OOMKilled, exit code 137"}]}\n'
    ),
    "history.txt": ("commit 4f1c9aa\nAuthor: A B <a@b>\n\n    Reason: OOMKilled\n    Tried to allocate 3.00 GiB\n"),
    "told.txt": "commit 4f1c9aa\nAuthor: A B <a@b>\n\n    NVRM: Xid (PCI:0000:01:00): 48, pid=1, DBE\n",
    "patch.txt": "diff --git a/x b/x\n--- a/x\n+++ b/x\n+NVRM: Xid (PCI:0000:01:00): 48, pid=1, DBE\n",
    "source.py": (
        "import re\nfrom typing import Any\n\nLINE = (\n"
        '    "NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus."\n)\n'
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_what_a_text_about_logs_quotes_happened_nowhere(tmp_path, name):
    assert kind_of(TEXTS[name].encode())
    assert Verdict(tmp_path, {name: TEXTS[name]}).ids == []


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("prefix", ["[Tue Jan  6 08:00:00 2026] ", "node-3 | ", "Jan 06 08:00:00 n3 kernel: "])
def test_output_that_stands_beside_it_is_read(tmp_path, name, prefix):
    output = f"{prefix}NVRM: Xid (PCI:0000:03:00): 48, pid=5, name=python3, DBE\n"
    assert "xid_hardware" in Verdict(tmp_path, {name: TEXTS[name] + output}).ids


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nfrom vllm import LLM\n\nTraceback (most recent call last):\n",
        "from vllm import LLM\nimport os\ntorch.OutOfMemoryError: CUDA out of memory.\n",
        "from a import b\nimport c\nvllm-1  | (APIServer pid=1) INFO 01-06 08:00:00 [a.py:1] x\n",
        "groups of GPUs:\n- alert: somebody\n",
        '{"panels": "none"}\n',
        "commit to memory\n",
        "",
    ],
)
def test_anything_else_may_hold_a_log(text):
    assert kind_of(text.encode()) == ""


@pytest.mark.parametrize(
    "path", [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", *(ROOT / "rules").glob("*.yml")]
)
def test_our_own_texts_tell_of_nothing_serious(tmp_path, path):
    assert Verdict(tmp_path, {path.name: path.read_text(encoding="utf-8")}).firm == []


@pytest.mark.parametrize("command", ["grep -n -E '{}' a.log", "dmesg -T | grep '{}'", "$ sudo rg '{}' /var/log"])
def test_what_a_command_looks_for_was_not_found(tmp_path, command):
    line = command.format("Ray killed this worker|Out of memory: Killed process 7 (x)")
    assert Verdict(tmp_path, {"notes.txt": line + "\n"}).ids == []


@pytest.mark.parametrize(("value", "ids"), [("1", ["k8s_oomkilled"]), ("0", [])])
def test_a_reason_of_kube_state_metrics_holds_where_its_value_is_one(tmp_path, value, ids):
    line = f'kube_pod_container_status_last_terminated_reason{{container="a",reason="OOMKilled"}} {value}\n'
    assert Verdict(tmp_path, {"page.txt": line}).ids == ids


def test_a_gauge_that_keeps_the_last_reason_for_ever_is_a_warning_without_a_time(tmp_path):
    line = 'kube_pod_container_status_last_terminated_reason{pod="p",reason="OOMKilled",container="engine"} 1\n'
    page = "# TYPE kube_pod_container_status_last_terminated_reason gauge\n" + line
    finding = Verdict(tmp_path, {"page.txt": page})["k8s_oomkilled"]
    assert finding.severity == "warning"
    assert finding.cause.startswith("The last end of the container engine was a kill at its memory limit.")
    assert read_file(str(tmp_path / "page.txt"), 1_780_000_000_000).kind == "metrics"


def test_comments_and_lines_that_only_look_like_samples_are_no_page(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("# Reason: OOMKilled\n# nothing else\n")
    assert read_file(str(path), 1_780_000_000_000).kind != "metrics"
    path.write_text('up{job="a"} 1\nReason: OOMKilled\n')
    assert read_file(str(path), 1_780_000_000_000).kind != "metrics"
