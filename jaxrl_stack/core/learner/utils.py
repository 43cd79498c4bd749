"""Re-exports helpers for modules and learners with target networks under their RLlib import path."""

from __future__ import annotations

from jaxrl_stack.core.rl_module.target_networks import make_target_network, update_target_network

__all__ = ["make_target_network", "update_target_network"]
