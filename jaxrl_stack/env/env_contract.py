"""What a host environment has to offer and return, checked on its first calls: errors that name it and the remedy."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from jaxrl_stack.utils import spaces
from jaxrl_stack.utils.notices import notice_once


def check_spaces(env: gym.Env | gym.vector.VectorEnv, name: str) -> None:
    """Make sure that an environment has spaces that compiled code can work with.

    Args:
        env: A `gymnasium.Env`, or a vector of them.
        name: What to call it in messages.

    Raises:
        TypeError: A space or a method is missing, or a space is none of the supported ones.
        ValueError: A space holds no numbers, or its bounds make no sense.
    """
    prefix = "single_" if isinstance(env, gym.vector.VectorEnv) else ""
    for kind in ("observation_space", "action_space"):
        space = getattr(env, prefix + kind, None)
        if space is None:
            raise TypeError(
                f"environment({name!r}): {type(env).__name__} has no {prefix}{kind}. Set self.{prefix}{kind} to a "
                "gymnasium space in its __init__."
            )
        spaces.check_space(space, f"environment({name!r}): its {kind}")
    for base in (gym.Env, gym.vector.VectorEnv):
        # They are no abstract methods there.
        missing = [method for method in ("reset", "step") if getattr(type(env), method, None) is getattr(base, method)]
        if missing:
            raise TypeError(
                f"environment({name!r}): {type(env).__name__} does not define {', '.join(missing)}. "
                "Write what is missing."
            )


def check_reset(outcome: Any, space: gym.Space, name: str) -> None:
    """Check what ``reset`` of one environment returned.

    Args:
        outcome: Should be ``(obs, info)``.
        space: The observation space.
        name: What to call the environment in messages.

    Raises:
        ValueError: Another number of values, an observation that does not fit the space, or an info that is no dict.
    """
    obs, info = _parts(outcome, ("obs", "info"), "reset", name)
    _check_observation(obs, info, space, "reset", name)


def check_step(outcome: Any, space: gym.Space, name: str) -> None:
    """Check what ``step`` of one environment returned.

    Args:
        outcome: Should be ``(obs, reward, terminated, truncated, info)``.
        space: The observation space.
        name: What to call the environment in messages.

    Raises:
        ValueError: As `check_reset`; or a reward that is no number, or flags that are no bools.
    """
    names = ("obs", "reward", "terminated", "truncated", "info")
    obs, reward, terminated, truncated, info = _parts(outcome, names, "step", name)
    _check_observation(obs, info, space, "step", name)
    if np.shape(reward) != () or np.asarray(reward).dtype.kind not in "biuf":
        raise ValueError(f"environment({name!r}): step returned the reward {reward!r}. Return one number, no array.")
    for flag, value in (("terminated", terminated), ("truncated", truncated)):
        if np.shape(value) != () or np.asarray(value).dtype.kind not in "biu":
            raise ValueError(f"environment({name!r}): step returned {flag}={value!r}. Return True or False.")


def _parts(outcome: Any, names: tuple[str, ...], method: str, name: str) -> tuple[Any, ...]:
    if not isinstance(outcome, tuple) or len(outcome) != len(names):
        given = f"{len(outcome)} values" if isinstance(outcome, tuple) else f"a {type(outcome).__name__}"
        raise ValueError(
            f"environment({name!r}): {method} returned {given}. Return the {len(names)} values ({', '.join(names)}), "
            "as gymnasium's environments do."
        )
    return outcome


def _check_values(space: gym.Space, obs: Any, what: str) -> None:
    """Refuse choices that do not exist, whose one-hot encoding is all zeros; a notice is enough for a Box."""
    if isinstance(space, gym.spaces.Dict):
        for key, part in space.items():
            _check_values(part, obs[key], f"{what} (part {key!r})")
    elif isinstance(space, gym.spaces.Tuple):
        for index, part in enumerate(space):
            _check_values(part, obs[index], f"{what} (part {index})")
    elif isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
        value, first = np.asarray(obs), np.asarray(space.start)
        count = space.n if isinstance(space, gym.spaces.Discrete) else space.nvec
        if (value < first).any() or (value >= first + count).any():
            raise ValueError(f"{what} is {value}, outside of {space}. Give the space as many choices as there are.")
    elif isinstance(space, gym.spaces.Box):
        value = np.asarray(obs, space.dtype)
        if (value < space.low).any() or (value > space.high).any():
            notice_once(
                f"{what} is outside of its space {space}: give observation_space the bounds that hold, -inf and inf if "
                "none do."
            )


def _check_observation(obs: Any, info: Any, space: gym.Space, method: str, name: str) -> None:
    what = f"environment({name!r}): the observation of {method}"
    if isinstance(obs, tuple) and not isinstance(space, gym.spaces.Tuple):
        raise ValueError(f"{what} is a tuple of {len(obs)}, and its space is {space}. Return the observation alone.")
    spaces.validate_batch(space, obs, 0, what)
    _check_values(space, obs, what)
    if not isinstance(info, dict):
        raise ValueError(f"environment({name!r}): {method} returned the info {info!r}. Return a dict, {{}} if empty.")
