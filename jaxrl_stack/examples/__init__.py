"""Modules that scripts of RLlib's documentation import: their command line, and small environments."""
