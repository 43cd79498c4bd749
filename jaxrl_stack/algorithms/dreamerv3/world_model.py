"""DreamerV3's world model: computes latent states from observations, and imagines later states without observations."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple, TypeGuard

import gymnasium as gym
import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl_stack.algorithms.dreamerv3.networks import GRU, IMAGE_SIZE, MLP, ImageDecoder, ImageEncoder
from jaxrl_stack.algorithms.dreamerv3.sizes import ModelSize
from jaxrl_stack.ops.chunking import map_rows
from jaxrl_stack.ops.masks import expand
from jaxrl_stack.ops.q_learning import expected_q, support
from jaxrl_stack.ops.world_models import straight_through, straight_through_sample, symexp, symlog, unimix

NUM_ATOMS, LARGEST = 255, 20.0
"""Atoms of rewards and values, from -20 to 20 in symlog space."""
LAYERS_PER_ROW = 8
"""Rows of a dense layer that a row of a head with its atoms is worth: 1,024 of them share a core's cache."""


class Latent(NamedTuple):
    """Latent states of the world model, with any leading axes: the deterministic part h and the stochastic part z.

    Attributes:
        h: float32 ``[..., G]``, the deterministic part.
        z: float32 ``[..., Z, K]``, the stochastic part, one-hot.
    """

    h: jax.Array
    z: jax.Array

    @property
    def features(self) -> jax.Array:
        """Input of the world model's heads, the actor and the critic, float32 ``[..., G + Z * K]``.

        The input is the deterministic part h ``[..., G]`` concatenated with the flattened stochastic part z
        ``[..., Z, K]``.
        """
        return jnp.concatenate([self.h, self.z.reshape(*self.z.shape[:-2], -1)], axis=-1)

    def stored(self) -> dict[str, jax.Array]:
        """Compact form of the latent state for recurrent states and the replay buffer.

        The form contains the deterministic part h, and the class index, uint8 ``[..., Z]``, for each of the Z
        categorical variables of the stochastic part z.
        """
        return {"h": self.h, "z": jnp.argmax(self.z, axis=-1).astype(jnp.uint8)}


class Observed(NamedTuple):
    """Latent states that the world model computes for recorded sequences, with the posterior and prior distributions of
    their stochastic part z.

    Attributes:
        states: `Latent` ``[B, T, ...]``, with z from the posterior.
        posterior: Probabilities of z given the observation, ``[B, T, Z, K]``.
        prior: Probabilities of z given h only, ``[B, T, Z, K]``.
    """

    states: Latent
    posterior: jax.Array
    prior: jax.Array


def is_image(space: gym.Space | None) -> TypeGuard[gym.spaces.Box]:
    """Whether a space contains images: a Box of rank 2, or of rank 3 with channels last."""
    return isinstance(space, gym.spaces.Box) and len(space.shape) in (2, 3)


