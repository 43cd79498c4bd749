"""RLlib's import path of the class `AddTimeDimToBatchAndZeroPad`."""

from jaxrl_stack.connectors.markers import AddTimeDimToBatchAndZeroPad

__all__ = ["AddTimeDimToBatchAndZeroPad"]
