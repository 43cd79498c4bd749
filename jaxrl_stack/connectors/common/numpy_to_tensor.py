"""Re-exports the class `NumpyToTensor` under its RLlib import path."""

from jaxrl_stack.connectors.markers import NumpyToTensor

__all__ = ["NumpyToTensor"]
