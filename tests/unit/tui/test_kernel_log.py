"""A kernel log that could never be read is no alarm on the screen; one that fails later is."""

from __future__ import annotations

from gpuwatch.snapshot import Snapshot, SourceState
from gpuwatch.tui.view.status import sources_text

NOW = 1_760_000_000_000


def shown(*, up, age):
    state = SourceState("kernel", "kernel", up, "" if up else "no_permission", "", age)
    return sources_text(Snapshot(NOW, NOW, "node-1", "live", 1.0, sources=(state,)))


def test_a_kernel_log_that_is_read_is_shown_as_such():
    assert shown(up=True, age=0.3) == [("kernel log ✓", "ok")]


def test_a_kernel_log_that_may_not_be_read_is_left_out():
    assert shown(up=False, age=None) == []


def test_a_kernel_log_that_fails_later_is_shown():
    assert shown(up=False, age=40.0) == [("kernel ✗", "warn")]
