"""Re-exports the class `AddTimeDimToBatchAndZeroPad` under its RLlib import path."""

from jaxrl_stack.connectors.markers import AddTimeDimToBatchAndZeroPad

__all__ = ["AddTimeDimToBatchAndZeroPad"]
