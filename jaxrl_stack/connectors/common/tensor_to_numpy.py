"""RLlib's import path of the class `TensorToNumpy`."""

from jaxrl_stack.connectors.markers import TensorToNumpy

__all__ = ["TensorToNumpy"]
