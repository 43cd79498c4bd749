"""Loads the policies that play a game against each other, and plays the games: `GameTable`."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.settings_display import short
from jaxrl_stack.algorithms.stored_run import stored_config
from jaxrl_stack.checkpoints.checkpointable import get_checkpoint_info, opened
from jaxrl_stack.checkpoints.names import METADATA_FILE
from jaxrl_stack.checkpoints.plain_data import code_named_by
from jaxrl_stack.core import COMPONENT_LEARNER, COMPONENT_LEARNER_GROUP, COMPONENT_RL_MODULE
from jaxrl_stack.core.default_observations import sample_valid
from jaxrl_stack.env.jax_env import JaxStep
from jaxrl_stack.env.preprocessed_jax_env import PreprocessedJaxEnv
from jaxrl_stack.env.self_play_env import HERO, SelfPlayEnv
from jaxrl_stack.ops.masks import expand
from jaxrl_stack.policy.policy import Policy
from jaxrl_stack.runs.forks import recomputed_iteration
from jaxrl_stack.utils import spaces
from jaxrl_stack.utils.action_masks import mask_key_of
from jaxrl_stack.utils.class_paths import ClassLoader
from jaxrl_stack.utils.streams import named

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig

RANDOM = "random"
"""A player that draws its actions uniformly from the legal ones."""

Player = str | os.PathLike[str] | Policy | Algorithm


def load_player(
    name: str, player: Player, allow: Sequence[Any] = ()
) -> tuple[Policy | None, tuple[Any, Mapping[str, Any]] | None]:
    """Returns the policy of a player, which may be a checkpoint, a `Policy` or an `Algorithm`, and ``(env,
    env_config)`` of its algorithm.

    Args:
        name: Description of the player for errors, such as ``"run_tournament: player 'early'"``.
        player: Checkpoint of an Algorithm or Policy, a `Policy`, an `Algorithm` or `RANDOM`.
        allow: Your classes and functions that a checkpoint may name.

    Returns:
        ``(policy, environment)``. The policy of the random player is None, and the environment without an algorithm.

    Raises:
        TypeError: If it is none of these.
        ValueError: If an algorithm trains several modules.
    """
    if isinstance(player, Algorithm):
        return policy_of(name, player), (player.config.env, player.config.env_config)
    if not isinstance(player, str | os.PathLike):
        if not hasattr(player, "compute_actions"):
            raise TypeError(
                f"{name} is {short(player)}. Use the path of a checkpoint, a Policy, an Algorithm or {RANDOM!r}."
            )
        return player, None
    if player == RANDOM:
        return None, None
    if is_policy(player):
        return Policy.from_checkpoint(player, allow=allow), None
    policy, config = load_policy(name, player, allow=allow)
    return policy, (config.env, config.env_config)


def load_policy(
    name: str,
    path: str | os.PathLike[str],
    config: AlgorithmConfig | None = None,
    module_id: str | None = None,
    choice: str = "Policy.from_checkpoint(path, {!r})",
    allow: Sequence[Any] = (),
) -> tuple[Policy, AlgorithmConfig]:
    """Loads a policy from the checkpoint of an algorithm, without the devices and environments that training needs.

    Args:
        name: Description of the player for errors.
        path: The checkpoint, or ``"RUN@35"``.
        config: The config, with code that the checkpoint does not contain; None for the stored one.
        module_id: Id of the module; None for the only trained one.
        choice: Code that chooses a module, for errors; ``{}`` is replaced by its id.
        allow: Your classes and functions that the checkpoint may name, besides those of `config`.

    Returns:
        ``(policy, config)``.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        ValueError: If it is damaged, needs code that is in neither `config` nor `allow`, or does not have one trained
            module.
    """
    path = recomputed_iteration(path, config=config, allow=allow)
    code = [*allow, *([] if config is None else code_named_by(config, config.algo_class))]
    with opened(path) as stored:
        if config is None:
            config, _ = stored_config(stored, ClassLoader((), named=allow, written_here=stored.code_written_here()), {})
        modules = stored.part(COMPONENT_LEARNER_GROUP).part(COMPONENT_LEARNER).part(COMPONENT_RL_MODULE)
        if module_id is None:
            module_id = _trained_module(name, modules.parts, config, choice)
        own = config.get_config_for_module(module_id)
        settings = own.traced_values() | {setting: own.static_value(setting) for setting in config._static_settings}
        return Policy.from_checkpoint(stored.path, module_id, settings={module_id: settings}, allow=code), config


def is_policy(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is the checkpoint of a `Policy`, not of an `Algorithm`."""
    return Path(path, METADATA_FILE).is_file() and get_checkpoint_info(path)["type"] == Policy.__name__


