"""Figures: `python -m tests.benchmarks.recovery` and `python -m tests.benchmarks.throughput`, each with `--json`."""
