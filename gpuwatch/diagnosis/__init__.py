"""Why an alert fires and what to change: findings with cause, evidence and advice."""
