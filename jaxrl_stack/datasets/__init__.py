"""Recorded steps in memory and in files, from this package or others."""
