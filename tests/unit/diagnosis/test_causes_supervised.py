"""Pods and units that were ended, or never started, by the rules of who looks after them."""

# ruff: noqa: E501  # lines of logs are as long as they are

from __future__ import annotations

import json

import pytest

from gpuwatch.pipeline.postmortem import investigate
from tests.unit.diagnosis.incidents import NOW, Verdict, no_recording

EVENTS = "Events:\n  Type     Reason   Age  From     Message\n  ----     ------   ---  ----     -------\n"


def judged(folder, text, name="told.txt"):
    return Verdict(folder, {name: text})


class TestEvictions:
    def test_a_pod_that_fills_its_own_volume_was_not_evicted_for_the_node(self, tmp_path):
        text = EVENTS + '  Warning  Evicted  2m   kubelet  Usage of EmptyDir volume "dshm" exceeds the limit "3Gi".\n'
        verdict = judged(tmp_path, text)
        finding = verdict["k8s_evicted"]
        assert "its own volume dshm, 3Gi" in finding.cause
        assert "/dev/shm" in finding.cause
        assert verdict.move("k8s_evicted", "volumes[dshm].emptyDir.sizeLimit") == ("3Gi", "6Gi")
        assert finding.evidence[0].line == 4
        assert not any("the engine: the node" in item.text for item in finding.evidence)

    @pytest.mark.parametrize(
        ("message", "where"),
        [
            ("Pod ephemeral local storage usage exceeds the total limit of containers 40Gi. ", "of its containers"),
            ('Container serve exceeded its local ephemeral storage limit "40Gi". ', "of the container serve"),
        ],
    )
    def test_a_limit_on_the_disk_of_the_node_is_one_of_the_pod_as_well(self, tmp_path, message, where):
        verdict = judged(tmp_path, EVENTS + f"  Warning  Evicted  2m   kubelet  {message}\n")
        assert where in verdict["k8s_evicted"].cause
        assert verdict.move("k8s_evicted", "resources.limits.ephemeral-storage") == ("40Gi", "80Gi")

    def test_a_node_that_ran_low_is_told_with_what_it_had_and_what_the_pod_used(self, tmp_path):
        # 1048576Ki are 1 GiB, 2147483648 bytes are 2 GiB.
        verdict = judged(
            tmp_path,
            EVENTS
            + "  Warning  Evicted  2m   kubelet  The node was low on resource: memory. Threshold quantity: 2147483648, "
            "available: 1048576Ki. Container serve was using 96Gi, request is 8Gi, has larger consumption of memory.\n",
        )
        finding = verdict["k8s_evicted"]
        assert "the node ran low on memory (1.0 GiB left, 2.0 GiB must be)" in finding.cause
        assert verdict.move("k8s_evicted", "resources.requests.memory") == ("8Gi", "96Gi")


POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "lmsysorg/sglang:v0.5.3",
                "args": ["python3", "-m", "sglang.launch_server", "--model-path", "m", "--tp", "2"],
                "resources": {"limits": {"memory": "90Gi"}},
            }
        ]
    },
    "status": {
        "containerStatuses": [{"name": "main", "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]
    },
}


class TestMemoryLimits:
    @pytest.mark.parametrize("listed", [False, True])
    def test_json_of_kubectl_has_the_limit_the_engine_and_its_version(self, tmp_path, listed):
        pod = {"apiVersion": "v1", "items": [POD], "kind": "List"} if listed else POD
        verdict = judged(tmp_path, json.dumps(pod, indent=4), "pod.json")
        assert "The container main" in verdict["k8s_oomkilled"].cause
        assert verdict.move("k8s_oomkilled", "resources.limits.memory") == ("90Gi", "180Gi")
        (given,) = investigate([str(tmp_path / "pod.json")], "", NOW, no_recording).inputs
        assert (given.kind, given.engine, given.engine_version) == ("kubernetes", "sglang", "0.5.3")

    def inspected(self, memory):
        return json.dumps(
            [
                {
                    "State": {"OOMKilled": True, "ExitCode": 137},
                    "Config": {"Image": "vllm/vllm-openai:v0.10.1", "Cmd": ["--model", "m"]},
                    "HostConfig": {"Memory": memory, "ShmSize": 67_108_864},
                }
            ],
            indent=4,
        )

    def test_a_limit_of_docker_is_raised_with_dockers_flag(self, tmp_path):
        # 48 GiB = 51,539,607,552 bytes.
        verdict = judged(tmp_path, self.inspected(51_539_607_552), "inspect.json")
        assert verdict.move("k8s_oomkilled", "docker run --memory") == ("48g", "96g")

    def test_a_container_without_a_limit_crossed_none(self, tmp_path):
        verdict = judged(tmp_path, self.inspected(0), "inspect.json")
        assert "k8s_oomkilled" not in verdict.ids
        assert "no memory limit of its own" in verdict["host_memory_oversubscribed"].cause


KILLED = "Memory cgroup out of memory: Killed process 5150 (VLLM::EngineCor) total-vm:9000000kB, anon-rss:2097152kB, file-rss:0kB"


def test_an_event_of_kubernetes_about_a_kill_is_about_a_containers_limit(tmp_path):
    head = "NAMESPACE   LAST SEEN   TYPE      REASON       OBJECT        MESSAGE\n"
    verdict = judged(tmp_path, f"{head}ml          1m          Warning   OOMKilling   node/gpu-1    {KILLED}\n")
    assert verdict.firm == ["k8s_oomkilled"]


def test_a_limit_of_a_cgroup_is_not_called_a_host_that_ran_out(tmp_path):
    finding = judged(tmp_path, f"[ 812.000000] {KILLED}\n")["host_memory_oversubscribed"]
    assert finding.title == "A process reached the memory limit of its cgroup"
    assert "resources.limits.memory" in finding.advice[-1].text


def test_a_node_without_memory_ends_whoever_it_likes(tmp_path):
    verdict = judged(
        tmp_path,
        EVENTS
        + "  Warning  SystemOOM  1m  kubelet  System OOM encountered, victim process: VLLM::EngineCor, pid: 77\n",
    )
    finding = verdict["host_memory_oversubscribed"]
    assert "VLLM::EngineCor (pid 77): the whole host ran out of memory" in finding.cause
    assert finding.severity == "critical"


UNIT = "Jun 01 09:00:00 node systemd[1]: "


def test_a_unit_that_was_given_too_little_time_to_start_is_told_so(tmp_path):
    text = (
        f"{UNIT}vllm.service: start operation timed out. Terminating.\n"
        f"{UNIT}vllm.service: State 'stop-sigterm' timed out. Killing.\n"
    )
    verdict = judged(tmp_path, text)
    assert "TimeoutStartSec" in verdict["worker_died"].cause
    assert "so it was killed" in verdict["worker_died"].cause
    assert verdict.move("worker_died", "TimeoutStartSec") == (None, "infinity")


def test_another_unit_that_starts_slowly_ends_no_engine(tmp_path):
    assert not judged(tmp_path, f"{UNIT}postgres.service: start operation timed out. Terminating.\n").ids


def test_what_systemd_oomd_says_answers_who_it_was(tmp_path):
    text = (
        f"{UNIT.replace('systemd[1]', 'systemd-oomd[9]')}Killed /system.slice/vllm.service due to memory pressure for "
        "/system.slice being 71.40% > 60.00% for > 20s with reclaim activity\n"
        f"{UNIT}vllm.service: Main process exited, code=killed, status=9/KILL\n"
        f"{UNIT}vllm.service: Failed with result 'oom-kill'.\n"
    )
    verdict = judged(tmp_path, text)
    finding = verdict["host_memory_oversubscribed"]
    assert "71.40 % of the time, over the limit of 60.00 %" in finding.cause
    assert "which of the two" not in " ".join(item.text for item in finding.advice)
    assert "exits with status 0" not in " ".join(item.text for item in verdict["worker_died"].advice)


@pytest.mark.parametrize(
    ("message", "id_", "said"),
    [
        (
            "Warning  UnexpectedAdmissionError  1m  kubelet  Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. Requested: 8, Available: 6, which is unexpected",
            "gpu_lost",
            "asks for 8 nvidia.com/gpu and 6 are available",
        ),
        (
            "Warning  FailedScheduling  1m  default-scheduler  0/3 nodes are available: 3 Insufficient nvidia.com/mig-1g.10gb.",
            "gpu_lost",
            "3 of 3 nodes have too little free nvidia.com/mig-1g.10gb",
        ),
        (
            "Warning  FailedScheduling  1m  default-scheduler  0/3 nodes are available: 2 Insufficient memory, 1 node(s) had taint.",
            "host_memory_oversubscribed",
            "2 of 3 nodes have too little free memory",
        ),
        (
            'Warning  Failed  1m  kubelet  Failed to pull image "registry.test/v:1": rpc error: not found',
            "worker_died",
            'Failed to pull image "registry.test/v:1"',
        ),
        (
            'Warning  FailedMount  1m  kubelet  MountVolume.SetUp failed for volume "weights" : timed out',
            "worker_died",
            'failed for volume "weights"',
        ),
    ],
)
def test_a_pod_that_never_ran_says_why_and_where(tmp_path, message, id_, said):
    verdict = judged(tmp_path, f"{EVENTS}  {message}\n")
    assert not verdict.firm
    (note,) = [each.missing for each in verdict.not_enough if each.id == id_ and said in each.missing]
    assert note.endswith("told.txt:4]")
