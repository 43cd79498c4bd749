"""Opponents of on-device self-play: snapshots of a module play the rivals in some of the environments.

The rivals' rows of these environments belong to one frozen module. Its parameters and env-to-module states have a
leading axis of K blocks; block k plays snapshot ``index[k]``. One vmapped forward pass serves all blocks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_stack.acting.module_step import ModuleState, ModuleStep
from jaxrl_stack.connectors.states import per_env_leaves
from jaxrl_stack.core.module_map import OPPONENTS, AgentRows, ModuleMap
from jaxrl_stack.ops.masks import where_rows

NO_SNAPSHOT = -1
"""Number of an empty place, which stores no snapshot."""


@struct.dataclass
class OpponentsState:
    """Stored snapshots (earlier weights) of a policy on one device, and the game results of each block. A block is a
    group of environments with the same opponent.

    Attributes:
        params: Parameters of the snapshots, ``{ref: [K, ...]}``.
        rest: Other state of the snapshots without random streams, ``{ref: [K, ...]}``.
        env_to_module: States of their env-to-module pipelines (leaves ``[K, ...]``); only the statistics are used.
        numbers: int32 ``[K]``, numbers of the snapshots; `NO_SNAPSHOT` for an empty place.
        index: int32 ``[K]``, place of the snapshot that plays each block.
        playing: int32 ``[K]``, number of that snapshot.
        is_stale: bool ``[E]`` for the ``E = B - S`` environments of all blocks, whether the unfinished game began
            with another opponent.
        games: int32 ``[K, 3]`` by block: games that the hero has won, drawn and lost since the start of the call.
        num_steps: int32, steps that snapshots have completed since the start of the call.
    """

    params: dict[str, jax.Array]
    rest: dict[str, jax.Array]
    env_to_module: Any
    numbers: jax.Array
    index: jax.Array
    playing: jax.Array
    is_stale: jax.Array
    games: jax.Array
    num_steps: jax.Array

    def at_start_of_call(self) -> OpponentsState:
        """Returns a copy of this `OpponentsState` in which the counters of games and of the snapshots' steps are 0.
        Snapshots are earlier weights of a policy.

        The counters are reset because each call of the compiled program counts from 0.
        """
        return dataclasses.replace(self, games=jnp.zeros_like(self.games), num_steps=jnp.zeros_like(self.num_steps))

    def with_games(self, ended: jax.Array, margins: jax.Array, num_steps: Any) -> OpponentsState:
        """Adds the games that ended in T steps to the counts of wins, draws and losses, and returns the new state.

        Games during which the opponent changed do not count.

        Args:
            ended: bool ``[T, B]``, whether a game ended with the step.
            margins: float32 ``[T, B]``, result of `margin_of` where a game ended. Above 0 is a win, 0 a draw. NaN is
                not counted.
            num_steps: int32, steps that snapshots have completed in the T steps.
        """
        ended, margins = ended[:, -self.is_stale.size :], margins[:, -self.is_stale.size :]
        is_first = ended & (jnp.cumsum(ended, axis=0) == 1)
        counts = ended & ~(is_first & self.is_stale)
        outcomes = jnp.stack([margins > 0, margins == 0, margins < 0], axis=-1) & counts[..., None]
        of_envs = jnp.sum(outcomes, axis=0, dtype=jnp.int32)
        of_blocks = of_envs.reshape(self.index.size, -1, 3).sum(axis=1, dtype=jnp.int32)
        return dataclasses.replace(
            self,
            games=self.games + of_blocks,
            num_steps=self.num_steps + num_steps,
            is_stale=self.is_stale & ~jnp.any(ended, axis=0),
        )


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class OpponentStep(ModuleStep):
    """Policy step of the opponents: one vmapped forward pass with a separate snapshot for each block (group) of
    environments.

    Rows lie as ``[agent, block, environment of the block]``. In states, pipelines have leaves ``[K, ...]``, and all
    other leaves have the rows of all blocks.

    Attributes:
        num_blocks: ``K``.
        num_agents: Number of rivals in an environment.
        weights: ``(params, rest)`` of each block, ``{ref: [K, ...]}``; set inside of a trace by
            `DeviceRollout.with_opponents`.
    """

    num_blocks: int
    num_agents: int
    weights: tuple[dict[str, jax.Array], dict[str, jax.Array]] | None = None

    @classmethod
    def of(cls, step: ModuleStep, *, num_blocks: int, num_agents: int) -> Self:
        """Creates the `OpponentStep`, which computes the opponents' actions, from the `ModuleStep` of the module whose
        snapshots (stored copies of the module) play.
        """
        own = {field.name: getattr(step, field.name) for field in dataclasses.fields(ModuleStep)}
        return cls(**own, num_blocks=num_blocks, num_agents=num_agents)

    def start(self, num_envs: Any, env_to_module: Any = None, module_to_env: Any = None) -> ModuleState:
        state = super().start(num_envs)
        per_block = num_envs // self.num_blocks
        env_to_module, module_to_env = (
            jax.tree.map(lambda x: jnp.broadcast_to(x, (self.num_blocks, *x.shape)), pipeline.init(per_block))
            for pipeline in (self.env_to_module, self.module_to_env)
        )
        return dataclasses.replace(state, env_to_module=env_to_module, module_to_env=module_to_env)

    def where_rows(self, mask: jax.Array, yes: ModuleState, no: ModuleState) -> ModuleState:
        selected = jax.vmap(super().where_rows)(self._split(mask), self._split_state(yes), self._split_state(no))
        return self._joined_state(selected)

    def step(self, state: Any, columns: dict[str, Any], context: Any, random_streams: Any = None) -> Any:
        assert self.weights is not None, "DeviceRollout.with_opponents sets the weights"
        if random_streams is None:
            random_streams = self.random_streams(context.rest, context.key)
        step = super().step

        def of_block(state: Any, columns: Any, streams: Any, key: Any, params: Any, rest: Any) -> Any:
            params, rest = {**context.params, **params}, {**context.rest, **rest}
            own = dataclasses.replace(context, key=key, params=params, rest=rest, update_statistics=False)
            return step(state, columns, own, streams)

        keys = jax.random.split(context.key, self.num_blocks)
        blocks = (self._split_state(state), self._split(columns), random_streams, keys, *self.weights)
        state, batch, acted = jax.vmap(of_block)(*blocks)
        return self._joined_state(state), self._joined(batch), self._joined(acted)

    def observe_final(
        self, env_to_module: Any, final_obs: Any, context: Any, *, prev_actions: Any, prev_rewards: Any
    ) -> Any:
        observe_final = super().observe_final

        def of_block(env_to_module: Any, final_obs: Any, prev_actions: Any, prev_rewards: Any) -> Any:
            previous = {"prev_actions": prev_actions, "prev_rewards": prev_rewards}
            return observe_final(env_to_module, final_obs, context, **previous)

        rows = self._split((final_obs, prev_actions, prev_rewards))
        return self._joined(jax.vmap(of_block)(env_to_module, *rows))

    def random_streams(self, rest: Any, key: jax.Array) -> dict[str, Any]:
        return jax.vmap(lambda own: super(OpponentStep, self).random_streams(rest, own))(
            jax.random.split(key, self.num_blocks)
        )

    def merged(self, state: ModuleState, axis_name: str | None) -> ModuleState:
        """Overrides the merge of connector statistics: returns `state` unchanged, because snapshots do not update these
        statistics.
        """
        return state

    # ----------------------------------------------------------------------------------------------------- opponents

    def no_opponents(self, num_envs: int) -> OpponentsState:
        """Creates empty storage for K snapshots (earlier weights) of a policy.

        K is also the number of blocks (groups of environments with the same opponent). Until `with_index` assigns
        snapshots to the blocks, all blocks refer to index 0 of the storage.

        Args:
            num_envs: ``E``, environments of all blocks.
        """
        params, rest = self.own_weights(self.pure.params, self.pure.rest)
        one = (params, rest, self.env_to_module.init(1))

        def empty(x: Any) -> jax.Array:
            return jnp.zeros((self.num_blocks, *jnp.shape(x)), jnp.result_type(x))

        params, rest, env_to_module = jax.tree.map(empty, one)
        return OpponentsState(
            params=params,
            rest=rest,
            env_to_module=env_to_module,
            numbers=jnp.full((self.num_blocks,), NO_SNAPSHOT, jnp.int32),
            index=jnp.zeros((self.num_blocks,), jnp.int32),
            playing=jnp.full((self.num_blocks,), NO_SNAPSHOT, jnp.int32),
            is_stale=jnp.zeros((num_envs,), bool),
            games=jnp.zeros((self.num_blocks, 3), jnp.int32),
            num_steps=jnp.int32(0),
        )

    def own_weights(self, params: Mapping[str, Any], rest: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Selects a snapshot's part of the MultiRLModule's arrays ``(params, rest)``. A snapshot is a stored copy of a
        module.

        The part contains the parameters of the module `module_id`, and this module's other arrays except random streams
        and target networks. A snapshot only acts, and acting does not read target networks.
        """
        prefix, left_out = f"{self.module_id}/", self.pure.stream_refs | self.pure.target_refs
        own = {ref: x for ref, x in params.items() if ref.startswith(prefix)}
        others = {ref: x for ref, x in rest.items() if ref.startswith(prefix) and ref not in left_out}
        return own, others

    def with_snapshot(
        self, state: OpponentsState, params: Any, rest: Any, env_to_module: Any, place: Any, number: Any
    ) -> OpponentsState:
        """Stores the module's weights and connector statistics as a snapshot at the index `place` of the stored
        snapshots, and returns the new `OpponentsState`.

        Args:
            state: The stored snapshots.
            params, rest: Weights of the MultiRLModule.
            env_to_module: State of the module's env-to-module pipeline.
            place: int32, index of the snapshot in the stored snapshots.
            number: int32, number of the snapshot.
        """
        # Only statistics are used: the histories of one row are zeros.
        one = jax.tree.map(lambda x: jnp.zeros_like(x), self.env_to_module.init(1))
        statistics = jax.tree.map(
            lambda is_history, empty, own: empty if is_history else own, self._histories, one, env_to_module
        )
        own = (*self.own_weights(params, rest), statistics)
        stack = (state.params, state.rest, state.env_to_module)
        params, rest, statistics = jax.tree.map(lambda x, new: x.at[place].set(new.astype(x.dtype)), stack, own)
        numbers = state.numbers.at[place].set(number)
        return dataclasses.replace(state, params=params, rest=rest, env_to_module=statistics, numbers=numbers)

    def with_index(
        self, state: OpponentsState, acting: ModuleState, lengths: jax.Array, index: jax.Array
    ) -> tuple[OpponentsState, ModuleState]:
        """Assigns a stored snapshot (earlier weights of a policy) as the opponent to each block (group) of
        environments.

        `index` selects the snapshot of each block. Returns the new `OpponentsState`, and the new policy state of the
        opponents' rows (one agent in one environment each).

        If a block gets another snapshot, its unfinished games continue and do not count. The recurrent states, last
        actions and last rewards of its rows start again.

        Args:
            state: The stored snapshots, and the opponent of each block.
            acting: Policy state of the opponents' rows.
            lengths: int32 ``[B]``, steps of the unfinished games.
            index: int32 ``[K]``, the new `OpponentsState.index`.
        """
        playing = state.numbers[index]
        is_changed = playing != state.playing
        per_block = state.is_stale.size // self.num_blocks
        of_envs = jnp.repeat(is_changed, per_block)
        of_rows = jnp.tile(of_envs, self.num_agents)
        num_rows = of_rows.size
        fresh = (
            self.initial_recurrent(num_rows),
            jax.tree.map(jnp.zeros_like, acting.prev_actions),
            jnp.zeros_like(acting.prev_rewards),
        )
        present = (acting.recurrent, acting.prev_actions, acting.prev_rewards)
        recurrent, prev_actions, prev_rewards = where_rows(of_rows, fresh, present)
        statistics = jax.tree.map(lambda x: x[index], state.env_to_module)
        env_to_module = jax.tree.map(
            lambda is_history, own, new: own if is_history else new, self._histories, acting.env_to_module, statistics
        )
        is_stale = state.is_stale | (of_envs & (lengths[-state.is_stale.size :] > 0))
        acting = dataclasses.replace(
            acting,
            env_to_module=env_to_module,
            recurrent=recurrent,
            prev_actions=prev_actions,
            prev_rewards=prev_rewards,
        )
        return dataclasses.replace(state, index=index, playing=playing, is_stale=is_stale), acting

    def of_state(self, state: OpponentsState) -> Self:
        """Returns a copy of the opponents' policy step with the snapshots' weights from `state`. Snapshots are stored
        copies of a module.

        Each block (a group of environments with the same opponent) has one snapshot.
        """
        weights = jax.tree.map(lambda x: x[state.index], (state.params, state.rest))
        return dataclasses.replace(self, weights=weights)

    @property
    def _histories(self) -> Any:
        return per_env_leaves(self.env_to_module.init)

    # ----------------------------------------------------------------------------------------------------------- rows

    def _split(self, rows: Any) -> Any:
        """Groups rows by block. A row is one agent in one environment; a block is a group of environments with the same
        opponent.

        ``[rows of all blocks, ...]`` becomes ``[number of blocks, rows of a block, ...]``.
        """

        def split(x: jax.Array) -> jax.Array:
            x = x.reshape(self.num_agents, self.num_blocks, -1, *x.shape[1:])
            return x.swapaxes(0, 1).reshape(self.num_blocks, -1, *x.shape[3:])

        return jax.tree.map(split, rows)

    def _joined(self, blocks: Any) -> Any:
        """Joins the rows of all blocks to one axis; inverse of `_split`.

        ``[number of blocks, rows of a block, ...]`` becomes ``[rows of all blocks, ...]``. A row is one agent in one
        environment; a block is a group of environments with the same opponent.
        """

        def joined(x: jax.Array) -> jax.Array:
            x = x.reshape(self.num_blocks, self.num_agents, -1, *x.shape[2:])
            return x.swapaxes(0, 1).reshape(-1, *x.shape[3:])

        return jax.tree.map(joined, blocks)

    def _split_state(self, state: ModuleState) -> ModuleState:
        return self._with_rows(state, self._split)

    def _joined_state(self, state: ModuleState) -> ModuleState:
        return self._with_rows(state, self._joined)

    def _with_rows(self, state: ModuleState, change: Callable[[Any], Any]) -> ModuleState:
        names = ("recurrent", "prev_actions", "prev_rewards", "reset")
        return dataclasses.replace(state, **{name: change(getattr(state, name)) for name in names})


