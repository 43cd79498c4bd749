"""RLlib's import path of the class `NumpyToTensor`."""

from jaxrl_stack.connectors.markers import NumpyToTensor

__all__ = ["NumpyToTensor"]
