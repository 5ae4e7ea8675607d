"""nvidia-smi is read in every form in which people paste it, and an absent value is no zero."""

from __future__ import annotations

from datetime import datetime

import pytest

from gpuwatch.model import NAME
from gpuwatch.sources.files.samples import Found, Samples
from gpuwatch.sources.files.smi_csv import is_heading, read_csv
from gpuwatch.sources.files.smi_query import read_query
from gpuwatch.sources.files.smi_table import read_table

MIB = 2**20


def lines(text):
    return list(enumerate(text.split("\n"), 1))


def read(reader, text, strip=True):
    found = Found()
    reader([(at, line.strip() if strip else line) for at, line in lines(text)], found)
    return found


def values(found, name, *labels):
    """The values of one series by those labels."""
    rows = {}
    for series, value, _ in found.samples.all():
        pairs = dict(series)
        if pairs.pop(NAME) == f"gpuwatch_{name}":
            rows[tuple(pairs.get(label, "") for label in labels)] = value
    return rows


def local(*moment):
    return round(datetime(*moment).astimezone().timestamp() * 1000)


TABLE = """\
Thu Aug 27 11:11:33 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05      CUDA Version: 13.0     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA RTX A5000               On  |   00000000:41:00.0 Off |                    3 |
| 30%   44C    P2             61W /  230W |   19948MiB /  24564MiB |     37%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA GB10                    On  |   0000000F:01:00.0 Off |                  N/A |
| N/A   45C    P0             11W /  N/A  | Not Supported          |      0%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|    0   N/A  N/A           88401      C   VLLM::Worker_TP0                      19932MiB |
+-----------------------------------------------------------------------------------------+
"""


def test_the_table_gives_every_gpu_its_readings_in_base_units():
    found = read(read_table, TABLE)
    assert values(found, "gpu_memory_used_bytes", "gpu") == {("0",): 19948 * MIB}
    assert values(found, "gpu_memory_total_bytes", "gpu") == {("0",): 24564 * MIB}
    assert values(found, "gpu_busy_ratio", "gpu") == {("0",): 0.37, ("1",): 0.0}
    assert values(found, "gpu_temperature_celsius", "gpu") == {("0",): 44, ("1",): 45}
    assert values(found, "gpu_power_watts", "gpu") == {("0",): 61, ("1",): 11}
    assert values(found, "gpu_power_limit_watts", "gpu") == {("0",): 230}
    assert values(found, "gpu_ecc_errors_total", "gpu", "type") == {("0", "uncorrected"): 3}
    assert values(found, "gpu_info", "gpu", "name", "pci_bus_id", "driver_version", "memory_kind") == {
        ("0", "NVIDIA RTX A5000", "00000000:41:00.0", "580.95.05", "dedicated"): 1,
        ("1", "NVIDIA GB10", "0000000F:01:00.0", "580.95.05", "unified"): 1,
    }
    assert values(found, "gpu_process_memory_bytes", "gpu", "pid", "process") == {
        ("0", "88401", "VLLM::Worker_TP0"): 19932 * MIB
    }
    assert {time for _, _, time in found.samples.all()} == {local(2026, 8, 27, 11, 11, 33)}
    assert found.kinds == ["nvidia_smi"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("NVIDIA GB10", "unified"), ("Orin (nvgpu)", "unified"), ("NVIDIA Thor", "unified"), ("NVIDIA H200", "dedicated")],
)
def test_a_gpu_that_shares_the_machines_memory_is_recognised_in_every_print(name, kind):
    table = f"|   0  {name:<26} On  |   00000000:01:00.0 Off |                  Off |"
    query = f"GPU 00000000:01:00.0\n    Product Name                          : {name}\n"
    for reader, text in ((read_table, table), (read_csv, f"index, name\n0, {name}\n"), (read_query, query)):
        assert values(read(reader, text), "gpu_info", "name", "memory_kind") == {(name, kind): 1}


