"""Write dashboards/*.json from gpuwatch/dashboards and the rules.

usage: python tests/tools/make_dashboards.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gpuwatch.alerts.rulefile import load  # noqa: E402  # the folder is on the path now
from gpuwatch.dashboards import files  # noqa: E402


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dashboards"
    for name, text in files(load(sorted((ROOT / "rules").glob("*.yml")))).items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
