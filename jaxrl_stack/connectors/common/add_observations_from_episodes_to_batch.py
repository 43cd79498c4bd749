"""Re-exports the class `AddObservationsFromEpisodesToBatch` under its RLlib import path."""

from jaxrl_stack.connectors.markers import AddObservationsFromEpisodesToBatch

__all__ = ["AddObservationsFromEpisodesToBatch"]
