"""RLModule with a custom action distribution: a softmax with a temperature."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.distribution.jax_distribution import Categorical
from jaxrl_stack.core.rl_module.apis import ValueFunctionAPI
from jaxrl_stack.core.rl_module.rl_module import RLModule


def categorical_with_temperature(temperature: float) -> type[Categorical]:
    """Returns a class of categorical distributions ``softmax(logits / temperature)``.

    Args:
        temperature: Above 1 actions become more alike, below 1 less.

    Raises:
        ValueError: `temperature` is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature={temperature} must be a positive number.")

    class CategoricalWithTemperature(Categorical):
        """Categorical distribution whose logits are divided by the temperature."""

        def __init__(self, logits: jax.Array | None = None, probs: jax.Array | None = None):
            super().__init__(None if logits is None else logits / temperature, probs)

    return CategoricalWithTemperature


class CustomActionDistributionRLModule(RLModule, ValueFunctionAPI):
    """Module with one hidden layer for policy and value function, and a temperature for actions.

    Observations are a Box of rank 1, actions Discrete. Model config: ``"action_dist_temperature"`` (2.0), and
    ``"width"`` (256) of the hidden layer.
    """

    rows_are_independent = True

    def setup(self) -> None:
        (num_obs,) = self.observation_space.shape  # type: ignore[union-attr,misc]
        width = self.model_config.get("width", 256)
        self.torso = nnx.Linear(num_obs, width, rngs=self.rngs)
        self.policy = nnx.Linear(width, int(self.action_space.n), rngs=self.rngs)  # type: ignore[union-attr]
        self.value = nnx.Linear(width, 1, rngs=self.rngs)

    def _default_action_dist_cls(self) -> type[Categorical]:
        return categorical_with_temperature(self.model_config.get("action_dist_temperature", 2.0))

    def _forward(self, batch: Any, **kwargs: Any) -> dict[str, Any]:
        features = nnx.relu(self.torso(batch[Columns.OBS]))
        return {Columns.ACTION_DIST_INPUTS: self.policy(features), Columns.EMBEDDINGS: features}

    def compute_values(self, batch: Any, embeddings: Any = None) -> jax.Array:
        """Computes one value for each observation vector; returns float ``[...]`` for OBS ``[..., features]``."""
        if embeddings is None:
            embeddings = self._forward(batch)[Columns.EMBEDDINGS]
        return self.value(embeddings)[..., 0]
