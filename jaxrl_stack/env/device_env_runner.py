"""Env runner for JAX environments: sampling and evaluation outside of the compiled training program."""

from __future__ import annotations

import collections
import dataclasses
import functools
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

import jax
import numpy as np
from gymnasium.vector.utils import batch_space

from jaxrl_stack.acting.device_rollout import DeviceRollout, EpisodeEnds, RunnerState
from jaxrl_stack.acting.episode_builder import EpisodeBuilder, StepwiseEpisodeBuilder
from jaxrl_stack.acting.episode_forms import episodes_of_rollout
from jaxrl_stack.acting.episode_replay import EpisodeReplay
from jaxrl_stack.acting.recording import EndedEpisodes
from jaxrl_stack.callbacks.utils import CallbackList, overrides_episode_hooks
from jaxrl_stack.checkpoints.checkpointable import Parts, selected
from jaxrl_stack.core import COMPONENT_ENV_TO_MODULE_CONNECTOR, COMPONENT_MODULE_TO_ENV_CONNECTOR, COMPONENT_RL_MODULE
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.env.acting_settings import traced_settings
from jaxrl_stack.env.agent_mapping import steps_counted_per_env_step
from jaxrl_stack.env.env_runner import EnvRunner, check_amounts
from jaxrl_stack.env.episode_quota import EpisodeQuota, episode_quota
from jaxrl_stack.env.module_pipelines import ModulePipelines
from jaxrl_stack.env.sampling_metrics import log_counts, log_episode
from jaxrl_stack.env.step_output import make_step_output
from jaxrl_stack.env.watching import SeenEpisodes, watched
from jaxrl_stack.policy.inputs import checked_observations
from jaxrl_stack.utils.devices import host_view
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger
from jaxrl_stack.utils.named_leaves import from_named_leaves, named_leaves
from jaxrl_stack.utils.results import is_name_of_runners, nested_leaves
from jaxrl_stack.utils.streams import Stream, stream_key
from jaxrl_stack.utils.traced_config import current_values

if TYPE_CHECKING:
    from jaxrl_stack.acting.module_step import ModuleStep
    from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModule
    from jaxrl_stack.core.rl_module.rl_module import RLModule
    from jaxrl_stack.videos.episodes import RecordedEpisode

EVALUATION_CHUNK = 128
"""Vector steps per call of the evaluation program; between calls the host can stop it."""

Chunk: TypeAlias = "tuple[RunnerState, Any, np.ndarray]"
"""What such a call has done: ``(state after it, record or (), bool [T, B] what counts)``."""


class WeightSource(Protocol):
    """Interface through which a `DeviceEnvRunner` reads a Learner's modules, weights and number of updates.

    Attributes:
        state: Object with ``params`` and ``rest``, ``{ref: array}``.
        module: Modules with these weights.
        num_updates: Number of updates behind these weights.
    """

    @property
    def state(self) -> Any: ...

    @property
    def module(self) -> MultiRLModule: ...

    @property
    def num_updates(self) -> int: ...