def test_what_the_table_does_not_know_is_absent_with_its_words():
    facts = {key: value for key, value, _, _ in read(read_table, TABLE).facts}
    assert facts["absent.gpuwatch_gpu_memory_used_bytes.1"] == "Not Supported"
    assert facts["absent.gpuwatch_gpu_power_limit_watts.1"] == "N/A"
    assert facts["driver.version"] == "580.95.05"
    assert facts["nvidia_smi.processes"] == 1


def test_a_few_rows_without_their_heading_are_enough():
    text = """\
|   0  Tesla V100-SXM2...  On   | 00000000:15:00.0 Off |                    0 |
| N/A   41C    P0    58W / 300W |  29410MiB / 32768MiB |      0%      Default |
| Processes:                                                                  |
|    0     51210      C   python3                                    28462MiB |
|    0     51688      C   ray::RayWorkerVllm                           306MiB |
"""
    found = read(read_table, text)
    assert values(found, "gpu_memory_used_bytes", "gpu") == {("0",): 29410 * MIB}
    assert values(found, "gpu_process_memory_bytes", "pid") == {("51210",): 28462 * MIB, ("51688",): 306 * MIB}


def test_an_empty_list_of_processes_is_told_apart_from_no_list():
    rows = TABLE.split("|    0   N/A  N/A           88401", maxsplit=1)[0]
    assert ("nvidia_smi.processes", 0) in {fact[:2] for fact in read(read_table, rows).facts}
    no_list = rows.split("| Processes:")[0]
    assert "nvidia_smi.processes" not in {fact[0] for fact in read(read_table, no_list).facts}


def test_a_table_that_is_printed_again_is_a_second_moment():
    later = TABLE.replace("11:11:33", "11:12:33").replace("19948MiB", "21000MiB")
    found = read(read_table, TABLE + later)
    course = [(value, time) for series, value, time in found.samples.all() if "used_bytes" in dict(series)[NAME]]
    assert course == [
        (19948 * MIB, local(2026, 8, 27, 11, 11, 33)),
        (21000 * MIB, local(2026, 8, 27, 11, 12, 33)),
    ]


def test_mig_devices_keep_their_instances_apart():
    text = """\
|  0    1   0   0  |               9MiB /  9984MiB  |  14      0 |  1   0    0    0    0 |
|  0    2   0   1  |            4096MiB /  9984MiB  |  14      0 |  1   0    0    0    0 |
"""
    assert values(read(read_table, text), "gpu_memory_used_bytes", "gpu", "gi") == {
        ("0", "1"): 9 * MIB,
        ("0", "2"): 4096 * MIB,
    }


QUERY = """\
timestamp, index, name, utilization.gpu [%], memory.used [MiB], clocks.current.sm [MHz], power.draw [W], \
enforced.power.limit [W], power.limit [W], clocks_event_reasons.active, clocks_event_reasons.hw_thermal_slowdown
2026/05/18 20:30:00.500, 0, NVIDIA GeForce RTX 3090, 97 %, 22874 MiB, 1755 MHz, 328.90 W, 330.00 W, 350.00 W, \
0x0000000000000004, Not Active
2026/05/18 20:30:00.501, 1, NVIDIA GeForce RTX 3090, [N/A], [Insufficient Permissions], 1000 MHz, 100.00 W, 330.00 W, \
350.00 W, 0x0000000000000008, Active
"""


def test_a_query_gives_base_units_reasons_and_times():
    found = read(read_csv, QUERY)
    assert values(found, "gpu_busy_ratio", "gpu") == {("0",): pytest.approx(0.97)}
    assert values(found, "gpu_memory_used_bytes", "gpu") == {("0",): 22874 * MIB}
    assert values(found, "gpu_sm_clock_hertz", "gpu") == {("0",): 1.755e9, ("1",): 1e9}
    assert values(found, "gpu_power_limit_watts", "gpu") == {("0",): 330, ("1",): 330}
    active = {key for key, value in values(found, "gpu_clocks_event_active", "gpu", "reason").items() if value}
    assert active == {("0", "sw_power_cap"), ("1", "hw_slowdown"), ("1", "hw_thermal")}
    facts = {key: value for key, value, _, _ in found.facts}
    assert facts["absent.gpuwatch_gpu_busy_ratio.1"] == "N/A"
    assert facts["absent.gpuwatch_gpu_memory_used_bytes.1"] == "Insufficient Permissions"
    times = {time for series, _, time in found.samples.all() if dict(series)["gpu"] == "0"}
    assert times == {local(2026, 5, 18, 20, 30, 0, 500_000)}


