"""Environments and how they are sampled: interfaces, adapters, registry, episodes, runners."""
