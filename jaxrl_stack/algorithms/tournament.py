"""Games between trained policies, each pair of players in both seats: `run_tournament`."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.checkpoints.checkpointable import get_checkpoint_info
from jaxrl_stack.checkpoints.names import METADATA_FILE
from jaxrl_stack.core.default_observations import sample_valid
from jaxrl_stack.env.multi_agent_jax_env import MultiAgentJaxEnv
from jaxrl_stack.env.registry import resolve_env
from jaxrl_stack.ops.masks import expand, where_rows
from jaxrl_stack.policy.policy import Policy
from jaxrl_stack.runs.ratings import GameResults
from jaxrl_stack.utils import spaces
from jaxrl_stack.utils.action_masks import mask_key_of
from jaxrl_stack.utils.streams import Stream, named, stream_key

_WHERE = "run_tournament"
RANDOM = "random"
"""A player that draws its actions uniformly from the legal ones."""

Player = str | os.PathLike[str] | Policy | Algorithm


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
    """Plays games between all pairs of players; in half of them, the players have swapped seats.

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
            for the environment of the first algorithm.
        env_config: Settings of `env`. Without `env`, the settings of the first algorithm are the default.
        games: Games of each pair; an even number.
        max_steps: Environment steps after which a game counts as a draw.
        seed: Seed of environments and actions. The same call plays the same games.
        explore: True draws actions from the policies, False takes the best ones. Greedy policies repeat the same game
            if the environment has no randomness.

    Returns:
        Wins and draws of all pairs, with ``table()``, ``elo()``, ``plot()`` and ``to_html()``.

    Raises:
        ValueError: If there are fewer than two players, `games` is odd, or a player does not fit the environment.
    """
    if not isinstance(players, Mapping) or len(players) < 2:
        raise ValueError(
            f"{_WHERE}(players={players!r}): must be a dict of at least two players: "
            "{'trained': 'results/run/checkpoint_000100', 'random': 'random'}."
        )
    if isinstance(games, bool) or not isinstance(games, int) or games < 2 or games % 2:
        raise ValueError(f"{_WHERE}(games={games!r}): must be an even number, half for each seat: games=200.")
    if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
        raise ValueError(f"{_WHERE}(max_steps={max_steps!r}): must be a positive integer.")
    loaded, found = {}, None
    for name, player in players.items():
        loaded[name], own = _loaded(name, player)
        found = own if found is None else found
    if env is None:
        if found is None:
            raise ValueError(
                f"{_WHERE}(env=None): no player is an algorithm, whose config would name the environment. Pass "
                "env='pgx_multi/connect_four'."
            )
        env, env_config = found[0], found[1] if env_config is None else env_config
    table = GameTable(_game(env, env_config), games, max_steps, explore)
    for name, policy in loaded.items():
        table.check(name, policy)
    names, size = list(players), len(players)
    wins, draws = np.zeros((size, size), int), np.zeros((size, size), int)
    key = named(stream_key(seed, Stream.EVALUATION), "tournament")
    for number, (i, j) in enumerate(itertools.combinations(range(size), 2)):
        won, lost = table.play(loaded[names[i]], loaded[names[j]], jax.random.fold_in(key, number))
        wins[i, j], wins[j, i] = won, lost
        draws[i, j] = draws[j, i] = games - won - lost
    return GameResults(tuple(names), wins, draws)


def _loaded(name: str, player: Player) -> tuple[Policy | None, tuple[Any, Mapping[str, Any]] | None]:
    """Loads a player: ``(policy, (env, env_config) of its algorithm)``. The policy is None for the random player, the
    environment if no algorithm is known.

    Raises:
        ValueError: If there is no single module to play with.
    """
    if isinstance(player, Algorithm):
        return policy_of(name, player), (player.config.env, player.config.env_config)
    if not isinstance(player, str | os.PathLike):
        return player, None
    if player == RANDOM:
        return None, None
    if is_policy(player):
        return Policy.from_checkpoint(player), None
    algorithm = Algorithm.from_checkpoint(player)
    try:
        return policy_of(name, algorithm), (algorithm.config.env, algorithm.config.env_config)
    finally:
        algorithm.stop()


def is_policy(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is the checkpoint of a `Policy`, not of an `Algorithm`."""
    return Path(path, METADATA_FILE).is_file() and get_checkpoint_info(path)["type"] == Policy.__name__


