"""Sampling on the device: environments, pipelines and module in one scan. Pure functions over a `RunnerState`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Hashable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_stack.acting.agent_time import HeldSteps
from jaxrl_stack.acting.episode_forms import ACTS, OBSERVES
from jaxrl_stack.acting.episode_window import EpisodeWindow
from jaxrl_stack.acting.module_step import ModuleState, ModuleStep
from jaxrl_stack.acting.running_episodes import RunningEpisodes
from jaxrl_stack.core import frames
from jaxrl_stack.core.block import Block
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.layouts import Layout
from jaxrl_stack.utils.named_leaves import with_named_leaves

if TYPE_CHECKING:
    from jaxrl_stack.connectors.context import ConnectorContext
    from jaxrl_stack.core.module_map import ModuleMap
    from jaxrl_stack.core.rl_module.functional import PureModule
    from jaxrl_stack.env.jax_env import JaxEnv


@struct.dataclass
class RunnerState:
    """Everything of an on-device runner that changes; leaves have the env axis ``[B, ...]`` first where it says so.

    Attributes:
        modules: What acting remembers, ``{module_id: ModuleState}``.
        held: Steps of agents that are not complete, ``{module_id: HeldSteps}``; {} where everybody acts in every step.
        env_state: State of the environments, ``[B, ...]``.
        obs: Their last observations, ``[B, ...]``, as the environment gave them.
        episodes: Returns and lengths of the running episodes so far, ``[B]``.
        agent_episodes: The same of each of several agents; else {}.
        window: The last finished episodes.
        key: PRNG key.
    """

    modules: dict[str, ModuleState]
    held: dict[str, HeldSteps]
    env_state: Any
    obs: Any
    episodes: RunningEpisodes
    agent_episodes: dict[Any, RunningEpisodes]
    window: EpisodeWindow
    key: jax.Array

    @property
    def num_envs(self) -> int:
        """``B``."""
        return self.episodes.episode_length.shape[0]

    @property
    def env_to_module(self) -> dict[str, Any]:
        """States of the env-to-module pipelines, ``{module_id: state}``."""
        return {mid: own.env_to_module for mid, own in self.modules.items()}

    def with_env_to_module(self, states: Mapping[str, Any]) -> RunnerState:
        """With other states of these pipelines."""
        modules = {mid: dataclasses.replace(own, env_to_module=states[mid]) for mid, own in self.modules.items()}
        return dataclasses.replace(self, modules=modules)


class EpisodeEnds(NamedTuple):
    """Which episodes ended in T steps; ``[T, B]``, the numbers are valid where one did.

    Attributes:
        ended: bool, whether an episode ended with a step.
        returns: float32, its return.
        lengths: int32, its length.
        agent_returns: float32 by agent, where there are several: its part of the return, NaN if it took no part.
        completes: bool by agent, whether it completed a step of its own; empty where all agents act in every step.
    """

    ended: jax.Array
    returns: jax.Array
    lengths: jax.Array
    agent_returns: dict[Any, jax.Array]
    completes: dict[Any, jax.Array]


class StepRecord(NamedTuple):
    """What is recorded of a step, a pytree.

    Attributes:
        columns: ``{module_id: {column: pytree [B, ...]}}``.
        ended: bool ``[B]``, whether an episode ended.
        seen: What there is to see of it, in rollouts that are watched; a `ShownStep` in those that show agents.
        unclaimed: bool ``[B]`` by module, rows that got a reward while no step of theirs had begun; () where everybody
            acts in every step.
    """

    columns: dict[str, Any]
    ended: jax.Array
    seen: Any = ()
    unclaimed: Any = ()


class ShownStep(NamedTuple):
    """What episodes of several agents are made of: who acts on what in a step, and what environments answer.

    Attributes:
        agents: ``{agent: {column: pytree [B, ...]}}``: what the act left, `ACTS` and `OBSERVES` of
            `acting.episode_forms`, and of this step alone rewards, flags and FINAL_OBS.
        terminateds: bool ``[B]``, whether the episode reached an end of its own.
        truncateds: bool ``[B]``, whether it was cut off.
    """

    agents: dict[Any, dict[str, Any]]
    terminateds: jax.Array
    truncateds: jax.Array


class Answers(NamedTuple):
    """What environments answer to a step, by module; rows ``[B, ...]``.

    Attributes:
        final_obs: What the step led to, before any reset.
        rewards: float32.
        terminateds: bool, whether the agent ended.
        truncateds: bool, whether it was cut off.
        resets: bool, whether the next observation is that of another episode.
        observes: bool, whether the agent is asked to act on `final_obs`; {} where everybody is in every step.
    """

    final_obs: dict[str, Any]
    rewards: dict[str, jax.Array]
    terminateds: dict[str, jax.Array]
    truncateds: dict[str, jax.Array]
    resets: dict[str, jax.Array]
    observes: dict[str, jax.Array]


Stepped: TypeAlias = tuple[RunnerState, StepRecord]
UnrolledSteps: TypeAlias = tuple[RunnerState, StepRecord, EpisodeEnds]


@struct.dataclass
class StepKeys:
    """Random numbers of T vector steps; see `DeviceRollout.step_keys`.

    Attributes:
        policy: PRNG keys ``[T]`` of pipelines and modules.
        envs: What `JaxEnv.step_keys` makes of PRNG keys, leaves ``[T, B, ...]``.
        modules: The modules' random streams, ``{module_id: leaves [T, ...]}``; None derives them in every step.
    """

    policy: jax.Array
    envs: Any
    modules: dict[str, Any] | None


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class DeviceRollout:
    """The static parts of sampling; the methods are pure and are traced into larger programs.

    Attributes:
        modules: How each module acts, ``{module_id: ModuleStep}``.
        module_map: Which of them acts for which agent.
        env: The environment.
        window_size: How many finished episodes the statistics cover.
        env_params: Leaves of ``env.params``, by name, in place of the environment's own: those in which members of a
            population differ.
        held: Shapes of what an act leaves of one agent, ``{module_id: {column: pytree}}``; {} where everybody acts in
            every step.
        shows_agents: Whether records have a `ShownStep` in `seen`.
        declared: `Learner.declared_columns`: those that neither a module nor its pipelines make are read from the
            `info` of an environment of one agent.
    """

    modules: Mapping[str, ModuleStep]
    module_map: ModuleMap
    env: JaxEnv
    window_size: int = 100
    env_params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    held: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    shows_agents: bool = False
    declared: Mapping[str, Collection[str]] = dataclasses.field(default_factory=dict)

    @property
    def pure(self) -> PureModule:
        """The MultiRLModule, taken apart."""
        return next(iter(self.modules.values())).pure

    @property
    def agents(self) -> tuple[Hashable, ...]:
        """Ids of several agents; () where there is one, of which environments know nothing."""
        return tuple(self.module_map.module_of) if self.module_map.is_multi_agent else ()

    def drawing_actions(self) -> Self:
        """The same, with actions that are drawn from the action spaces."""
        modules = {mid: dataclasses.replace(step, draws_actions=True) for mid, step in self.modules.items()}
        return dataclasses.replace(self, modules=modules)

    def context(self, params: Any, rest: Any, settings: Any, timesteps: Any, **static: Any) -> ConnectorContext:
        """What is acted with, whichever module acts; see `ModuleStep.context`."""
        return next(iter(self.modules.values())).context(params, rest, settings, timesteps, **static)

    def init_connectors(self, num_envs: int) -> dict[str, Any]:
        """Fresh states of the env-to-module pipelines, ``{module_id: state}``."""
        slots = self.module_map.num_slots
        return {mid: step.env_to_module.init(num_envs * slots[mid]) for mid, step in self.modules.items()}

    def init(self, key: jax.Array, num_envs: int, env_to_module: Mapping[str, Any] | None = None) -> RunnerState:
        """Freshly reset environments.

        Args:
            key: PRNG key.
            num_envs: ``B``.
            env_to_module: States of the pipelines whose statistics to start from, ``{module_id: state}``; None for
                none.
        """
        key, reset_key = jax.random.split(key)
        obs, env_state = jax.vmap(self.env.reset, in_axes=(0, None))(
            jax.random.split(reset_key, num_envs), self._env_params()
        )
        given, slots = env_to_module or {}, self.module_map.num_slots
        return RunnerState(
            modules={mid: step.start(num_envs * slots[mid], given.get(mid)) for mid, step in self.modules.items()},
            held={mid: HeldSteps.none(columns, num_envs * slots[mid]) for mid, columns in self.held.items()},
            env_state=env_state,
            obs=obs,
            episodes=RunningEpisodes.empty(num_envs),
            agent_episodes={agent: RunningEpisodes.empty(num_envs) for agent in self.agents},
            window=EpisodeWindow.empty(self.window_size, self.agents),
            key=key,
        )

    def _env_params(self) -> Any:
        """The environment's parameters inside a trace: arrays are JAX arrays, which an action can index."""
        own = jax.tree.map(lambda leaf: jnp.asarray(leaf) if np.ndim(leaf) else leaf, self.env.params)
        return with_named_leaves(own, self.env_params) if self.env_params else own

    def step_envs(
        self, state: RunnerState, keys: StepKeys, context: ConnectorContext, *, in_frames: Collection[str] = ()
    ) -> Stepped:
        """One step of all environments, as the body of a scan.

        Args:
            state: State before the step; its `episodes`, `window` and `key` pass unchanged.
            keys: Those of this step, without their axis T.
            context: What to act with; see `context`.
            in_frames: Modules of whose observations the columns have the newest frame alone, and ``RESETS``.
        """
        contexts = {
            mid: dataclasses.replace(context, key=self.module_map.key_of(mid, keys.policy)) for mid in self.modules
        }
        modules, batches, acted = {}, {}, {}
        obs, acts = self._rows(state.obs), self._who_acts(state.env_state)
        for mid, step in self.modules.items():
            streams = None if keys.modules is None else keys.modules[mid]
            given = {Columns.OBS: obs[mid]}
            if mid in acts:
                given[Columns.LOSS_MASK] = acts[mid]
            modules[mid], batches[mid], acted[mid] = step.step(state.modules[mid], given, contexts[mid], streams)
        actions = {mid: own.pop(Columns.ACTIONS_FOR_ENV) for mid, own in acted.items()}
        after = self.env.step_batch(keys.envs, state.env_state, self._of_env(actions), self._env_params())
        ended = jnp.logical_or(after.terminated, after.truncated)
        answers = self._answers(after, ended)
        columns = {mid: {**self._of_info(mid, after.info), **batches[mid], **acted[mid]} for mid in self.modules}
        unclaimed = ()
        if acts:
            unclaimed = self._unclaimed(state.held, acts, answers)
            state, recorded = self._held_step(state, modules, contexts, acts, columns, answers)
        else:
            state, recorded = self._whole_step(state, modules, contexts, columns, answers, in_frames)
        seen = self._shown(columns, recorded, acts, answers, after) if self.shows_agents else ()
        state = dataclasses.replace(state, env_state=after.state, obs=after.obs)
        return state, StepRecord(recorded, ended, seen, unclaimed)

    def _whole_step(
        self,
        state: RunnerState,
        modules: Mapping[str, ModuleState],
        contexts: Mapping[str, ConnectorContext],
        columns: Mapping[str, dict[str, Any]],
        answers: Answers,
        in_frames: Collection[str],
    ) -> tuple[RunnerState, dict[str, Any]]:
        """The rest of a step in which everybody acts: see `_held_step`, and `step_envs` for `in_frames`."""
        final_obs, rewards, terminateds, truncateds, resets, _ = answers
        new_modules, recorded = {}, {}
        for mid, step in self.modules.items():
            recorded[mid] = {
                **columns[mid],
                Columns.REWARDS: rewards[mid],
                Columns.TERMINATEDS: terminateds[mid],
                Columns.TRUNCATEDS: truncateds[mid],
                Columns.FINAL_OBS: step.observe_final(
                    modules[mid].env_to_module,
                    final_obs[mid],
                    contexts[mid],
                    prev_actions=columns[mid][Columns.ACTIONS],
                    prev_rewards=rewards[mid],
                ),
            }
            if mid in in_frames:
                own = frames.newest(recorded[mid], step.env_to_module.num_stacked_frames)
                recorded[mid] = {**own, Columns.RESETS: state.modules[mid].reset}
            new_modules[mid] = modules[mid].after(rewards[mid], resets[mid])
        return dataclasses.replace(state, modules=new_modules), recorded

    def _held_step(
        self,
        state: RunnerState,
        modules: Mapping[str, ModuleState],
        contexts: Mapping[str, ConnectorContext],
        acts: Mapping[str, jax.Array],
        columns: Mapping[str, dict[str, Any]],
        answers: Answers,
    ) -> tuple[RunnerState, dict[str, Any]]:
        """The rest of a step in which some agents act and others wait: what is complete is recorded.

        Args:
            state: Before the step.
            modules: After all rows have acted, ``{module_id: ModuleState}``.
            contexts: What they have acted with.
            acts: bool ``[B]`` by module, the rows that have been asked to.
            columns: What the act left of all rows.
            answers: Of the environments.

        Returns:
            ``(state, columns)``, but for the state of the environments.
        """
        new_modules, new_held, recorded = {}, {}, {}
        for mid, step in self.modules.items():
            final_obs, reward, terminated, truncated, reset, observes = (own[mid] for own in answers)
            module = step.where_rows(acts[mid], modules[mid], state.modules[mid])
            held = state.held[mid].begun(acts[mid], columns[mid]).rewarded(reward)
            has_ended = functools.reduce(jnp.logical_or, (terminated, truncated, reset))
            complete = jnp.logical_and(held.is_held, jnp.logical_or(observes, has_ended))
            recorded[mid] = held.recorded(complete, terminated, truncated)
            recorded[mid][Columns.FINAL_OBS] = step.observe_final(
                module.env_to_module,
                final_obs,
                contexts[mid],
                prev_actions=held.columns[Columns.ACTIONS],
                prev_rewards=held.rewards,
            )
            prev_rewards = jnp.where(complete, held.rewards, module.prev_rewards)
            new_modules[mid] = module.after(prev_rewards, jnp.logical_or(reset, module.reset))
            new_held[mid] = held.without(complete)
        return dataclasses.replace(state, modules=new_modules, held=new_held), recorded

    def _unclaimed(
        self, held: Mapping[str, HeldSteps], acts: Mapping[str, jax.Array], answers: Answers
    ) -> dict[str, jax.Array]:
        """`StepRecord.unclaimed` of a step.

        Args:
            held: Steps that had begun before it.
            acts: bool ``[B]`` by module, the rows whose steps begin with it.
            answers: Of the environments.
        """
        return {
            mid: jnp.logical_and(own != 0, ~jnp.logical_or(held[mid].is_held, acts[mid]))
            for mid, own in answers.rewards.items()
        }

    def _shown(
        self,
        columns: Mapping[str, dict[str, Any]],
        recorded: Mapping[str, dict[str, Any]],
        acts: Mapping[str, jax.Array],
        answers: Answers,
        after: Any,
    ) -> ShownStep:
        """A step for episodes of several agents.

        Args:
            columns: What the act left of all rows, by module.
            recorded: What is recorded of the step.
            acts: bool ``[B]`` by module, the rows that have been asked to act; {} where all have.
            answers: Of the environments.
            after: What they have returned.
        """
        shown = {}
        for mid, own in columns.items():
            shown[mid] = {
                **own,
                Columns.REWARDS: answers.rewards[mid],
                Columns.TERMINATEDS: answers.terminateds[mid],
                Columns.TRUNCATEDS: answers.truncateds[mid],
                Columns.FINAL_OBS: recorded[mid][Columns.FINAL_OBS],
                ACTS: acts[mid] if acts else jnp.ones_like(answers.terminateds[mid]),
                OBSERVES: answers.observes[mid],
            }
        return ShownStep(self.module_map.by_agent(shown), after.terminated, after.truncated)

    def _of_info(self, module_id: str, info: Mapping[str, Any]) -> dict[str, Any]:
        """Declared columns that the environments return in `info`, ``[B, ...]``."""
        if self.module_map.is_multi_agent:
            return {}
        return {name: info[name] for name in self.declared.get(module_id, ()) if name in info}

    def _rows(self, of_env: Any) -> dict[str, Any]:
        """What environments gave, as rows of the modules."""
        if self.module_map.is_multi_agent:
            return self.module_map.rows(of_env)
        (agent_id,) = self.module_map.module_of
        return self.module_map.rows({agent_id: of_env})

    def _of_env(self, rows: Mapping[str, Any]) -> Any:
        """Rows of the modules as environments take them."""
        of_agents = self.module_map.by_agent(rows)
        if self.module_map.is_multi_agent:
            return of_agents
        (of_agent,) = of_agents.values()
        return of_agent

    def _who_acts(self, env_state: Any) -> dict[str, jax.Array]:
        """bool ``[B]`` by module, which rows are asked to act; {} where everybody acts in every step."""
        env: Any = self.env
        return self._rows(jax.vmap(env.who_acts)(env_state)) if self.held else {}

    def _answers(self, after: Any, ended: jax.Array) -> Answers:
        """What environments answer to a step, as rows of the modules.

        Args:
            after: The step.
            ended: bool ``[B]``, whether it ended the episode.
        """
        if not self.module_map.is_multi_agent:
            given = (after.final_obs, after.reward, after.terminated, after.truncated, ended)
            return Answers(*map(self._rows, given), observes={})
        resets = dict.fromkeys(self.module_map.module_of, ended)
        given = (after.final_obs, after.reward, after.terminateds, after.truncateds, resets, after.acts)
        return Answers(*map(self._rows, given))

    def count_episodes(self, state: RunnerState, record: StepRecord) -> tuple[RunnerState, EpisodeEnds]:
        """Take in the rewards and ends of T steps, after the loop.

        Args:
            state: After the steps; its `episodes` and `agent_episodes` are those of before.
            record: What was recorded of them, ``[T, ...]``.
        """
        rewards = self.module_map.by_agent({mid: own[Columns.REWARDS] for mid, own in record.columns.items()}, axis=1)
        episodes, after = state.episodes.extend(functools.reduce(jnp.add, rewards.values()), record.ended)
        complete = self._complete_steps(record) if self.held else {}
        of_agents = {
            agent: own.extend(rewards[agent], record.ended, complete.get(agent))
            for agent, own in state.agent_episodes.items()
        }
        running = {agent: own for agent, (own, _) in of_agents.items()}
        returns = {agent: own.episode_return for agent, (_, own) in of_agents.items()}
        for agent in complete:
            takes_part = of_agents[agent][1].episode_length > 0
            returns[agent] = jnp.where(takes_part, returns[agent], jnp.nan)
        state = dataclasses.replace(state, episodes=episodes, agent_episodes=running)
        return state, EpisodeEnds(record.ended, after.episode_return, after.episode_length, returns, complete)

    def _complete_steps(self, record: StepRecord) -> dict[Any, jax.Array]:
        """bool ``[T, B]`` by agent, in which steps of the environments one of its own is complete."""
        return self.module_map.by_agent({mid: own[Columns.LOSS_MASK] for mid, own in record.columns.items()}, axis=1)

    def num_agent_steps(self, record: StepRecord) -> dict[Any, jax.Array]:
        """int32 by agent, how many steps each of several agents has completed in what was recorded; else {}."""
        if not self.agents:
            return {}
        if self.held:
            of_agents = self._complete_steps(record)
            return {agent: jnp.sum(own, dtype=jnp.int32) for agent, own in of_agents.items()}
        return {agent: jnp.int32(record.ended.size) for agent in self.agents}

    def unclaimed_rewards(self, record: StepRecord) -> dict[Any, jax.Array]:
        """bool by agent, whether each of several agents got a reward that belongs to none of its steps; else {}."""
        if not self.agents:
            return {}
        if not self.held:
            return {agent: jnp.bool_(False) for agent in self.agents}
        return {agent: own.any() for agent, own in self.module_map.by_agent(record.unclaimed, axis=1).items()}

    def unroll(self, state: RunnerState, context: ConnectorContext, *, num_steps: int) -> UnrolledSteps:
        """Steps of all environments with the state's own key.

        Args:
            state: State before the first one.
            context: What to act with; see `context`.
            num_steps: ``T``.

        Returns:
            ``(state, record [T, ...], what ended)``.
        """
        key, rollout_key = jax.random.split(state.key)
        keys = self.step_keys(rollout_key, num_steps, state.num_envs, context.rest)
        state, record = jax.lax.scan(functools.partial(self.step_envs, context=context), state, keys)
        state, ended = self.count_episodes(state, record)
        return dataclasses.replace(state, key=key), record, ended

    def step_keys(self, key: jax.Array, num_steps: int, num_envs: int, rest: Any) -> StepKeys:
        """Random numbers of all steps at once: derived in every step, they cost up to a tenth of the sampling.

        Args:
            key: PRNG key.
            num_steps: ``T``.
            num_envs: ``B``.
            rest: Other state of the MultiRLModule, for the shapes of its random streams.
        """
        keys = jax.random.split(key, (num_steps, 1 + num_envs))

        def streams_of(key: jax.Array) -> dict[str, Any]:
            return {
                mid: step.random_streams(rest, self.module_map.key_of(mid, key)) for mid, step in self.modules.items()
            }

        modules = jax.vmap(streams_of)(keys[:, 0])
        return StepKeys(policy=keys[:, 0], envs=self.env.step_keys(keys[:, 1:]), modules=modules)

    def merged(self, state: RunnerState, axis_name: str | None) -> RunnerState:
        """`state` with the statistics of connectors merged over the devices."""
        modules = {
            mid: dataclasses.replace(
                own,
                env_to_module=self.modules[mid].env_to_module.merge(own.env_to_module, axis_name),
                module_to_env=self.modules[mid].module_to_env.merge(own.module_to_env, axis_name),
            )
            for mid, own in state.modules.items()
        }
        return dataclasses.replace(state, modules=modules)

    def block(
        self, module_id: str, columns: dict[str, Any], num_fragments: int, layout: Layout, *, earlier: Any = None
    ) -> Block:
        """What was sampled in one go as fragments, each with a cut at its end, as learners get them.

        Args:
            module_id: Whose columns they are.
            columns: ``[R * T, B, ...]``.
            num_fragments: ``R``.
            layout: How they are to lie.
            earlier: State of the module's env-to-module pipeline before the first step, where its columns are
                ``in_frames``; else None.

        Returns:
            Columns ``[T, R * B, ...]``, of recurrent states those at chunk starts.
        """
        if earlier is not None:
            earlier = self.modules[module_id].env_to_module.earlier_frames(earlier)
        return Block.of_rollout(columns, layout, num_fragments, earlier)
