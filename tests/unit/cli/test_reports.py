"""Reports that the screen writes on a key."""

from __future__ import annotations

from argparse import Namespace

import pytest

from gpuwatch.cli.reports import DEMO, Reports


def asked(**given):
    return Namespace(
        **{"report": None, "record": None, "replay": None, "demo": False, "config": None, "quiet": True, **given}
    )


def test_the_report_of_what_is_played_lies_in_the_present_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = Reports(asked(replay=str(DEMO))).write()
    (written,) = tmp_path.iterdir()
    assert written.name == name
    assert name.startswith("gpuwatch-")
    text = written.read_text()
    assert text.startswith("<!")
    assert "kv_preemption_storm" in text


def test_a_report_that_is_asked_for_in_the_demo_is_of_the_demo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reports = Reports(asked())
    reports.shown = str(DEMO)  # the demo was opened with a key
    assert "kv_preemption_storm" in (tmp_path / reports.write()).read_text()
    assert reports.recording is None
    assert Reports(asked(demo=True)).recording == str(DEMO)


def test_without_a_recording_there_is_no_report_and_the_way_to_one_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match="press r first, or start with --report FILE or --record FILE"):
        Reports(asked()).write()
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_kept_for_its_report_only_where_one_is_wanted_and_nothing_else_is_recorded(tmp_path):
    for given, kept in ((asked(), False), (asked(report=str(tmp_path / "x.md"), record="y.rec"), False)):
        reports = Reports(given)
        reports.spool()
        assert (reports.keep is not None) == kept
        assert reports.recording == given.record
    reports = Reports(asked(report=str(tmp_path / "x.md")))
    reports.spool()
    assert reports.keep.bytes == 256_000_000
    assert reports.recording.endswith("run.rec")
    assert reports.finish()  # nothing was recorded: said, and the folder is gone
    assert not (tmp_path / "x.md").exists()
