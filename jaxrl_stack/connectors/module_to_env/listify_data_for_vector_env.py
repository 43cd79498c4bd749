"""ListifyDataForVectorEnv under RLlib's import path."""

from jaxrl_stack.connectors.markers import ListifyDataForVectorEnv

__all__ = ["ListifyDataForVectorEnv"]
