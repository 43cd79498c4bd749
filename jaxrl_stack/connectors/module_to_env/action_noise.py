"""Exploration noise on continuous actions that is correlated in time."""

from __future__ import annotations

import abc
import math
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.utils.spaces.boxes import float32_bounds, scaled_dimensions


class ActionNoise(ConnectorV2):
    """Adds noise to continuous actions when exploring; otherwise actions and the noise's state do not change.

    ACTIONS becomes the noisy action, clipped to the bounds: it is what the environment gets and what is
    recorded, hence what an off-policy loss learns from. ACTION_LOGP, the log-probability of another action now, is
    taken out: PPO, which needs it, refuses such a connector. The noise of an environment starts anew with its episode.

    Args:
        input_observation_space: See ConnectorV2.
        input_action_space: A Box of floats.
        normalize_actions: The same as `environment(normalize_actions=...)`. True: actions are clipped to
            [-1, 1] in dimensions with two bounds, in which the module acts so; others to the space's own bounds.
        **kwargs: See ConnectorV2.

    Raises:
        ValueError: The actions are no floats.
    """

    def __init__(self, *args, normalize_actions: bool = True, **kwargs):
        super().__init__(*args, **kwargs)
        self.normalize_actions = normalize_actions

    @abc.abstractmethod
    def initial(self, shape: tuple[int, ...]) -> jax.Array:
        """Returns the initial state of the noise for actions of shape ``[B, ...]``.

        The state is float32 and has the shape of the actions; subclasses may add axes at the end.
        """

    @abc.abstractmethod
    def advance(self, state: jax.Array, starts: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Advances the noise process by one step, and returns its new state and the noise to add to actions.

        Args:
            state: Noise state, from `initial` or the last call.
            starts: bool, broadcasts against `state`: where an episode starts.
            key: PRNG key.

        Returns:
            ``(state, noise)``, the noise float32 with the shape of the actions.
        """

    def init(self, num_envs: int) -> Any:
        """Returns the initial states of the noise, ``{module_id: state}``."""
        return {key: self.initial((num_envs, *self._box(space).shape)) for key, space in self._action_spaces().items()}

    def apply(self, state: Any, batch: dict[str, Any], ctx: ConnectorContext) -> tuple[Any, dict[str, Any]]:
        """Adds noise to ACTIONS ``[B, ...]`` and removes ACTION_LOGP; if ``ctx.explore`` is False, changes nothing.
        Also reads ``ctx.reset`` and ``ctx.key``.

        Raises:
            ValueError: Exploring without ``ctx.key`` or ``ctx.reset``.
        """
        if not ctx.explore:
            return state, batch
        if ctx.key is None or ctx.reset is None:
            raise ValueError(
                f"{type(self).__name__}: ctx.key or ctx.reset is None, but exploration needs both. Create the context "
                "with ConnectorContext(key=jax.random.key(0), reset=jnp.zeros(num_envs, bool)), or explore=False."
            )
        spaces = self._action_spaces()
        state, batch = dict(state), dict(batch)
        todo = self._state_keys(batch)
        keys = [ctx.key] if len(todo) == 1 else jax.random.split(ctx.key, len(todo))
        for (own, module_id), key in zip(todo, keys, strict=True):
            starts = jnp.reshape(ctx.reset, (-1, *(1 for _ in state[own].shape[1:])))
            state[own], noise = self.advance(state[own], starts, key)
            columns = {name: leaf for name, leaf in batch[module_id].items() if name != Columns.ACTION_LOGP}
            actions = columns[Columns.ACTIONS]
            columns[Columns.ACTIONS] = self._clipped(spaces[own], actions + noise.astype(actions.dtype))
            batch[module_id] = columns
        return state, batch

    def _clipped(self, space, actions: jax.Array) -> jax.Array:
        low, high = float32_bounds(space)
        if self.normalize_actions:
            scaled = scaled_dimensions(space)
            low, high = np.where(scaled, -1, low), np.where(scaled, 1, high)
        return jnp.clip(actions, low[None], high[None])

    def _box(self, space):
        if isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating):
            return space
        raise ValueError(
            f"{type(self).__name__} adds noise, which needs a Box of floats, but the action space is {space}. Explore "
            "discrete actions with `epsilon` (DQN) or the policy's own entropy."
        )


class OrnsteinUhlenbeckNoise(ActionNoise):
    """Ornstein-Uhlenbeck noise, which reverts to a mean, as in DDPG (Uhlenbeck & Ornstein 1930; Lillicrap et al. 2015,
    section 7).

    ``x <- x + theta * (mean - x) * dt + sigma * sqrt(dt) * N(0, 1)``, one process for each component of an action,
    from 0 at the start of an episode. It forgets over ``1 / (theta * dt)`` steps, and its standard deviation goes to
    ``sigma / sqrt(theta * (2 - theta * dt))``.

        config.env_runners(module_to_env_connector=lambda env: OrnsteinUhlenbeckNoise(sigma=0.3))

    Args:
        input_observation_space, input_action_space, normalize_actions, multi_agent: See `ActionNoise`.
        theta: Rate of the pull, > 0.
        sigma: Strength of the noise, >= 0, in units of the module's actions.
        mean: Mean of the process, to which it returns.
        dt: Time between two steps, with ``theta * dt`` below 2.

    Raises:
        ValueError: A number out of its range.
    """

    def __init__(self, *args, theta: float = 0.15, sigma: float = 0.2, mean: float = 0.0, dt: float = 1.0, **kwargs):
        super().__init__(*args, **kwargs)
        if not (theta > 0 and sigma >= 0 and dt > 0 and theta * dt < 2):
            raise ValueError(
                f"OrnsteinUhlenbeckNoise(theta={theta!r}, sigma={sigma!r}, dt={dt!r}): give theta > 0, sigma >= 0, dt "
                "> 0, and theta * dt below 2, or else the noise diverges."
            )
        self.theta, self.sigma, self.mean, self.dt = theta, sigma, mean, dt

    def initial(self, shape: tuple[int, ...]) -> jax.Array:
        return jnp.zeros(shape, jnp.float32)

    def advance(self, state: jax.Array, starts: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = jnp.where(starts, 0.0, state)
        draw = jax.random.normal(key, state.shape)
        state = state + self.theta * self.dt * (self.mean - state) + self.sigma * math.sqrt(self.dt) * draw
        return state, state


class ColoredNoise(ActionNoise):
    """Noise with a power spectrum of ``f ** -beta``, pink by default.

    See Eberhard et al. 2023, "Pink Noise Is All You Need" (https://openreview.net/forum?id=hQ9V5QN27eS). White noise,
    where every step is for itself, has beta 0; a random walk, red noise, has 2; pink is 1. The noise is normal with
    standard deviation `scale` from the first step of an episode on.

    It is a sum of AR(1) processes, two octaves apart: the classical picture of 1/f noise (van der Ziel 1950). Unlike a
    sequence out of an FFT (Timmer & König 1995), which the paper takes, it needs no length in advance and keeps few
    numbers per action. The spectrum's slope is within 0.15 of beta for beta from 0.5 to 1.5. The paper puts the noise
    in the place of the policy's own draw; here it is added to that.

        config.env_runners(module_to_env_connector=lambda env: ColoredNoise(scale=0.5, horizon=200))

    Args:
        input_observation_space, input_action_space, normalize_actions, multi_agent: See `ActionNoise`.
        beta: Exponent, above 0 and below 2.
        scale: Standard deviation, >= 0, in units of the module's actions.
        horizon: The longest period that it has, in steps: an episode's length, 8 or more.

    Raises:
        ValueError: A number out of its range.
    """

    def __init__(self, *args, beta: float = 1.0, scale: float = 0.3, horizon: int = 1000, **kwargs):
        super().__init__(*args, **kwargs)
        if not (0 < beta < 2 and scale >= 0 and horizon >= 8):
            raise ValueError(
                f"ColoredNoise(beta={beta!r}, scale={scale!r}, horizon={horizon!r}): give a beta above 0 and below 2, "
                "a scale >= 0 and a horizon of 8 steps or more."
            )
        self.beta, self.scale, self.horizon = beta, scale, horizon
        self._decays, self._amplitudes = _relaxations(beta, horizon)

    def initial(self, shape: tuple[int, ...]) -> jax.Array:
        return jnp.zeros((*shape, len(self._decays)), jnp.float32)

    def advance(self, state: jax.Array, starts: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        # A start draws from the stationary distribution: what a step with no memory does.
        decays = jnp.where(starts, 0.0, self._decays)
        state = decays * state + jnp.sqrt(1.0 - decays**2) * jax.random.normal(key, state.shape)
        return state, self.scale * (state @ self._amplitudes)


def _relaxations(beta: float, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns ``(decays, amplitudes)`` of the AR(1) processes whose sum is `ColoredNoise`.

    Both are float32 arrays with one entry per process: the decay per step, and the standard deviation. The variances of
    the processes sum to 1.

    With the decay d and unit innovations an AR(1) process has the spectrum ``1 / d / (c ** 2 + w ** 2)`` over
    ``w = 2 * sin(pi * f)``, with the corner ``c ** 2 = (1 - d) ** 2 / d``. For corners in equal ratios, weights of
    ``c ** (2 - beta)`` add up to ``w ** -beta`` between the first and the last one.
    """
    first = math.pi / (2 * horizon)
    corners = first * 4.0 ** np.arange(math.ceil(math.log(2 / first, 4)) + 1)
    half = 1 + corners**2 / 2
    decays = half - np.sqrt(half**2 - 1)
    variances = decays * corners ** (2 - beta) / (1 - decays**2)
    return decays.astype(np.float32), np.sqrt(variances / variances.sum()).astype(np.float32)
