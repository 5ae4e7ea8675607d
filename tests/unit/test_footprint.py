"""What keeps a program small must not change what it does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpuwatch.footprint import _unwritten

SMAPS = """\
55d0c0000000-55d0c0001000 r--p 00000000 fe:00 12                         /usr/bin/python3.11
Rss:                   4 kB
Anonymous:             0 kB
55d0c0001000-55d0c0003000 r-xp 00001000 fe:00 12                         /usr/bin/with a space
Anonymous:             0 kB
55d0c0003000-55d0c0004000 r--p 00003000 fe:00 12                         /usr/bin/relocated
Anonymous:             4 kB
55d0c0004000-55d0c0005000 rw-p 00003000 fe:00 12                         /usr/bin/data
Anonymous:             0 kB
7f0000000000-7f0000001000 r--p 00000000 00:00 0
Anonymous:             0 kB
7ffd00000000-7ffd00001000 r-xp 00000000 00:00 0                          [vdso]
Anonymous:             0 kB
"""


def test_only_files_that_cannot_be_and_were_not_written_are_given_back():
    assert list(_unwritten(SMAPS)) == [(0x55D0C0000000, 0x55D0C0001000), (0x55D0C0001000, 0x55D0C0003000)]


def test_a_text_that_is_cut_gives_back_nothing_that_was_not_seen_whole():
    assert list(_unwritten(SMAPS[: SMAPS.index("Rss")])) == []


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux")
def test_the_program_works_on_with_less_of_its_files_in_memory():
    program = """
import re
import numpy, promql_parser
from gpuwatch.footprint import release_code
def files():
    return int(re.search(r"^RssFile:\\s+(\\d+)", open("/proc/self/status").read(), re.M)[1])
promql_parser.parse("rate(x[5m]) > 0"); numpy.linalg.svd(numpy.ones((9, 9)))
before = files()
release_code()
after = files()
promql_parser.parse("sum by (a) (rate(x[5m]))"); numpy.linalg.svd(numpy.ones((9, 9)))
assert after < 0.8 * before, (before, after)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
