"""Measurements against peers, each one command: `python -m bench.NAME` from the root of the repository."""
