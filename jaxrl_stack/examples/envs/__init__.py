"""Environments of examples: in JAX, for tests of memory and of several agents; `classes` has RLlib's examples."""
