"""Re-exports the class `ListifyDataForVectorEnv` under its RLlib import path."""

from jaxrl_stack.connectors.markers import ListifyDataForVectorEnv

__all__ = ["ListifyDataForVectorEnv"]
