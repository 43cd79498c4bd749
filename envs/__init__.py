"""Small environments for examples, tests and notebooks, each written once, as a JAX environment."""
