"""Recordings: batches of all sources on disk, append-only, readable after a cut at any byte.

Format (version 1): a gzip stream (RFC 1952) of JSON lines, flushed after every tick, so that ``zcat FILE | head``
works on a file that is still being written. The first line is the header ``{"gpuwatch_recording": 1, …}``. Then:

* ``{"keys": TARGET, "add": [[[name, value], …], …]}`` gives new series of a target the next numbers;
* ``{"batch": TARGET, "t": MS, "i": [GAP, …], "v": [VALUE, …], …}`` holds the values that changed. GAPs count from
  the previous changed series (from -1). An integer VALUE is added to the previous value, a number with a point
  replaces it, ``"NaN"``, ``"+Inf"`` and ``"-Inf"`` replace it too, and ``null`` means that the series is gone.
  ``facts``, ``events``, ``absent``, ``up``, ``reason``, ``detail``, ``dur`` and ``dropped`` appear where they say
  something;
* ``{"forget": TARGET}`` says that a target is not polled any more: its silence means nothing;
* ``{"found": MS, …}`` is what the rules found at this time, as `gpuwatch.pipeline.verdicts` writes it. It saves a
  report the replay; a replay comes to the same and passes over it;
* ``{"tick": MS}`` ends a tick: rules were evaluated at this time.

A recording may have parts: ``FILE.000001``, ``FILE.000002``, … and last ``FILE``, to which is written. Each is a
recording by itself, with everything it needs, and all of them are read as one. The parts may be joined with ``cat``:
a header starts the numbers of the series afresh.

Plain log lines are not recorded, recognised ones are.
"""

from __future__ import annotations

from gpuwatch.recording.format import VERSION, Header, RecordingError, Tick
from gpuwatch.recording.parts import Keep, parts_of
from gpuwatch.recording.reader import Reader, tick_times
from gpuwatch.recording.writer import Writer

__all__ = ["VERSION", "Header", "Keep", "Reader", "RecordingError", "Tick", "Writer", "parts_of", "tick_times"]
