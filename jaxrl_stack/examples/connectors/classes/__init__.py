"""Connectors of RLlib's example scripts."""
