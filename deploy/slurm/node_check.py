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
        findings = [item for item in report["findings"] if isinstance(item, dict)]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        print(f"gpuwatch: no report ({type(error).__name__})", file=sys.stderr)
        return 0  # a check that did not run says nothing about the node
    found = [item for item in findings if item.get("id") in BAD and item.get("state") == "firing"]
    for item in found:
        print(reason(item)[:200])
    return 1 if found else 0


def reason(item: dict) -> str:
    """Return a finding in one line; what its report does not say is left out."""
    labels = item.get("labels")
    gpu = labels.get("gpu") if isinstance(labels, dict) else None
    words = f"gpuwatch: {item['id']}" + (f" GPU {gpu}" if gpu not in (None, "") else "")
    cause = " ".join(str(item.get("cause") or "").split())
    return f"{words}: {cause}" if cause else words


if __name__ == "__main__":
    sys.exit(main())
