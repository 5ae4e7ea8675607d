"""Says which packages gpuwatch needs and this Python lacks; status 1 then."""

from __future__ import annotations

import importlib.util
import sys

NEEDED = {
    "pynvml": "nvidia-ml-py",
    "psutil": "psutil",
    "numpy": "numpy",
    "promql_parser": "promql-parser",
    "yaml": "PyYAML",
    "requests": "requests",
    "prometheus_client": "prometheus-client",
}
if sys.version_info < (3, 11):
    NEEDED["tomli"] = "tomli"

if __name__ == "__main__":
    missing = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        sys.stdout.write(f"missing: {', '.join(missing)}; put their wheels into a folder and set WHEELS to it\n")
        sys.exit(1)
