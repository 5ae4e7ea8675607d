from __future__ import annotations

import os

import pytest

from gpuwatch.clock import ManualClock
from gpuwatch.sources.nvml.attribution import EngineProcess, GpuUse, attribute, resolve_devices
from gpuwatch.sources.nvml.processes import REFRESH_SECONDS, ProcessTree

H100 = "NVIDIA H100 80GB HBM3"


def gpu(index, processes=(), used=100.0, name=H100, uuid=None):
    return GpuUse(uuid or f"GPU-{index}aaa-bbbb", index, name, used, processes)


def engine(server="a:1", root=10, **options):
    return EngineProcess(server, root, frozenset({root, *options.pop("pids", ())}), **options)


def test_memory_is_split_into_engine_other_and_unattributed():
    owners = attribute(
        [gpu(0, ((11, 60.0), (12, 5.0), (99, 20.0)))],
        [engine(root=10, pids=(12,))],
        {11: (10, 1), 12: (10, 1), 99: (1,)},
    )
    ownership = owners["GPU-0aaa-bbbb"]
    assert ownership.engine_bytes == (("a:1", 65.0),)
    assert ownership.other_bytes == 20.0
    assert ownership.unattributed_bytes == 15.0
    assert ownership.engines == (("a:1", "process"),)


def test_the_nearest_ancestor_decides_between_nested_engines():
    owners = attribute(
        [gpu(0, ((30, 1.0), (12, 2.0)))],
        [engine("outer:1", root=10), engine("inner:2", root=20)],
        {30: (20, 10, 1), 12: (10, 1)},
    )
    assert owners["GPU-0aaa-bbbb"].engine_bytes == (("inner:2", 1.0), ("outer:1", 2.0))


def test_one_process_of_unknown_memory_makes_the_sum_unknown_not_smaller():
    owners = attribute([gpu(0, ((11, 60.0), (12, None), (99, 20.0)))], [engine()], {11: (10,), 12: (10,), 99: ()})
    ownership = owners["GPU-0aaa-bbbb"]
    assert ownership.engine_bytes == ()
    assert ownership.engines == (("a:1", "process"),)
    assert ownership.other_bytes == 20.0
    assert ownership.unattributed_bytes is None


def test_processes_that_cannot_be_listed_leave_everything_unknown():
    ownership = attribute([gpu(0, None)], [], {})["GPU-0aaa-bbbb"]
    assert (ownership.other_bytes, ownership.unattributed_bytes) == (None, None)


def test_process_figures_above_the_total_do_not_make_a_negative_rest():
    ownership = attribute([gpu(0, ((11, 101.0),))], [engine()], {11: (10,)})["GPU-0aaa-bbbb"]
    assert ownership.unattributed_bytes == 0.0


def test_processes_of_the_host_seen_from_a_container_are_unattributed_and_environment_says_who():
    # The driver lists 546113 of the host; the container's own process 11 happens to exist on the host as well.
    gpus = [gpu(0, ((546113, 60.0),)), gpu(1, ((11, 30.0),)), gpu(2, ())]
    owners = attribute(
        gpus,
        [engine(environ_visible_devices="1,0,2", tensor_parallel_size=2)],
        {11: (10, 1)},
        own_namespace=False,
    )
    assert [owners[g.uuid].engine_bytes for g in gpus] == [(), (), ()]
    assert [owners[g.uuid].unattributed_bytes for g in gpus] == [100.0, 100.0, 100.0]
    assert [owners[g.uuid].hidden for g in gpus] == [1, 1, 0]
    assert [owners[g.uuid].engines for g in gpus] == [(("a:1", "environment"),), (("a:1", "environment"),), ()]


def test_a_container_that_sees_all_processes_of_the_driver_trusts_them():
    owners = attribute([gpu(0, ((11, 60.0),))], [engine()], {11: (10, 1)}, own_namespace=False)
    assert owners["GPU-0aaa-bbbb"].engine_bytes == (("a:1", 60.0),)


