"""Interface of modules that estimate state values."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax


class ValueFunctionAPI(abc.ABC):
    """Interface of RLModules with a value function."""

    shared_observations: tuple[str, ...] = ()
    """Keys of a Dict observation that are equal for all agents of a step, such as the inputs of a centralized critic.

    If a class sets it, minibatches may contain these keys once per environment step: other columns have rows
    ``[m * A, ...]`` with the agents of a step adjacent, these keys ``[m, ...]``. This happens in minibatches of JAX
    environments in which all agents act in every step, if the minibatch size is a multiple of the number of agents.
    Elsewhere the keys are in every row, so that methods must handle both. A subclass that overrides a method must set
    it again.
    """

    @abc.abstractmethod
    def compute_values(self, batch: dict[str, Any], embeddings: Any | None = None) -> jax.Array:
        """Returns the state values of a batch.

        Args:
            batch: Columns `[N, ...]` (stateful modules: `[B, T, ...]`); `OBS` is required without
                `embeddings`.
            embeddings: `EMBEDDINGS` of the outputs of `forward_train` for this batch, which saves the encoder's
                pass.

        Returns:
            Float `[N]` (stateful modules: `[B, T]`).
        """
