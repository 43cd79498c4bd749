"""Policy of one agent with a critic that observes all agents; with PPO's loss this is MAPPO."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.apis import ValueFunctionAPI
from jaxrl_stack.core.rl_module.rl_module import RLModule
from jaxrl_stack.examples.connectors.classes.add_observations_of_all_agents import ALL_AGENTS, OWN


class CentralCriticRLModule(RLModule, ValueFunctionAPI):
    """Policy with a central critic: logits of Discrete actions from an agent's own observation, values from the
    observations of all agents.

    It needs the connector `AddObservationsOfAllAgents`; acting reads nothing of the other agents. Yu et al. (2022),
    "The surprising effectiveness of PPO in cooperative multi-agent games", https://arxiv.org/abs/2103.01955.
    Where all agents act in every step of a JAX environment, minibatches have all of them of a step, and the critic sees
    it once (`ValueFunctionAPI.shared_observations`).

    Model config: ``"hidden_dim"`` (64) and ``"num_layers"`` (2), width and number of the hidden layers, with tanh, of
    policy and critic. Weights are orthogonal, those of both last layers 0.01 times as large.
    """

    rows_are_independent = True
    shared_observations = (ALL_AGENTS,)

    def setup(self) -> None:
        spaces: Any = self.observation_space
        actions: Any = self.action_space
        self.policy = self._network(spaces[OWN].shape[0], int(actions.n))
        self.critic = self._network(spaces[ALL_AGENTS].shape[0], 1)

    def _network(self, num_inputs: int, num_outputs: int) -> nnx.Sequential:
        sizes = [num_inputs] + [self.model_config.get("hidden_dim", 64)] * self.model_config.get("num_layers", 2)
        layers: list[Any] = []
        for before, after in itertools.pairwise(sizes):
            initializer = nnx.initializers.orthogonal(math.sqrt(2))
            layers += [nnx.Linear(before, after, kernel_init=initializer, rngs=self.rngs), nnx.tanh]
        last = nnx.Linear(sizes[-1], num_outputs, kernel_init=nnx.initializers.orthogonal(0.01), rngs=self.rngs)
        return nnx.Sequential(*layers, last)

    def _forward(self, batch: Any, **kwargs: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.policy(batch[Columns.OBS][OWN])}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> jax.Array:
        """Computes the values of N observations of agents, float32 ``[N]``, from the observations of all agents.

        If several agents share one ALL_AGENTS observation, the critic runs once for this observation, and the value is
        repeated for these agents.
        """
        obs = batch[Columns.OBS]
        values = self.critic(obs[ALL_AGENTS])[..., 0]
        return jnp.repeat(values, len(obs[OWN]) // len(values), axis=0)
