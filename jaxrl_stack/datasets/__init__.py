"""Recorded steps: what they are in memory and in files, whoever recorded them."""
