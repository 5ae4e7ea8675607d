"""Property tests run the same examples each time; with ``GPUWATCH_EXAMPLES=new`` (`make fuzz`) new ones."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("same", derandomize=True, database=None, print_blob=True)
settings.register_profile("new", database=None, print_blob=True)
settings.load_profile(os.environ.get("GPUWATCH_EXAMPLES", "same"))
