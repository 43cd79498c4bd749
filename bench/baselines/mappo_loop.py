"""MAPPO as JaxMARL trains it: one policy for all agents, and a critic that sees all of their observations.

Written anew after ``baselines/MAPPO`` of FLAIROx/JaxMARL (Apache-2.0): the world state and the values of
``mappo_rnn_mpe.py`` and ``config/mappo_homogenous_rnn_mpe.yaml``, and in place of its GRUs the feed-forward networks of
``mappo_ff_hanabi.py``; without hydra, wandb and distrax. Gradients of policy and critic are clipped apart, and
minibatches hold whole rollouts of some agents. All else is IPPO's loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from bench.baselines.ippo_loop import Loop, Method, rows_of
from bench.baselines.ippo_loop import Settings as IPPOSettings
from bench.baselines.ippo_loop import make_loop as make_loop_of_method


@dataclasses.dataclass(frozen=True)
class Settings(IPPOSettings):
    """Settings of JaxMARL's yaml file for MAPPO, which trains for 2e6 steps; see `ippo_loop.Settings`.

    Attributes:
        width: Of the hidden layers.
    """

    num_envs: int = 128
    lr: float = 2e-3
    width: int = 128


class ActorAndCritic(nn.Module):
    """Networks with two hidden layers and tanh: action logits from an agent's observation, values from all agents'
    observations.
    """

    num_actions: int
    width: int

    @nn.compact
    def __call__(self, seen: Mapping[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        def tower(name: str, x: jax.Array, outputs: int) -> jax.Array:
            for i in range(2):
                x = nn.Dense(self.width, kernel_init=nn.initializers.orthogonal(np.sqrt(2)), name=f"{name}_{i}")(x)
                x = nn.tanh(x)
            return nn.Dense(outputs, kernel_init=nn.initializers.orthogonal(0.01), name=f"{name}_out")(x)

        return tower("actor", seen["own"], self.num_actions), tower("critic", seen["world"], 1)[..., 0]


def see(obs: Mapping[str, jax.Array], agents: Sequence[str]) -> dict[str, jax.Array]:
    """Returns ``{"own": an agent's observation, "world": all agents' observations}``, a row for each agent of each
    environment.
    """
    world = jnp.concatenate([obs[agent] for agent in agents], axis=-1)
    return {"own": rows_of(obs, agents), "world": jnp.tile(world, (len(agents), 1))}


def _clipped(s: IPPOSettings, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    one = optax.chain(optax.clip_by_global_norm(s.max_grad_norm), optimizer)

    def part_of(params: Any) -> Any:
        return {"params": {name: name.partition("_")[0] for name in params["params"]}}

    return optax.multi_transform({"actor": one, "critic": one}, part_of)


MAPPO = Method(
    network=lambda num_actions, s: ActorAndCritic(num_actions, s.width), see=see, clipped=_clipped, shuffles_rows=False
)


def make_loop(s: Settings, seed: int, updates_per_call: int) -> Loop:
    """See `ippo_loop.make_loop`."""
    return make_loop_of_method(s, seed, updates_per_call, MAPPO)
