"""Test run of a JAX environment with random actions, which checks rewards and observations.

The test run checks that rewards and observations are finite, and, if ``env.has_own_bounds``, that observations are
within the bounds of the observation space.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import jax
import numpy as np

from jaxrl_stack.utils import spaces

if TYPE_CHECKING:
    from jaxrl_stack.env.jax_env import JaxEnv

_TOLERANCE = 1e-5
"""Of float bounds, relative to them: observations are rounded, and so are bounds."""


def check_steps(env: JaxEnv, num_steps: int) -> None:
    """Steps an environment with random actions. Checks that rewards and observations are finite, and, if
    ``env.has_own_bounds``, that observations are within the bounds of the observation space.

    Args:
        env: Environment that follows the contract of `JaxEnv`.
        num_steps: Number of steps of one environment.

    Raises:
        ValueError: A reward or an observation is not finite, or an observation is outside of the observation space.
    """

    def step(carry: Any, key: jax.Array) -> Any:
        state, params = carry
        step_key, action_key = jax.random.split(key)
        after = env.step(step_key, state, spaces.sample(action_key, env.action_space), params)
        return (after.state, params), (after.reward, after.obs, after.final_obs)

    @jax.jit
    def run(key: jax.Array, params: Any) -> Any:
        reset_key, key = jax.random.split(key)
        first, state = env.reset(reset_key, params)
        return first, jax.lax.scan(step, (state, params), jax.random.split(key, num_steps))[1]

    first, (rewards, obs, final_obs) = jax.device_get(run(jax.random.key(0), env.params))
    _check_observation(env, "reset's obs", first, "")
    for t in range(num_steps):
        when = f", in step {t} of {num_steps} with random actions"
        reward = jax.tree.map(lambda x, t=t: x[t], rewards)
        if not np.isfinite(jax.tree.leaves(reward)).all():
            raise ValueError(
                f"{env.name}: step's reward is {reward}{when}: it has to be a finite number. Look for divisions by 0, "
                "and for logarithms and roots of numbers <= 0."
            )
        for part, observations in (("step's final_obs", final_obs), ("step's obs", obs)):
            _check_observation(env, part, jax.tree.map(lambda x, t=t: x[t], observations), when)


def _check_observation(env: JaxEnv, part: str, observation: Any, when: str) -> None:
    def check(space: Any, value: Any) -> Any:
        array = np.asarray(value)
        refuse(np.isfinite(array), array, "it is not finite. Look for divisions by 0 and unbounded growth")
        if env.has_own_bounds:
            outside = f"it is outside of the observation_space {space}. Give the space the bounds that observations"
            refuse(_is_within(space, array), array, f"{outside} have (-inf and inf if unbounded), or clip them")

    def refuse(is_good: np.ndarray, array: np.ndarray, why: str) -> None:
        if not is_good.all():
            index = tuple(np.argwhere(~is_good)[0].tolist())
            where = f" at {list(index)}" if index else ""
            raise ValueError(f"{env.name}: {part} has the value {array[index]}{where}{when}: {why}.")

    spaces.map_parts(check, env.observation_space, observation)


def _is_within(space: gym.Space, value: np.ndarray) -> np.ndarray:
    """Returns a bool array: whether each number of an observation leaf is within the bounds of the leaf's space, with a
    small tolerance for floats.
    """
    if isinstance(space, gym.spaces.Box):
        low, high = space.low, space.high
    elif isinstance(space, gym.spaces.Discrete):
        low, high = np.asarray(space.start), np.asarray(space.start + space.n - 1)
    elif isinstance(space, gym.spaces.MultiDiscrete):
        low, high = space.start, space.start + space.nvec - 1
    else:  # MultiBinary
        low, high = np.zeros(()), np.ones(())
    if value.dtype.kind == "f":
        low, high = (np.asarray(bound, np.float64) for bound in (low, high))
        slack = [np.where(np.isfinite(bound), _TOLERANCE * (1.0 + np.abs(bound)), 0.0) for bound in (low, high)]
        low, high = low - slack[0], high + slack[1]
    return (value >= low) & (value <= high)
