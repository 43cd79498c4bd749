"""``jaxrl play``: a person plays in the terminal, against a policy or with its advice."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Discrete

from jaxrl_stack.cli.common import CliError, wrong_input
from jaxrl_stack.cli.experiment import load_checkpoint_player
from jaxrl_stack.utils.action_masks import OBSERVATIONS, mask_key_of
from jaxrl_stack.utils.spaces.space_utils import unbatch

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.games import GameTable
    from jaxrl_stack.policy.policy import Policy

_MARKS = "XO" + "abcdefghijklmnopqrstuvwyz"
"""Characters of the channels of a board."""


def run(arguments: argparse.Namespace, ask: Callable[[str], str] = input) -> int:
    """Lets a person at the terminal play: one game against the policy if the environment has two agents, or one episode
    if the environment has one agent.

    Args:
        arguments: The options.
        ask: Asks the person for an action.

    Returns:
        0 at the end of the episode, 130 if the person left.

    Raises:
        CliError: If the environment has no discrete actions, or an option does not fit it.
    """
    from jaxrl_stack.algorithms.games import GameTable, game_config
    from jaxrl_stack.env.multi_agent_jax_env import MultiAgentJaxEnv

    policy, config = load_checkpoint_player(arguments.checkpoint, arguments)
    assert policy is not None
    where = f"CHECKPOINT {arguments.checkpoint}"
    game = game_config(arguments.env, None, [config])
    if game is None:
        raise CliError(f"{where}: the checkpoint does not name its game. Add it: --env pgx_multi/connect_four.")
    if not isinstance(policy.action_space, Discrete):
        raise CliError(
            f"{where}: the policy has the action space {policy.action_space}, but a person can choose only Discrete "
            "actions. Name a checkpoint with Discrete actions."
        )
    with wrong_input(where):
        resolved = game._resolve_env()
        env = resolved.make() if resolved.is_jax else None
    try:
        if isinstance(env, MultiAgentJaxEnv):
            with wrong_input():
                table = GameTable.of(where, game, 1, made=env, explore=arguments.explore, num_agents=2)
                table.check(f"{where}: the policy", policy)
            return _play_game(policy, table, arguments, ask)
        if arguments.seat is not None:
            raise CliError(f"--seat {arguments.seat}: {game.env} has one agent. Leave the option out.")
        return _play_alone(policy, env if env is not None else game.env, game.env_config, arguments, ask)
    except (EOFError, KeyboardInterrupt):
        print("\nLeft.")
        return 130


def _play_game(policy: Policy, table: GameTable, arguments: argparse.Namespace, ask: Callable[[str], str]) -> int:
    """Plays a game between a person and the policy, and prints who wins.

    The game has two agents. The person plays the role `hero`, the policy plays `rival`. The option ``--seat`` chooses
    the person's agent in the game: the first or the second.
    """
    import jax.numpy as jnp

    from jaxrl_stack.utils.streams import Stream, named, stream_key

    hero, rival = table.env.possible_agents
    seat = int(arguments.seat == "second")
    person: Any = _Person(policy, ask)
    returns, final_obs = dict.fromkeys((hero, rival), 0.0), None
    print(
        f"You are {table.seats[seat]}, the policy is {table.seats[1 - seat]}. X marks the player to move. Press Enter "
        "or type q to quit."
    )
    key, seats = named(stream_key(arguments.seed, Stream.EVALUATION), "play"), jnp.full(1, seat, jnp.int32)
    for step in table.steps(person, policy, key, seats):
        if step.acts[rival][0]:
            print(f"The policy plays {step.actions[rival][0]}.")
        returns = {role: total + float(step.after.reward[role][0]) for role, total in returns.items()}
        (final_obs,) = unbatch(step.after.final_obs[hero])
    print(f"\n{_board(final_obs, [], policy)}")
    difference = returns[hero] - returns[rival]
    print("You win." if difference > 0 else "The policy wins." if difference < 0 else "A draw.")
    return 0


class _Person:
    """Player of one game that asks a person at the terminal for its actions.

    Args:
        policy: A policy with the person's spaces.
        ask: Asks the person for an action.
    """

    def __init__(self, policy: Policy, ask: Callable[[str], str]):
        self._policy, self._ask = policy, ask

    def initial_state(self, num_envs: int) -> tuple[()]:
        return ()

    def compute_actions(self, observations: Any, state: tuple[()], **kwargs: Any) -> tuple[Any, tuple[()], dict]:
        """Prints the observation, and asks the person at the terminal until the answer is a legal action. Returns
        ``(actions, state, {})``; `actions` contains only this action.

        Raises:
            EOFError: If the person leaves.
        """
        (obs,) = unbatch(observations)
        legal = _legal(obs, self._policy)
        print(f"\n{_board(obs, legal, self._policy)}")
        return np.array([_asked(self._ask, legal, None)]), state, {}

    def where_rows(self, acts: Any, after: tuple[()], before: tuple[()]) -> tuple[()]:
        return after


def _play_alone(policy: Policy, env: Any, env_config: Any, arguments: argparse.Namespace, ask: Any) -> int:
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
        print(f"\n{made.render() if made.render_mode == 'ansi' else _board(obs, legal, policy)}")
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
    """Returns a policy's state in which the previous action is the person's action instead of the policy's.

    The result is a copy, or `state` itself if both actions are equal or if the state contains no previous action.

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


def _legal(obs: Any, policy: Policy) -> list[int]:
    """Returns the legal actions for an observation. If observations have no action mask, all actions are legal."""
    space, key = policy.action_space, _mask_key(policy)
    assert isinstance(space, Discrete)
    if key is not None:
        return (np.flatnonzero(np.asarray(obs[key]) > 0) + int(space.start)).tolist()
    return list(range(int(space.start), int(space.start + space.n)))


def _mask_key(policy: Policy) -> str | None:
    """Key of the action mask in the policy's observations; None if the observations have no action mask."""
    return mask_key_of(policy.observation_space, policy.action_space)


def _board(obs: Any, legal: Sequence[int], policy: Policy) -> str:
    """Formats an observation without its action mask; see `board_text`."""
    assert isinstance(policy.action_space, Discrete)
    return board_text(np.asarray(obs if _mask_key(policy) is None else obs[OBSERVATIONS]), legal, policy.action_space)


def board_text(obs: np.ndarray, legal: Sequence[int], actions: Discrete) -> str:
    """Formats an observation as text, for a person who plays: boards with one character per cell, other arrays as
    numbers.

    Args:
        obs: A board ``[H, W, C]`` of zeros and ones has a character for each channel; other arrays are numbers.
        legal: Legal actions. Free cells of the board show them, if each cell is an action.
        actions: Action space. The actions are the cells if it has ``H * W`` actions, or one more for a pass.
    """
    is_board = obs.ndim == 3 and obs.shape[-1] <= len(_MARKS) and bool(np.isin(obs, (0, 1)).all())
    if not is_board:
        return np.array2string(obs, precision=3, suppress_small=True, threshold=1000)
    height, width, _ = obs.shape
    cells_are_actions = actions.n in (height * width, height * width + 1)
    lines = []
    for row in range(height):
        texts = []
        for column in range(width):
            marks = np.flatnonzero(obs[row, column])
            number = int(actions.start) + row * width + column
            free = str(number) if cells_are_actions and number in legal else "."
            texts.append(f"{_MARKS[marks[0]] if len(marks) else free:>2}")
        lines.append(" ".join(texts))
    return "\n".join(lines)
