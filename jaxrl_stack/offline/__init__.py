"""Classes and functions for reading recorded data and training on it, under RLlib's import path."""

from jaxrl_stack.compat.renamed import absent_or_renamed
from jaxrl_stack.datasets.normalized_scores import normalized_score
from jaxrl_stack.offline.offline_data import OfflineData
from jaxrl_stack.offline.offline_prelearner import OfflinePreLearner

_OLD = ("InputReader", "OutputWriter", "IOContext", "JsonReader", "JsonWriter", "DatasetReader", "DatasetWriter")
__getattr__ = absent_or_renamed(__name__, absent=dict.fromkeys(_OLD, "OfflineData, OfflinePreLearner"))

__all__ = ["OfflineData", "OfflinePreLearner", "normalized_score"]
