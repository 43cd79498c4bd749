"""Environments of the host, several of them stepped together."""
