"""The GPUs through NVML: a worker process that alone loads the driver library, and the source that watches it."""
