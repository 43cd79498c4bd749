"""Benchmarks: each prints a table, and the ratio to a baseline that was measured in the same run."""
