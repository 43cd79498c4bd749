"""RLlib's names around recorded data: what training reads, and how."""

from jaxrl_stack.offline.offline_data import OfflineData
from jaxrl_stack.offline.offline_prelearner import OfflinePreLearner

__all__ = ["OfflineData", "OfflinePreLearner"]
