from __future__ import annotations

import gzip
from contextlib import closing
from pathlib import Path

import pytest

from gpuwatch.cli import main
from gpuwatch.model import Batch, series
from gpuwatch.recording import Header, Writer

DEMO = str(Path(__file__).resolve().parents[3] / "gpuwatch/data/demo.rec")
POWER = series("gpuwatch_gpu_power_watts", host="h", gpu="0", uuid="GPU-1")


def test_the_demo_comes_out_as_openmetrics_with_its_alert(capsys):
    assert main(["export", DEMO, "--openmetrics", "--step", "15"]) == 0
    text = capsys.readouterr().out
    assert text.endswith("# EOF\n")
    assert 'ALERTS{alertname="GpuwatchKvPreemptionStorm"' in text
    assert "# TYPE gpuwatch_engine_generation_tokens counter\n" in text


def test_rules_of_the_environments_configuration_are_used_and_a_broken_file_is_said(
    tmp_path, capsys, caplog, monkeypatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "own.yml").write_text("groups: [{name: own, rules: [{alert: Always, expr: vector(1)}]}]\n")
    (tmp_path / "broken.yml").write_text("groups: 7\n")
    config = tmp_path / "config.toml"
    config.write_text('rules = ["~/own.yml", "~/broken.yml"]\n')
    monkeypatch.setenv("GPUWATCH_CONFIG", str(config))
    assert main(["export", DEMO, "--openmetrics", "--step", "60"]) == 0
    assert 'ALERTS{alertname="Always"' in capsys.readouterr().out
    assert str(tmp_path / "broken.yml") in caplog.text


def test_a_file_appears_when_it_is_complete_and_is_not_overwritten(tmp_path, capsys):
    out = tmp_path / "demo.om"
    assert main(["export", DEMO, "--openmetrics", "--step", "60", "-o", str(out)]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert f"series in {out}" in said.err
    assert out.read_text().endswith("# EOF\n")
    before = out.read_bytes()
    assert main(["export", DEMO, "--openmetrics", "-o", str(out)]) == 2
    assert capsys.readouterr().err == f"gpuwatch export: {out}: exists already; choose another name\n"
    assert out.read_bytes() == before
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([DEMO], "--openmetrics"),
        ([DEMO, "--openmetrics", "--step", "-1"], "'-1' is not a number of seconds from 0 to 3600"),
        ([DEMO, "--openmetrics", "--step", "nan"], "'nan' is not a number of seconds from 0 to 3600"),
    ],
)
def test_wrong_usage_is_one_line(capsys, words, said):
    with pytest.raises(SystemExit) as stopped:
        main(["export", *words])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_an_unpacked_recording_comes_out_like_the_packed_one(tmp_path, capsys):
    plain = tmp_path / "plain.rec"
    plain.write_bytes(gzip.decompress(Path(DEMO).read_bytes()))
    texts = []
    for path in (DEMO, str(plain)):
        assert main(["export", path, "--openmetrics", "--step", "60"]) == 0
        texts.append([line for line in capsys.readouterr().out.splitlines() if line.startswith("gpuwatch_engine_")])
    assert len(texts[0]) > 100
    assert texts[0] == texts[1]


def test_what_is_no_recording_and_a_json_wish_are_refused(tmp_path, capsys):
    (tmp_path / "x").write_text("no")
    assert main(["export", str(tmp_path / "x"), "--openmetrics"]) == 2
    assert capsys.readouterr().err == f"gpuwatch export: {tmp_path / 'x'}: not a gpuwatch recording\n"
    assert main(["export", DEMO, "--openmetrics", "--json"]) == 2
    assert "--json" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_one_line(tmp_path, capsys):
    assert main(["export", DEMO, "--openmetrics", "--step", "60", "-o", str(tmp_path / "no" / "x")]) == 2
    folder = tmp_path / "no"
    assert capsys.readouterr().err == f"gpuwatch export: {folder / 'x'}: the folder {folder} does not exist\n"


def test_jumps_back_of_the_clock_are_told_and_long_rows_of_them_are_summed_up(tmp_path, capsys):
    path = tmp_path / "back.rec"
    with closing(Writer(path, Header("h", 1_700_000_000_000, 1.0, "test"))) as writer:
        for hour in range(7):
            writer.write(Batch("nvml", (time := 1_700_000_000_000 - 3_600_000 * hour), (POWER,), [1.0]))
            writer.tick(time)
    assert main(["export", str(path), "--openmetrics"]) == 0
    said = capsys.readouterr()
    told = f"gpuwatch export: {path}: the clock went back by 3,600 s; times after that are moved on\n"
    assert said.err == 5 * told + f"gpuwatch export: {path}: and 1 more time\n"
    assert said.out.count("\ngpuwatch_gpu_power_watts{") == 7