def test_a_process_that_has_just_ended_does_not_make_the_others_doubtful_on_the_machine_itself():
    owners = attribute([gpu(0, ((11, 60.0), (77, 1.0)))], [engine()], {11: (10, 1)})
    assert owners["GPU-0aaa-bbbb"].engine_bytes == (("a:1", 60.0),)
    assert owners["GPU-0aaa-bbbb"].unattributed_bytes == 40.0


def test_an_engine_with_visible_processes_needs_no_fallback():
    gpus = [gpu(0, ((11, 60.0),)), gpu(1, ())]
    owners = attribute(gpus, [engine(environ_visible_devices="0,1", tensor_parallel_size=2)], {11: (10,)})
    assert owners[gpus[1].uuid].engines == ()


def test_configuration_places_the_only_engine_on_the_first_gpus():
    gpus = [gpu(0, ()), gpu(1, ()), gpu(2, ())]
    owners = attribute(gpus, [engine(tensor_parallel_size=2)], {})
    assert [owners[g.uuid].engines for g in gpus] == [(("a:1", "config"),), (("a:1", "config"),), ()]


def test_configuration_does_not_guess_between_two_engines_on_several_gpus():
    gpus = [gpu(0, ()), gpu(1, ())]
    owners = attribute(gpus, [engine("a:1"), engine("b:2", root=20)], {})
    assert [owners[g.uuid].engines for g in gpus] == [(), ()]


def test_on_a_single_gpu_every_engine_must_be_there():
    owners = attribute([gpu(0, ())], [engine("a:1"), engine("b:2", root=20)], {})
    assert owners["GPU-0aaa-bbbb"].engines == (("a:1", "config"), ("b:2", "config"))


def test_a_mig_device_is_found_by_its_uuid():
    mig = GpuUse("MIG-1234", None, "NVIDIA H100 MIG 1g.10gb", 50.0, ())
    owners = attribute([gpu(0, ()), mig], [engine(environ_visible_devices="MIG-1234")], {})
    assert owners["MIG-1234"].engines == (("a:1", "environment"),)
    assert owners["GPU-0aaa-bbbb"].engines == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", [0]),
        ("2,0", [2, 0]),
        (" 1 , 2 ", [1, 2]),
        ("", []),
        ("-1", []),
        ("0,-1,1", [0]),
        ("0,7,1", [0]),
        ("1,1,2", [1]),
        ("GPU-2aaa-bbbb,0", [2, 0]),
        ("gpu-2aaa", []),
        ("GPU-1", [1]),
        ("GPU-", []),
        ("NoDevFiles", []),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(text, expected):
    gpus = [gpu(i) for i in range(3)]
    assert resolve_devices(text, gpus) == [gpus[i].uuid for i in expected]


def test_an_index_is_not_resolved_where_cuda_may_number_differently():
    gpus = [gpu(0, name="NVIDIA GeForce RTX 3060"), gpu(1, name="NVIDIA GeForce RTX 4090")]
    assert resolve_devices("0", gpus) == []
    assert resolve_devices("0", gpus, "PCI_BUS_ID") == [gpus[0].uuid]
    assert resolve_devices("GPU-1aaa", gpus) == [gpus[1].uuid]


def test_the_process_tree_knows_real_parents_and_forgets_after_a_while():
    clock = ManualClock()
    tree = ProcessTree(clock)
    found = tree.ancestors([os.getpid(), 2**22 + 5])
    assert found[os.getpid()][0] == os.getppid()
    assert list(found) == [os.getpid()]
    tree._parents[os.getpid()] = 4711
    assert tree.ancestors([os.getpid()])[os.getpid()][0] == 4711
    clock.advance(REFRESH_SECONDS)
    assert tree.ancestors([os.getpid()])[os.getpid()][0] == os.getppid()
