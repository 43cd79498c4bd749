"""Helpers that several example environments use."""
