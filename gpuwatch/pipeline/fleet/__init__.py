"""Watching many machines through the Prometheus that scrapes them: the same questions, put over HTTP."""
