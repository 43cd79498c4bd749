"""Interface of modules that estimate action values."""

from __future__ import annotations

import abc
from typing import Any


class QNetAPI(abc.ABC):
    """Interface of RLModules with a Q network."""

    @abc.abstractmethod
    def compute_q_values(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Returns the action values of a batch.

        Args:
            batch: Columns `[N, ...]` with `OBS`, and `ACTIONS` if the network takes the action as input.

        Returns:
            A dict with float arrays `[N, number of actions]` (discrete actions) or `[N]`.
        """

    def compute_advantage_distribution(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Returns the advantages of all actions as distributions over atoms, for a distributional, dueling Q network.
        The result is a dict of arrays such as logits, `[N, actions, atoms]`.

        Raises:
            NotImplementedError: Unless a module with such a network overrides it.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no advantage distribution. Override compute_advantage_distribution()."
        )
