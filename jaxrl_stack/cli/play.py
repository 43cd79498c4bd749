"""``jaxrl play``: a person plays in the terminal, against a policy or with its advice."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxrl_stack.cli.common import CliError, wrong_input
from jaxrl_stack.cli.tournament import policy_of_checkpoint
from jaxrl_stack.utils.action_masks import OBSERVATIONS, mask_key_of

_MARKS = "XO" + "abcdefghijklmnopqrstuvwyz"
"""Characters of the channels of a board."""


def run(arguments: argparse.Namespace, ask: Callable[[str], str] = input) -> int:
    """Plays one episode, or one game against the policy.

    Args:
        arguments: The options.
        ask: Asks the person for an action.

    Returns:
        0 at the end of the episode, 130 if the person left.

    Raises:
        CliError: If the environment has no discrete actions, or an option does not fit it.
    """
    from gymnasium.spaces import Discrete

    from jaxrl_stack.env.multi_agent_jax_env import MultiAgentJaxEnv
    from jaxrl_stack.env.registry import resolve_env

    policy, config = policy_of_checkpoint(arguments.checkpoint, arguments)
    where = f"CHECKPOINT {arguments.checkpoint}"
    if config is None and arguments.env is None:
        raise CliError(
            f"{where}: the checkpoint of a policy does not name its game. Add it: --env pgx_multi/connect_four."
        )
    name, env_config = (arguments.env, None) if config is None else (arguments.env or config.env, config.env_config)
    if not isinstance(policy.action_space, Discrete):
        raise CliError(
            f"{where}: its actions are {policy.action_space}, and a person can choose only Discrete actions. Name a "
            "checkpoint with Discrete actions."
        )
    with wrong_input(where):
        resolved = resolve_env(name, env_config)
        env = resolved.make() if resolved.is_jax else None
    try:
        if isinstance(env, MultiAgentJaxEnv):
            return _play_game(policy, env, arguments, ask)
        if arguments.seat is not None:
            raise CliError(f"--seat {arguments.seat}: {name} has one agent. Leave the option out.")
        return _play_alone(policy, env if env is not None else name, env_config, arguments, ask)
    except (EOFError, KeyboardInterrupt):
        print("\nLeft.")
        return 130


def _play_game(policy: Any, env: Any, arguments: argparse.Namespace, ask: Callable[[str], str]) -> int:
    """Plays a game of two agents: the person has one seat, the policy the other one."""
    import jax

    from jaxrl_stack.utils.streams import Stream, named, stream_key

    agents = env.possible_agents
    if len(agents) != 2:
        raise CliError(
            f"CHECKPOINT {arguments.checkpoint}: its game {env.name} has {len(agents)} agents, and `jaxrl play` needs "
            "two. Name a checkpoint of a game for two."
        )
    key = named(stream_key(arguments.seed, Stream.EVALUATION), "play")
    person, other = reversed(agents) if arguments.seat == "second" else agents
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    obs, game = reset(jax.random.fold_in(key, 0), env.params)
    acts, state, reward, returns = env.who_acts(game), policy.initial_state(1), 0.0, dict.fromkeys(agents, 0.0)
    print(f"You are {person}, the policy is {other}. X is whoever is to move. Press Enter or type q to quit.")
    number = 0
    while True:
        number += 1
        actions = dict.fromkeys(agents, 0)
        if acts[other]:
            batch = jax.tree.map(lambda x: np.asarray(x)[None], obs[other])
            action, state, _ = policy.compute_actions(
                batch, state, prev_rewards=[reward], explore=arguments.explore, key=jax.random.fold_in(key, 2 * number)
            )
            actions[other], reward = int(action[0]), 0.0
            print(f"The policy plays {actions[other]}.")
        if acts[person]:
            seen, legal = _seen(obs[person], policy), _legal(obs[person], policy)
            print(f"\n{board_text(seen, legal)}")
            actions[person] = _asked(ask, legal, None)
        done = step(jax.random.fold_in(key, 2 * number + 1), game, actions, env.params)
        for agent in agents:
            returns[agent] += float(done.reward[agent])
        reward += float(done.reward[other])
        if done.terminated or done.truncated:
            print(f"\n{board_text(_seen(done.final_obs[person], policy), [])}")
            difference = returns[person] - returns[other]
            print("You win." if difference > 0 else "The policy wins." if difference < 0 else "A draw.")
            return 0
        obs, game, acts = done.obs, done.state, done.acts


def _play_alone(policy: Any, env: Any, env_config: Any, arguments: argparse.Namespace, ask: Any) -> int:
    """Plays an episode of one agent: the person acts, and may take the policy's action."""
    import gymnasium as gym

    from jaxrl_stack.env.host_packages import render_modes
    from jaxrl_stack.env.jax_env import JaxEnv
    from jaxrl_stack.env.jax_to_gymnasium import GymnasiumFromJax
    from jaxrl_stack.env.registry import resolve_env

    made: gym.Env
    if isinstance(env, JaxEnv):
        made = GymnasiumFromJax(env)
    elif isinstance(env, str) and env in gym.registry:
        mode = "ansi" if "ansi" in render_modes(gym.spec(env)) else None
        made = gym.make(env, render_mode=mode, **(env_config or {}))
    else:
        made = resolve_env(env, env_config).make()
    obs, _ = made.reset(seed=arguments.seed)
    state, reward, total = None, 0.0, 0.0
    print("Choose an action, or press Enter for the policy's. Type q to quit.")
    number = 0
    while True:
        number += 1
        advice, state, _ = policy.compute_single_action(obs, state, prev_reward=reward, explore=arguments.explore)
        legal = _legal(obs, policy)
        print(f"\n{made.render() if made.render_mode == 'ansi' else board_text(_seen(obs, policy), legal)}")
        action = _asked(ask, legal, int(advice))
        state = _with_action(state, action - int(advice))
        obs, reward, terminated, truncated, _ = made.step(type(advice)(action))
        reward = float(reward)
        total += reward
        if terminated or truncated:
            print(f"\nThe end: return {total:.6g} in {number} steps.")
            made.close()
            return 0