def policy_of(name: str, algorithm: Algorithm, choice: str = "algorithm.get_policy({!r})") -> Policy:
    """Returns the policy of an algorithm's only trained module.

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
        raise ValueError(f"{name} has the modules {acting}. Choose one: {choice.format((trained or acting)[0])}.")
    return trained[0]


class GameStep(NamedTuple):
    """One environment step of ``B`` games that are played in parallel; leaves have a leading axis ``[B]``.

    Attributes:
        is_running: bool ``[B]``, whether the game had not ended before the step. Other rows have no meaning.
        state: State of the environment before the step.
        obs: Observations before the step, by role.
        actions: Actions by role.
        keys: PRNG keys of the step.
        after: Result of the step.
    """

    is_running: jax.Array
    state: Any
    obs: Any
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
        preprocessed: `env` with preprocessors of its roles' observations, which the players see then.
    """

    env: SelfPlayEnv
    games: int
    max_steps: int | None
    explore: bool
    preprocessed: PreprocessedJaxEnv | None = None

    @property
    def observation_space(self) -> gym.Space:
        """Observation space of the players."""
        return (self.env if self.preprocessed is None else self.preprocessed).observation_spaces[HERO]

    def check(self, name: str, policy: Policy | None) -> None:
        """Raises if a policy has other spaces than the game.

        Args:
            name: Description of the player for errors.
            policy: The policy; None acts at random.

        Raises:
            ValueError: If the spaces differ.
        """
        expected = self.observation_space, self.env.action_spaces[HERO]
        if policy is not None and (policy.observation_space, policy.action_space) != expected:
            raise ValueError(
                f"{name} has the spaces {policy.observation_space} and {policy.action_space}, but {self.env.name} has "
                f"{expected[0]} and {expected[1]}. Choose a policy that was trained on it."
            )

    @functools.cached_property
    def _programs(self) -> tuple[Any, Any]:
        env, preprocessed = self.env, self.preprocessed

        def seen(obs: Any) -> Any:
            return obs if preprocessed is None else preprocessed.preprocessed(obs)

        def start(key: jax.Array, seat: jax.Array | None) -> Any:
            obs, state = env.reset(key, env.params)
            if seat is not None:
                obs, state = env.seated(obs, state, seat)
            return seen(obs), state, env.who_acts(state)

        def step(key: jax.Array, state: Any, actions: Any) -> Any:
            after = env.step(key, state, actions, env.params)
            return after._replace(obs=seen(after.obs), final_obs=seen(after.final_obs))

        return jax.jit(jax.vmap(start)), jax.jit(jax.vmap(step))

    def steps(
        self, hero: Policy | None, rival: Policy | None, key: jax.Array, seats: jax.Array | None = None
    ) -> Iterator[GameStep]:
        """Plays all games of the table until they have ended, and yields each environment step.

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
            yield GameStep(is_running, state, obs, actions, keys, done)
            for role, player in players.items():
                player.rewarded(done.reward[role])
            is_running &= ~(done.terminated | done.truncated)
            if not is_running.any():
                return
            obs, state, acts = done.obs, done.state, done.acts

    def play(self, first: Policy | None, second: Policy | None, key: jax.Array) -> tuple[int, int]:
        """Plays all games of two policies. In the first half, the first policy is the first agent.

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
    """Player in ``B`` parallel games. The state of its policy advances only in games in which it is the
    player's turn.
    """

    def __init__(self, policy: Policy | None, table: GameTable, key: jax.Array):
        env, self._policy, self._table, self._key = table.env, policy, table, key
        self._space = env.action_spaces[HERO]
        self._mask_key = mask_key_of(table.observation_space, self._space)
        self._state = None if policy is None else policy.initial_state(table.games)
        # Rewards since the last action of each game.
        self._rewards = jnp.zeros(table.games)
        self._last: Any = None

    def act(self, obs: Any, acts: jax.Array, number: int) -> Any:
        """Computes actions ``[B, ...]`` of a player for all games. In games in which it is not the player's turn, the
        action has no meaning, but is legal or an earlier one.
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
        """Adds the rewards of an environment step to the player's rewards since its last action, which its policy gets
        with the next observation.
        """
        self._rewards += rewards

    def _drawn(self, obs: Any, key: jax.Array) -> Any:
        if self._mask_key is None:
            return spaces.sample(key, self._space, (self._table.games,))
        return sample_valid(key, self._space, obs[self._mask_key] > 0)
