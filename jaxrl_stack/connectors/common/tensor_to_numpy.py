"""TensorToNumpy under RLlib's import path."""

from jaxrl_stack.connectors.markers import TensorToNumpy

__all__ = ["TensorToNumpy"]
