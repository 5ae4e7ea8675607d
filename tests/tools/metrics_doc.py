"""Write docs/metrics.md from the vocabulary and the query catalogue.

usage: python tests/tools/metrics_doc.py
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gpuwatch.queries import QUERIES  # noqa: E402  # the folder is on the path now
from gpuwatch.series import METRICS  # noqa: E402

TITLES = {
    "gpuwatch_gpu_": "GPUs",
    "gpuwatch_engine_": "Engines",
    "gpuwatch_log_": "Logs",
    "gpuwatch_host_": "Host",
    "gpuwatch_": "gpuwatch itself",
}

HEAD = """# Metrics and queries

Every series of gpuwatch, and every figure that a screen shows. Generated from `gpuwatch/series.py` and
`gpuwatch/queries.py` by `tests/tools/metrics_doc.py`.

A gauge that cannot be read is absent and never 0. Ratios go from 0 to 1. `server` is the engine's `host:port`, `uuid`
identifies a GPU, and every series carries `host`.
"""


def text() -> str:
    """Return the whole document."""
    parts = [HEAD]
    left = dict(METRICS)
    for prefix, title in TITLES.items():
        rows = [left.pop(name) for name in list(left) if name.startswith(prefix)]
        parts.append(f"\n## {title}\n\n| name | type | unit | labels | meaning |\n|---|---|---|---|---|\n")
        parts += [f"| `{m.name}` | {m.kind} | {m.unit} | {', '.join(m.labels)} | {m.help} |\n" for m in rows]
    parts.append(
        "\n## Queries\n\n`$__rate_interval` is the window of a rate: 10 seconds on the local store.\n\n"
        "| name | unit | PromQL | meaning |\n|---|---|---|---|\n"
    )
    parts += [f"| {q.name} | {q.unit} | `{q.template}` | {q.meaning} |\n" for q in QUERIES.values()]
    return "".join(parts)


if __name__ == "__main__":
    (ROOT / "docs" / "metrics.md").write_text(text(), encoding="utf-8")
