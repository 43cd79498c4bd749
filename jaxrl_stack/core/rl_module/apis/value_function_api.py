"""Modules that estimate state values."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax


class ValueFunctionAPI(abc.ABC):
    """An RLModule with a value function."""

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
