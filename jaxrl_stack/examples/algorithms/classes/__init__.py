"""Algorithms of RLlib's example scripts."""
