"""Rollouts on the device: environments, connector pipelines and modules in one `lax.scan`, as pure functions of a
`RunnerState`.
"""

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
from jaxrl_stack.acting.opponents import OpponentStep, margin_of, opponent_map
from jaxrl_stack.acting.running_episodes import RunningEpisodes
from jaxrl_stack.core import frames
from jaxrl_stack.core.block import Block
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.layouts import Layout
from jaxrl_stack.core.module_map import OPPONENTS
from jaxrl_stack.utils.named_leaves import with_named_leaves

if TYPE_CHECKING:
    from jaxrl_stack.connectors.context import ConnectorContext
    from jaxrl_stack.core.module_map import ModuleMap
    from jaxrl_stack.core.rl_module.functional import PureModule
    from jaxrl_stack.env.jax_env import JaxEnv


@struct.dataclass
class RunnerState:
    """State of an on-device EnvRunner: environments, connectors, recurrent states and unfinished episodes.

    Attributes:
        modules: State of acting, ``{module_id: ModuleState}``.
        held: Incomplete steps of agents, ``{module_id: HeldSteps}``; {} if all agents act in every step.
        env_state: State of the environments, ``[B, ...]``.
        obs: Last observations of the environments, ``[B, ...]``, unprocessed.
        episodes: Returns and lengths of the unfinished episodes so far, ``[B]``.
        agent_episodes: The same for each agent, if there are several; else {}.
        window: Statistics of the last finished episodes.
        key: PRNG key.
        opponents: An `OpponentsState` if snapshots play some rows; else ().
    """

    modules: dict[str, ModuleState]
    held: dict[str, HeldSteps]
    env_state: Any
    obs: Any
    episodes: RunningEpisodes
    agent_episodes: dict[Any, RunningEpisodes]
    window: EpisodeWindow
    key: jax.Array
    opponents: Any = ()

    @property
    def num_envs(self) -> int:
        """Number of environments, ``B``."""
        return self.episodes.episode_length.shape[0]

    @property
    def env_to_module(self) -> dict[str, Any]:
        """States of the modules' env-to-module pipelines, ``{module_id: state}``. The pipelines of snapshots (stored
        copies of a module that play as opponents) are left out.
        """
        return {mid: own.env_to_module for mid, own in self.modules.items() if mid != OPPONENTS}

    def with_env_to_module(self, states: Mapping[str, Any]) -> RunnerState:
        """Returns a copy of the runner's state in which the env-to-module pipelines have the given states,
        ``{module_id: state}``.
        """
        modules = {mid: dataclasses.replace(self.modules[mid], env_to_module=own) for mid, own in states.items()}
        return dataclasses.replace(self, modules={**self.modules, **modules})


class EpisodeEnds(NamedTuple):
    """Ends, returns and lengths of episodes in T steps of B environments.

    All arrays are ``[T, B]``; returns and lengths are valid where `ended` is True.

    Attributes:
        ended: bool, whether an episode ended with the step.
        returns: float32, return of the episode.
        lengths: int32, length of the episode.
        agent_returns: float32 by agent, if there are several: the agent's part of the return; NaN if it completed no
            step. If all agents act in every step, it is never NaN.
        completes: bool by agent, whether the agent completed a step; empty if all agents act in every step.
    """

    ended: jax.Array
    returns: jax.Array
    lengths: jax.Array
    agent_returns: dict[Any, jax.Array]
    completes: dict[Any, jax.Array]


class StepRecord(NamedTuple):
    """Recorded data of one step of all environments: columns by module, and ends of episodes.

    Attributes:
        columns: ``{module_id: {column: pytree [B, ...]}}``.
        ended: bool ``[B]``, whether an episode ended.
        seen: A `ShownStep` if the rollout has ``shows_agents``; data of a subclass that records more; else ().
        unclaimed: bool ``[B]`` by module, rows that received a reward without having begun a step; () if all agents act
            in every step.
    """

    columns: dict[str, Any]
    ended: jax.Array
    seen: Any = ()
    unclaimed: Any = ()