class DeviceEnvRunner(EnvRunner):
    """Samples from a JAX environment with the learner's current weights.

    It samples in separate environments; the environments of the training program do not change.

    Args:
        config: The config; for an evaluation runner, the evaluation config. Traced settings are read from it.
        rollout: The static parts of sampling.
        pipelines: Pipelines whose pure parts are in the rollout.
        learner: Source of weights: a Learner, or an object with weights that were fetched from learner actors.
        connector_state: ``() -> states of the rollout's env-to-module pipelines``, by module, with the current training
            statistics.
        timesteps: ``() -> uint32[2]``, lifetime env steps, at which schedules are read.
        env_context: `EnvContext` of the environment, for callbacks.

    Attributes:
        callbacks: Called for the episodes of `evaluate` and `sample`; `DeviceDriver` calls callbacks for training.
        output: Writes the sampled steps to files, if requested; `DeviceDriver` adds the steps of training.
    """

    def __init__(
        self,
        *,
        config: Any,
        rollout: DeviceRollout,
        pipelines: ModulePipelines,
        learner: WeightSource,
        connector_state: Callable[[], Mapping[str, Any]],
        timesteps: Callable[[], Any],
        env_context: Any = None,
    ):
        super().__init__(config=config)
        self.rollout = rollout
        self.pipelines = pipelines
        self._learner = learner
        self.connector_state = connector_state
        self._timesteps = timesteps
        self._env_context = env_context
        self.metrics = MetricsLogger(stats_cls_lookup=config.stats_cls_lookup, reserved=is_name_of_runners)
        self.num_envs = int(config.num_envs_per_env_runner)
        self._state: RunnerState | None = None
        self._builder: EpisodeBuilder | StepwiseEpisodeBuilder | None = None
        self._programs: dict[Hashable, Callable[..., Any]] = {}
        self._sample_replay: EpisodeReplay | None = None
        self.output = make_step_output(config, self.worker_index, pipelines.env_to_module)
        self.reset(config)

    def _make_episode_replay(self) -> EpisodeReplay | None:
        if not overrides_episode_hooks(self.callbacks):
            return None
        call = functools.partial(self.callbacks.call_for_episode, env_runner=self, metrics_logger=self.metrics)
        return EpisodeReplay(call, episodes_of_rollout(self.rollout.module_map, self.pipelines.spaces))

    def _started_builder(self) -> EpisodeBuilder | StepwiseEpisodeBuilder:
        if self._builder is None:
            module_map, spaces = self.rollout.module_map, self.pipelines.spaces
            horizon = self.config.episode_lookback_horizon
            if module_map.is_multi_agent:
                self._builder = StepwiseEpisodeBuilder(episodes_of_rollout(module_map, spaces), horizon)
            else:
                self._builder = EpisodeBuilder(*spaces[module_map.module_id], horizon)
        return self._builder

    # ---------------------------------------------------------------------------------------------------- access

    @property
    def env(self) -> Any:
        """JAX environment from which this runner samples."""
        return self.rollout.env

    @property
    def module(self) -> RLModule | MultiRLModule:
        """Module that acts, with the learner's current weights; a MultiRLModule for multi-agent environments."""
        return self.rollout.module_map.unwrapped(self._learner.module)

    def make_env(self) -> None:
        """Makes the next ``sample()`` call reset all environments. The environment itself cannot change, because
        programs are compiled for it.

        Raises:
            ValueError: If `config` asks for another environment than the one that programs were compiled with.
        """
        if not self.config.is_same(self._built_from, "env", "env_config"):
            raise ValueError(
                f"make_env() cannot change to environment({self.config.env!r}, env_config={self.config.env_config!r}): "
                f"the training program was compiled for {self._built_from.env!r} with env_config="
                f"{self._built_from.env_config!r}. To change only the task, choose it in the "
                "environment's reset(). Else build an algorithm `other` with the new environment, and call "
                "other.learner_group.set_state(algo.learner_group.get_state())."
            )
        for name in ("randomized_params", "privileged_params"):
            if not self.config.is_same(self._built_from, name):
                raise ValueError(
                    f"make_env() cannot change to environment({name}={getattr(self.config, name)!r}): the training "
                    f"program was compiled with {getattr(self._built_from, name)!r}. Build an algorithm `other` with "
                    f"environment({name}=...), and call "
                    "other.learner_group.set_state(algo.learner_group.get_state())."
                )
        self._needs_reset = True

    def make_module(self) -> None:
        """Does nothing: this runner acts with the learner's module and builds no other."""

    def change_settings(self, settings: Mapping[str, Any]) -> None:
        super().change_settings(settings)
        vars(self).pop("_settings", None)

    def reset(self, config: Any) -> None:
        """Resets the runner to a new config, with cleared metrics and new episodes.

        Only settings that are arguments of compiled programs may differ from the previous config, so that nothing is
        compiled again.
        """
        # Its own, and open, as a host runner's is.
        self.config, self._built_from = config.copy(copy_frozen=False), config
        self.callbacks = CallbackList.from_config(config) if config.in_evaluation else CallbackList()
        self._is_announced = False
        vars(self).pop("_settings", None)
        self.metrics.reset()
        self._needs_reset, self._resets = True, 0
        self._evaluated: dict[int, RunnerState] = {}
        self._episode_replay = self._make_episode_replay()

    def get_spaces(self) -> dict[str, tuple[Any, Any]]:
        single = (self.env.observation_space, self.env.action_space)
        batched = (batch_space(single[0], self.num_envs), batch_space(single[1], self.num_envs))
        return {"__env__": batched, "__env_single__": single, **self.pipelines.spaces}

    def write_output(self, *, is_last: bool = False) -> None:
        self.output.flush(is_last=is_last)

    def get_metrics(self) -> dict[str, Any]:
        return self.metrics.reduce()

    def get_state(self, components: Parts = None, *, not_components: Parts = None, **kwargs: Any) -> dict[str, Any]:
        """Returns the runner's state: the learner's weights with their number of updates, connector states with the
        current training statistics, and unfinished evaluation episodes.

        Args:
            components: Only these; None for all.
            not_components: Leave these out.
            **kwargs: None.
        """
        pipelines = self.pipelines
        make: dict[str, Callable[[], Any]] = {
            COMPONENT_RL_MODULE: lambda: self.module.get_state(),
            COMPONENT_ENV_TO_MODULE_CONNECTOR: lambda: pipelines.stored_env_to_module(self.connector_state()),
            COMPONENT_MODULE_TO_ENV_CONNECTOR: pipelines.stored_module_to_env,
            "weights_seq_no": lambda: self._learner.num_updates,
            "running_evaluation": lambda: {
                str(num_envs): named_leaves(jax.device_get(state)) for num_envs, state in self._evaluated.items()
            },
        }
        return {n: make[n]() for n in selected(make, components, not_components, "an EnvRunner")}

    def set_state(self, state: dict[str, Any]) -> None:
        """Not supported: with on-device sampling, weights and statistics are restored by the Algorithm.

        Raises:
            ValueError: Always; names the call that does it.
        """
        raise ValueError(
            "set_state() is not supported: an on-device env runner acts with the learner's weights. Use "
            "algorithm.set_weights(...) or algorithm.restore_from_path(...)."
        )

    def acts_with(self, source: Any) -> bool:
        return source is self or getattr(source, "local_learner", None) is self._learner

    def restore_evaluation(self, running: dict[str, Any]) -> None:
        """Restores unfinished evaluation episodes, so that the next evaluation continues them without a reset.

        Args:
            running: The entry "running_evaluation" of a `get_state` result; {} without such episodes: the next
                evaluation then resets all environments.

        Raises:
            ValueError: The state belongs to another environment.
        """
        self._evaluated = {}
        for num_envs, named in running.items():
            init = functools.partial(self.rollout.init, num_envs=int(num_envs))
            template = jax.eval_shape(init, jax.random.key(0))
            state = from_named_leaves(template, named, "the evaluation's environments")
            self._evaluated[int(num_envs)] = state
            self.output.restart(np.asarray(state.episodes.episode_length))
            if self._episode_replay is not None:
                # How these episodes began is unknown: the next ones are seen.
                self._episode_replay.set_state({}, np.asarray(state.episodes.episode_length))

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """Returns the constructor arguments for checkpoints: the config."""
        return (), {"config": self.config.for_checkpoints(*self.pipelines.of_config())}

    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        """Returns the objects that have separate folders in checkpoints, as pairs ``(name, object)``: the env-to-module
        and the module-to-env pipeline.
        """
        return self.pipelines.parts()

    @classmethod
    def _build_from_checkpoint(cls, args: list[Any], kwargs: dict[str, Any], state: dict[str, Any]) -> Self:
        raise ValueError(
            "An on-device env runner cannot be restored without its Algorithm. Use Algorithm.from_checkpoint(path), "
            "which builds both."
        )

    # -------------------------------------------------------------------------------------------------- sampling

    def act(
        self, observation: Any, *, module_id: str, explore: bool, key: jax.Array, recurrent: Any = None
    ) -> dict[str, Any]:
        """Computes the action for one observation: env-to-module pipeline, module, module-to-env pipeline. Connectors
        treat the observation as the first of an episode.

        Args:
            observation: One observation of the environment, without batch axis.
            module_id: The module that acts.
            explore: Sample the action or take the greedy one.
            key: PRNG key.
            recurrent: State of the module, without batch axis; None for the initial state.

        Returns:
            The columns that the module-to-env pipeline made, as NumPy arrays without batch axis.

        Raises:
            ValueError: If the observation does not fit the observation space, or the module is for learners only.
        """
        acting = self._step_of(module_id)
        space: Any = self.rollout.env.observation_space
        if self.rollout.module_map.is_multi_agent:
            space = acting.env_to_module.input_observation_space
        observation = checked_observations(space, observation, 0)
        given = {Columns.OBS: observation} | ({} if recurrent is None else {Columns.STATE_IN: recurrent})

        def act(given, key, connector_state, *weights):
            columns = jax.tree.map(lambda x: x[None], given)
            return acting.act_once(columns, key, connector_state, self.context(*weights, explore=explore))

        connector_state = self.connector_state()
        state = connector_state.get(module_id, next(iter(connector_state.values())))

        program = self._program(("act", module_id, explore), act)
        return acting.first_row(jax.device_get(program(given, key, state, *self._weights())))

    def _step_of(self, module_id: str) -> ModuleStep:
        """Returns the `ModuleStep` (pipelines and forward pass) that computes a module's actions.

        A module that controls no agent has no pipelines: for such a module, uses the pipelines of the first module that
        controls an agent.
        """
        modules = self.rollout.modules
        return modules[module_id] if module_id in modules else next(iter(modules.values())).of_module(module_id)

    def sample(
        self, *, num_timesteps=None, num_episodes=None, explore=None, random_actions=False, force_reset=False
    ) -> list[Any]:
        """Steps the environments and returns the sampled steps as a list of episode objects: each object contains a
        whole episode or a chunk of an episode.

        Observations are the module's inputs: the outputs of the env-to-module pipeline, not the observations of the
        environment.

        Args:
            num_timesteps: Least number of env steps (with ``count_steps_by="agent_steps"``: of agents' steps); the
                next call continues the unfinished episodes. Default: ``rollout_fragment_length`` steps of every
                environment.
            num_episodes: Instead, reset all environments and return exactly ``n = num_episodes`` finished episodes,
                the first ``n // B + (i < n % B)`` of environment ``i``; the next call resets all environments, too.
            explore: Whether to sample actions instead of taking the greedy ones; None: ``config.explore``.
            random_actions: Draw actions from the action space, not from the policy.
            force_reset: Reset all environments first and drop unfinished episodes.

        Raises:
            ValueError: `num_timesteps` and `num_episodes` are both given, or one of them is below 1.
        """
        check_amounts(num_timesteps, num_episodes)
        explore = bool(self.config.explore) if explore is None else bool(explore)
        started = time.perf_counter()
        if force_reset or num_episodes is not None or self._needs_reset or self._state is None:
            self._reset()
        # If a callback raises, or Ctrl-C comes, callbacks have seen less than the environments have done.
        self._needs_reset = True
        if num_episodes is not None:
            episodes = self._sample_episodes(num_episodes, explore, random_actions)
        else:
            if num_timesteps is None:
                num_timesteps = self.config.get_rollout_fragment_length() * self.num_envs
            num_steps = -(-num_timesteps // (self.num_envs * steps_counted_per_env_step(self.config, self.env)))
            builder = self._started_builder()
            ended = builder.add(self._unroll(num_steps, explore, random_actions))
            episodes = [episode for _, episode in ended] + builder.cut()
            self._needs_reset = False
        self.output.add_episodes(episodes)
        self._log(episodes, time.perf_counter() - started)
        self.callbacks.on_sample_end(env_runner=self, metrics_logger=self.metrics, samples=episodes)
        return episodes

    def _reset(self) -> None:
        self._announce()
        key = jax.random.fold_in(stream_key(self.config.root_seed, Stream.SAMPLE), self.worker_index)
        key = jax.random.fold_in(key, self._resets)
        self._resets += 1
        self._state = self._fresh_state(key, self.num_envs)
        self._started_builder().reset()
        self._sample_replay = self._make_episode_replay()

    def _fresh_state(self, key: jax.Array, num_envs: int, rollout: DeviceRollout | None = None) -> RunnerState:
        rollout = rollout or self.rollout
        init = self._program(("init", num_envs, type(rollout)), functools.partial(rollout.init, num_envs=num_envs))
        return init(key, env_to_module=self.connector_state())

    def _program(self, key: Hashable, function: Callable[..., Any]) -> Callable[..., Any]:
        """Compiles a function with ``jax.jit``; later calls with the same `key` return the cached program."""
        if key not in self._programs:
            self._programs[key] = jax.jit(function)
        return self._programs[key]

    def _weights(self) -> tuple[Any, Any, Any, Any]:
        """Returns the inputs for computing actions, ``(parameters, other state, settings, timesteps)``.

        They are the last arguments of the runner's compiled programs. Parameters and other state are views of the
        learner's arrays.
        """
        state = host_view(self._learner.state)
        return state.params, state.rest, self._settings, self._timesteps()

    @functools.cached_property
    def _settings(self) -> dict[str, Any]:
        return {"modules": traced_settings(self.config, self.rollout.pure.module_ids)}

    def context(self, params: Any, rest: Any, settings: Any, timesteps: Any, **static: Any) -> Any:
        """Builds the `context` argument of functions that compute actions: weights and the current values of settings.
        Called inside compiled programs.
        """
        values = current_values(settings, timesteps, self.config.get_config_for_module)["modules"]
        return self.rollout.context(params, rest, values, timesteps, **static)

    def _unrolling(
        self,
        num_steps: int,
        explore: bool,
        random_actions: bool = False,
        has_columns: bool = True,
        rollout: DeviceRollout | None = None,
    ) -> Any:
        """Returns the compiled program that steps all environments `num_steps` times.

        The program is a function ``(state, *weights) -> (state, recorded steps, ended episodes)``. If `has_columns` is
        False, it returns () instead of the recorded steps.
        """
        rollout = rollout or dataclasses.replace(self.rollout, shows_agents=has_columns and self._has_agents)

        def run(state, *weights):
            acting = rollout.drawing_actions() if random_actions else rollout
            # It acts as a policy does that serves: with what training has learned, and nothing else.
            context = self.context(*weights, explore=explore, update_statistics=False)
            state, record, ended = acting.unroll(state, context, num_steps=num_steps)
            return state, record if has_columns else (), ended

        return self._program(("unroll", num_steps, explore, random_actions, has_columns, type(rollout)), run)

    def _unroll(self, num_steps: int, explore: bool, random_actions: bool) -> Any:
        program = self._unrolling(num_steps, explore, random_actions)
        self._state, record, _ = program(self._state, *self._weights())
        block = jax.device_get(self._block_of(record))
        if self._sample_replay is not None:
            self._sample_replay.replay(block)
        return block

    @property
    def _has_agents(self) -> bool:
        return self.rollout.module_map.is_multi_agent

    def _block_of(self, record: Any) -> Any:
        """Returns the recorded steps of a rollout as columns ``[T, B, ...]`` (observations, actions, rewards, ...).
        Episode objects are built from these columns.
        """
        if self._has_agents:
            return record.seen
        (columns,) = record.columns.values()
        return columns

    def _sample_episodes(self, num_episodes: int, explore: bool, random_actions: bool) -> list[Any]:
        builder = self._started_builder()

        def sample() -> list[tuple[int, Any]]:
            return builder.add(self._unroll(EVALUATION_CHUNK, explore, random_actions))

        episodes = EpisodeQuota(num_episodes, self.num_envs).fill(sample)
        builder.reset()
        return episodes

    def _log(self, episodes: list[Any], seconds: float) -> None:
        ended = [episode for episode in episodes if episode.is_done]
        for episode in ended:
            window = self.config.metrics_num_episodes_for_smoothing
            log_episode(self.metrics, window, episode.get_return(), len(episode))
        log_counts(self.metrics, len(ended), sum(len(episode) for episode in episodes))
        self.metrics.log_value("sample", seconds)

    # ------------------------------------------------------------------------------------------------ evaluation

    def evaluate(
        self, *, key: jax.Array, num_episodes: int | None = None, num_timesteps: int | None = None, reset: bool = True
    ) -> tuple[int, EndedEpisodes, dict[str, Any]]:
        """Samples evaluation episodes in separate environments with the current weights; the training state does not
        change.

        `config` says how many environments there are, ``B``, whether they explore, and how long it may take. With
        `num_episodes`, environment ``i`` counts its first ``n // B + (i < n % B)`` episodes. Taking whatever finishes
        first instead would favour short episodes.

        Args:
            key: PRNG key of this evaluation.
            num_episodes: Exact number of episodes; or
            num_timesteps: Number of env steps, rounded up to a multiple of ``B``.
            reset: Reset all environments first. Otherwise, the unfinished episodes of the last evaluation with the same
                number of environments continue, and the first episodes that end count.

        Returns:
            ``(env steps, counted episodes, metrics that callbacks logged, for `MetricsLogger.aggregate`)``.

        Raises:
            TimeoutError: If the episodes are not over in time.
        """
        num_envs = self.num_evaluated_envs
        self._announce()
        state = self._evaluated.get(num_envs)
        if state is None or reset:
            state = self._fresh_state(key, num_envs)
            self.output.restart()
            self._episode_replay = self._make_episode_replay()
        elif self._episode_replay is not None:
            self._episode_replay.pass_over_missed(functools.partial(np.asarray, state.episodes.episode_length))
        chunk = EVALUATION_CHUNK if num_timesteps is None else min(EVALUATION_CHUNK, -(-num_timesteps // num_envs))
        program = self._unrolling(
            chunk, bool(self.config.explore), has_columns=self.output.is_on or self._episode_replay is not None
        )
        count = Counting(num_envs, num_episodes, num_timesteps)
        started = time.monotonic()
        try:
            samples = self._evaluated_episodes(
                self._chunks(program, state, count), num_envs, reset, num_episodes is None
            )
            self.callbacks.on_sample_end(env_runner=self, metrics_logger=self.metrics, samples=samples)
        except BaseException:
            # There is no result that it could be a part of.
            self.metrics.reduce()
            raise
        episodes = count.episodes((time.monotonic() - started) / max(1, count.num_steps))
        if count.num_agent_steps:
            steps = self.rollout.module_map.numbers("num_{}_steps_sampled", count.num_agent_steps)
            for path, number in nested_leaves(steps):
                self.metrics.log_value(path, number, reduce="sum")
        return count.num_steps, episodes, self.metrics.reduce()

    def _evaluated_episodes(self, chunks: Iterator[Chunk], num_envs: int, reset: bool, with_running: bool) -> list[Any]:
        """Runs an evaluation by iterating over `chunks`, a generator that steps the environments.

        Writes the steps to files if the config sets an output. If callbacks need episode objects, builds and returns
        these for the callback `on_sample_end`; else returns [].
        """
        samples: list[Any] = []
        running: list[Any] = []
        replay = self._episode_replay
        for state, record, counts in chunks:
            if replay is not None:
                replay.expect(counts.size)
            self._evaluated = {num_envs: state}
            # Where episodes go on with the next evaluation, none of their steps may be missing.
            shown = counts if reset else None
            if self.output.is_on:
                self.output.add_block(self._block_of(record), shown)
            if replay is not None:
                seen = replay.replay(self._block_of(record), shown)
                samples += [episode for episode in seen if episode.is_done]
                running = [episode for episode in seen if not episode.is_done]
        return samples + running if with_running else samples

    def record(self, *, key: jax.Array, num_episodes: int) -> list[RecordedEpisode]:
        """Samples `num_episodes` evaluation episodes with the given PRNG key, for videos, and returns them.

        Environment ``i`` of ``B`` contributes its first ``n // B + (i < n % B)`` episodes, with ``n = num_episodes``.

        Changes neither counters nor the environments of evaluations, and calls no callbacks for episodes.

        Args:
            key: PRNG key of the evaluation.
            num_episodes: Number of episodes.

        Raises:
            TimeoutError: If the episodes are not over in time.
        """
        num_envs, rollout = self.num_evaluated_envs, watched(self.rollout)
        program = self._unrolling(EVALUATION_CHUNK, bool(self.config.explore), rollout=rollout)
        seen = SeenEpisodes(self.env, num_envs, rollout.module_map)
        state = self._fresh_state(key, num_envs, rollout)
        for _, record, counts in self._chunks(program, state, Counting(num_envs, num_episodes, None)):
            seen.add(record, counts)
        return seen.episodes

    @property
    def num_evaluated_envs(self) -> int:
        return min(int(self.config.evaluation_duration), self.num_envs)

    def _chunks(self, program: Any, state: RunnerState, count: Counting) -> Iterator[Chunk]:
        """Runs the rollout program repeatedly for one evaluation, until `count` has counted the requested number of
        episodes or steps.

        After each run, yields the `RunnerState`, the recorded steps, and a mask (bool ``[T, B]``) of the recorded steps
        that count for the evaluation.
        """
        weights, timeout_s = self._weights(), self.config.evaluation_sample_timeout_s
        started = time.monotonic()
        while not count.is_done:
            if timeout_s is not None and time.monotonic() - started > timeout_s:
                raise TimeoutError(
                    f"Evaluation finished {int(count.per_env.sum())} of {count.num_episodes} episodes within "
                    f"evaluation_sample_timeout_s={timeout_s}. Increase the timeout, lower evaluation_duration, or use "
                    f"evaluation_duration_unit='timesteps'."
                )
            state, record, of_steps = program(state, *weights)
            record, of_steps = jax.device_get((record, of_steps))
            yield state, record, count.add(of_steps)

    def _announce(self) -> None:
        """Calls the users' callback `on_environment_created` once, before the first reset."""
        if not self._is_announced:
            self._is_announced = True
            self.callbacks.on_environment_created(
                env_runner=self, metrics_logger=self.metrics, env=self.env, env_context=self._env_context
            )


class Counting:
    """Counts the episodes and steps of one evaluation, up to the requested number of episodes or steps. Collects the
    statistics (return, length, duration) of the counted episodes.

    Args:
        num_envs: ``B``.
        num_episodes: Number of episodes ``n``: the first ``n // B + (i < n % B)`` of environment ``i``; or
        num_timesteps: Least number of env steps.

    Attributes:
        num_episodes: The constructor argument.
        per_env: int ``[B]``, episodes so far.
        num_steps: Steps so far.
        num_agent_steps: Steps that each of several agents has completed so far; empty where there is one.
    """

    def __init__(self, num_envs: int, num_episodes: int | None, num_timesteps: int | None):
        self.num_episodes = num_episodes
        self._quota = None if num_episodes is None else np.array(episode_quota(num_episodes, num_envs))
        self._most_steps = num_timesteps or 0
        self.per_env = np.zeros(num_envs, int)
        self.num_steps = 0
        self.num_agent_steps: collections.Counter[Any] = collections.Counter()
        self._taken: list[tuple[Any, ...]] = []

    @property
    def is_done(self) -> bool:
        """Whether the evaluation has reached its requested number of episodes or steps."""
        return self.num_steps >= self._most_steps if self._quota is None else bool(np.all(self.per_env >= self._quota))

    def add(self, steps: EpisodeEnds) -> np.ndarray:
        """Counts the episodes and steps in `steps`, and returns a mask of the steps that count for the evaluation.

        `steps` are the next steps of the evaluation (NumPy arrays ``[T, B]``), and the mask is bool ``[T, B]``. If a
        number of steps is requested, the mask is False after this number is reached. If a number of episodes is
        requested, each environment has a quota of episodes, and the mask is False after the last episode of this quota.
        """
        ended = np.asarray(steps.ended)
        if self._quota is None:
            steps_before = self.num_steps + ended.shape[1] * np.arange(len(ended))[:, None]
            counts = np.broadcast_to(steps_before < self._most_steps, ended.shape)
        else:
            ended_before = self.per_env + np.cumsum(ended, axis=0) - ended
            counts = ended_before < self._quota
        take = ended & counts
        self.per_env += take.sum(axis=0)
        self.num_steps += int(counts.sum())
        for agent in steps.agent_returns:
            self.num_agent_steps[agent] += int((counts & steps.completes.get(agent, True)).sum())
        self._taken.append(
            (steps.returns[take], steps.lengths[take], {a: x[take] for a, x in steps.agent_returns.items()})
        )
        return counts

    def episodes(self, seconds_per_step: float) -> EndedEpisodes:
        """Returns the statistics (return, length, duration) of the episodes that were counted for the evaluation."""
        returns, lengths, agents = jax.tree.map(lambda *parts: np.concatenate(parts), *self._taken)
        lengths = lengths.astype(np.int64)
        return EndedEpisodes(returns.astype(np.float64), lengths, lengths * seconds_per_step, agents)
