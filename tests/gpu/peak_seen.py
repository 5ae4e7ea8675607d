"""Judges whether the memory peaks of torch_load.py were seen by watch_memory.py: ``peak_seen.py TORCH MEMORY``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

TOLERANCE = 0.05


def main(torch_file: str, memory_file: str) -> int:
    """Print both figures; status 1 when a peak was missed."""
    made = json.loads(Path(torch_file).read_text(encoding="utf-8"))
    seen = json.loads(Path(memory_file).read_text(encoding="utf-8"))
    gpus = [seen[made["uuid"]]] if made["uuid"] in seen else list(seen.values())
    # What torch asks the driver contains the driver's reserve on some versions; so rises are compared, not levels.
    rise_made = made["used_at_peak_bytes"] - made["used_without_peak_bytes"]
    rise_seen = max((gpu["high"] - gpu["low"] for gpu in gpus), default=0.0)
    good = rise_seen >= rise_made * (1 - TOLERANCE)
    sys.stdout.write(json.dumps({"rise_made": rise_made, "rise_seen": rise_seen, "gpus": gpus, "ok": good}) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
