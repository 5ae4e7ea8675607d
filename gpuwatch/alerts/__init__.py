"""Alerting rules: loading, evaluating, states, inhibition, and rule tests."""
