"""Which lines of kubectl's output are about which container."""

from __future__ import annotations

import json

import pytest

from gpuwatch.model import LogEvent
from gpuwatch.sources.files.containers import attributed, read_containers

YAML = """\
apiVersion: v1
kind: Pod
metadata:
  name: web-0
spec:
  containers:
  - image: nginx:1.25
    name: proxy
    resources:
      limits:
        memory: 64Mi
  - args:
    - --model
    - x
    env:
    - name: HF_TOKEN
      value: y
    image: vllm/vllm-openai:v0.31.0
    name: main
    resources:
      limits:
        memory: 32Gi
      requests:
        memory: 16Gi
  volumes:
  - name: cache
    emptyDir: {}
status:
  containerStatuses:
  - image: docker.io/library/nginx:1.25
    lastState:
      terminated:
        exitCode: 137
        reason: OOMKilled
    name: proxy
  - containerID: x
    image: vllm/vllm-openai:v0.31.0
    lastState: {}
    name: main
"""
DESCRIBED = """\
Name:         web-0
Init Containers:
  fetch:
    Image:          busybox
Containers:
  main:
    Image:          registry/llm:1
    Command:
      python3
      -m
      vllm.entrypoints.openai.api_server
    State:          Running
    Last State:     Terminated
      Reason:       OOMKilled
    Requests:
      memory:  16Gi
    Limits:
      memory:  32Gi
Conditions:
  Type              Status
"""
AS_JSON = json.dumps(
    {
        "spec": {
            "containers": [
                {"image": "nginx", "name": "proxy", "resources": {"limits": {"memory": "64Mi"}}},
                {"name": "main", "image": "lmsysorg/sglang", "resources": {"limits": {"memory": "32Gi"}}},
            ]
        }
    },
    indent=4,
)


def lines(text):
    return list(enumerate(text.splitlines(), 1))


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (YAML, [("proxy", "64Mi", False), ("main", "32Gi", True), ("proxy", "", False), ("main", "", True)]),
        (DESCRIBED, [("fetch", "", False), ("main", "32Gi", True)]),
        (AS_JSON, [("proxy", "64Mi", False), ("main", "32Gi", True)]),
        ("no pod\n  at: all\n- item\n", []),
        ("", []),
    ],
)
def test_containers_have_their_name_their_limit_and_whether_they_are_engines(text, want):
    assert [(each.name, each.limit, each.engine) for each in read_containers(lines(text))] == want


def test_a_line_is_of_the_container_that_it_stands_in_and_its_limit_may_stand_elsewhere():
    at = next(at for at, text in lines(YAML) if "OOMKilled" in text)
    events = [LogEvent("out_of_memory_killed", "OOMKilled", "pod", at, 0), LogEvent("x", "", "pod", 1, 0)]
    killed, other = attributed(events, read_containers(lines(YAML)))
    assert (killed.field("container"), killed.field("limit"), killed.field("engine")) == ("proxy", "64Mi", "no")
    assert other == events[1]


def test_nobody_is_said_to_be_no_engine_where_none_is_known():
    text = DESCRIBED.replace("vllm", "x").replace("llm", "y").replace("api_server", "z")
    at = next(at for at, text in lines(text) if "OOMKilled" in text)
    (killed,) = attributed([LogEvent("out_of_memory_killed", "", "pod", at, 0)], read_containers(lines(text)))
    assert (killed.field("container"), killed.field("engine")) == ("main", "")
