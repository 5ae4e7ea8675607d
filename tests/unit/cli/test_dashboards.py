from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from gpuwatch.cli import main

ROOT = Path(__file__).resolve().parents[3]
NAMES = ["gpuwatch-fleet", "gpuwatch-engine", "gpuwatch-ledger", "gpuwatch-findings"]


def test_without_a_folder_the_dashboards_are_listed(capsys):
    assert main(["dashboards"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == NAMES
    assert main(["dashboards", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [board["uid"] for board in listed["dashboards"]] == NAMES
    assert set(listed["dashboards"][0]) == {"uid", "title", "description", "file"}
    assert main(["dashboards", "--quiet"]) == 0
    assert capsys.readouterr().out == ""


def test_the_written_dashboards_are_the_committed_ones(tmp_path, capsys):
    assert main(["dashboards", str(tmp_path / "new" / "folder")]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 6
    assert all(Path(line).is_file() for line in printed)
    for name in NAMES:
        written = (tmp_path / "new" / "folder" / f"{name}.json").read_text(encoding="utf-8")
        assert written == (ROOT / "dashboards" / f"{name}.json").read_text(encoding="utf-8")


def test_the_provisioning_files_name_the_folder_and_the_address(tmp_path, capsys):
    odd = tmp_path / 'with "quotes" # and space'
    assert main(["dashboards", str(odd), "--prometheus", "https://prom:9090/x", "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert [item["uid"] for item in files] == [*NAMES, None, None]
    assert [item["kind"] for item in files] == ["dashboard"] * 4 + ["provisioning"] * 2
    provider = yaml.safe_load((odd / "provisioning/dashboards/gpuwatch.yaml").read_text())
    assert provider["apiVersion"] == 1
    assert provider["providers"][0]["options"] == {"path": str(odd)}
    assert provider["providers"][0]["type"] == "file"
    source = yaml.safe_load((odd / "provisioning/datasources/gpuwatch.yaml").read_text())["datasources"][0]
    assert (source["type"], source["url"], source["jsonData"]["timeInterval"]) == (
        "prometheus",
        "https://prom:9090/x",
        "15s",
    )


def test_a_second_run_replaces_what_the_first_one_wrote(tmp_path, capsys):
    assert main(["dashboards", str(tmp_path)]) == 0
    board = tmp_path / "gpuwatch-fleet.json"
    board.write_text(board.read_text().replace("gpuwatch / fleet", "older title"))
    assert main(["dashboards", str(tmp_path), "--prometheus", "http://other:9090"]) == 0
    assert "older title" not in board.read_text()
    assert "http://other:9090" in (tmp_path / "provisioning/datasources/gpuwatch.yaml").read_text()
    assert [path for path in tmp_path.rglob("*") if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("gpuwatch-engine.json", "not json"),
        ("gpuwatch-engine.json", '{"uid": "mine", "tags": ["gpuwatch"]}'),
        ("gpuwatch-engine.json", "[]"),
        ("provisioning/dashboards/gpuwatch.yaml", "apiVersion: 1\n"),
    ],
)
def test_a_foreign_file_is_kept_and_nothing_is_written(tmp_path, capsys, name, content):
    foreign = tmp_path / name
    foreign.parent.mkdir(parents=True, exist_ok=True)
    foreign.write_text(content)
    assert main(["dashboards", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error == f"gpuwatch dashboards: {foreign}: exists and was not written by gpuwatch; --force overwrites it\n"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [foreign]
    assert foreign.read_text() == content
    assert main(["dashboards", str(tmp_path), "--force"]) == 0
    assert foreign.read_text() != content


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["dashboards", str(tmp_path / "file")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("gpuwatch dashboards: ")
    assert error.count("\n") == 1
    assert "Traceback" not in error
    assert main(["dashboards", "/proc/x"]) == 2
    error = capsys.readouterr().err
    assert error == "gpuwatch dashboards: /proc/x: cannot be written there: No such file or directory (/proc/x)\n"


def test_an_address_without_a_scheme_is_refused(tmp_path, capsys):
    assert main(["dashboards", str(tmp_path), "--prometheus", "prom:9090"]) == 2
    assert capsys.readouterr().err == (
        "gpuwatch dashboards: --prometheus prom:9090: must begin with http:// or https://\n"
    )


def test_thresholds_follow_a_rule_of_the_user(tmp_path, capsys):
    own = tmp_path / "own.yml"
    own.write_text(
        "groups:\n- name: own\n  rules:\n  - alert: GpuwatchKvPoolSaturated\n"
        "    expr: avg_over_time(gpuwatch_engine_kv_cache_usage_ratio[1m]) > 0.7\n"
    )
    config = tmp_path / "config.toml"
    config.write_text(f'rules = ["{own}"]\n')
    assert main(["dashboards", str(tmp_path / "out"), "--config", str(config)]) == 0
    panels = json.loads((tmp_path / "out" / "gpuwatch-fleet.json").read_text())["panels"]
    (pool,) = [panel for panel in panels if panel["title"] == "KV pool in use"]
    assert pool["fieldConfig"]["defaults"]["thresholds"]["steps"][1]["value"] == 0.7


def test_the_rules_are_those_of_the_environments_configuration_and_a_home_is_found(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "own.yml").write_text("groups: 7\n")
    config = tmp_path / "config.toml"
    config.write_text('rules = ["~/own.yml"]\n')
    monkeypatch.setenv("GPUWATCH_CONFIG", str(config))
    assert main(["dashboards", str(tmp_path / "out")]) == 2
    assert str(tmp_path / "own.yml") in capsys.readouterr().err


def test_a_refused_rule_file_is_named(tmp_path, capsys):
    own = tmp_path / "own.yml"
    own.write_text("groups: 7\n")
    config = tmp_path / "config.toml"
    config.write_text(f'rules = ["{own}"]\n')
    assert main(["dashboards", str(tmp_path / "out"), "--config", str(config)]) == 2
    error = capsys.readouterr().err
    assert str(own) in error
    assert error.endswith("gpuwatch rules check lists everything\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("folder", ["", "  "])
def test_an_empty_folder_is_refused_and_nothing_is_written(tmp_path, capsys, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    assert main(["dashboards", folder]) == 2
    assert "DIR is empty; allowed: " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
