"""Facts that JaxMARL's environments do not declare: tables of time limits and of agents that may end early, and a
function that corrects the declared observation spaces.
"""

# pyright: reportMissingImports=false
# The suite need not be installed where this is checked.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import jax
import numpy as np
from jaxmarl.environments.overcooked import overcooked_layouts
from jaxmarl.environments.smax import SMAX, map_name_to_scenario
from jaxmarl.registration import make, registered_envs

from jaxrl_stack.env.suites.suite_env import arguments_of, masked_space


def _max_steps(env: Any) -> int:
    return env.max_steps


def _one_more(env: Any) -> int:
    # These ask before they count.
    return env.max_steps + 1


TRUNCATES_AT: dict[str, Callable[[Any], int]] = {
    **{name: _one_more for name in registered_envs if name.startswith("MPE_")},
    "SMAX": _one_more,
    "HeuristicEnemySMAX": _one_more,
    "coin_game": lambda env: env.num_inner_steps * env.num_outer_steps,
    "jaxnav": _max_steps,
    "overcooked": _max_steps,
    "overcooked_v2": _max_steps,
    "switch_riddle": _max_steps,
}
"""Id -> function that returns the number of the step in which the suite's environment truncates an episode. The
environment's `dones` do not show truncation."""
WITHOUT_TIME_LIMIT = ("hanabi",)
"""Ids of environments that never truncate episodes."""
ENDS_EARLY: dict[str, Callable[[Any], bool]] = {
    "SMAX": lambda env: True,
    "HeuristicEnemySMAX": lambda env: True,
    "jaxnav": lambda env: env.evaporating,
}
"""Id -> function that returns whether agents of the suite's environment may end before the others."""
LEGAL_ACTIONS = {"SMAX": "get_avail_actions", "HeuristicEnemySMAX": "get_avail_actions", "hanabi": "get_legal_moves"}
"""Id -> name of the method that returns the agents' legal actions. (jaxnav is left out: its method counts the parts of
a continuous action.)"""
CHEAP_RESETS = ("MPE_", "coin_game", "switch_riddle")
"""Prefixes of the ids of environments whose reset costs no more than a step."""


def settings_of(env_id: str) -> list[str]:
    """Returns the names of the constructor arguments of an environment's JaxMARL class; for "HeuristicEnemySMAX", also
    the names of SMAX's arguments.
    """
    names = arguments_of(type(make(env_id)).__init__)
    return names + arguments_of(SMAX.__init__) if env_id == "HeuristicEnemySMAX" else names


def with_objects(name: str, env_id: str, config: dict[str, Any]) -> dict[str, Any]:
    """Replaces the name of a scenario or layout in the environment's settings by the JaxMARL object with this name.

    Raises:
        ValueError: JaxMARL has no scenario or layout of that name.
    """
    key, known = {
        "SMAX": ("scenario", map_name_to_scenario),
        "HeuristicEnemySMAX": ("scenario", map_name_to_scenario),
        "overcooked": ("layout", overcooked_layouts.__getitem__),
    }.get(env_id, ("", str))
    if not isinstance(config.get(key), str):
        return config
    try:
        return {**config, key: known(config[key])}
    except KeyError:
        raise ValueError(
            f"env_config[{key!r}]={config[key]!r}: {name} has no {key} of that name. Use a {key} that JaxMARL "
            "defines (scenarios: '3m', ...; layouts: 'cramped_room', ...)."
        ) from None


def observation_spaces(env: Any, legal: Callable[[Any], Any] | None) -> dict[Any, gym.Space]:
    """Returns the observation spaces by agent: the declared spaces, corrected to the shapes that `reset` returns.

    Args:
        env: The suite's environment.
        legal: Function from the environment's state to the action masks by agent; None without masks.
    """
    seen, state = jax.eval_shape(env.reset, jax.eval_shape(lambda: jax.random.PRNGKey(0)))
    spaces = {}
    for agent in env.agents:
        # That of some environments takes no agent.
        declared = env.observation_space(*[agent] * bool(arguments_of(env.observation_space)))
        spaces[agent] = gymnasium_space(declared, seen[agent].shape)
        if legal is not None:
            spaces[agent] = masked_space(spaces[agent], jax.eval_shape(legal, state)[agent].shape)
    return spaces


def gymnasium_space(space: Any, shape: tuple[int, ...] | None = None) -> gym.Space:
    """Converts a JaxMARL space to a gymnasium space; `shape` replaces the shape of a Box.

    Raises:
        TypeError: The space is not supported.
    """
    match type(space).__name__:
        case "Discrete":
            return gym.spaces.Discrete(int(space.n))
        case "MultiDiscrete":
            return gym.spaces.MultiDiscrete(np.asarray(space.num_categories))
        case "Box":
            dtype = np.dtype(space.dtype)
            shape = tuple(space.shape) if shape is None else shape
            low, high = (np.broadcast_to(np.asarray(bound, dtype), shape) for bound in (space.low, space.high))
            return gym.spaces.Box(low, high, shape, dtype.type)
    raise TypeError(f"The space {space!r} of JaxMARL is not supported. Choose another environment.")
