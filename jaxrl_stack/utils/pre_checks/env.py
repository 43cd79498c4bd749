"""Re-exports the function `check_multiagent_environments` under its RLlib import path."""

from jaxrl_stack.env.pre_checks import check_multiagent_environments

__all__ = ["check_multiagent_environments"]
