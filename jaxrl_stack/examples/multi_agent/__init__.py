"""Helpers that RLlib's multi-agent example scripts import."""
