"""Help with debugging: random numbers that are the same in each run."""

from jaxrl_stack.utils.debug.deterministic import update_global_seed_if_necessary

__all__ = ["update_global_seed_if_necessary"]
