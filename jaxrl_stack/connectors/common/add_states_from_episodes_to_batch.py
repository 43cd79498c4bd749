"""RLlib's import path of the class `AddStatesFromEpisodesToBatch`."""

from jaxrl_stack.connectors.markers import AddStatesFromEpisodesToBatch

__all__ = ["AddStatesFromEpisodesToBatch"]
