"""Re-exports the class `FlattenObservations` under its RLlib import path."""

from jaxrl_stack.connectors.common.flatten_observations import FlattenObservations

__all__ = ["FlattenObservations"]
