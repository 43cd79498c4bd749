"""A policy of one agent whose critic sees all of them: with PPO's loss, MAPPO."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.apis import ValueFunctionAPI
from jaxrl_stack.core.rl_module.rl_module import RLModule
from jaxrl_stack.examples.connectors.classes.add_observations_of_all_agents import ALL_AGENTS, OWN


class CentralCriticRLModule(RLModule, ValueFunctionAPI):
    """Logits of Discrete actions from an agent's own observation, values from those of all agents.

    It needs the connector `AddObservationsOfAllAgents`; acting reads nothing of the other agents. Yu et al. (2022),
    "The surprising effectiveness of PPO in cooperative multi-agent games", https://arxiv.org/abs/2103.01955.

    Model config: ``"hidden_dim"`` (64), the width of the hidden layers of policy and critic.
    """

    rows_are_independent = True

    def setup(self) -> None:
        spaces: Any = self.observation_space
        actions: Any = self.action_space
        width = self.model_config.get("hidden_dim", 64)
        self.policy = _network(spaces[OWN].shape[0], width, int(actions.n), self.rngs)
        self.critic = _network(spaces[ALL_AGENTS].shape[0], width, 1, self.rngs)

    def _forward(self, batch: Any, **kwargs: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.policy(batch[Columns.OBS][OWN])}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> jax.Array:
        """Values of what all agents observe, float32 ``[N]``."""
        return self.critic(batch[Columns.OBS][ALL_AGENTS])[..., 0]


def _network(num_inputs: int, width: int, num_outputs: int, rngs: nnx.Rngs) -> nnx.Sequential:
    return nnx.Sequential(nnx.Linear(num_inputs, width, rngs=rngs), nnx.tanh, nnx.Linear(width, num_outputs, rngs=rngs))
