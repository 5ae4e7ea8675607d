"""Load-test companions: small experiments on a serving engine that find its limits and say what they mean."""
