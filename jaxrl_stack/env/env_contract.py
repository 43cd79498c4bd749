"""What a host environment has to offer and return, checked on its first calls: errors that name it and the remedy."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from jaxrl_stack.utils import spaces


def check_spaces(env: gym.Env | gym.vector.VectorEnv, name: str) -> None:
    """Make sure that an environment has spaces that compiled code can work with.

    Args:
        env: A `gymnasium.Env`, or a vector of them.
        name: What to call it in messages.

    Raises:
        TypeError: A space is missing, or none of the supported ones.
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
    if np.size(reward) != 1 or np.asarray(reward).dtype.kind not in "biuf":
        raise ValueError(f"environment({name!r}): step returned the reward {reward!r}. Return one number.")
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


def _check_observation(obs: Any, info: Any, space: gym.Space, method: str, name: str) -> None:
    spaces.validate_batch(space, obs, 0, f"environment({name!r}): the observation of {method}")
    if not isinstance(info, dict):
        raise ValueError(f"environment({name!r}): {method} returned the info {info!r}. Return a dict, {{}} if empty.")
