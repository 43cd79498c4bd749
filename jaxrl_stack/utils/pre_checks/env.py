"""RLlib's import path of the check of multi-agent environments."""

from jaxrl_stack.env.pre_checks import check_multiagent_environments

__all__ = ["check_multiagent_environments"]
