"""Vectors of environments that are stepped in Python (host environments), all in one call."""
