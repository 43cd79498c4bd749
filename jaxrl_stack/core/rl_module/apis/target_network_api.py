"""Modules with target networks."""

from __future__ import annotations

import abc
from typing import Any

# Key under which `forward_target` returns the target policy's action distribution inputs.
TARGET_NETWORK_ACTION_DIST_INPUTS = "target_network_action_dist_inputs"


class TargetNetworkAPI(abc.ABC):
    """An RLModule that keeps slowly moving copies of some of its networks."""

    @abc.abstractmethod
    def make_target_networks(self) -> None:
        """Create the target networks as attributes, equal to their main networks.

        Called once, after `setup()`. Make them with `core.learner.utils.make_target_network`: what it returns has
        parameters that no optimizer sees.
        """

    @abc.abstractmethod
    def get_target_network_pairs(self) -> list[tuple[Any, Any]]:
        """The `(main network, target network)` pairs that a target update goes over."""

    @abc.abstractmethod
    def forward_target(self, batch: dict[str, Any]) -> dict[str, Any]:
        """A forward pass through the target networks.

        Args:
            batch: Columns `[N, ...]`.

        Returns:
            Outputs `[N, ...]`, for a policy under `TARGET_NETWORK_ACTION_DIST_INPUTS`.
        """
