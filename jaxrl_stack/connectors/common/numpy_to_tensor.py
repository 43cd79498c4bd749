"""NumpyToTensor under RLlib's import path."""

from jaxrl_stack.connectors.markers import NumpyToTensor

__all__ = ["NumpyToTensor"]
