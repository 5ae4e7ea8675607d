from __future__ import annotations

import pytest
from fleet_data import page

from gpuwatch.alerts.rulefile import load, shipped_paths
from gpuwatch.clock import ManualClock
from gpuwatch.config import EndpointConfig, PrometheusConfig
from gpuwatch.pipeline.fleet.driver import Fleet
from tests.unit.fleet.prometheus_like import PrometheusLike, store_of

NOW = 1_700_000_400
MACHINES = (0, 7, 23, 41, 58, 77)
"""One healthy machine and each kind of trouble of the made-up fleet."""


@pytest.fixture(scope="session")
def rules():
    return load(shipped_paths())


@pytest.fixture(scope="session")
def small_store():
    return store_of(page(NOW, MACHINES, gpus=5))


@pytest.fixture
def server(small_store):
    running = PrometheusLike(small_store)
    yield running
    running.close()


@pytest.fixture
def fleet_of(rules):
    made = []

    def make(server, **config):
        timeout = config.pop("timeout", 10.0)
        prometheus = PrometheusConfig(EndpointConfig(server.url, timeout=timeout), **config)
        made.append(Fleet(prometheus, rules, ManualClock(NOW * 1000)))
        return made[-1]

    yield make
    for fleet in made:
        fleet.stop()
