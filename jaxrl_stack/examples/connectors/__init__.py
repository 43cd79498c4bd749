"""Connectors that RLlib's example scripts import."""