def _with_action(state: Any, difference: int) -> Any:
    """Returns a copy of a policy's state whose previous action is the action that the person took, instead of the
    policy's action.

    Args:
        state: State after the policy's action, a dataclass.
        difference: The action that was taken minus the policy's.
    """
    if not difference or getattr(state, "prev_actions", None) is None:
        return state
    return dataclasses.replace(state, prev_actions=state.prev_actions + difference)


def _asked(ask: Callable[[str], str], legal: Sequence[int], advice: int | None) -> int:
    """Asks the person at the terminal for an action, until the answer is a legal action.

    Raises:
        EOFError: If the person leaves.
    """
    shown = ", ".join(map(str, legal)) if len(legal) <= 20 else f"{legal[0]} to {legal[-1]}, {len(legal)} legal ones"
    while True:
        text = ask(f"Action ({shown}{'' if advice is None else f'; policy: {advice}'}): ").strip()
        if text == "q" or (not text and advice is None):
            raise EOFError
        if not text and advice is not None:
            return advice
        if text.removeprefix("-").isdecimal() and int(text) in legal:
            return int(text)
        print(f"{text!r} is not a legal action.")


def _seen(obs: Any, policy: Any) -> np.ndarray:
    """Returns the observation without its action mask."""
    return np.asarray(obs if _mask_key(policy) is None else obs[OBSERVATIONS])


def _legal(obs: Any, policy: Any) -> list[int]:
    """Returns the legal actions; all actions without an action mask."""
    space, key = policy.action_space, _mask_key(policy)
    if key is not None:
        return (np.flatnonzero(np.asarray(obs[key]) > 0) + int(space.start)).tolist()
    return list(range(int(space.start), int(space.start + space.n)))


def _mask_key(policy: Any) -> str | None:
    """Observation key of the action mask; None without a mask."""
    return mask_key_of(policy.observation_space, policy.action_space)


def board_text(obs: np.ndarray, legal: Sequence[int]) -> str:
    """Formats an observation as text, for a person who plays: boards with one character per cell, other arrays as
    numbers.

    Args:
        obs: A board ``[H, W, C]`` of zeros and ones has a character for each channel; cells of legal actions show the
            action if each cell is an action. A matrix has a number for each cell, and other arrays are numbers.
        legal: Legal actions.
    """
    is_board = obs.ndim == 3 and obs.shape[-1] <= len(_MARKS) and bool(np.isin(obs, (0, 1)).all())
    if not is_board:
        return np.array2string(obs, precision=3, suppress_small=True, threshold=1000)
    height, width, _ = obs.shape
    cells_are_actions = len(legal) > 0 and max(legal) <= height * width and height == width
    lines = []
    for row in range(height):
        texts = []
        for column in range(width):
            marks = np.flatnonzero(obs[row, column])
            number = row * width + column
            free = str(number) if cells_are_actions and number in legal else "."
            texts.append(f"{_MARKS[marks[0]] if len(marks) else free:>2}")
        lines.append(" ".join(texts))
    return "\n".join(lines)
