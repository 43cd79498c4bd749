"""Adapter from JAX environments to gymnasium: the same dynamics serve rollouts on the device and Python code that steps
a `gymnasium.Env`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import jax
import numpy as np
from gymnasium.spaces import Discrete

from jaxrl_stack.env.jax_env import JaxEnv, JaxStep
from jaxrl_stack.env.registry import get_env_creator, resolve_env
from jaxrl_stack.env.watching import frame_of
from jaxrl_stack.utils import spaces


class GymnasiumFromJax(gym.Env):
    """gymnasium environment that steps a `JaxEnv` on the CPU, with one jitted call per step.

    The trajectory equals the JAX environment's for the same keys: the observation that `reset` returns after the end
    of an episode is the one that the JAX environment's own reset drew in the step that ended it. So a rollout that was
    sampled on the device can be repeated here, step by step: see `replay`.

    Args:
        env: A `JaxEnv`, or another form of a JAX environment that ``config.environment(env)`` takes.
        env_config: Config for the environment.
        render_mode: "rgb_array" for frames, uint8 ``[H, W, 3]``: from `JaxEnv.render`, or drawings of the
            observations if that returns None.

    Raises:
        ValueError: `env` is an environment of the host, or for another `render_mode`.
    """

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, env: Any, env_config: Mapping[str, Any] | None = None, render_mode: str | None = None):
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"GymnasiumFromJax(render_mode={render_mode!r}): use None or 'rgb_array'.")
        self.jax_env, self._reset, self._step, self._last_state = _prepare(env, dict(env_config or {}))
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "render_fps": self.jax_env.render_fps}
        self.observation_space = self.jax_env.observation_space
        self.action_space = self.jax_env.action_space
        self._action_dtypes = spaces.dtype_of(self.action_space)
        self._device = jax.local_devices(backend="cpu")[0]
        # Arrays on the CPU take every computation there.
        self._params = jax.device_put(self.jax_env.params, self._device)
        self._key: jax.Array | None = None
        self._state: Any = None
        self._next_episode: tuple[Any, Any] | None = None
        self._first_obs: Any = None
        self._outcome: JaxStep | None = None
        self._replayed: list[jax.Array] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode.

        Args:
            seed: The JAX key is ``jax.random.key(seed)``. None: continues with the present keys, at first with one from
                `np_random`.
            options: Not used.
        """
        super().reset(seed=seed)
        if seed is not None or self._key is None:
            number = int(self.np_random.integers(2**31)) if seed is None else seed
            self._key = self._on_cpu(jax.random.key(number))
            self._next_episode = self._replayed = None
        episode = self._next_episode
        if episode is None:
            self._key, key = _two_keys(self._key)
            episode = self._reset(key, self._params)
        self._next_episode = None
        obs, self._state = episode
        self._first_obs, self._outcome = obs, None
        return _to_space(self.observation_space, jax.device_get(obs)), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._replayed is None:
            self._key, key = _two_keys(self._key)
        elif self._replayed:
            key = self._replayed.pop(0)
        else:
            raise RuntimeError(
                f"{self.jax_env.name}: step() needs a PRNG key, but replay() got fewer step_keys than the replay has "
                "steps. Give replay() one key per step, or call reset(seed=...), which ends the replay."
            )
        action = jax.tree.map(lambda part, dtype: np.asarray(part, dtype), action, self._action_dtypes)
        step = self._step(key, self._state, action, self._params)
        # For `render`, the arguments, too: in the step that ends an episode the state is the next one's.
        self._before, self._used_key, self._used_action, self._outcome = self._state, key, action, step
        self._state = step.state
        final_obs, reward, terminated, truncated, info = jax.device_get(
            (step.final_obs, step.reward, step.terminated, step.truncated, step.info)
        )
        if terminated or truncated:
            self._next_episode = (step.obs, step.state)
        obs = _to_space(self.observation_space, final_obs)
        return obs, float(reward), bool(terminated), bool(truncated), info

    def render(self) -> np.ndarray | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Returns the frame after the last `reset` or `step`; None without a `render_mode`.

        Raises:
            RuntimeError: `reset` was not called.
            ValueError: Observations that cannot be drawn, of an environment that gives no frames.
        """
        if self.render_mode is None:
            return None
        if self._state is None:
            raise RuntimeError(f"{self.jax_env.name}: call reset() before render().")
        state, obs = self._state, self._first_obs
        if self._outcome is not None:
            obs = self._outcome.final_obs
        if self._next_episode is not None:
            state = self._last_state(self._used_key, self._before, self._used_action, self._params)
        return frame_of(self.jax_env, *jax.device_get((state, obs)))

    def replay(self, reset_key: jax.Array, step_keys: jax.Array) -> None:
        """Sets the PRNG keys for the next `reset` and the following steps, so that these calls repeat a recorded
        episode.

        Without `replay`, the environment derives the keys from the seed of `reset`.

        The next `reset` (without a seed) calls the JAX environment's ``reset(reset_key, ...)``, step t its
        ``step(step_keys[t], ...)``; a `reset` after the end of an episode uses none, as on the device. A `reset` with
        a seed ends the replay.

        Args:
            reset_key: PRNG key.
            step_keys: PRNG keys ``[T]``, for T steps.
        """
        self._next_episode = self._reset(self._on_cpu(reset_key), self._params)
        self._key = self._on_cpu(reset_key)
        self._replayed = list(self._on_cpu(step_keys))

    def _on_cpu(self, array: jax.Array) -> jax.Array:
        return jax.device_put(array, self._device)


def _prepare(env: Any, config: dict[str, Any]) -> tuple[JaxEnv, Callable, Callable, Callable]:
    """Creates the JAX environment for the gymnasium adapter, and jits the environment's methods.

    Returns ``(environment, reset, step, last_state)``. Later calls with equal, hashable arguments return the same
    objects.
    """
    # With their types: 1, 1.0 and True are equal.
    items = tuple((name, value, type(value)) for name, value in config.items())
    # A name may be registered again.
    creator = get_env_creator(env) if isinstance(env, str) else None
    try:
        hash((env, items))
    except TypeError:
        return _compiled.__wrapped__(env, items, creator)
    return _compiled(env, items, creator)


@functools.lru_cache(maxsize=32)
def _compiled(
    env: Any, items: tuple[tuple[str, Any, type], ...], creator: Any
) -> tuple[JaxEnv, Callable, Callable, Callable]:
    del creator  # part of the key only
    resolved = resolve_env(env, {name: value for name, value, _ in items})
    if not resolved.is_jax:
        raise ValueError(
            f"GymnasiumFromJax({env!r}): this is a host environment already. Give a JAX environment: 'gymnax/<id>', "
            "or a JaxEnv or gymnax environment (class or instance)."
        )
    jax_env: JaxEnv = resolved.make()
    return jax_env, jax.jit(jax_env.reset), jax.jit(jax_env.step), jax.jit(jax_env.last_state)


@jax.jit
def _two_keys(key: Any) -> tuple[jax.Array, ...]:
    return tuple(jax.random.split(key))


def _to_space(space: gym.Space, value: Any) -> Any:
    """Converts an action, observation or other value from JAX's 32-bit dtypes to the dtypes of a gymnasium space."""

    def converted(part: gym.Space, value: Any) -> Any:
        return part.dtype.type(value) if isinstance(part, Discrete) else np.array(value, part.dtype)

    return spaces.map_parts(converted, space, value)


__all__ = ["GymnasiumFromJax"]
