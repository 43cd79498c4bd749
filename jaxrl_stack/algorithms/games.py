"""Loads the policies that play a game against each other, and plays the games: `GameTable`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
from jaxrl_stack.algorithms.setting_values import same
from jaxrl_stack.algorithms.settings_display import short
from jaxrl_stack.algorithms.stored_run import stored_config
from jaxrl_stack.checkpoints.checkpointable import get_checkpoint_info, opened
from jaxrl_stack.checkpoints.names import METADATA_FILE
from jaxrl_stack.checkpoints.plain_data import code_named_by
from jaxrl_stack.core import COMPONENT_LEARNER, COMPONENT_LEARNER_GROUP, COMPONENT_RL_MODULE
from jaxrl_stack.core.default_observations import sample_valid
from jaxrl_stack.env.jax_env import JaxStep
from jaxrl_stack.env.multi_agent_jax_env import MultiAgentJaxEnv
from jaxrl_stack.env.preprocessed_jax_env import PreprocessedJaxEnv, with_preprocessors
from jaxrl_stack.env.registry import env_class
from jaxrl_stack.env.self_play_env import HERO, SelfPlayEnv
from jaxrl_stack.ops.masks import expand
from jaxrl_stack.policy.policy import Policy
from jaxrl_stack.runs.forks import recomputed_iteration
from jaxrl_stack.utils import spaces
from jaxrl_stack.utils.action_masks import mask_key_of
from jaxrl_stack.utils.class_paths import ClassLoader, path_of
from jaxrl_stack.utils.streams import named

RANDOM = "random"
"""A player that draws its actions uniformly from the legal ones."""


class LoadedPlayer(NamedTuple):
    """Player of a game, loaded by `load_player`: its policy, and the config of its algorithm.

    Attributes:
        policy: The player's policy; None for the random player.
        config: Config of the player's algorithm; None if it is unknown.
    """

    policy: Policy | None
    config: AlgorithmConfig | None


Player = str | os.PathLike[str] | Policy | Algorithm | LoadedPlayer


def load_player(
    name: str,
    player: Player,
    *,
    config: AlgorithmConfig | None = None,
    module_id: str | None = None,
    allow: Sequence[Any] = (),
    choice: str = "Policy.from_checkpoint(path, {!r})",
) -> LoadedPlayer:
    """Loads the policy of a player: a checkpoint, a Policy, an Algorithm, or the random player. Loading needs none of
    the devices and environments of training.

    Args:
        name: Description of the player for errors, such as ``"run_tournament: player 'early'"``.
        player: Checkpoint of an Algorithm or Policy, ``"RUN@35"``, a `Policy` (or another object with its methods), an
            `Algorithm`, `RANDOM`, or a result of this function, which is returned.
        config: Config of a checkpoint, with code that the checkpoint does not contain; None for the stored one.
        module_id: Id of the module in a checkpoint; None for the only trained one.
        allow: Your classes and functions that a checkpoint may name, and environments "module:Class". The code of
            `config` is allowed without it.
        choice: Code that chooses a module of a checkpoint, for errors; ``{}`` is replaced by its id.

    Raises:
        TypeError: If it is none of these.
        FileNotFoundError: If there is no checkpoint.
        ValueError: If a checkpoint is damaged, lacks the module or needs code that is in neither `config` nor `allow`,
            or if several modules are trained.
    """
    if isinstance(player, LoadedPlayer):
        return player
    if isinstance(player, Algorithm):
        return LoadedPlayer(policy_of(name, player), player.config)
    if not isinstance(player, str | os.PathLike):
        if not hasattr(player, "compute_actions"):
            raise TypeError(
                f"{name} must be the path of a checkpoint, a Policy, an Algorithm or {RANDOM!r}, not {short(player)}."
            )
        return LoadedPlayer(player, None)
    if player == RANDOM:
        return LoadedPlayer(None, None)
    path = recomputed_iteration(player, config=config, allow=allow)
    code = [*allow, *([] if config is None else code_named_by(config, config.algo_class))]
    if is_policy(path):
        policy = Policy.from_checkpoint(path, allow=code)
        if module_id not in (None, policy.module_id):
            raise ValueError(
                f"{name} has the module {policy.module_id!r}, not {module_id!r}. Choose "
                f"{policy.module_id!r}: {choice.format(policy.module_id)}."
            )
        return LoadedPlayer(policy, config)
    with opened(path) as stored:
        if config is None:
            loader = ClassLoader(allow, written_here=stored.code_written_here())
            config, _ = stored_config(stored, loader, {})
        modules = stored.part(COMPONENT_LEARNER_GROUP).part(COMPONENT_LEARNER).part(COMPONENT_RL_MODULE)
        if module_id is None:
            module_id = _trained_module(name, modules.parts, config, choice)
        own = config.get_config_for_module(module_id)
        settings = own.traced_values() | {setting: own.static_value(setting) for setting in config._static_settings}
        policy = Policy.from_checkpoint(stored.path, module_id, settings={module_id: settings}, allow=code)
    return LoadedPlayer(policy, config)


def is_policy(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is the checkpoint of a `Policy`, not of an `Algorithm`."""
    return Path(path, METADATA_FILE).is_file() and get_checkpoint_info(path)["type"] == Policy.__name__


