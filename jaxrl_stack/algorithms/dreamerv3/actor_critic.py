"""DreamerV3's actor and critic, and the imagined rollouts for training them."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxrl_stack.algorithms.dreamerv3.networks import MLP
from jaxrl_stack.algorithms.dreamerv3.sizes import ModelSize
from jaxrl_stack.algorithms.dreamerv3.world_model import NUM_ATOMS, Latent, WorldModel, drawn
from jaxrl_stack.ops.world_models import unimix

_LEAST_STD, _LARGEST_STD = 0.1, 1.0


class Policy(NamedTuple):
    """Action distribution of the actor.

    Attributes:
        probs: float32 ``[..., A]`` for discrete actions, else None.
        mean: float32 ``[..., A]`` for continuous actions, else None.
        std: float32 ``[..., A]`` for continuous actions, else None.
    """

    probs: jax.Array | None
    mean: jax.Array | None
    std: jax.Array | None

    def sample(self, noise: jax.Array | None) -> jax.Array:
        """Samples actions with gradients, float32 ``[..., A]``, from noise that `Actor.noise` returned.

        A is the number of discrete actions, or the number of dimensions of a continuous action. If `noise` is None,
        returns the most likely actions.
        """
        if self.probs is not None:
            return drawn(noise, self.probs)
        assert self.mean is not None and self.std is not None
        return self.mean if noise is None else self.mean + self.std * noise

    def logp(self, actions: jax.Array) -> jax.Array:
        """Log-probabilities float32 ``[...]`` of actions ``[..., A]``: one-hot vectors of A discrete actions, or
        continuous actions of A dimensions.
        """
        if self.probs is not None:
            return jnp.sum(actions * jnp.log(self.probs), axis=-1)
        assert self.mean is not None and self.std is not None
        distance = (actions - self.mean) / self.std
        return jnp.sum(-0.5 * jnp.square(distance) - jnp.log(self.std) - 0.5 * math.log(2 * math.pi), axis=-1)

    def entropy(self) -> jax.Array:
        """Entropy of each action distribution in nats: float32 ``[...]``."""
        if self.probs is not None:
            return -jnp.sum(self.probs * jnp.log(self.probs), axis=-1)
        assert self.std is not None
        return jnp.sum(jnp.log(self.std) + 0.5 * math.log(2 * math.pi * math.e), axis=-1)


class Actor(nnx.Module):
    """Policy network that reads features of the world model's latent states.

    The distribution of discrete actions is categorical over one-hot vectors, mixed with 1 % of a uniform distribution.
    The distribution of continuous actions is normal, with a tanh mean.

    Args:
        size: Widths of the layers.
        num_features: Width of features.
        action_space: Discrete, or a Box of rank 1.
        dtype: Dtype of the layers' computations; None is float32.
        rngs: Random streams for initial weights.
    """

    def __init__(
        self, size: ModelSize, num_features: int, action_space: gym.Space | None, *, dtype: Any = None, rngs: nnx.Rngs
    ):
        self.is_discrete = isinstance(action_space, gym.spaces.Discrete)
        self.num_actions = width_of_actions(action_space)
        widths = (num_features, size.dense_units, size.dense_layers, self.num_actions)
        make = functools.partial(MLP, *widths, dtype=dtype, rngs=rngs)
        self.mlp = make()
        self.std_mlp = None if self.is_discrete else make()

    def __call__(self, features: jax.Array) -> Policy:
        """Computes action distributions from features ``[..., F]`` of latent states."""
        out = self.mlp(features)
        if self.std_mlp is None:
            return Policy(unimix(out), None, None)
        std = (_LARGEST_STD - _LEAST_STD) * jax.nn.sigmoid(self.std_mlp(features) + 2.0) + _LEAST_STD
        return Policy(None, jnp.tanh(out), std)

    def noise(self, key: jax.Array | None, lead: tuple[int, ...]) -> jax.Array | None:
        """Draws float32 noise for sampling actions; returns None if `key` is None.

        The noise is uniform ``[*lead]`` for discrete actions, and normal ``[*lead, A]`` for continuous actions of A
        dimensions.
        """
        if key is None:
            return None
        return jax.random.uniform(key, lead) if self.is_discrete else jax.random.normal(key, (*lead, self.num_actions))


def make_critic(size: ModelSize, num_features: int, *, dtype: Any = None, rngs: nnx.Rngs) -> MLP:
    """Critic network: maps features of a latent state to logits of the return's distribution over the atoms
    `world_model.atoms`.
    """
    return MLP(num_features, size.dense_units, size.dense_layers, NUM_ATOMS, zeros=True, dtype=dtype, rngs=rngs)


def width_of_actions(space: gym.Space | None) -> int:
    """Width of an action as an input of the world model: number of discrete actions, or dimensions of a continuous
    action.

    Raises:
        ValueError: For an unsupported action space.
    """
    if isinstance(space, gym.spaces.Discrete):
        return int(space.n)
    if isinstance(space, gym.spaces.Box) and len(space.shape) == 1 and np.issubdtype(space.dtype, np.floating):
        return int(space.shape[0])
    raise ValueError(
        f"DreamerV3 supports the action spaces Discrete and Box(shape=(n,), dtype=float32), not {space}. Change the "
        f"environment's action space with a wrapper, or use PPO."
    )


class Imagined(NamedTuple):
    """Rollouts that the world model imagines with the actor's actions: H steps of each of N rollouts.

    Attributes:
        features: float32 ``[H, N, F]``, features of the states before each action, from the start states on.
        actions: float32 ``[H, N, A]``, the actions.
        last: `Latent` ``[N, ...]``, states after the last action.
    """

    features: jax.Array
    actions: jax.Array
    last: Latent


def imagine(
    model: WorldModel, actor: Actor, start: Latent, horizon: int, key: jax.Array | None, *, differentiable: bool
) -> Imagined:
    """Rolls the world model out with the actor's actions.

    The model's heads (rewards, continuation) and the critic are not computed here but later, for all imagined states at
    once.

    Args:
        model: The world model.
        actor: The actor; gets states without gradients.
        start: Start states ``[N, ...]``.
        horizon: Number of steps H.
        key: PRNG key; None takes the most likely actions and states.
        differentiable: Whether gradients flow back through actions and states.
    """

    def step(state: Latent, noise: Any) -> tuple[Latent, Any]:
        for_action, for_state = noise
        features = state.features
        actions = actor(jax.lax.stop_gradient(features)).sample(for_action)
        return model.imagine_step(state, actions, for_state), (features, actions)

    start = jax.lax.stop_gradient(start)
    for_actions, for_states = (None, None) if key is None else jax.random.split(key)
    lead = (horizon, len(jax.tree.leaves(start)[0]))
    noise = (actor.noise(for_actions, lead), model.noise(for_states, lead))
    last, (features, actions) = jax.lax.scan(step, start, noise, length=horizon)
    out = Imagined(features, actions, last)
    return out if differentiable else jax.lax.stop_gradient(out)
