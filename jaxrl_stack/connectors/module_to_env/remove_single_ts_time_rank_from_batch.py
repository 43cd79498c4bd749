"""RemoveSingleTsTimeRankFromBatch under RLlib's import path."""

from jaxrl_stack.connectors.markers import RemoveSingleTsTimeRankFromBatch

__all__ = ["RemoveSingleTsTimeRankFromBatch"]
