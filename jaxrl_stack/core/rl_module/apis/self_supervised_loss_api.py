"""Interface of modules with their own loss."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax


class SelfSupervisedLossAPI(abc.ABC):
    """Interface of RLModules whose own loss replaces the Learner's loss."""

    @abc.abstractmethod
    def compute_self_supervised_loss(
        self, *, learner: Any, module_id: str, config: Any, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> jax.Array:
        """Returns the loss of this module; replaces `Learner.compute_loss_for_module`.

        Args:
            learner: The Learner that computes the loss.
            module_id: Id of this module.
            config: The AlgorithmConfig with this module's overrides; traced settings are the current values as arrays.
            batch: Columns `[N, ...]` of this module.
            fwd_out: Outputs of `forward_train` for them.

        Returns:
            A float scalar.
        """
