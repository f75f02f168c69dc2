"""How fast digests go out: `python -m bench.delivery`. bench/README.md says what is measured and how."""