class WorldModel(nnx.Module):
    """Encoder, recurrent state-space model, and heads for observation, reward and continuation of the episode.

    ``h_t = GRU(h_{t-1}, z_{t-1}, a_{t-1})``, ``z_t ~ q(z | h_t, x_t)`` with an observation and ``z_t ~ p(z | h_t)`` in
    imagination (equation 3 of the paper). The state before an episode is a learned h with its most likely z, and the
    action before it is zeros.

    Args:
        size: Sizes of the networks.
        observation_space: A Box of rank 1, or of 64 x 64 images, or a Dict of such.
        num_actions: Width of actions, one-hot if they are discrete.
        symlog_obs: Whether vectors are encoded and predicted as symlog; "auto" is True except for images.
        gru_blocks: Number of blocks of the recurrent state.
        dtype: Dtype of the layers' computations; None is float32.
        rngs: Random streams for initial weights.
    """

    def __init__(
        self,
        size: ModelSize,
        observation_space: gym.Space | None,
        num_actions: int,
        *,
        symlog_obs: bool | str = "auto",
        gru_blocks: int = 1,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        self.size = size
        self.is_dict = isinstance(observation_space, gym.spaces.Dict)
        parts = parts_of(observation_space)
        self.shapes = {name: space.shape for name, space in parts.items()}
        self.bytes = frozenset(name for name, space in parts.items() if space.dtype == jnp.uint8)
        self.images = tuple(name for name, space in parts.items() if is_image(space))
        self.vectors = tuple(name for name in parts if name not in self.images)
        self.symlogs = {name: name not in self.images if symlog_obs == "auto" else bool(symlog_obs) for name in parts}
        units, layers = size.dense_units, size.dense_layers
        flat, num_z = {name: math.prod(self.shapes[name]) for name in parts}, size.num_categoricals * size.num_classes
        num_features, num_vector = size.gru_units + num_z, sum(flat[name] for name in self.vectors)
        channels = sum((*self.shapes[name], 1)[2] for name in self.images)
        images, multiplier = bool(self.images), size.cnn_multiplier
        mlp = functools.partial(MLP, dtype=dtype, rngs=rngs)
        self.encoder = mlp(num_vector, units, layers) if self.vectors else None
        self.decoder = mlp(num_features, units, layers, num_vector) if self.vectors else None
        self.image_encoder = ImageEncoder(channels, multiplier, dtype=dtype, rngs=rngs) if images else None
        self.image_decoder = (
            ImageDecoder(num_features, channels, multiplier, dtype=dtype, rngs=rngs) if images else None
        )
        num_encoded = sum(net.num_outputs for net in (self.encoder, self.image_encoder) if net is not None)
        self.initial_h = nnx.Param(jnp.zeros((size.gru_units,), jnp.float32))
        self.before_gru = mlp(num_z + num_actions, units, 1)
        self.gru = GRU(units, size.gru_units, num_blocks=gru_blocks, dtype=dtype, rngs=rngs)
        self.posterior = mlp(size.gru_units + num_encoded, units, 1, num_z)
        self.prior = mlp(size.gru_units, units, 1, num_z)
        self.reward = mlp(num_features, units, layers, NUM_ATOMS, zeros=True)
        self.goes_on = mlp(num_features, units, layers, 1)

    # ------------------------------------------------------------------------------------------------- observations

    def normalised(self, obs: Any) -> dict[str, jax.Array]:
        """Converts observations to inputs and prediction targets of the world model: symlog of vectors, pixels in [-1,
        1).
        """
        out = {}
        for name, x in (obs if self.is_dict else {"obs": obs}).items():
            x = x / 128.0 - 1.0 if x.dtype == jnp.uint8 else x.astype(jnp.float32)
            out[name] = symlog(x) if self.symlogs[name] else x
        return out

    def denormalised(self, predicted: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Converts predictions of `decode` back to the units of observations, float32."""
        out = {}
        for name, x in predicted.items():
            x = symexp(x) if self.symlogs[name] else x
            out[name] = (x + 1.0) * 128.0 if name in self.bytes else x
        return out

    def encode(self, normalised: dict[str, jax.Array]) -> jax.Array:
        """Encodes normalised observations: vectors by the vector encoder, images by the image encoder. Returns the
        concatenated outputs of the encoders, ``[..., E]``.
        """
        encoded = []
        if self.encoder is not None:
            encoded.append(self.encoder(jnp.concatenate([normalised[name] for name in self.vectors], axis=-1)))
        if self.image_encoder is not None:
            stacked = [self._with_channels(name, normalised[name]) for name in self.images]
            encoded.append(self.image_encoder(jnp.concatenate(stacked, axis=-1)))
        return jnp.concatenate(encoded, axis=-1)

    def _with_channels(self, name: str, image: jax.Array) -> jax.Array:
        return image if len(self.shapes[name]) == 3 else image[..., None]

    def decode(self, features: jax.Array) -> dict[str, jax.Array]:
        """Predicts normalised observations from features of latent states.

        Returns an array for each part of the observation, with the part's name and shape: ``{name: [..., *shape]}``.
        For normalised observations, see `normalised`.
        """
        out = {}
        for net, names, axis_of in ((self.decoder, self.vectors, 0), (self.image_decoder, self.images, 2)):
            if net is None:
                continue
            whole, start = net(features), 0
            for name in names:
                width = (*self.shapes[name], 1)[axis_of]
                part = whole[..., start : start + width]
                start += width
                out[name] = part.reshape(*features.shape[:-1], *self.shapes[name])
        return out

    # -------------------------------------------------------------------------------------------------------- states

    def _z_probs(self, logits: jax.Array) -> jax.Array:
        return unimix(logits.reshape(*logits.shape[:-1], self.size.num_categoricals, self.size.num_classes))

    def initial(self) -> Latent:
        """Latent state before an episode's first observation.

        The state consists of the deterministic part h ``[G]``, and the stochastic part z ``[Z, K]``. z consists of Z
        one-hot vectors with K classes.
        """
        h = jnp.tanh(self.initial_h[...])
        return Latent(h, jax.lax.stop_gradient(mode(self._z_probs(self.prior(h)))))

    def next_h(self, state: Latent, actions: jax.Array) -> jax.Array:
        """Computes the deterministic part ``h_{t+1}`` of the next latent state from a latent state and actions ``[...,
        A]``.
        """
        z = state.z.reshape(*state.z.shape[:-2], -1)
        return self.gru(state.h, self.before_gru(jnp.concatenate([z, actions], axis=-1)))

    def noise(self, key: jax.Array | None, lead: tuple[int, ...]) -> jax.Array | None:
        """Draws uniform noise for sampling the stochastic part z of latent states, float32 ``[*lead, Z]``.

        The last axis has one number for each of the Z categorical variables in z. Returns None if `key` is None.
        """
        return None if key is None else jax.random.uniform(key, (*lead, self.size.num_categoricals))

    def observe_step(
        self, before: Latent, actions: jax.Array, is_first: jax.Array, encoded: jax.Array, noise: jax.Array | None
    ) -> tuple[Latent, jax.Array]:
        """Advances the latent state by one step with an observation (posterior).

        Args:
            before: The state before, ``[B, ...]``; ignored at the beginning of an episode.
            actions: float32 ``[B, A]``, the actions before the observation; ignored at the beginning of an episode.
            is_first: bool ``[B]``.
            encoded: float32 ``[B, E]``, from `encode`.
            noise: From `noise`; None takes the most likely z.

        Returns:
            ``(state, probabilities of the posterior [B, Z, K])``.
        """
        before = jax.tree.map(lambda first, x: jnp.where(expand(is_first, x), first, x), self.initial(), before)
        h = self.next_h(before, jnp.where(expand(is_first, actions), 0.0, actions))
        probs = self._z_probs(self.posterior(jnp.concatenate([encoded, h], axis=-1)))
        return Latent(h, drawn(noise, probs)), probs

    def observe(
        self,
        normalised: dict[str, jax.Array],
        actions: jax.Array,
        is_first: jax.Array,
        key: jax.Array | None,
        before: tuple[Latent, jax.Array, jax.Array] | None = None,
    ) -> Observed:
        """Computes latent states of recorded sequences. Encoder and prior run once over all steps; only the GRU and
        the posterior run in a loop over steps.

        Args:
            normalised: Observations ``[B, T, ...]``, from `normalised`.
            actions: float32 ``[B, T, A]``, the action after each observation.
            is_first: bool ``[B, T]``.
            key: PRNG key; None takes the most likely z.
            before: States ``[B, ...]`` before the first step, actions ``[B, A]`` between these states and the first
                step, and bool ``[B]``, True for rows without a state before. None means no row has one.
        """
        encoded = jnp.swapaxes(self.encode(normalised), 0, 1)
        num_steps, num_rows = encoded.shape[:2]
        led_to = jnp.roll(jnp.swapaxes(actions, 0, 1), 1, axis=0)
        first = jnp.swapaxes(is_first, 0, 1)
        noise = self.noise(key, (num_steps, num_rows))
        if before is None:
            first = first.at[0].set(True)
            start = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_rows, *x.shape)), self.initial())
        else:
            start, led_here, is_unknown = before
            first, led_to = first.at[0].set(first[0] | is_unknown), led_to.at[0].set(led_here)

        def step(before: Latent, row: Any) -> tuple[Latent, Any]:
            state, probs = self.observe_step(before, *row)
            return state, (state, probs)

        _, out = jax.lax.scan(step, start, (led_to, first, encoded, noise))
        states, posterior = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), out)
        return Observed(states, posterior, self._z_probs(self.prior(states.h)))

    def imagine_step(self, state: Latent, actions: jax.Array, noise: jax.Array | None) -> Latent:
        """Advances the latent state by one step without an observation, with actions ``[..., A]``.

        Draws the stochastic part z from the prior, with noise that the method `noise` returned. If `noise` is None,
        takes the most likely z.
        """
        h = self.next_h(state, actions)
        return Latent(h, drawn(noise, self._z_probs(self.prior(h))))

    # --------------------------------------------------------------------------------------------------------- heads

    def reward_of(self, features: jax.Array) -> jax.Array:
        """Expected reward of a latent state, float32 ``[...]``."""
        return symexp(mean_in_symlog(self.reward, features))

    def continue_logits(self, features: jax.Array) -> jax.Array:
        """Log-odds that the episode continues after a latent state, float32 ``[...]``."""
        return self.goes_on(features)[..., 0]


def atoms() -> jax.Array:
    """Atoms of the distributions of rewards and values in symlog space, float32 ``[255]``."""
    return support(-LARGEST, LARGEST, NUM_ATOMS)


def mean_in_symlog(head: MLP, features: jax.Array) -> jax.Array:
    """Computes the mean of a head's distribution over `atoms`, float32 ``[...]``, from features ``[..., F]`` of latent
    states.

    The mean is in symlog space; `symexp` converts it to a reward or value.
    """

    def mean(rows: jax.Array) -> jax.Array:
        logits = head.padded_logits(rows)
        return expected_q(logits, jnp.pad(atoms(), (0, logits.shape[-1] - NUM_ATOMS)))

    flat = features.reshape(-1, features.shape[-1])
    return map_rows(mean, flat, size=LAYERS_PER_ROW).reshape(features.shape[:-1])


def mode(probs: jax.Array) -> jax.Array:
    """Converts class probabilities to one-hot vectors of the most likely classes, with the gradients of the
    probabilities (straight-through).
    """
    one_hot = jax.nn.one_hot(jnp.argmax(probs, axis=-1), probs.shape[-1], dtype=probs.dtype)
    return straight_through(one_hot, probs)


def drawn(noise: jax.Array | None, probs: jax.Array) -> jax.Array:
    """Draws one-hot vectors float32 ``[..., K]`` from categorical distributions with K classes, by
    `straight_through_sample`.

    If `noise` is None, returns the one-hot vectors of the most likely classes (`mode`).
    """
    return mode(probs) if noise is None else straight_through_sample(noise, probs)


def parts_of(space: gym.Space | None, *, any_size: bool = False) -> dict[str, gym.spaces.Box]:
    """Spaces of the parts of an observation: ``{name: Box}`` of a Dict space, ``{"obs": Box}`` for a Box.

    Args:
        space: Observation space.
        any_size: Whether images may be of other sizes than the model's.

    Raises:
        ValueError: For unsupported spaces.
    """
    parts: dict[str, Any] = dict(space.spaces) if isinstance(space, gym.spaces.Dict) else {"obs": space}
    for name, part in parts.items():
        where = f" (its part {name!r})" if isinstance(space, gym.spaces.Dict) else ""
        if isinstance(part, gym.spaces.Box) and len(part.shape) == 1 and part.shape[0] > 0:
            continue
        if is_image(part) and (any_size or has_size(part)):
            continue
        raise ValueError(
            f"DreamerV3 does not support the observation space {space}{where}, only vectors (Box of rank 1), images of "
            f"64 x 64 pixels, and Dicts of them. Add an env-to-module connector: ResizeImages(height=64, width=64) for "
            f"images, FlattenObservations() for other spaces."
        )
    return parts


def has_size(image: gym.spaces.Box) -> bool:
    """Whether the images of a space have the height and width that the encoder and the decoder require."""
    return image.shape[:2] == (IMAGE_SIZE, IMAGE_SIZE)
