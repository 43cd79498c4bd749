"""Environments of examples: in JAX, for tests of memory and of several agents; in `classes`, those of RLlib."""
