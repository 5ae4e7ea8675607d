"""The script for machines with a real GPU, as far as it can be tried without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
GPU = ROOT / "tests" / "gpu"

# What nvidia-smi would print for the fake H100, by its own field names.
SMI = {
    "memory.total": "81559",
    "memory.used": "69632",
    "memory.reserved": "511",
    "temperature.gpu": "66",
    "temperature.memory": "71",
    "power.draw": "642.32",
    "enforced.power.limit": "690.00",
    "clocks.max.sm": "1980",
    "clocks.sm": "1755",
    "clocks.mem": "2619",
    "utilization.gpu": "97",
    "pcie.link.gen.max": "5",
    "pcie.link.width.max": "16",
    "pcie.link.width.current": "8",
    "uuid": "GPU-fa4e0000-0000-0000-0000-000000000000",
    "name": "NVIDIA H100 80GB HBM3",
    "driver_version": "580.95.05",
}


def compare(fake, folder, answers):
    """Run against_smi.py with an nvidia-smi that knows `answers`."""
    program = folder / "nvidia-smi"
    program.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        f"answers = {answers!r}\n"
        "print(', '.join(answers[name] for name in sys.argv[1].split('=')[1].split(',')))\n"
    )
    program.chmod(0o755)
    environment = {
        **os.environ,
        **fake.env(),
        "PYTHONPATH": str(ROOT),
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
    }
    command = [sys.executable, str(GPU / "against_smi.py"), "0.2"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_equal_figures_pass_the_comparison_with_nvidia_smi(machine, tmp_path):
    done = compare(machine(gpus=1), tmp_path, SMI)
    report = json.loads(done.stdout)
    assert (done.returncode, report["ok"]) == (0, True)
    assert len(report["gpus"][0]["figures"]) == 14
    assert all(figure["gpuwatch"] is not None for figure in report["gpus"][0]["figures"])


@pytest.mark.parametrize(
    ("field", "answer"),
    [("memory.total", "81079"), ("temperature.memory", "[N/A]")],
)
def test_a_different_figure_fails_the_comparison_with_nvidia_smi(machine, tmp_path, field, answer):
    done = compare(machine(gpus=1), tmp_path, {**SMI, field: answer})
    assert done.returncode == 1
    assert json.loads(done.stdout)["ok"] is False


def test_peaks_that_were_missed_are_a_failure(tmp_path):
    made = {"uuid": "GPU-1", "used_at_peak_bytes": 9_000, "used_without_peak_bytes": 3_000}
    (tmp_path / "torch.json").write_text(json.dumps(made))
    for high, status in ((9_100, 0), (4_000, 1)):
        (tmp_path / "memory.json").write_text(json.dumps({"GPU-1": {"low": 3_000, "high": high}}))
        command = [
            sys.executable,
            str(GPU / "peak_seen.py"),
            str(tmp_path / "torch.json"),
            str(tmp_path / "memory.json"),
        ]
        assert subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == status


def test_without_an_nvidia_gpu_the_check_is_skipped(tmp_path):
    # An nvidia-smi that finds no device, whatever this machine has.
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'No devices were found'\nexit 6\n")
    program.chmod(0o755)
    environment = {**os.environ, "OUT": str(tmp_path / "out"), "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [str(GPU / "check.sh")], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "skipped: no NVIDIA GPU\n")
