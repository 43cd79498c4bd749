"""Imports of the scripts in RLlib's documentation: their command line, and small environments."""
