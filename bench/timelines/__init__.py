"""What timelines cost Redis: `python -m bench.timelines`. bench/README.md says what is measured and how."""
