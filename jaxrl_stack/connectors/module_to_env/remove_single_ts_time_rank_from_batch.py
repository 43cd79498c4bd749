"""RLlib's import path of the class `RemoveSingleTsTimeRankFromBatch`."""

from jaxrl_stack.connectors.markers import RemoveSingleTsTimeRankFromBatch

__all__ = ["RemoveSingleTsTimeRankFromBatch"]
