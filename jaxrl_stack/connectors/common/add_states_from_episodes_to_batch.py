"""Re-exports the class `AddStatesFromEpisodesToBatch` under its RLlib import path."""

from jaxrl_stack.connectors.markers import AddStatesFromEpisodesToBatch

__all__ = ["AddStatesFromEpisodesToBatch"]
