"""PromQL: parsing, evaluation over the store or a Prometheus, templates. Importing the package loads nothing."""
