"""AddColumnsFromEpisodesToTrainBatch under RLlib's import path."""

from jaxrl_stack.connectors.markers import AddColumnsFromEpisodesToTrainBatch

__all__ = ["AddColumnsFromEpisodesToTrainBatch"]
