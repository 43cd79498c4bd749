"""RLlib's names around recorded data: what training reads, and how."""

from jaxrl_stack.offline.offline_data import OfflineData

__all__ = ["OfflineData"]
