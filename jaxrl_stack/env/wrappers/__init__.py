"""Wrappers around gymnasium environments."""
