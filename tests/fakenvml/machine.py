"""A machine with NVIDIA GPUs for tests: writes the state file of the fake libnvidia-ml.so.1 (see fakenvml.c).

    fake = FakeNvml(tmp_path / "state", gpus=2)
    subprocess.Popen([...], env={**os.environ, **fake.env()})
    fake.set(0, util_gpu=12)
    fake.fail("nvmlDeviceGetPowerUsage", gpu=1, delay_ms=5000)

Every change takes effect at the next call of the program under test. LD_LIBRARY_PATH is read by the dynamic linker
when a program starts, so the fake is for subprocesses. Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache" / "fakenvml"

H100: dict[str, Any] = {
    "name": "NVIDIA H100 80GB HBM3",
    "serial": "1650523012345",
    "vbios": "96.00.89.00.01",
    "part": "692-2G520-0200-000",
    "arch": 9,
    "brand": 8,
    "cc_major": 9,
    "cc_minor": 0,
    "cores": 16896,
    "buswidth": 5120,
    "mem_total": 85520809984,
    "mem_used": 73014444032,
    "mem_reserved": 535822336,
    "bar1_total": 137438953472,
    "bar1_used": 1048576,
    "util_gpu": 97,
    "util_mem": 61,
    "enc": 0,
    "dec": 0,
    "jpg": 0,
    "ofa": 0,
    "temp": 66,
    "temp_margin": 21,
    "thr_shutdown": 92,
    "thr_slowdown": 89,
    "thr_memmax": 105,
    "thr_gpumax": 87,
    "power": 642318,
    "power_limit": 700000,
    "power_enforced": 690000,
    "power_default": 700000,
    "power_min": 200000,
    "power_max": 700000,
    "power_mgmt": 1,
    "energy": 918273645123,
    "clk_graphics": 1740,
    "clk_sm": 1755,
    "clk_mem": 2619,
    "clk_video": 1260,
    "max_graphics": 1975,
    "max_sm": 1980,
    "max_mem": 2620,
    "max_video": 1545,
    "throttle": 0x4,
    "throttle_supported": 0x1FF,
    "pstate": 0,
    "ecc_mode": 1,
    "ecc_pending": 1,
    "ecc_corr_vol": 5,
    "ecc_unc_vol": 1,
    "ecc_corr_agg": 12,
    "ecc_unc_agg": 3,
    "remap_corr": 0,
    "remap_unc": 0,
    "remap_pending": 0,
    "remap_fail": 0,
    "pcie_tx": 184320,
    "pcie_rx": 92160,
    "pcie_gen": 4,
    "pcie_width": 8,
    "pcie_maxgen": 5,
    "pcie_maxwidth": 16,
    "pcie_replay": 0,
    "persistence": 1,
    "display_mode": 1,
    "display_active": 0,
    "compute_mode": 0,
    "mig_mode": 0,
    "mig_pending": 0,
    "mig_max": 7,
    "numa": 0,
    "virt_mode": 0,
    "nvlinks": 18,
    "gpm_supported": 1,
    "events_supported": 0x1B,
    "fabric_state": 3,
    "fabric_status": 0,
    "viol_power": 0,
    "viol_thermal": 0,
    "viol_reliability": 0,
    "acct_mode": 0,
    "gsp_mode": 1,
    "board_id": 0,
    "multi_gpu": 0,
    "topo": 40,
}
"""An H100 under load. Numbers that a program could mix up differ from each other."""

ALL_LINKS = 0xFFFFFFFF
H100_FIELDS: dict[str, str] = {
    "82": "71",
    "185": "641900",
    "186": "642400",
    "74": "7400000000:l",
    "75": "7500000000:l",
    "76": "7600000000:l",
    "77": "7700000000:l",
    "79": "7900000000:l",
    "251": "251000000000:l",
    "252": "252000000000:l",
    "253": "253000000000:l",
    "269": "269000000000:l",
    "270": "270000000000:l",
    "271": "271000000000:l",
    "197": "123456789",
    "198": "98765432",
    f"138.{ALL_LINKS}": "4000000:l",
    f"139.{ALL_LINKS}": "5000000:l",
    "94": "3",
    "230": "0",
    "142": "0",
    "143": "0",
    "144": "0",
    "145": "0",
    "161": "0:l",
    "162": "0:l",
    "163": "0:l",
}
H100_GPM: dict[str, float] = {
    "1": 96.5, "2": 88.2, "3": 41.0, "5": 52.4, "7": 51.3, "10": 63.7,
    "12": 2.0, "13": 3.1, "20": 180, "21": 90, "60": 90000, "61": 91000,
}  # fmt: skip

IDLE: dict[str, Any] = {
    "util_gpu": 0,
    "util_mem": 0,
    "mem_used": 612368384,
    "power": 71230,
    "clk_graphics": 345,
    "clk_sm": 346,
    "throttle": 0x1,
    "temp": 31,
    "pcie_gen": 1,
    "pstate": 8,
}


@dataclass(slots=True)
class FakeGpu:
    """The state of one GPU: keys of the state file, and its processes, MIG devices, fields and GPM metrics."""

    keys: dict[str, Any]
    processes: list[str] = field(default_factory=list)
    migs: list[str] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=lambda: dict(H100_FIELDS))
    gpm: dict[str, float] = field(default_factory=lambda: dict(H100_GPM))


def library(variant: str = "full") -> Path:
    """Return the folder with the fake of one driver generation (full, r470, r535), built when it is not there yet."""
    sources = b"".join((HERE / name).read_bytes() for name in ("fakenvml.c", "build.sh"))
    out = CACHE / hashlib.sha256(sources).hexdigest()[:16]
    folder = out / variant
    if not (out / "r535" / "libnvidia-ml.so.1").exists():
        subprocess.run([str(HERE / "build.sh"), str(out)], check=True, timeout=120)
    return folder


class FakeNvml:
    """A model of the machine that rewrites the state file atomically at every change; threads may share it."""

    def __init__(self, path: str | Path, gpus: int = 8, variant: str = "full", preset: dict[str, Any] = H100) -> None:
        self.path = Path(path)
        self.variant = variant
        self.system: dict[str, Any] = {
            "driver_version": "580.95.05",
            "nvml_version": "13.580.95.05",
            "cuda_version": 13000,
            "count": gpus,
        }
        self.gpus = [FakeGpu(self._keys(i, preset)) for i in range(gpus)]
        self.faults: list[str] = []
        self.events: list[str] = []
        self._lock = threading.RLock()
        self.write()

    @staticmethod
    def _keys(index: int, preset: dict[str, Any]) -> dict[str, Any]:
        return {
            **preset,
            "uuid": FakeNvml.uuid(index),
            "bus": f"00000000:{0x19 + 0x10 * index:02X}:00.0",
            "minor": index,
        }

    @staticmethod
    def uuid(index: int) -> str:
        """Return the UUID of GPU `index`."""
        return f"GPU-fa4e0000-0000-0000-0000-{index:012d}"

    def system_set(self, **values: Any) -> None:
        """Set keys of the whole machine: driver_version, count, init_err, abi_proc_v3, …"""
        with self._lock:
            self.system.update(values)
            self.write()

    def set(self, gpu: int, **values: Any) -> None:
        """Set keys of one GPU; ``"!15"`` makes the function that reads the key return 15."""
        with self._lock:
            self.gpus[gpu].keys.update(values)
            self.write()

    def unset(self, gpu: int, *keys: str) -> None:
        """Remove keys of one GPU: the functions that read them answer "not supported"."""
        with self._lock:
            for key in keys:
                self.gpus[gpu].keys.pop(key, None)
            self.write()

    def field_set(self, gpu: int, **values: str) -> None:
        """Set field values: ``field_set(0, f82="71", f230="!3")``."""
        with self._lock:
            self.gpus[gpu].fields.update({key[1:]: value for key, value in values.items()})
            self.write()

    def process(self, gpu: int, pid: int, memory: int = -1, *, kind: str = "C", gi: int = -1, ci: int = -1) -> None:
        """Add a process; memory -1 means that the driver does not know it. Kinds: C, G, M (MPS), B (C and G)."""
        with self._lock:
            self.gpus[gpu].processes.append(f"pid={pid} type={kind} mem={memory} gi={gi} ci={ci} sm=37 memu=11")
            self.write()

    def no_processes(self, gpu: int) -> None:
        """Remove all processes of one GPU."""
        with self._lock:
            self.gpus[gpu].processes.clear()
            self.write()

    def mig(self, gpu: int, slot: int, *, gi: int, ci: int, total: int, used: int) -> str:
        """Switch MIG on and add a MIG device; return its UUID."""
        uuid = f"MIG-{gpu:08d}-{slot:04d}-0000-0000-000000000000"
        self.gpus[gpu].keys.update(mig_mode=1, mig_pending=1)
        self.gpus[gpu].migs.append(
            f"slot={slot} gi={gi} ci={ci} uuid={uuid} name=NVIDIA_H100_MIG_1g.10gb total={total} used={used} sms=16",
        )
        self.write()
        return uuid

    def fail(
        self,
        function: str,
        code: int = 0,
        *,
        gpu: int | None = None,
        after: int = 0,
        times: int = -1,
        delay_ms: int = 0,
    ) -> None:
        """Make `function` return `code` and take `delay_ms`; from the `after`-th call on, `times` times."""
        with self._lock:
            where = "" if gpu is None else f" gpu={gpu}"
            self.faults.append(f"{function} code={code} after={after} times={times} delay_ms={delay_ms}{where}")
            self.write()

    def heal(self) -> None:
        """Remove all faults. A call that is delayed already sleeps on."""
        with self._lock:
            self.faults.clear()
            self.write()

    def xid(self, gpu: int, code: int, event_type: int = 8) -> None:
        """Deliver an event, by default an Xid, to every waiting event set once."""
        with self._lock:
            self.events.append(f"seq={len(self.events) + 1} gpu={gpu} type={event_type} data={code} gi=-1 ci=-1")
            self.write()

    def text(self) -> str:
        """Return the state file's content."""
        lines = [f"{key}={value}" for key, value in self.system.items()]
        for i, gpu in enumerate(self.gpus):
            lines += [f"gpu{i}.{key}={value}" for key, value in gpu.keys.items()]
            lines += [f"gpu{i}.field.{key}={value}" for key, value in gpu.fields.items()]
            lines += [f"gpu{i}.gpm.{key}={value}" for key, value in gpu.gpm.items()]
            lines += [f"gpu{i}.proc={process}" for process in gpu.processes]
            lines += [f"gpu{i}.mig={mig}" for mig in gpu.migs]
        lines += [f"err={fault}" for fault in self.faults] + [f"event={event}" for event in self.events]
        return "\n".join(lines) + "\n"

    def write(self) -> None:
        """Replace the state file."""
        with self._lock:
            temporary = self.path.with_name(self.path.name + ".tmp")
            temporary.write_bytes(self.text().encode("utf-8", "surrogateescape"))
            temporary.replace(self.path)

    def env(self, counters: str | Path | None = None) -> dict[str, str]:
        """Return the environment variables that put this machine before a new process."""
        folders = [str(library(self.variant)), os.environ.get("LD_LIBRARY_PATH", "")]
        values = {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, folders)), "FAKENVML_STATE": str(self.path)}
        if counters is not None:
            values["FAKENVML_COUNTERS"] = str(counters)
        return values


def read_counters(path: str | Path) -> dict[str, tuple[int, int, int]]:
    """Return (calls, errors, nanoseconds inside) per function of the library."""
    data = Path(path).read_bytes()
    (entries,) = struct.unpack_from("<I", data, 12)
    found = {}
    for i in range(entries):
        offset = 64 + i * 80
        name = data[offset : offset + 56].split(b"\0")[0].decode()
        found[name] = struct.unpack_from("<QQQ", data, offset + 56)
    return found
