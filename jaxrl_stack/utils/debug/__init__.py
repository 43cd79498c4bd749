"""Debugging helpers: reproducible random numbers, and nested data as text."""

from jaxrl_stack.utils.debug.deterministic import update_global_seed_if_necessary
from jaxrl_stack.utils.debug.summary import summarize

__all__ = ["summarize", "update_global_seed_if_necessary"]
