"""RLlib's import path of the function `check_multiagent_environments`."""

from jaxrl_stack.env.pre_checks import check_multiagent_environments

__all__ = ["check_multiagent_environments"]
