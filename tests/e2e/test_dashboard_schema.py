"""Grafana's own models know every key of the dashboards: what they do not know is lost on the way through them."""

from __future__ import annotations

import json
import sys

import pytest
from prometheus_server import CACHE, ROOT

# Grafana marks its classic form as deprecated; it is the one that every version in use reads.
pytestmark = pytest.mark.filterwarnings("ignore:Prefer using dashboardv2:DeprecationWarning")

SDK = CACHE / "grafana-sdk"
FILES = sorted((ROOT / "dashboards").glob("*.json"))


@pytest.fixture(scope="module")
def through_grafana():
    assert SDK.is_dir(), f"{SDK} is missing: run `make e2e`"
    sys.path.append(str(SDK))
    from grafana_foundation_sdk.cog.encoder import JSONEncoder  # noqa: PLC0415  # fetched, not installed
    from grafana_foundation_sdk.cog.plugins import register_default_plugins  # noqa: PLC0415
    from grafana_foundation_sdk.models.dashboard import Dashboard  # noqa: PLC0415

    register_default_plugins()
    yield lambda document: json.loads(json.dumps(Dashboard.from_json(document), cls=JSONEncoder))
    sys.path.remove(str(SDK))


def lost(before, after, path=""):
    """Yield the path of everything in `before` that is not the same in `after`."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            yield from lost(value, after[key], f"{path}.{key}") if key in after else [f"{path}.{key}"]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from lost(one, other, f"{path}[{number}]")
    elif before != after:
        yield path


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nothing_of_a_dashboard_is_unknown_to_grafana(through_grafana, path):
    document = json.loads(path.read_text(encoding="utf-8"))
    assert list(lost(document, through_grafana(document))) == []


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (lambda document: document, ".strange"),
        (lambda document: document["panels"][1], ".panels[1].strange"),
        (lambda document: document["panels"][1]["targets"][0], ".panels[1].targets[0].strange"),
        (lambda document: document["panels"][1]["options"], ".panels[1].options.strange"),
        (lambda document: document["panels"][1]["fieldConfig"]["defaults"], ".panels[1].fieldConfig.defaults.strange"),
        (lambda document: document["annotations"]["list"][1], ".annotations.list[1].strange"),
    ],
    ids=["dashboard", "panel", "target", "options", "defaults", "annotation"],
)
def test_a_key_that_grafana_does_not_have_is_noticed(through_grafana, place, expected):
    document = json.loads(FILES[0].read_text(encoding="utf-8"))
    place(document)["strange"] = 1
    assert list(lost(document, through_grafana(document))) == [expected]