def test_processes_of_a_query_have_their_memory():
    text = """\
pid, process_name, used_gpu_memory [MiB], gpu_uuid
41882, VLLM::EngineCore, 8866 MiB, GPU-5f3d1e2a-0000-1111-2222-333344445555
41883, [Not Found], [N/A], GPU-5f3d1e2a-0000-1111-2222-333344445555
"""
    found = read(read_csv, text)
    assert values(found, "gpu_process_memory_bytes", "pid", "process", "uuid") == {
        ("41882", "VLLM::EngineCore", "GPU-5f3d1e2a-0000-1111-2222-333344445555"): 8866 * MIB
    }


def test_gpus_without_an_index_are_numbered_within_a_moment():
    text = """\
timestamp, memory.used [MiB]
2026/05/18 20:30:00.500, 10 MiB
2026/05/18 20:30:00.501, 20 MiB
2026/05/18 20:30:05.500, 30 MiB
2026/05/18 20:30:05.501, 40 MiB
"""
    found = read(read_csv, text)
    course = {}
    for series, value, _ in found.samples.all():
        course.setdefault(dict(series)["gpu"], []).append(value / MIB)
    assert course == {"0": [10, 30], "1": [20, 40]}


def test_dmon_rows_are_read_by_their_heading():
    text = """\
#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem    enc    dec   mclk   pclk
#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %      %      %    MHz    MHz
 20260518   20:30:00      0     88     41     40     99     55      -      -   9751   1755
 20260518   20:30:00      1      -     41      -      0      0      -      -    405    210
"""
    found = read(read_csv, text, strip=False)
    assert values(found, "gpu_busy_ratio", "gpu") == {("0",): 0.99, ("1",): 0}
    assert values(found, "gpu_power_watts", "gpu") == {("0",): 88}
    assert values(found, "gpu_sm_clock_hertz", "gpu") == {("0",): 1.755e9, ("1",): 2.1e8}
    assert {time for _, _, time in found.samples.all()} == {local(2026, 5, 18, 20, 30, 0)}


def test_dmon_without_times_is_read_as_well():
    text = "# gpu    pwr  gtemp     sm\n# Idx      W      C      %\n    0     88     41     99\n"
    assert values(read(read_csv, text, strip=False), "gpu_busy_ratio", "gpu") == {("0",): 0.99}


@pytest.mark.parametrize(
    ("text", "heading"),
    [
        ("index, memory.used [MiB]", True),
        ("memory.total [MiB]", True),
        ("name", False),
        ("index, name, and so on", False),
        ("0, 19948 MiB", False),
        ("the memory.used, they said, was high", False),
    ],
)
def test_a_heading_has_names_of_nvidia_smi_and_nothing_else(text, heading):
    assert is_heading(text) is heading


def test_numbers_without_a_heading_are_nothing():
    assert len(read(read_csv, "0, 19948 MiB\n1, 19948 MiB").samples) == 0


