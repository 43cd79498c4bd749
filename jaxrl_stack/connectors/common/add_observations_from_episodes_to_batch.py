"""AddObservationsFromEpisodesToBatch under RLlib's import path."""

from jaxrl_stack.connectors.markers import AddObservationsFromEpisodesToBatch

__all__ = ["AddObservationsFromEpisodesToBatch"]
