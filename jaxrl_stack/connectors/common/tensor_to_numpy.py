"""Re-exports the class `TensorToNumpy` under its RLlib import path."""

from jaxrl_stack.connectors.markers import TensorToNumpy

__all__ = ["TensorToNumpy"]
