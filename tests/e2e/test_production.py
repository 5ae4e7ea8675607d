"""From a real storm to the page at night, both ways: through Prometheus, and straight from the daemon.

vLLM with a pool that is too small, `gpuwatch serve`, Prometheus with the shipped rules, two Alertmanagers with the
shipped configuration (one gets its alerts from Prometheus, one from the daemon), two webhooks.
"""

from __future__ import annotations

import json
import re
import time
from datetime import datetime

import pytest
from fakenvml.machine import FakeNvml
from services import Webhook, alertmanager, check, get, gpuwatch_serve, prometheus, wait_for
from simulated_gpus import SimulatedGpus
from vllm_server import Load

HOST = "node-07"
STORM = "kv_preemption_storm"
SCRAPE = 5
"""Seconds between two scrapes and between two evaluations of the rules."""
SYMPTOMS = {"kv_pool_saturated", "queue_growth", "throughput_collapse", "head_of_line", "prefix_cache_collapse"}
PROMETHEUS_LABELS = {"job", "instance"}


def seconds(timestamp: str) -> float:
    """Read RFC 3339 with any number of digits, in UTC."""
    whole, fraction = re.fullmatch(r"([\d:T-]{19})(\.\d+)?(?:Z|\+00:00)", timestamp).groups()
    return datetime.strptime(whole + "+0000", "%Y-%m-%dT%H:%M:%S%z").timestamp() + float(fraction or 0)


class Story:
    """What each party said during the storm and after it."""

    def __init__(self, server, folder):
        self.started = []
        try:
            self._run(server, folder)
        finally:
            for part in reversed(self.started):
                part.stop()

    def _start(self, part):
        self.started.append(part)
        return part

    def _run(self, server, folder):
        fake = FakeNvml(folder / "gpus", gpus=2)
        gpus = SimulatedGpus(fake, server, 2)
        gpus.start()
        by_prometheus, by_daemon = self._start(Webhook()), self._start(Webhook())
        first, first_url = alertmanager(folder / "am1", by_prometheus.url)
        self._start(first)
        second, second_url = alertmanager(folder / "am2", by_daemon.url)
        self._start(second)
        daemon, address = gpuwatch_serve(
            folder / "serve", HOST, "--engine", server.url, "--log", str(server.log), "--alertmanager", second_url,
            env=fake.env(), settings="",
        )  # fmt: skip
        self._start(daemon)
        program, url = prometheus(folder / "prometheus", [address], [first_url], SCRAPE)
        self._start(program)
        wait_for(lambda: samples(url, "gpuwatch_engine_requests_running"), 60, "the engine's series in Prometheus")
        load = Load()
        load.steady(server, 16, 600, 1500)
        self.begun = time.time()
        try:
            wait_for(lambda: by_daemon.alerts(STORM, "firing"), 120, "the daemon's alert at its webhook")
            wait_for(lambda: by_prometheus.alerts(STORM, "firing"), 60, "Prometheus' alert at its webhook")
            self.local = wait_for(
                lambda: said("--attach", f"http://{address}", "--for", "8"), 90, "the daemon's finding"
            )
            self.remote = wait_for(lambda: said("--prometheus", url), 90, "the finding in the fleet view")
            self.listed = [wait_for(lambda url=url: with_storm(url), 60, "storm") for url in (first_url, second_url)]
            self.active = json.loads(get(url + "/api/v1/alerts"))["data"]["alerts"]
            # An alert whose advice was not scraped yet when it fired has it at the next notification.
            wait_for(
                lambda: any("--max-num-seqs" in told(a) or "--num-gpu-blocks" in told(a) for a in self.active_now(url)),
                60, "the advice in Prometheus' alert",
            )  # fmt: skip
            self.active_later = self.active_now(url)
            self.late = sum(worst(url, name) for name in ("gpuwatch_tick_seconds", "scrape_duration_seconds"))
        finally:
            load.stop(timeout=180)
        self.over = time.time()
        wait_for(lambda: by_daemon.alerts(STORM, "resolved"), 240, "the daemon's alert resolved")
        wait_for(lambda: by_prometheus.alerts(STORM, "resolved"), 240, "Prometheus' alert resolved")
        gpus.close()
        self.by_prometheus, self.by_daemon = by_prometheus, by_daemon

    @staticmethod
    def active_now(url):
        found = json.loads(get(url + "/api/v1/alerts"))["data"]["alerts"]
        return [alert for alert in found if alert["labels"].get("diagnosis") == STORM]


