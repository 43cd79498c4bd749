"""RLModule with an LSTM."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from flax import nnx

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.apis import ValueFunctionAPI
from jaxrl_stack.core.rl_module.rl_module import RLModule


class LSTMContainingRLModule(RLModule, ValueFunctionAPI):
    """RLModule of an LSTM, dense layers, and heads for logits and values.

    Observations are a Box of rank 1, actions Discrete. Model config: ``"lstm_cell_size"`` (256), ``"dense_layers"``
    (``[128, 128]``), and ``"max_seq_len"`` (20), the length of the sequences that are learned from.
    """

    def setup(self) -> None:
        width = self.cell_size = self.model_config.get("lstm_cell_size", 256)
        self.cell = nnx.OptimizedLSTMCell(self.observation_space.shape[0], width, rngs=self.rngs)  # type: ignore[union-attr,index]
        layers: list[Any] = []
        for size in self.model_config.get("dense_layers", [128, 128]):
            layers += [nnx.Linear(width, size, rngs=self.rngs), nnx.relu]
            width = size
        self.dense = nnx.Sequential(*layers)
        self.pi = nnx.Linear(width, int(self.action_space.n), rngs=self.rngs)  # type: ignore[union-attr]
        self.vf = nnx.Linear(width, 1, rngs=self.rngs)

    def get_initial_state(self) -> dict[str, np.ndarray]:
        """Returns the initial recurrent state, zeros ``{"c": [size], "h": [size]}``."""
        zeros = np.zeros(self.cell_size, np.float32)
        return {"c": zeros, "h": zeros}

    def _embed(self, batch: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Computes embeddings ``[B, T, ...]`` of observation sequences, and the recurrent state after the last step."""
        state = batch[Columns.STATE_IN]

        def step(cell: Any, carry: Any, obs: jax.Array) -> Any:
            return cell(carry, obs)

        scan = nnx.scan(step, in_axes=(nnx.StateAxes({...: None}), nnx.Carry, 1), out_axes=(nnx.Carry, 1))
        (c, h), outputs = scan(self.cell, (state["c"], state["h"]), batch[Columns.OBS])
        return self.dense(outputs), {"c": c, "h": h}

    def _forward(self, batch: Any, **kwargs: Any) -> dict[str, Any]:
        embeddings, state = self._embed(batch)
        return {
            Columns.ACTION_DIST_INPUTS: self.pi(embeddings),
            Columns.EMBEDDINGS: embeddings,
            Columns.STATE_OUT: state,
        }

    def compute_values(self, batch: Any, embeddings: Any = None) -> jax.Array:
        """Computes values ``[B, T]`` of observations."""
        embeddings = self._embed(batch)[0] if embeddings is None else embeddings
        return self.vf(embeddings)[..., 0]
