"""The memory ledger: from a model and an engine's settings to bytes on each GPU, and back from what is seen."""
