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
        """Returns one categorical distribution over atoms per action, for a distributional Q network. The values of the
        atoms are advantages (of a dueling network) or returns.

        `DefaultDQNRLModule` returns distributions of returns, and calls this method with logits as `batch`.

        Returns:
            A dict with, for example, `"logits"` and `"probs"`, `[N, actions, atoms]`, and the values of the atoms,
            `"atoms"`, `[atoms]`.

        Raises:
            NotImplementedError: Unless a module with such a network overrides this method.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no advantage distribution. Override compute_advantage_distribution()."
        )
