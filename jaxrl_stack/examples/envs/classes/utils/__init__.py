"""Helpers that the example environments share."""
