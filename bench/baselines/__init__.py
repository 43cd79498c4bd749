"""Hand-written loops to measure against; they import jax, flax, optax and gymnax, and nothing of jaxrl_stack."""