def policy_of(name: str, algorithm: Algorithm) -> Policy:
    """Returns the policy of the only module that is trained.

    Raises:
        ValueError: If several are trained, or it is not known which ones; the message names the player `name`.
    """
    acting = list(algorithm.driver.module_ids)
    to_train = algorithm.config.policies_to_train
    trained = [mid for mid in acting if to_train is None or (not callable(to_train) and mid in to_train)]
    if len(trained) != 1:
        raise ValueError(
            f"{_WHERE}: player {name!r} has the modules {acting}. Choose one: "
            f"{{{name!r}: algorithm.get_policy({acting[0]!r})}}."
        )
    return algorithm.get_policy(trained[0])


def _game(env: Any, env_config: Mapping[str, Any] | None) -> MultiAgentJaxEnv:
    """Returns the environment of a tournament; creates it if `env` is not a `MultiAgentJaxEnv`.

    Raises:
        ValueError: If it is no JAX environment of two agents with equal spaces.
    """
    made = env if isinstance(env, MultiAgentJaxEnv) else resolve_env(env, env_config).make()
    if not isinstance(made, MultiAgentJaxEnv) or len(made.possible_agents) != 2:
        raise ValueError(
            f"{_WHERE}(env={env!r}): must be a JAX environment of two agents, such as 'pgx_multi/connect_four'."
        )
    first, second = made.possible_agents
    for what, of_agents in (("observation", made.observation_spaces), ("action", made.action_spaces)):
        if of_agents[first] != of_agents[second]:
            raise ValueError(
                f"{_WHERE}(env={env!r}): the {what} spaces of {first!r} and {second!r} differ, so that policies cannot "
                "swap seats. Use an environment whose agents have equal spaces."
            )
    return made


