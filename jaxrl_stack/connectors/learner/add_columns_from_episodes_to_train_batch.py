"""Re-exports the class `AddColumnsFromEpisodesToTrainBatch` under its RLlib import path."""

from jaxrl_stack.connectors.markers import AddColumnsFromEpisodesToTrainBatch

__all__ = ["AddColumnsFromEpisodesToTrainBatch"]
