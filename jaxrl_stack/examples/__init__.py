"""Modules that RLlib's example scripts import: command-line options, and small environments, modules and connectors."""
