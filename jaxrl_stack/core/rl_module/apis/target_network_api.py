"""Interface of modules with target networks."""

from __future__ import annotations

import abc
from typing import Any

# Key under which `forward_target` returns the target policy's action distribution inputs.
TARGET_NETWORK_ACTION_DIST_INPUTS = "target_network_action_dist_inputs"


class TargetNetworkAPI(abc.ABC):
    """Interface of RLModules with target networks: copies that slowly follow some of the networks (main networks)."""

    @abc.abstractmethod
    def make_target_networks(self) -> None:
        """Creates the module's target networks as attributes, with the current weights of the main networks.

        It is called once, after `setup()`. Create each target network with
        `jaxrl_stack.core.learner.utils.make_target_network`: optimizers do not train the parameters of its results.
        """

    @abc.abstractmethod
    def get_target_network_pairs(self) -> list[tuple[Any, Any]]:
        """Returns `(main network, target network)` pairs. In a target update, each target network moves towards its
        main network.
        """

    @abc.abstractmethod
    def forward_target(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Makes a forward pass through the target networks.

        Args:
            batch: Columns `[N, ...]`.

        Returns:
            Outputs `[N, ...]`; a policy's are under `TARGET_NETWORK_ACTION_DIST_INPUTS`.
        """
