"""Write docs/metrics.md from the vocabulary and the query catalogue.

usage: python tests/tools/metrics_doc.py
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "tools")]

from metric_names import ELSEWHERE, source  # noqa: E402  # the folders are on the path now

from gpuwatch.queries import CATALOGUE  # noqa: E402  # the folder is on the path now
from gpuwatch.series import METRICS, Metric  # noqa: E402

TITLES = {
    "gpuwatch_gpu_": "GPUs",
    "gpuwatch_engine_": "Engines",
    "gpuwatch_log_": "Logs",
    "gpuwatch_host_": "Host",
    "gpuwatch_ledger_": "Memory ledger",
    "gpuwatch_kernel_": "Kernel log",
    "gpuwatch_": "gpuwatch itself",
}

HEAD = """# Metrics and queries

Every series of gpuwatch, and every figure that a screen or a dashboard shows. Generated from `gpuwatch/series.py` and
`gpuwatch/queries.py` by `tests/tools/metrics_doc.py`.

A gauge that cannot be read is absent and never 0. Ratios go from 0 to 1. `server` is the engine's `host:port`, `uuid`
identifies a GPU, and every series carries `host`. A histogram `x` is exported as `x_bucket` with the label `le`,
`x_sum` and `x_count`.

The column `source` says where a series comes from. Beside it stand the names of DCGM (as dcgm-exporter writes them) and
of OpenTelemetry's conventions, where they have the same thing; a unit in brackets differs from ours.
"""


def _row(metric: Metric) -> str:
    dcgm, otel = ELSEWHERE.get(metric.name, ("", ""))
    names = " | ".join(", ".join(f"`{name}`" for name in given.split(", ")) if given else "" for given in (dcgm, otel))
    about = f"{metric.kind} | {metric.unit} | {', '.join(metric.labels)} | {metric.help}"
    return f"| `{metric.name}` | {about} | {source(metric.name)} | {names} |\n"


def text() -> str:
    """Return the whole document."""
    parts = [HEAD]
    left = dict(METRICS)
    for prefix, title in TITLES.items():
        rows = [left.pop(name) for name in list(left) if name.startswith(prefix)]
        parts.append(f"\n## {title}\n\n| name | type | unit | labels | meaning | source | DCGM | OpenTelemetry |\n")
        parts.append("|---|---|---|---|---|---|---|---|\n")
        parts += map(_row, rows)
    parts.append(
        "\n## Queries\n\n`$__rate_interval` is the window of a rate: 10 seconds on the local store.\n\n"
        "| name | unit | PromQL | meaning |\n|---|---|---|---|\n"
    )
    parts += [f"| {q.name} | {q.unit} | `{q.template}` | {q.meaning} |\n" for q in CATALOGUE.values()]
    return "".join(parts)


if __name__ == "__main__":
    (ROOT / "docs" / "metrics.md").write_text(text(), encoding="utf-8")
