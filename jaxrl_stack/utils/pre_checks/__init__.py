"""Checks of users' environments and classes before training."""
