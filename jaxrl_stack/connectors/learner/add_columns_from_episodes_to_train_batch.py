"""RLlib's import path of the class `AddColumnsFromEpisodesToTrainBatch`."""

from jaxrl_stack.connectors.markers import AddColumnsFromEpisodesToTrainBatch

__all__ = ["AddColumnsFromEpisodesToTrainBatch"]
