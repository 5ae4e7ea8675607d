"""The only place that wires sources, store, rules, diagnosis and subscribers together."""
