"""RLlib's path to the check of environments of several agents."""

from jaxrl_stack.env.pre_checks import check_multiagent_environments

__all__ = ["check_multiagent_environments"]
