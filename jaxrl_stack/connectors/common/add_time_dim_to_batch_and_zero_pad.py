"""AddTimeDimToBatchAndZeroPad under RLlib's import path."""

from jaxrl_stack.connectors.markers import AddTimeDimToBatchAndZeroPad

__all__ = ["AddTimeDimToBatchAndZeroPad"]
