"""gpuwatch: GPU telemetry and diagnostics for vLLM and SGLang servers."""

__version__ = "0.1.0"