def policy_of(name: str, algorithm: Algorithm, choice: str = "algorithm.get_policy({!r})") -> Policy:
    """Returns the policy of the only module that an algorithm trains.

    Args:
        name: Description of the player for errors.
        algorithm: The algorithm.
        choice: Code that chooses a module, for errors; ``{}`` is replaced by its id.

    Raises:
        ValueError: If several modules are trained, or `policies_to_train` is a function.
    """
    return algorithm.get_policy(_trained_module(name, algorithm.driver.module_ids, algorithm.config, choice))


def _trained_module(name: str, module_ids: Iterable[str], config: AlgorithmConfig, choice: str) -> str:
    """Id of the only module that an algorithm trains."""
    acting, to_train = list(module_ids), config.policies_to_train
    trained = [mid for mid in acting if to_train is None or (not callable(to_train) and mid in to_train)]
    if len(trained) != 1:
        raise ValueError(
            f"{name} has the modules {acting}, and policies_to_train does not name exactly one of them. Choose one: "
            f"{choice.format((trained or acting)[0])}."
        )
    return trained[0]


def game_config(
    env: Any, env_config: Mapping[str, Any] | None, configs: Iterable[AlgorithmConfig | None]
) -> AlgorithmConfig | None:
    """Returns a config with the environment of a game.

    If algorithms of the players were trained in this environment, returns the config of the first such algorithm, which
    also contains the preprocessors of observations. Otherwise returns a new config.

    Args:
        env: The environment; None for the environment of the first algorithm.
        env_config: Its settings. None takes the settings of the first algorithm that has the same environment, if any.
        configs: Configs of the players' algorithms; None for unknown ones. Configs without an environment are ignored.

    Returns:
        The config; None if nothing names an environment.
    """
    known = (own for own in configs if own is not None and own.env is not None)
    config = next((own for own in known if env is None or is_same_env(own.env, env)), None)
    if config is None:
        return None if env is None else AlgorithmConfig().environment(env, env_config=dict(env_config or {}))
    if env_config is not None:
        config = config.copy(copy_frozen=False)
        config.env_config = dict(env_config)
    return config


def is_same_env(env: Any, other: Any) -> bool:
    """Whether two values of the setting `env` name the same environment.

    An environment class, its import path ``"module:Class"`` and a name with which the class was registered are the
    same.
    """

    def named(own: Any) -> Any:
        found = env_class(own)
        with contextlib.suppress(ValueError):  # a class that is defined inside a function
            return own if found is None else path_of(found)
        return found

    return same(env, other) or same(named(env), named(other))


def code_of_env(env: Any) -> list[Any]:
    """Lists code that is trusted when a checkpoint is loaded, because the caller passes `env`.

    The code consists of the string `env`, such as ``"module:Class"``; classes and functions in `env`; and the
    environment's class, if it is known without creating an environment. The checkpoint may import this code.

    Args:
        env: Value of ``config.environment(env)``; None for no environment.
    """
    names = [env] if isinstance(env, str) else []
    return [*names, *code_named_by(env, env_class(env), type(env) if isinstance(env, MultiAgentJaxEnv) else None)]


