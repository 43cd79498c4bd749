"""AddStatesFromEpisodesToBatch under RLlib's import path."""

from jaxrl_stack.connectors.markers import AddStatesFromEpisodesToBatch

__all__ = ["AddStatesFromEpisodesToBatch"]