DETAIL = """\
==============NVSMI LOG==============

Timestamp                                 : Thu Aug 27 11:11:33 2026
Driver Version                            : 580.95.05
CUDA Version                              : 13.0

Attached GPUs                             : 2
GPU 00000000:41:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    GPU UUID                              : GPU-5f3d1e2a-0000-1111-2222-333344445555
    PCI
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 4
            Link Width
                Max                       : 16x
                Current                   : 8x
    Clocks Event Reasons
        Idle                              : Not Active
        SW Power Cap                      : Active
    FB Memory Usage
        Total                             : 81559 MiB
        Reserved                          : 551 MiB
        Used                              : 70000 MiB
        Free                              : 11008 MiB
    BAR1 Memory Usage
        Used                              : 7 MiB
    Utilization
        GPU                               : 97 %
        Memory                            : 41 %
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            SRAM Uncorrectable Parity     : 1
            SRAM Uncorrectable SEC-DED    : 0
            DRAM Correctable              : 5
            DRAM Uncorrectable            : 2
        Aggregate
            DRAM Uncorrectable            : 99
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 2
        Pending                           : Yes
        Remapping Failure Occurred        : No
    Temperature
        GPU Current Temp                  : 65 C
        Memory Current Temp               : 80 C
    GPU Power Readings
        Average Power Draw                : 612.30 W
        Current Power Limit               : 700.00 W
        Default Power Limit               : 700.00 W
    Clocks
        SM                                : 1755 MHz
        Memory                            : 2619 MHz
    Max Clocks
        SM                                : 1980 MHz
    Processes
        GPU instance ID                   : N/A
        Process ID                        : 88401
            Type                          : C
            Name                          : VLLM::Worker_TP0
            Used GPU Memory               : 69000 MiB
GPU 00000000:42:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    FB Memory Usage
        Total                             : N/A
        Used                              : Insufficient Permissions
"""


def test_the_long_form_gives_every_section_its_series():
    found = read(read_query, DETAIL, strip=False)
    first = {
        "gpu_memory_total_bytes": 81559 * MIB,
        "gpu_memory_reserved_bytes": 551 * MIB,
        "gpu_memory_used_bytes": 70000 * MIB,
        "gpu_memory_free_bytes": 11008 * MIB,
        "gpu_busy_ratio": 0.97,
        "gpu_memory_bandwidth_busy_ratio": 0.41,
        "gpu_temperature_celsius": 65,
        "gpu_memory_temperature_celsius": 80,
        "gpu_power_watts": 612.3,
        "gpu_power_limit_watts": 700,
        "gpu_power_limit_default_watts": 700,
        "gpu_sm_clock_hertz": 1.755e9,
        "gpu_sm_clock_max_hertz": 1.98e9,
        "gpu_memory_clock_hertz": 2.619e9,
        "gpu_pcie_link_generation": 4,
        "gpu_pcie_link_generation_max": 5,
        "gpu_pcie_link_width": 8,
        "gpu_pcie_link_width_max": 16,
        "gpu_row_remap_pending": 1,
        "gpu_row_remap_failed": 0,
    }
    for name, value in first.items():
        assert values(found, name, "gpu") == {("0",): pytest.approx(value)}, name
    assert values(found, "gpu_ecc_errors_total", "type") == {("uncorrected",): 3, ("corrected",): 5}
    assert values(found, "gpu_clocks_event_active", "reason") == {("idle",): 0, ("sw_power_cap",): 1}
    assert values(found, "gpu_process_memory_bytes", "pid", "process") == {("88401", "VLLM::Worker_TP0"): 69000 * MIB}
    assert values(found, "gpu_info", "gpu", "uuid", "name") == {
        ("0", "GPU-5f3d1e2a-0000-1111-2222-333344445555", "NVIDIA H100 80GB HBM3"): 1,
        ("1", "", "NVIDIA H100 80GB HBM3"): 1,
    }
    facts = {key: value for key, value, _, _ in found.facts}
    assert facts["absent.gpuwatch_gpu_memory_used_bytes.1"] == "Insufficient Permissions"


def test_of_a_long_course_the_ends_and_the_extremes_are_kept():
    samples = Samples()
    for number in range(100_000):
        samples.add("gpu_power_watts", 9000.0 if number == 54_321 else float(number % 7), number, gpu="0")
    kept = [(value, time) for _, value, time in samples.all()]
    assert len(kept) < 4000
    assert kept[0] == (0.0, 0)
    assert kept[-1] == (99_999 % 7, 99_999)
    assert (9000.0, 54_321) in kept
    assert [time for _, time in kept] == sorted(time for _, time in kept)
