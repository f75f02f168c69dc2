"""Intake, side by side with peers: `python -m bench.throughput`. bench/README.md says what is measured and how."""
