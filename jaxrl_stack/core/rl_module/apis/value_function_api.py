"""Modules that estimate state values."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax


class ValueFunctionAPI(abc.ABC):
    """An RLModule with a value function."""

    shared_observations: tuple[str, ...] = ()
    """Keys of a Dict observation that are the same for all agents of a step, such as what a central critic sees.

    A class that names some gets them once per step of the environment, beside a row for each of its agents: of
    ``[m * A, ...]`` rows, those of a step side by side, these parts are ``[m, ...]``. So it is in minibatches of JAX
    environments in which everybody acts, if their size divides by the agents; everywhere else they are in every row, so
    that methods have to take both. A subclass that overrides a method has to name them again.
    """

    @abc.abstractmethod
    def compute_values(self, batch: dict[str, Any], embeddings: Any | None = None) -> jax.Array:
        """State values.

        Args:
            batch: Columns `[N, ...]` (stateful modules: `[B, T, ...]`); `OBS` is required without
                `embeddings`.
            embeddings: `EMBEDDINGS` of the outputs of `forward_train` for this batch, to save the encoder's
                pass.

        Returns:
            Float `[N]` (stateful modules: `[B, T]`).
        """
