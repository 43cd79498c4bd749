"""Vectors of host environments, several of which are stepped together."""
