"""RLModule that acts epsilon-greedily by Q-values."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.rl_module import RLModule

Q_VALUES = "q_values"


class QValuesRLModule(RLModule):
    """Q-network with one hidden layer for one-dimensional Box observations and Discrete actions; explores
    epsilon-greedily.

    Model config: ``"hidden_dim"`` (64), ``"epsilon"`` (0.1), the probability of an action drawn uniformly.
    """

    rows_are_independent = True

    def setup(self) -> None:
        observations: Any = self.observation_space
        actions: Any = self.action_space
        width = self.model_config.get("hidden_dim", 64)
        self.epsilon = float(self.model_config.get("epsilon", 0.1))
        self.hidden = nnx.Linear(observations.shape[0], width, rngs=self.rngs)
        self.values = nnx.Linear(width, int(actions.n), rngs=self.rngs)

    def q_values(self, observations: jax.Array) -> jax.Array:
        """Computes the Q-values of all A actions, float32 ``[N, A]``, for observations ``[N, features]``."""
        return self.values(nnx.relu(self.hidden(observations)))

    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        # The greedy action of a categorical distribution is the one of the largest value.
        return {Columns.ACTION_DIST_INPUTS: self.q_values(batch[Columns.OBS])}

    def _forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        values = self.q_values(batch[Columns.OBS])
        is_best = jax.nn.one_hot(jnp.argmax(values, axis=-1), values.shape[-1])
        probabilities = (1.0 - self.epsilon) * is_best + self.epsilon / values.shape[-1]
        return {Columns.ACTION_DIST_INPUTS: jnp.log(probabilities)}

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {Q_VALUES: self.q_values(batch[Columns.OBS])}
