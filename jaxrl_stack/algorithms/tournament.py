"""Games between trained policies, in which each pair of players also swaps seats (agents): `run_tournament`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl_stack.algorithms.games import RANDOM, GameTable, Player, code_of_env, game_config, load_player
from jaxrl_stack.runs.ratings import GameResults
from jaxrl_stack.utils.streams import Stream, named, stream_key

_WHERE = "run_tournament"


def run_tournament(
    players: Mapping[str, Player],
    env: Any = None,
    *,
    env_config: Mapping[str, Any] | None = None,
    games: int = 200,
    max_steps: int = 1000,
    seed: int = 0,
    explore: bool = True,
) -> GameResults:
    """Plays games between all pairs of players. In half of the games, the players have swapped seats (agents of the
    game).

    ::

        results = run_tournament(
            {"early": "results/run/checkpoint_000010", "late": "results/run/checkpoint_000100", "random": "random"},
            games=200,
        )
        print(results)

    A player wins a game with a higher return than the other player; equal returns are a draw.

    Args:
        players: Name -> checkpoint of an Algorithm or Policy, a `Policy`, an `Algorithm` or ``"random"``. An algorithm
            with several modules plays with the only one that is trained; pass ``algo.get_policy("main")`` for another.
        env: A multi-agent JAX environment of two agents with equal spaces, such as ``"pgx_multi/connect_four"``; None
            for the environment of the first algorithm. Checkpoints may name a class of yours that is passed here.
            Players see observations as the first algorithm with this environment preprocesses them.
        env_config: Settings of the environment. None takes those that the first algorithm with this environment has,
            if any.
        games: Games of each pair; an even number.
        max_steps: Environment steps after which a game counts as a draw.
        seed: Seed of environments and actions. The same call plays the same games.
        explore: True draws actions from the policies, False takes the best ones. Greedy policies repeat the same game
            if the environment has no randomness.

    Returns:
        Wins and draws of all pairs, with ``table()``, ``elo()``, ``plot()`` and ``to_html()``.

    Raises:
        TypeError: If a player is none of these.
        ValueError: If there are fewer than two players, `games` is odd, or a player does not fit the environment.
    """
    if not isinstance(players, Mapping) or len(players) < 2:
        raise ValueError(
            f"{_WHERE}(players={players!r}): must be a dict of at least two players: "
            "{'trained': 'results/run/checkpoint_000100', 'random': 'random'}."
        )
    if isinstance(games, bool) or not isinstance(games, int) or games < 2 or games % 2:
        raise ValueError(
            f"{_WHERE}(games={games!r}): must be a positive even number, such as games=200. The players swap seats "
            "in half of the games."
        )
    if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
        raise ValueError(f"{_WHERE}(max_steps={max_steps!r}): must be a positive integer.")
    code = code_of_env(env)
    loaded = {name: load_player(_called(name), player, allow=code) for name, player in players.items()}
    config = game_config(env, env_config, [player.config for player in loaded.values()])
    if config is None:
        raise ValueError(
            f"{_WHERE}(env=None) uses the environment of the first algorithm, but no player is an algorithm with an "
            "environment. Pass env='pgx_multi/connect_four'."
        )
    table = GameTable.of(_WHERE, config, games, max_steps=max_steps, explore=explore, num_agents=2)
    policies = {name: player.policy for name, player in loaded.items()}
    for name, policy in policies.items():
        table.check(_called(name), policy)
    names, size = list(players), len(players)
    wins, draws = np.zeros((size, size), int), np.zeros((size, size), int)
    key = named(stream_key(seed, Stream.EVALUATION), "tournament")
    for number, (i, j) in enumerate(itertools.combinations(range(size), 2)):
        won, lost = table.play(policies[names[i]], policies[names[j]], jax.random.fold_in(key, number))
        wins[i, j], wins[j, i] = won, lost
        draws[i, j] = draws[j, i] = games - won - lost
    return GameResults(tuple(names), wins, draws)


def _called(name: str) -> str:
    """Description of a player for error messages."""
    return f"{_WHERE}: player {name!r}"


def names_of_paths(paths: list[str]) -> dict[str, str]:
    """Derives short, different names of checkpoints from their paths.

    Each name consists of the last parts of the path, as few as are needed for all names to differ.

    Args:
        paths: Checkpoints or ``"random"``.

    Returns:
        Name -> path.
    """
    parts = [Path(path).absolute().parts if path != RANDOM else (RANDOM,) for path in paths]
    for length in range(1, 1 + max(map(len, parts))):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(paths):
            return dict(zip(names, paths, strict=True))
    raise ValueError(f"{paths}: two players have the same path. Leave one of them out.")