@dataclasses.dataclass(frozen=True, eq=False)
class GameTable:
    """Plays games of two policies side by side, in one batch.

    Args:
        env: The game.
        games: Number of games ``B``. In the first half, the first policy is the first agent.
        max_steps: Environment steps after which a game counts as a draw.
        explore: Whether actions are drawn from the policies.
    """

    env: MultiAgentJaxEnv
    games: int
    max_steps: int
    explore: bool

    def check(self, name: str, policy: Policy | None) -> None:
        """Raises if a policy has other spaces than the game.

        Raises:
            ValueError: Names the player.
        """
        first = self.env.possible_agents[0]
        expected = self.env.observation_spaces[first], self.env.action_spaces[first]
        if policy is not None and (policy.observation_space, policy.action_space) != expected:
            raise ValueError(
                f"{_WHERE}: player {name!r} has the spaces {policy.observation_space} and {policy.action_space}, but "
                f"{self.env.name} has {expected[0]} and {expected[1]}. Choose a policy that was trained on it."
            )

    @functools.cached_property
    def _programs(self) -> tuple[Any, Any]:
        env = self.env

        def start(key: jax.Array) -> Any:
            obs, state = env.reset(key, env.params)
            return obs, state, env.who_acts(state)

        def step(key: jax.Array, state: Any, actions: Any) -> Any:
            return env.step(key, state, actions, env.params)

        return jax.jit(jax.vmap(start)), jax.jit(jax.vmap(step))

    def play(self, first: Policy | None, second: Policy | None, key: jax.Array) -> tuple[int, int]:
        """Plays all games of two policies.

        Args:
            first: A policy; None acts at random.
            second: The other one.
            key: PRNG key of the games.

        Returns:
            ``(games that the first policy won, games that the second one won)``.
        """
        agents, (start, step) = self.env.possible_agents, self._programs
        keys = {name: named(key, name) for name in ("env", "first", "second")}
        obs, state, acts = start(jax.random.split(jax.random.fold_in(keys["env"], 0), self.games))
        # Row b: whether the first policy is the second agent.
        swapped = jnp.arange(self.games) >= self.games // 2
        seats = [_Seat(first, self, keys["first"]), _Seat(second, self, keys["second"])]

        def exchanged(pair: Sequence[Any]) -> list[Any]:
            """Reorders values ``[B, ...]`` from agents to players, or from players to agents, because players swap
            seats in some games.
            """
            one, other = pair
            return [where_rows(swapped, other, one), where_rows(swapped, one, other)]

        returns, running = jnp.zeros((2, self.games)), jnp.ones(self.games, bool)
        for number in range(1, self.max_steps + 1):
            own = exchanged([obs[agent] for agent in agents])
            turn = exchanged([acts[agent] for agent in agents])
            moves = [
                seat.act(rows, flags & running, number) for seat, rows, flags in zip(seats, own, turn, strict=True)
            ]
            actions = dict(zip(agents, exchanged(moves), strict=True))
            done = step(jax.random.split(jax.random.fold_in(keys["env"], number), self.games), state, actions)
            rewards = exchanged([done.reward[agent] for agent in agents])
            returns += jnp.where(running, jnp.stack(rewards), 0.0)
            for seat, reward in zip(seats, rewards, strict=True):
                seat.rewarded(reward)
            running &= ~(done.terminated | done.truncated)
            if not running.any():
                break
            obs, state, acts = done.obs, done.state, done.acts
        over = ~running
        return int((over & (returns[0] > returns[1])).sum()), int((over & (returns[0] < returns[1])).sum())


class _Seat:
    """Player in ``B`` parallel games. The state of its policy only advances in games in which the player acts."""

    def __init__(self, policy: Policy | None, table: GameTable, key: jax.Array):
        env, self._policy, self._table, self._key = table.env, policy, table, key
        self._space = env.action_spaces[env.possible_agents[0]]
        self._mask_key = mask_key_of(env.observation_spaces[env.possible_agents[0]], self._space)
        self._state = None if policy is None else policy.initial_state(table.games)
        # Rewards since the last action of each game.
        self._rewards = jnp.zeros(table.games)
        self._last: Any = None

    def act(self, obs: Any, acts: jax.Array, number: int) -> Any:
        """Computes actions ``[B, ...]`` for all games; games in which the player waits get any legal or earlier
        action.
        """
        key = jax.random.fold_in(self._key, number)
        if self._policy is None:
            return self._drawn(obs, key)
        if self._last is not None and not acts.any():
            return self._last
        # Observations of waiting agents are undefined: they are replaced by one of a game in which the player acts.
        acting = int(jnp.argmax(acts))
        shown = jax.tree.map(lambda x: jnp.where(expand(acts, x), x, x[acting]), obs)
        shown, rewards = jax.device_get((shown, self._rewards))
        actions, after, _ = self._policy.compute_actions(
            shown, self._state, prev_rewards=rewards, explore=self._table.explore, key=key
        )
        assert self._state is not None
        self._state = self._policy.where_rows(acts, after, self._state)
        self._rewards = jnp.where(acts, 0.0, self._rewards)
        self._last = actions
        return actions

    def rewarded(self, rewards: jax.Array) -> None:
        """Adds the rewards of an environment step."""
        self._rewards += rewards

    def _drawn(self, obs: Any, key: jax.Array) -> Any:
        if self._mask_key is None:
            return spaces.sample(key, self._space, (self._table.games,))
        return sample_valid(key, self._space, obs[self._mask_key] > 0)


def names_of_paths(paths: list[str]) -> dict[str, str]:
    """Derives short, different names of checkpoints: the parts of their paths in which they differ.

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
