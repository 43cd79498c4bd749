"""Contenders that run in separate processes, if necessary with separate virtual environments."""
