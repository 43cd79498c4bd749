"""Re-exports the class `RemoveSingleTsTimeRankFromBatch` under its RLlib import path."""

from jaxrl_stack.connectors.markers import RemoveSingleTsTimeRankFromBatch

__all__ = ["RemoveSingleTsTimeRankFromBatch"]
