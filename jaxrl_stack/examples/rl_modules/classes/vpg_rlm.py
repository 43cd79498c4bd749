"""RLModule with a policy but no value function."""

from __future__ import annotations

from typing import Any

from flax import nnx

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.rl_module import RLModule


class VPGRLModule(RLModule):
    """Policy with one hidden layer for one-dimensional Box observations and Discrete actions.

    Model config: ``"hidden_dim"`` (64), the width of the hidden layer.
    """

    rows_are_independent = True

    def setup(self) -> None:
        observations, actions, width = (
            self.observation_space,
            self.action_space,
            self.model_config.get("hidden_dim", 64),
        )
        self.hidden = nnx.Linear(observations.shape[0], width, rngs=self.rngs)  # type: ignore[union-attr,index]
        self.logits = nnx.Linear(width, int(actions.n), rngs=self.rngs)  # type: ignore[union-attr]

    def _forward(self, batch: Any, **kwargs: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.logits(nnx.relu(self.hidden(batch[Columns.OBS])))}
