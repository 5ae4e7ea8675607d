"""What other programs read of gpuwatch: `/metrics`, JSON, a collector for an existing registry, OTLP."""
