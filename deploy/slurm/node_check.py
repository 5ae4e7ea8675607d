#!/usr/bin/env python3
"""Read the JSON of `gpuwatch check` on stdin; print why this node must not run jobs, and exit with 1 then.

Only what needs hands or a reset counts. What an engine does with its memory is no fault of the node.
"""

import json
import sys

BAD = ("gpu_lost", "driver_unresponsive", "xid_hardware")


def main() -> int:
    """Judge the report and return the exit code."""
    try:
        report = json.load(sys.stdin)
        found = [item for item in report["findings"] if item["id"] in BAD and item["state"] == "firing"]
    except (ValueError, KeyError, TypeError) as error:
        print(f"gpuwatch: no report ({type(error).__name__})", file=sys.stderr)
        return 0  # a check that did not run says nothing about the node
    for item in found:
        gpu = item["labels"].get("gpu", "")
        print(f"gpuwatch: {item['id']}{' GPU ' + gpu if gpu else ''}: {item['cause']}"[:200])
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
