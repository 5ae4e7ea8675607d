"""Write deploy/alertmanager/alertmanager.yml: routing as text, inhibition out of the table of causes and symptoms.

usage: python tests/tools/alertmanager_config.py
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gpuwatch.alerts.inhibition import alertmanager_yaml  # noqa: E402  # the folder is on the path now

TARGET = ROOT / "deploy/alertmanager/alertmanager.yml"

HEAD = """\
# An example to copy from. The inhibition below is generated from gpuwatch's own table of causes and symptoms
# (tests/tools/alertmanager_config.py), so that Alertmanager is quiet about the same symptoms as gpuwatch's screen. What
# only gpuwatch can tell, which engine uses which GPU, is not in it: such symptoms are sent.
templates:
  - gpuwatch.tmpl

route:
  receiver: gpuwatch
  # One notification per finding and machine: eight GPUs with the same trouble are one page, not eight.
  group_by: [diagnosis, cluster, host]
  group_wait: 15s
  group_interval: 1m
  repeat_interval: 4h
  routes:
    # What is merely worth knowing does not wake anybody.
    - matchers: ['severity="info"']
      receiver: nobody
    - matchers: ['severity="warning"']
      receiver: gpuwatch
      group_wait: 2m
      repeat_interval: 24h

receivers:
  - name: nobody
  - name: gpuwatch
    webhook_configs:
      - url: http://127.0.0.1:9095/
        send_resolved: true
    # Mail and chat use the texts of gpuwatch.tmpl:
    # slack_configs:
    #   - api_url_file: /etc/alertmanager/slack-url
    #     channel: '#gpu'
    #     send_resolved: true
    #     title: '{{ template "gpuwatch.title" . }}'
    #     text: '{{ template "gpuwatch.text" . }}'
    # email_configs:
    #   - to: oncall@example.org
    #     headers: {Subject: '{{ template "gpuwatch.title" . }}'}
    #     text: '{{ template "gpuwatch.text" . }}'

"""


def text() -> str:
    """Return the whole file."""
    return HEAD + alertmanager_yaml()


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
