"""RLlib's import path of the class `AddObservationsFromEpisodesToBatch`."""

from jaxrl_stack.connectors.markers import AddObservationsFromEpisodesToBatch

__all__ = ["AddObservationsFromEpisodesToBatch"]
