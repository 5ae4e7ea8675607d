"""Take the pictures of the report and of a comparison that the README shows, with a real Chromium.

usage: python tests/tools/report_pictures.py [OUT]        (default: docs/images)

The report is that of the recorded demo, a real run. The comparison is that of made-up runs whose difference is known.
Chromium comes from ``bash tests/e2e/fetch.sh chromium``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "e2e")]

from chromium import picture  # noqa: E402  # the folders are on the path now
from unit.report.runs import run  # noqa: E402

from gpuwatch.alerts.rulefile import load, shipped_paths  # noqa: E402
from gpuwatch.pipeline.run_data import collect  # noqa: E402
from gpuwatch.report import compare_report, html, run_report  # noqa: E402

FLAGS = (("--max-num-seqs", "16"), ("--enable-chunked-prefill", ""))


def main(out: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        page = Path(name) / "page.html"
        demo = collect(ROOT / "gpuwatch" / "data" / "demo.rec", load(shipped_paths()))
        page.write_text(html.write(run_report.build(demo, (), "gpuwatch")), encoding="utf-8")
        picture(page, out / "report.png", 1000, 2300)
        fast = {"itl": (0.009, 0.004, 0.009, 0.03, 0.009), "ttft": (0.3, 0.08, 0.8)}
        slow = {"itl": (0.012, 0.009, 0.012, 0.03, 0.04), "ttft": (0.3, 0.08, 0.8)}
        runs = [
            run("tp2.rec", seed=1, tp=2, rate=2400, flags=FLAGS, **fast),
            run("tp2-whole-prefill.rec", seed=2, tp=2, rate=2610, flags=FLAGS[:1], **slow),
            run("tp4.rec", seed=3, tp=4, rate=2750, flags=FLAGS, **fast),
        ]
        page.write_text(html.write(compare_report.build(runs, "gpuwatch")), encoding="utf-8")
        picture(page, out / "compare.png", 1000, 1500)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")
