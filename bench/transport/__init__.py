"""The connection alone, beside pynsq's: `python -m bench.transport`. bench/README.md says what is measured and how."""
