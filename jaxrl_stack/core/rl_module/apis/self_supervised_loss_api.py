"""Modules that bring their own loss."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax


class SelfSupervisedLossAPI(abc.ABC):
    """An RLModule whose loss replaces the Learner's."""

    @abc.abstractmethod
    def compute_self_supervised_loss(
        self, *, learner: Any, module_id: str, config: Any, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> jax.Array:
        """The loss of this module, instead of `Learner.compute_loss_for_module`.

        Args:
            learner: The Learner that computes the loss.
            module_id: Id of this module.
            config: The AlgorithmConfig (with this module's overrides); traced settings are current arrays.
            batch: Columns `[N, ...]` of this module.
            fwd_out: Outputs of `forward_train` for them.

        Returns:
            A float scalar.
        """
