"""Files by which a Grafana finds the dashboards and a Prometheus on its own.

The forms are those of Grafana's provisioning folder, version 1 (``provisioning/dashboards`` and
``provisioning/datasources``).
"""

from __future__ import annotations

import json
from pathlib import PurePath
from typing import TYPE_CHECKING

from gpuwatch.dashboards.render import TAG

if TYPE_CHECKING:
    from pathlib import Path

MARK = "# Written by `gpuwatch dashboards`."
SCRAPE_INTERVAL = "15s"


def provisioning(folder: Path, prometheus: str) -> dict[PurePath, str]:
    """Return the provisioning files by their path under `folder`, which is where Grafana finds the dashboards."""
    quoted = json.dumps
    provider = f"""{MARK} Goes into Grafana's folder provisioning/dashboards.
apiVersion: 1
providers:
  - name: gpuwatch
    folder: gpuwatch
    type: file
    allowUiUpdates: false
    updateIntervalSeconds: 30
    options:
      path: {quoted(str(folder))}
"""
    source = f"""{MARK} An example, for a Grafana that has no Prometheus yet; goes into provisioning/datasources.
apiVersion: 1
datasources:
  - name: Prometheus
    uid: gpuwatch-prometheus
    type: prometheus
    access: proxy
    url: {quoted(prometheus)}
    jsonData:
      httpMethod: POST
      # The scrape interval: Grafana's window for rates is four times as long.
      timeInterval: {SCRAPE_INTERVAL}
"""
    return {
        PurePath("provisioning", "dashboards", "gpuwatch.yaml"): provider,
        PurePath("provisioning", "datasources", "gpuwatch.yaml"): source,
    }


def is_ours(text: str, uid: str = "") -> bool:
    """Say whether a file was written by gpuwatch: by its first line, or as the dashboard `uid` with our tag."""
    if not uid:
        return text.startswith(MARK)
    try:
        found = json.loads(text)
        return bool(found["uid"] == uid and TAG in found["tags"])
    except (ValueError, KeyError, TypeError):
        return False