class GameStep(NamedTuple):
    """One environment step of ``B`` games that are played in parallel; all arrays have a leading axis ``[B]``.

    Attributes:
        is_running: bool ``[B]``, whether the game had not ended before the step. Other rows have no meaning.
        state: State of the environment before the step.
        obs: Observations before the step, by role.
        acts: bool ``[B]`` by role, whether it is the role's turn.
        actions: Actions by role.
        keys: PRNG keys of the step.
        after: Result of the step.
    """

    is_running: jax.Array
    state: Any
    obs: Any
    acts: Any
    actions: Any
    keys: jax.Array
    after: JaxStep


@dataclasses.dataclass(frozen=True, eq=False)
class GameTable:
    """Plays many games in one batch, each between one policy (the hero) and another policy that plays all other agents
    (the rivals).

    Args:
        env: The game.
        games: Number of games ``B``.
        max_steps: Environment steps after which games are cut; None for no limit.
        explore: Whether actions are drawn from the policies.
    """

    env: SelfPlayEnv | PreprocessedJaxEnv
    games: int
    max_steps: int | None
    explore: bool

    @classmethod
    def of(
        cls,
        called: str,
        config: AlgorithmConfig,
        games: int,
        *,
        made: Any = None,
        max_steps: int | None = None,
        explore: bool,
        num_agents: int | None = None,
    ) -> Self:
        """Creates the `GameTable` of a config's environment, with the config's preprocessors of observations.

        Args:
            called: The call, for errors.
            config: The config.
            games, max_steps, explore: See `GameTable`.
            made: Environment that the config's `_resolve_env` has made; None makes it.
            num_agents: Required number of agents; None for any.

        Raises:
            ValueError: If the environment is not a JAX environment of that number of agents, or their spaces differ.
        """
        if made is None and config.env is not None:
            resolved = config._resolve_env()
            made = resolved.make(check=not config.disable_env_checking) if resolved.is_jax else None
        env = with_preprocessors(config, made)
        if not isinstance(env, MultiAgentJaxEnv) or num_agents not in (None, len(env.possible_agents)):
            raise ValueError(
                f"{called}: environment({short(config.env)}) is not a JAX environment of {num_agents or 'several'} "
                "agents. Use one, such as 'pgx_multi/connect_four'."
            )
        # The preprocessors of a league have observations by role, others by agent.
        has_roles = isinstance(made, SelfPlayEnv)
        return cls(cast(PreprocessedJaxEnv, env) if has_roles else SelfPlayEnv(env), games, max_steps, explore)

    @property
    def seats(self) -> tuple[Hashable, ...]:
        """Ids of the game's agents, in the order of their seats (player positions)."""
        env = self.env.unwrapped if isinstance(self.env, PreprocessedJaxEnv) else self.env
        assert isinstance(env, SelfPlayEnv)
        return env.unwrapped.possible_agents

    def check(self, name: str, policy: Policy | None) -> None:
        """Raises if a policy has other spaces than the game.

        Args:
            name: Description of the player for errors.
            policy: The policy; None acts at random.

        Raises:
            ValueError: If the spaces differ.
        """
        expected = self.env.observation_spaces[HERO], self.env.action_spaces[HERO]
        if policy is not None and (policy.observation_space, policy.action_space) != expected:
            raise ValueError(
                f"{name} has the spaces {policy.observation_space} and {policy.action_space}, but {self.env.name} has "
                f"{expected[0]} and {expected[1]}. Choose a policy that was trained in {self.env.name}."
            )

    @functools.cached_property
    def _programs(self) -> tuple[Any, Any]:
        env = self.env

        def start(key: jax.Array, seat: jax.Array | None) -> Any:
            obs, state = env.reset(key, env.params) if seat is None else env.reset_seated(key, env.params, seat)
            return obs, state, env.who_acts(state)

        def step(key: jax.Array, state: Any, actions: Any) -> Any:
            return env.step(key, state, actions, env.params)

        return jax.jit(jax.vmap(start)), jax.jit(jax.vmap(step))

    def steps(
        self, hero: Policy | None, rival: Policy | None, key: jax.Array, seats: jax.Array | None = None
    ) -> Iterator[GameStep]:
        """Plays all games in parallel, and yields a `GameStep` for each environment step. Stops after `max_steps`
        environment steps, or earlier if all games have ended.

        Args:
            hero: Policy of the hero; None acts at random.
            rival: Policy of all rivals.
            key: PRNG key of the games.
            seats: int32 ``[B]``, seats of the hero; None draws them.
        """
        roles, (start, step) = self.env.possible_agents, self._programs
        env_key = named(key, "env")
        # Names of the players' random streams.
        names = ("first", "second", *(f"player_{i}" for i in range(3, len(roles) + 1)))
        policies = (hero, *[rival] * (len(roles) - 1))
        players = {
            role: _Seat(policy, self, named(key, name))
            for role, policy, name in zip(roles, policies, names, strict=True)
        }
        obs, state, acts = start(jax.random.split(jax.random.fold_in(env_key, 0), self.games), seats)
        is_running = jnp.ones(self.games, bool)
        for number in itertools.count(1) if self.max_steps is None else range(1, self.max_steps + 1):
            actions = {role: player.act(obs[role], acts[role] & is_running, number) for role, player in players.items()}
            keys = jax.random.split(jax.random.fold_in(env_key, number), self.games)
            done = step(keys, state, actions)
            yield GameStep(is_running, state, obs, acts, actions, keys, done)
            for role, player in players.items():
                player.rewarded(done.reward[role])
            is_running &= ~(done.terminated | done.truncated)
            if not is_running.any():
                return
            obs, state, acts = done.obs, done.state, done.acts

    def play(self, first: Policy | None, second: Policy | None, key: jax.Array) -> tuple[int, int]:
        """Plays all games between two policies, and counts the games that each policy won.

        The first policy is the first agent in the first half of the games, and the second agent in the second half.

        Args:
            first: A policy; None acts at random.
            second: The other one.
            key: PRNG key of the games.

        Returns:
            ``(games that the first policy won, games that the second one won)``. Games that are cut count as draws.
        """
        seats = jnp.asarray(np.arange(self.games) >= self.games // 2, jnp.int32)
        returns, is_over = jnp.zeros((2, self.games)), jnp.zeros(self.games, bool)
        for step in self.steps(first, second, key, seats):
            rewards = jnp.stack([step.after.reward[role] for role in self.env.possible_agents])
            returns += jnp.where(step.is_running, rewards, 0.0)
            is_over |= step.after.terminated | step.after.truncated
        won, lost = is_over & (returns[0] > returns[1]), is_over & (returns[0] < returns[1])
        return int(won.sum()), int(lost.sum())


class _Seat:
    """One player of ``B`` games that are played in parallel. The state of the player's policy advances only in games in
    which it is this player's turn.
    """

    def __init__(self, policy: Policy | None, table: GameTable, key: jax.Array):
        env, self._policy, self._table, self._key = table.env, policy, table, key
        self._space = env.action_spaces[HERO]
        self._mask_key = mask_key_of(env.observation_spaces[HERO], self._space)
        self._state = None if policy is None else policy.initial_state(table.games)
        # Rewards since the last action of each game.
        self._rewards = jnp.zeros(table.games)
        self._last: Any = spaces.zeros(self._space, (table.games,))

    def act(self, obs: Any, acts: jax.Array, number: int) -> Any:
        """Computes actions ``[B, ...]`` of a player for all games.

        Actions have a meaning only in games in which it is the player's turn. If it is the player's turn in none of the
        games, the policy is not called.
        """
        key = jax.random.fold_in(self._key, number)
        if self._policy is None:
            return self._drawn(obs, key)
        if not acts.any():
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
        """Adds rewards ``[B]`` to the sum of the player's rewards since the player's last action.

        The rewards are from one environment step. The player's policy gets the sum with the next observation.
        """
        self._rewards += rewards

    def _drawn(self, obs: Any, key: jax.Array) -> Any:
        if self._mask_key is None:
            return spaces.sample(key, self._space, (self._table.games,))
        return sample_valid(key, self._space, obs[self._mask_key] > 0)
