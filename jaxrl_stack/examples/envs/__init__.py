"""Environments of examples."""
