"""Example environments: JAX environments that need memory or have several agents. The subpackage `classes` contains the
gymnasium environments of RLlib's examples.
"""
