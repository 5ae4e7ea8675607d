"""Where each series comes from, and what DCGM and OpenTelemetry call the same thing. Data for docs/metrics.md.

DCGM: field identifiers of dcgm-exporter (``dcgm_fields.h``); OpenTelemetry: semantic conventions for hardware, system,
process and generative AI, all of them in development. A unit in brackets differs from ours.
"""

from __future__ import annotations

SOURCES = (
    ("gpuwatch_gpu_xid_", "NVML events, kernel log"),
    ("gpuwatch_gpu_engine", "NVML, processes"),
    ("gpuwatch_gpu_", "NVML"),
    ("gpuwatch_engine_config_", "log, launch flags, page"),
    ("gpuwatch_engine_process", "/proc"),
    ("gpuwatch_engine_", "page of the engine"),
    ("gpuwatch_log_", "log"),
    ("gpuwatch_host_nvml_", "NVML worker"),
    ("gpuwatch_host_nvidia_", "/sys"),
    ("gpuwatch_host_", "/proc, /sys"),
    ("gpuwatch_ledger_predicted_", "log, launch flags, config.json"),
    ("gpuwatch_ledger_", "derived"),
    ("gpuwatch_", "gpuwatch"),
)
"""The first prefix that fits counts."""

DERIVED = (
    "gpuwatch_gpu_memory_peak_bytes",
    "gpuwatch_gpu_memory_step_bytes",
    "gpuwatch_gpu_memory_transient_bytes",
    "gpuwatch_engine_evictions_total",
    "gpuwatch_engine_seconds_since_token",
    "gpuwatch_engine_page_frozen_seconds",
    "gpuwatch_engine_request_length_seen_tokens",
)
"""Worked out by gpuwatch from other series."""

ELSEWHERE = {
    "gpuwatch_gpu_state": ("", "hw.status"),
    "gpuwatch_gpu_memory_total_bytes": ("DCGM_FI_DEV_FB_TOTAL [MiB]", "hw.gpu.memory.limit"),
    "gpuwatch_gpu_memory_used_bytes": ("DCGM_FI_DEV_FB_USED [MiB]", "hw.gpu.memory.usage"),
    "gpuwatch_gpu_memory_free_bytes": ("DCGM_FI_DEV_FB_FREE [MiB]", ""),
    "gpuwatch_gpu_memory_reserved_bytes": ("DCGM_FI_DEV_FB_RESERVED [MiB]", ""),
    "gpuwatch_gpu_busy_ratio": ("DCGM_FI_DEV_GPU_UTIL [%]", "hw.gpu.utilization"),
    "gpuwatch_gpu_memory_bandwidth_busy_ratio": ("DCGM_FI_DEV_MEM_COPY_UTIL [%]", ""),
    "gpuwatch_gpu_sm_active_ratio": ("DCGM_FI_PROF_SM_ACTIVE", ""),
    "gpuwatch_gpu_tensor_active_ratio": ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", ""),
    "gpuwatch_gpu_dram_active_ratio": ("DCGM_FI_PROF_DRAM_ACTIVE", ""),
    "gpuwatch_gpu_sm_clock_hertz": ("DCGM_FI_DEV_SM_CLOCK [MHz]", ""),
    "gpuwatch_gpu_sm_clock_max_hertz": ("DCGM_FI_DEV_MAX_SM_CLOCK [MHz]", ""),
    "gpuwatch_gpu_memory_clock_hertz": ("DCGM_FI_DEV_MEM_CLOCK [MHz]", ""),
    "gpuwatch_gpu_power_watts": ("DCGM_FI_DEV_POWER_USAGE", "hw.power"),
    "gpuwatch_gpu_power_limit_watts": ("DCGM_FI_DEV_POWER_MGMT_LIMIT", ""),
    "gpuwatch_gpu_energy_joules_total": ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION [mJ]", "hw.energy"),
    "gpuwatch_gpu_temperature_celsius": ("DCGM_FI_DEV_GPU_TEMP", "hw.temperature"),
    "gpuwatch_gpu_memory_temperature_celsius": ("DCGM_FI_DEV_MEMORY_TEMP", "hw.temperature"),
    "gpuwatch_gpu_clocks_event_active": ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS [bits]", ""),
    "gpuwatch_gpu_pcie_link_generation": ("DCGM_FI_DEV_PCIE_LINK_GEN", ""),
    "gpuwatch_gpu_pcie_link_generation_max": ("DCGM_FI_DEV_PCIE_MAX_LINK_GEN", ""),
    "gpuwatch_gpu_pcie_link_width": ("DCGM_FI_DEV_PCIE_LINK_WIDTH", ""),
    "gpuwatch_gpu_pcie_link_width_max": ("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", ""),
    "gpuwatch_gpu_pcie_transmit_bytes_total": ("DCGM_FI_PROF_PCIE_TX_BYTES [B/s]", "hw.gpu.io"),
    "gpuwatch_gpu_pcie_receive_bytes_total": ("DCGM_FI_PROF_PCIE_RX_BYTES [B/s]", "hw.gpu.io"),
    "gpuwatch_gpu_pcie_replays_total": ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "hw.errors"),
    "gpuwatch_gpu_nvlink_transmit_bytes_total": ("DCGM_FI_PROF_NVLINK_TX_BYTES [B/s]", "hw.gpu.io"),
    "gpuwatch_gpu_nvlink_receive_bytes_total": ("DCGM_FI_PROF_NVLINK_RX_BYTES [B/s]", "hw.gpu.io"),
    "gpuwatch_gpu_ecc_errors_total": ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL, DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "hw.errors"),
    "gpuwatch_gpu_row_remap_pending": ("DCGM_FI_DEV_ROW_REMAP_PENDING", ""),
    "gpuwatch_gpu_row_remap_failed": ("DCGM_FI_DEV_ROW_REMAP_FAILURE", ""),
    "gpuwatch_gpu_xid_errors_total": ("DCGM_EXP_XID_ERRORS_COUNT", "hw.errors"),
    "gpuwatch_engine_time_to_first_token_seconds": ("", "gen_ai.server.time_to_first_token"),
    "gpuwatch_engine_time_per_output_token_seconds": ("", "gen_ai.server.time_per_output_token"),
    "gpuwatch_engine_e2e_latency_seconds": ("", "gen_ai.server.request.duration"),
    "gpuwatch_host_cpu_busy_ratio": ("", "system.cpu.utilization"),
    "gpuwatch_host_cpu_cores": ("", "system.cpu.logical.count"),
    "gpuwatch_host_memory_total_bytes": ("", "system.memory.limit"),
    "gpuwatch_host_swap_used_bytes": ("", "system.paging.usage"),
    "gpuwatch_process_cpu_seconds_total": ("", "process.cpu.time"),
    "gpuwatch_process_resident_bytes": ("", "process.memory.usage"),
}
"""(DCGM, OpenTelemetry) by our name."""


def source(name: str) -> str:
    """Return where the series `name` comes from."""
    if name in DERIVED:
        return "derived"
    return next(text for prefix, text in SOURCES if name.startswith(prefix))
