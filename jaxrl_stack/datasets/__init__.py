"""Recorded environment steps: in memory, and in files that this package or other programs wrote."""
