"""Example environments: JAX environments that need memory or have several agents; `classes` has RLlib's gymnasium
examples.
"""
