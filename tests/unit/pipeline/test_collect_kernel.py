"""The kernel's log in a run: followed unless it is switched off, and what it says reaches the snapshot."""

from __future__ import annotations

import time
from dataclasses import replace

from gpuwatch.clock import SystemClock
from gpuwatch.config import Config
from gpuwatch.pipeline.collect import Collector

QUIET = Config(host="node-1", interval=0.2, gpus=False, discovery=False, find_engines=False)


def targets(config, wanted):
    collector = Collector(config, SystemClock())
    collector.start()
    try:
        seen = set()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and not seen >= wanted:
            seen |= {batch.target for batch in collector.take()}
            time.sleep(0.05)
        return seen
    finally:
        collector.stop()


def test_the_kernel_log_is_followed():
    wanted = {"host", "own", "kernel"}
    assert targets(replace(QUIET, kernel_log="kmsg"), wanted) == wanted


def test_the_kernel_log_is_left_alone_where_it_is_switched_off():
    wanted = {"host", "own"}
    assert targets(replace(QUIET, kernel_log="off"), wanted) == wanted
