"""RLlib's import path of the class `FlattenObservations`."""

from jaxrl_stack.connectors.common.flatten_observations import FlattenObservations

__all__ = ["FlattenObservations"]
