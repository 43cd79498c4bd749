"""RLlib's import path of the class `ListifyDataForVectorEnv`."""

from jaxrl_stack.connectors.markers import ListifyDataForVectorEnv

__all__ = ["ListifyDataForVectorEnv"]