def said(*args):
    """Return the report of a check where it has the storm."""
    _, report = check(*args)
    return report if any(found["id"] == STORM for found in report["findings"]) else None


def with_storm(url):
    """Return what an Alertmanager has, where the storm is among it."""
    listed = json.loads(get(url + "/api/v2/alerts"))
    return listed if any(alert["labels"].get("diagnosis") == STORM for alert in listed) else None


def told(alert):
    return alert["annotations"].get("description", "")


def worst(url, name):
    """Return the greatest value of the last five minutes."""
    return max(float(found["value"][1]) for found in samples(url, f"max_over_time({name}[5m])"))


def samples(url, query):
    return json.loads(get(f"{url}/api/v1/query?query={query}"))["data"]["result"]


@pytest.fixture(scope="module")
def story(small_pool, tmp_path_factory):
    return Story(small_pool, tmp_path_factory.mktemp("production"))


def apart(story):
    """Return the seconds that two starts of one storm may be apart.

    A sample waits for the next scrape, the scrape for the next evaluation, and all of them for a machine that the
    engine keeps busy.
    """
    return 2 * SCRAPE + 2 + story.late


def first(webhook):
    return webhook.alerts(STORM, "firing")[0]


def test_the_alert_arrives_with_the_labels_that_routes_need(story):
    labels = first(story.by_daemon)["labels"]
    assert labels["severity"] == "critical"
    assert labels["diagnosis"] == STORM
    assert labels["host"] == HOST
    assert labels["engine_kind"] == "vllm"
    assert labels["server"].startswith("127.0.0.1:")


def test_both_ways_send_the_same_labels(story):
    ours, theirs = first(story.by_daemon)["labels"], first(story.by_prometheus)["labels"]
    assert set(theirs) - set(ours) == PROMETHEUS_LABELS
    assert {key: value for key, value in theirs.items() if key not in PROMETHEUS_LABELS} == ours


def test_both_say_that_it_began_at_the_same_time_but_for_one_interval(story):
    ours, theirs = (seconds(first(webhook)["startsAt"]) for webhook in (story.by_daemon, story.by_prometheus))
    print(f"the daemon's start is {theirs - ours:.1f} s before Prometheus'")
    assert -SCRAPE - story.late <= theirs - ours <= apart(story)


def test_the_advice_is_in_the_notification(story):
    direct = first(story.by_daemon)["annotations"]
    assert "--max-num-seqs" in direct["advice"] or "--num-gpu-blocks-override" in direct["advice"]
    assert direct["cause"]
    assert direct["runbook_url"] == f"docs/runbook.md#{STORM}"
    text = next(told(alert) for alert in story.active_later if "Change:" in told(alert))
    assert "Cause: " in text
    assert "--" in text.partition("Change: ")[2]


def test_the_local_finding_and_the_alert_of_prometheus_agree(story):
    local = next(found for found in story.local["findings"] if found["id"] == STORM)
    alert = next(one for one in story.active if one["labels"].get("diagnosis") == STORM)
    for key, value in local["labels"].items():
        assert alert["labels"][key] == value
    assert alert["labels"]["severity"] == local["severity"] == "critical"
    assert abs(seconds(alert["activeAt"]) - local["since"] / 1000) <= apart(story)


def test_the_fleet_view_says_the_same_as_the_machine_itself(story):
    local = next(found for found in story.local["findings"] if found["id"] == STORM)
    remote = next(found for found in story.remote["findings"] if found["id"] == STORM)
    assert {key: remote["labels"][key] for key in local["labels"]} == local["labels"]
    assert abs(remote["since"] - local["since"]) / 1000 <= apart(story)
    assert len(remote["evidence"]) >= 4
    assert remote["advice"]


def test_it_is_over_for_both_after_the_storm(story):
    for webhook in (story.by_daemon, story.by_prometheus):
        over = webhook.alerts(STORM, "resolved")[-1]
        assert seconds(over["endsAt"]) >= story.begun


def test_alertmanager_holds_back_the_symptoms_and_never_the_storm_itself(story):
    for listed in story.listed:
        storms = [alert for alert in listed if alert["labels"].get("diagnosis") == STORM]
        assert storms
        assert [alert["status"]["state"] for alert in storms] == ["active"]  # one storm, one alert
        symptoms = [alert for alert in listed if alert["labels"].get("diagnosis") in SYMPTOMS]
        print(f"{len(symptoms)} symptoms: {[(a['labels']['diagnosis'], a['status']['state']) for a in symptoms]}")
        assert all(alert["status"]["state"] == "suppressed" for alert in symptoms)
