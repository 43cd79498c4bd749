"""Algorithms that RLlib's example scripts import."""