class ShownStep(NamedTuple):
    """Recorded data of one multi-agent env step, from which `MultiAgentEpisode` objects are built on the host.

    Attributes:
        agents: ``{agent: {column: pytree [B, ...]}}``: columns of the act, `ACTS` and `OBSERVES` of
            `acting.episode_forms`, and the rewards, flags and FINAL_OBS of this environment step only.
        terminateds: bool ``[B]``, whether the episode terminated.
        truncateds: bool ``[B]``, whether the episode was truncated.
    """

    agents: dict[Any, dict[str, Any]]
    terminateds: jax.Array
    truncateds: jax.Array


class Answers(NamedTuple):
    """Results of an environment step (rewards, flags, next observations), by module.

    Each field is ``{module_id: [B, ...]}``, with the values of the module's B rows (one agent in one environment each).

    Attributes:
        final_obs: Observations after the step, before any reset.
        rewards: float32.
        terminateds: bool, whether the agent terminated.
        truncateds: bool, whether the agent was truncated.
        resets: bool, whether the next observation belongs to a new episode.
        observes: bool, whether the agent is to act on `final_obs`; {} with one agent, which acts in every step.
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
    """PRNG keys and random streams for T vector steps (steps of all environments); see `DeviceRollout.step_keys`.

    Attributes:
        policy: PRNG keys ``[T]`` of pipelines and modules.
        envs: Results of `JaxEnv.step_keys` (leaves ``[T, B, ...]``).
        modules: The modules' random streams, ``{module_id: leaves [T, ...]}``; None derives them in every step.
    """

    policy: jax.Array
    envs: Any
    modules: dict[str, Any] | None


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class DeviceRollout:
    """Pure functions of a rollout on the device, with the static parts that they need: environment, modules and
    connectors. Larger compiled programs call these functions.

    Attributes:
        modules: Policy step of each module, ``{module_id: ModuleStep}``; for snapshots an `OpponentStep`.
        module_map: Mapping from agents to modules.
        env: The environment.
        window_size: Number of finished episodes that the statistics cover.
        env_params: Leaves that replace leaves of ``env.params``, by name: parameters in which members of a population
            differ.
        held: Shapes of an act's columns for one agent, ``{module_id: {column: pytree}}``; {} if all agents act in every
            step.
        shows_agents: Whether records have a `ShownStep` in `seen`.
        declared: `Learner.declared_columns`. Columns that neither a module nor its pipelines make are read from `info`,
            if the environment has one agent.
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
        """The rollout's MultiRLModule as pure functions of the module's parameters and other state."""
        return next(iter(self.modules.values())).pure

    @property
    def agents(self) -> tuple[Hashable, ...]:
        """Ids of the agents if there are several; () for one agent, which has no id in the environment."""
        return tuple(self.module_map.module_of) if self.module_map.is_multi_agent else ()

    @property
    def opponents(self) -> OpponentStep | None:
        """Policy step (from observations to actions) of the snapshots (stored copies of a module) that play as
        opponents; None if no snapshots play.
        """
        step = self.modules.get(OPPONENTS)
        return step if isinstance(step, OpponentStep) else None

    def with_snapshots(self, module_id: str, *, num_envs: int, num_self_play: int, num_blocks: int) -> Self:
        """Returns a copy of the rollout in which snapshots (stored copies of a module) are opponents in some
        environments.

        In the first S of the B environments, the module plays all agents (self-play). In the other ``B - S``
        environments, the module plays the first agent, and snapshots play all other agents.

        Args:
            module_id: The module, which plays all agents in this rollout.
            num_envs: ``B``.
            num_self_play: ``S``, environments in which the module continues to play all agents.
            num_blocks: ``K``, number of blocks (groups of environments with the same snapshot), a divisor of ``B - S``.
        """
        agents, own = self.agents, self.modules[module_id]
        step = OpponentStep.of(own, num_blocks=num_blocks, num_agents=len(agents) - 1)
        held = {**self.held, OPPONENTS: self.held[module_id]} if self.held else self.held
        module_map = opponent_map(self.module_map, module_id, agents, num_envs=num_envs, num_self_play=num_self_play)
        return dataclasses.replace(self, modules={**self.modules, OPPONENTS: step}, module_map=module_map, held=held)

    def with_opponents(self, state: RunnerState) -> Self:
        """Returns a copy of the rollout whose opponents act with the snapshots' weights in the runner's `state`.
        Snapshots are stored copies of a module.

        Call this method while JAX traces the program that steps the environments, with the traced `state`.
        """
        if self.opponents is None:
            return self
        return dataclasses.replace(self, modules={**self.modules, OPPONENTS: self.opponents.of_state(state.opponents)})

    def drawing_actions(self) -> Self:
        """Returns a copy of the rollout in which actions are random draws from the action spaces."""
        modules = {mid: dataclasses.replace(step, draws_actions=True) for mid, step in self.modules.items()}
        return dataclasses.replace(self, modules=modules)

    def context(self, params: Any, rest: Any, settings: Any, timesteps: Any, **static: Any) -> ConnectorContext:
        """Returns the values that connectors may read in every step of a rollout, such as weights and settings.

        The result is a `ConnectorContext`. Its values are the same for all modules. See `ModuleStep.context`.
        """
        return next(iter(self.modules.values())).context(params, rest, settings, timesteps, **static)

    def init_connectors(self, num_envs: int) -> dict[str, Any]:
        """Returns initial states of the env-to-module pipelines, ``{module_id: state}``."""
        rows = self.module_map.num_rows(num_envs)
        return {mid: step.env_to_module.init(rows[mid]) for mid, step in self.modules.items() if mid != OPPONENTS}

    def init(self, key: jax.Array, num_envs: int, env_to_module: Mapping[str, Any] | None = None) -> RunnerState:
        """Resets all environments, and returns the runner's initial state (environments, connectors, recurrent states).

        Args:
            key: PRNG key.
            num_envs: Number of environments, ``B``.
            env_to_module: Pipeline states whose statistics to continue, ``{module_id: state}``; None starts all
                pipelines from their initial states.
        """
        key, reset_key = jax.random.split(key)
        obs, env_state = jax.vmap(self.env.reset, in_axes=(0, None))(
            jax.random.split(reset_key, num_envs), self._env_params()
        )
        given, rows = env_to_module or {}, self.module_map.num_rows(num_envs)
        rivals, opponents = max(1, len(self.agents) - 1), self.opponents
        return RunnerState(
            modules={mid: step.start(rows[mid], given.get(mid)) for mid, step in self.modules.items()},
            held={mid: HeldSteps.none(columns, rows[mid]) for mid, columns in self.held.items()},
            env_state=env_state,
            obs=obs,
            episodes=RunningEpisodes.empty(num_envs),
            agent_episodes={agent: RunningEpisodes.empty(num_envs) for agent in self.agents},
            window=EpisodeWindow.empty(self.window_size, self.agents),
            key=key,
            opponents=() if opponents is None else opponents.no_opponents(rows[OPPONENTS] // rivals),
        )

    def _env_params(self) -> Any:
        """Returns the parameters ``env.params`` of the environment, with the replacements in the rollout's
        `env_params`.

        Each leaf in the rollout's `env_params` replaces the leaf with the same name. Arrays are JAX arrays, because a
        traced action cannot index NumPy arrays.
        """
        own = jax.tree.map(lambda leaf: jnp.asarray(leaf) if np.ndim(leaf) else leaf, self.env.params)
        return with_named_leaves(own, self.env_params) if self.env_params else own

    def step_envs(
        self, state: RunnerState, keys: StepKeys, context: ConnectorContext, *, in_frames: Collection[str] = ()
    ) -> Stepped:
        """Makes one step of all environments: computes actions, steps the environments, and records the step. A rollout
        calls this method in each iteration of a `lax.scan`.

        Args:
            state: State before the step; its `episodes`, `window` and `key` pass unchanged.
            keys: Random numbers of this step, without the axis T.
            context: Context of acting; see `context`.
            in_frames: Modules whose columns contain ``RESETS``, and only the newest frame of stacked observations.

        Returns:
            ``(state, record [B, ...])``.
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
        """Records an env step in which all agents act, and returns the new runner state and the recorded columns.

        The columns are grouped by module; `env_state` and `obs` of the state are not updated. For the modules in
        `in_frames`, which stack frames, recorded observations are reduced to the newest frame. Their columns also
        contain ``RESETS``: a mask of the rows (one agent in one environment each) whose step begins an episode.
        """
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
        """Records the agent steps that an env step completes, for agents that do not act in every step. Returns the new
        runner state and the recorded columns.

        Args:
            state: State before the step.
            modules: States after all rows have acted, ``{module_id: ModuleState}``.
            contexts: Contexts of acting, by module.
            acts: bool ``[B]`` by module, rows that act.
            columns: Columns of the acts of all rows, by module.
            answers: Results of the environments.

        Returns:
            ``(state, recorded columns by module)``; `env_state` and `obs` of the state are not updated.
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
        """Finds the agents that received a reward in an env step although they did not act and had no incomplete agent
        step.

        Returns ``{module_id: bool [B]}``, True for the rows (one agent in one environment each) of these agents. See
        `StepRecord.unclaimed`.

        Args:
            held: Incomplete steps that began before this env step.
            acts: bool ``[B]`` by module, rows that act in this env step.
            answers: Results of the environments.
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
        """Returns the data of one env step from which the host builds multi-agent episode objects.

        The data contain each agent's observations, actions, module outputs, rewards and end flags, and the end flags of
        the whole episodes.

        Args:
            columns: Columns of the acts of all rows, by module.
            recorded: Recorded columns of the step, by module.
            acts: bool ``[B]`` by module, rows that act; {} if all do.
            answers: Results of the environments, by module.
            after: The environments' own results.
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
        """Selects from the environments' `info` the columns that a module's training needs.

        Losses, modules or learner connectors declare these columns (see `declared`). Returns ``{column: [B, ...]}``; {}
        with several agents.
        """
        if self.module_map.is_multi_agent:
            return {}
        return {name: info[name] for name in self.declared.get(module_id, ()) if name in info}

    def _rows(self, of_env: Any) -> dict[str, Any]:
        """Groups the environments' values by module, and returns ``{module_id: [R, ...]}``.

        Each of a module's R rows is one agent in one environment. `of_env` has one value per environment, ``[B, ...]``;
        with several agents, it is ``{agent_id: [B, ...]}``.
        """
        if self.module_map.is_multi_agent:
            return self.module_map.rows(of_env)
        (agent_id,) = self.module_map.module_of
        return self.module_map.rows({agent_id: of_env})

    def _of_env(self, rows: Mapping[str, Any]) -> Any:
        """Converts values that are grouped by module to the form that the environments take: by agent if there are
        several, otherwise the only agent's value.
        """
        of_agents = self.module_map.by_agent(rows)
        if self.module_map.is_multi_agent:
            return of_agents
        (of_agent,) = of_agents.values()
        return of_agent

    def _who_acts(self, env_state: Any) -> dict[str, jax.Array]:
        """Returns which agents act in this env step, grouped by module, ``{module_id: bool [B]}``; {} if all agents act
        in every step.
        """
        env: Any = self.env
        return self._rows(jax.vmap(env.who_acts)(env_state)) if self.held else {}

    def _answers(self, after: Any, ended: jax.Array) -> Answers:
        """Groups the environments' results of one step by the module that acts for each agent.

        Args:
            after: The environments' own results.
            ended: bool ``[B]``, whether the step ended the episode.
        """
        if not self.module_map.is_multi_agent:
            given = (after.final_obs, after.reward, after.terminated, after.truncated, ended)
            return Answers(*map(self._rows, given), observes={})
        resets = dict.fromkeys(self.module_map.module_of, ended)
        given = (after.final_obs, after.reward, after.terminateds, after.truncateds, resets, after.acts)
        return Answers(*map(self._rows, given))

    def count_episodes(self, state: RunnerState, record: StepRecord) -> tuple[RunnerState, EpisodeEnds]:
        """Computes returns and lengths of the episodes that ended in T recorded steps, after the loop over the steps.

        Args:
            state: State after the steps, but with the `episodes` and `agent_episodes` from before the steps.
            record: Records of the steps, ``[T, ...]``.
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
        if self.opponents is not None:
            hero, *rivals = (returns[agent] for agent in self.agents)
            steps = record.columns[OPPONENTS]
            num_steps = steps[Columns.LOSS_MASK].sum(dtype=jnp.int32) if self.held else steps[Columns.REWARDS].size
            opponents = state.opponents.with_games(record.ended, margin_of(hero, rivals), num_steps)
            state = dataclasses.replace(state, opponents=opponents)
        state = dataclasses.replace(state, episodes=episodes, agent_episodes=running)
        return state, EpisodeEnds(record.ended, after.episode_return, after.episode_length, returns, complete)

    def _complete_steps(self, record: StepRecord) -> dict[Any, jax.Array]:
        """Returns ``{agent: bool [T, B]}``: for each agent, a mask of the env steps in which this agent completes an
        agent step.
        """
        return self.module_map.by_agent({mid: own[Columns.LOSS_MASK] for mid, own in record.columns.items()}, axis=1)

    def num_agent_steps(self, record: StepRecord) -> dict[Any, jax.Array]:
        """Returns the number of agent steps that each agent has completed in the recorded env steps,
        ``{agent: int32}``; {} for a single agent.
        """
        if not self.agents:
            return {}
        if self.held:
            of_agents = self._complete_steps(record)
            return {agent: jnp.sum(own, dtype=jnp.int32) for agent, own in of_agents.items()}
        return {agent: jnp.int32(record.ended.size) for agent in self.agents}

    def unclaimed_rewards(self, record: StepRecord) -> dict[Any, jax.Array]:
        """Returns ``{agent: bool}``: whether the agent received a reward that belongs to none of its agent steps.

        The rewards are from the recorded env steps. An example is a reward before the agent's first action. Returns {}
        for a single agent.
        """
        if not self.agents:
            return {}
        if not self.held:
            return {agent: jnp.bool_(False) for agent in self.agents}
        return {agent: own.any() for agent, own in self.module_map.by_agent(record.unclaimed, axis=1).items()}

    def unroll(self, state: RunnerState, context: ConnectorContext, *, num_steps: int) -> UnrolledSteps:
        """Makes T steps of all environments, with random numbers from the PRNG key in `state`. Returns the new state,
        the recorded steps and the ends of episodes.

        Args:
            state: State before the first step.
            context: Context of acting; see `context`.
            num_steps: ``T``.

        Returns:
            ``(state, record [T, ...], ends of episodes)``.
        """
        key, rollout_key = jax.random.split(state.key)
        keys = self.step_keys(rollout_key, num_steps, state.num_envs, context.rest)
        step = self.with_opponents(state).step_envs
        state, record = jax.lax.scan(functools.partial(step, context=context), state, keys)
        state, ended = self.count_episodes(state, record)
        return dataclasses.replace(state, key=key), record, ended

    def step_keys(self, key: jax.Array, num_steps: int, num_envs: int, rest: Any) -> StepKeys:
        """Derives the PRNG keys of all steps at once, because deriving one key in each step takes up to a tenth of the
        rollout's time.

        Args:
            key: PRNG key.
            num_steps: ``T``.
            num_envs: ``B``.
            rest: Non-parameter state of the MultiRLModule, for the shapes of its random streams.
        """
        keys = jax.random.split(key, (num_steps, 1 + num_envs))

        def streams_of(key: jax.Array) -> dict[str, Any]:
            return {
                mid: step.random_streams(rest, self.module_map.key_of(mid, key)) for mid, step in self.modules.items()
            }

        modules = jax.vmap(streams_of)(keys[:, 0])
        return StepKeys(policy=keys[:, 0], envs=self.env.step_keys(keys[:, 1:]), modules=modules)

    def merged(self, state: RunnerState, axis_name: str | None) -> RunnerState:
        """Merges new connector statistics into the earlier statistics, and returns the runner's new state.

        New statistics have been collected since the last merge. Merges over all devices on the axis `axis_name`, or
        only on this device if `axis_name` is None.
        """
        modules = {mid: self.modules[mid].merged(own, axis_name) for mid, own in state.modules.items()}
        return dataclasses.replace(state, modules=modules)

    def block(
        self, module_id: str, columns: dict[str, Any], num_fragments: int, layout: Layout, *, earlier: Any = None
    ) -> Block:
        """Converts one rollout to a `Block` for the learner: cuts the rollout into R fragments of T steps.

        The rollout has ``R * T`` steps of B environments. The fragments are placed side by side on axis 1:
        ``[R * T, B, ...]`` becomes ``[T, R * B, ...]``.

        Args:
            module_id: Module of the columns.
            columns: ``[R * T, B, ...]``.
            num_fragments: ``R``.
            layout: Layout of the block.
            earlier: State of the module's env-to-module pipeline before the first step, if its columns are
                ``in_frames``; else None.

        Returns:
            A block with columns ``[T, R * B, ...]``; it has recurrent states only at the starts of chunks.
        """
        if earlier is not None:
            earlier = self.modules[module_id].env_to_module.earlier_frames(earlier)
        return Block.of_rollout(columns, layout, num_fragments, earlier)