def margin_of(hero: jax.Array, rivals: Sequence[jax.Array]) -> jax.Array:
    """Returns the margin of a game: the return of one agent (`hero`) minus the mean return of the agent's rivals.

    The margin is exactly 0 if all returns are equal.

    Args:
        hero: float32 ``[...]``, NaN for a hero that never acted; the margin is NaN then.
        rivals: float32 ``[...]`` by rival. NaN is ignored; without any other rival the mean is 0.
    """
    differences = jnp.stack([hero - own for own in rivals])
    is_known = ~jnp.isnan(differences)
    mean = jnp.sum(jnp.where(is_known, differences, 0.0), axis=0) / jnp.maximum(1, is_known.sum(axis=0))
    return jnp.where(jnp.isnan(hero), jnp.nan, jnp.where(is_known.any(axis=0), mean, hero))


def opponent_map(
    module_map: ModuleMap, module_id: str, agents: Sequence[Any], *, num_envs: int, num_self_play: int
) -> ModuleMap:
    """Returns the mapping from agents to modules for self-play and games against snapshots (stored copies of the
    module).

    The module plays all agents in the first `num_self_play` environments. In the other environments, the module plays
    the first agent, and snapshots play the rest.

    Args:
        module_map: Map of all agents to the module.
        module_id: The module.
        agents: Roles: the hero, then its rivals.
        num_envs: ``B``.
        num_self_play: ``S``, environments in which the module plays all roles.
    """
    hero, *rivals = agents
    own = [AgentRows(hero, 0, num_envs)]
    own += [AgentRows(rival, 0, num_self_play) for rival in rivals if num_self_play]
    others = tuple(AgentRows(rival, num_self_play, num_envs) for rival in rivals)
    return dataclasses.replace(module_map, ranges={module_id: tuple(own), OPPONENTS: others}, num_envs=num_envs)
