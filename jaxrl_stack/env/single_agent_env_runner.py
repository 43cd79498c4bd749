"""The env runner of the actor driver: gymnasium environments, stepped on the host, with a compiled policy."""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import gymnasium as gym
import jax
import numpy as np

from jaxrl_stack.acting.episode_builder import EpisodeBuilder
from jaxrl_stack.acting.host_policy import HostPolicy, Mode
from jaxrl_stack.acting.live_episodes import LiveEpisodes
from jaxrl_stack.acting.policy_step import PolicyStep
from jaxrl_stack.acting.recording import EndedEpisodes, Recording, SampleBlock
from jaxrl_stack.callbacks.utils import CallbackList
from jaxrl_stack.checkpoints.checkpointable import selected
from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline
from jaxrl_stack.connectors.host_pieces import run_host_front
from jaxrl_stack.core import (
    COMPONENT_ENV_TO_MODULE_CONNECTOR,
    COMPONENT_MODULE_TO_ENV_CONNECTOR,
    DEFAULT_MODULE_ID,
)
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.functional import PureModule
from jaxrl_stack.env.env_context import EnvContext
from jaxrl_stack.env.env_runner import (
    ConsecutiveFailuresError,
    EnvRunner,
    check_amounts,
    checked_observation,
    episode_quota,
)
from jaxrl_stack.env.runner_layout import histories, known_statistics, with_statistics
from jaxrl_stack.env.vector.host_vector_env import HostVectorEnv, VectorStep, make_vector_env
from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.utils import counters
from jaxrl_stack.utils.actor_setup import set_up_actor, was_actor_restarted
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger
from jaxrl_stack.utils.seeds import derived_seed
from jaxrl_stack.utils.spaces import zeros

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.connectors.module_to_env import ModuleToEnvPipeline
    from jaxrl_stack.core.learner.learner import Learner
    from jaxrl_stack.core.rl_module.rl_module import MultiRLModule, RLModule

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

EPISODE_CHUNK = 64
"""Vector steps that are recorded at a time while whole episodes are sampled."""
STATE_COMPONENTS = (
    "rl_module",
    "env_to_module_connector",
    "module_to_env_connector",
    "weights_seq_no",
    "num_env_steps_sampled_lifetime",
    "random",
    "metrics_logger",
)
"""Parts of what `SingleAgentEnvRunner.get_state` returns."""


class SingleAgentEnvRunner(EnvRunner):
    """Steps a vector of gymnasium environments with the module, in this process.

    One vector step is one call of a compiled policy and one ``step`` of the environments; what happens is written
    into preallocated ``[T, B]`` arrays. Episodes are made from them only when somebody asks (`sample`), unless a
    callback or a host connector wants to see every step.

    As a Ray actor: ``ray.remote(SingleAgentEnvRunner).remote(config=config)``.

    When an environment raises, or returns an observation or a reward that is not finite, what was being recorded is
    dropped: statistics of connectors, counters and metrics are those of before, and all environments are reset next
    time. The exception is raised. With ``restart_failed_sub_environments`` it is logged, the failed environment is made
    anew, with a fresh seed, and only its running episode is left out: LOSS_MASK is False there, while statistics of
    connectors have seen it. Where the others cannot go on (environments that step themselves, numbers that are not
    finite, which connectors have seen), what was being recorded is dropped, and sampling starts over. The very first
    failure is raised in any case: before anything was sampled, it is a mistake.

    Args:
        config: The algorithm's config.
        worker_index: 0 for the runner in the algorithm's process, from 1 for actors; None for a runner of one's own,
            which counts as 0 and always has environments. Environments of different runners have different seeds.
        num_workers: Number of runner actors; None for ``config.num_env_runners``.
        recreated_worker: Whether this runner takes the place of one that failed.
        spaces: What `get_spaces` of another runner returned: for a runner without environments.
        module: A built MultiRLModule to act with, instead of a new one.
        **kwargs: RLlib's other arguments (``tune_trial_id``, ``log_level``), which nothing depends on.

    Attributes:
        env: The `gymnasium.vector.VectorEnv`; None for a runner without environments.
        num_envs: Its environments, ``B``.
        metrics: A `MetricsLogger`; callbacks get it, `get_metrics` reduces it.
    """

    def __init__(
        self,
        *,
        config: AlgorithmConfig,
        worker_index: int | None = None,
        num_workers: int | None = None,
        recreated_worker: bool = False,
        spaces: dict[str, tuple[gym.Space, gym.Space]] | None = None,
        module: MultiRLModule | None = None,
        **kwargs: Any,
    ):
        unknown = sorted(set(kwargs) - {"tune_trial_id", "log_level"})
        if unknown:
            raise TypeError(f"{type(self).__name__}() got unknown arguments {unknown}.")
        set_up_actor(num_cpus=config.num_cpus_per_env_runner, num_gpus=config.num_gpus_per_env_runner)
        config = config.copy(copy_frozen=True)
        super().__init__(config=config, worker_index=worker_index or 0)
        self.num_workers = config.num_env_runners if num_workers is None else num_workers
        self._recreated = recreated_worker or was_actor_restarted()
        self.metrics = MetricsLogger(stats_cls_lookup=config.stats_cls_lookup)
        self._make_callbacks()
        self._vector_env: HostVectorEnv | None = None
        self.num_envs = 0
        self._given_spaces = spaces
        self._given_module = module
        self._weights_seq_no = 0
        self._num_env_steps = 0
        self._others_env_steps = 0
        self._resets = 0
        self._ended: list[tuple[int, float, int, float]] = []
        self._last_sample: float | None = None
        self._timings: dict[str, tuple[float, int]] = {}
        self._env_error: BaseException | None = None
        self._callback_error: BaseException | None = None
        self._env_is_broken = False
        self._failed_index: int | None = None
        self._num_env_failures = 0
        self._num_restarts = 0
        self._seeds = (self.seed_of(config), self.worker_index, 0)
        # Whoever takes a lost one's place is no first one.
        self._has_sampled = self._recreated
        beside_actors = worker_index == 0 and self.num_workers > 0 and not config.create_env_on_local_worker
        if not beside_actors:
            self.make_env()
        elif spaces is None:
            raise ValueError(
                f"{type(self).__name__}(worker_index={worker_index}) makes no environments (there are "
                f"{self.num_workers} actors for that) and needs spaces=. Pass another runner's get_spaces(), or set "
                f"env_runners(create_env_on_local_worker=True)."
            )
        self.make_module()

    @staticmethod
    def seed_of(config: AlgorithmConfig) -> int:
        """The seed that everything random in runners of this config follows from."""
        seed = 0 if config.seed is None else int(config.seed)
        return derived_seed("evaluation", seed) if config.in_evaluation else seed

    # -------------------------------------------------------------------------------------------------- building

    def _make_callbacks(self) -> None:
        self.callbacks = CallbackList.from_config(self.config)
        self._watches_episodes = self.callbacks.overrides(
            "on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end"
        )

    @property
    def env(self) -> gym.vector.VectorEnv | None:
        """The vector environment; None for a runner without environments."""
        return None if self._vector_env is None else self._vector_env.env

    def make_env(self) -> None:
        """Make the environments, closing those that there are; the next ``sample()`` resets them."""
        if self._vector_env is not None:
            self._vector_env.close()
        self._vector_env = make_vector_env(
            self.config,
            worker_index=self.worker_index,
            num_workers=self.num_workers,
            recreated_worker=self._recreated,
            seed=self._env_seed(0),
        )
        self.num_envs = self._vector_env.num_envs
        self._needs_reset = True
        # Per environment, failures in a row without any row of it that counts.
        self._failures: dict[int, int] = {}
        self._announce_env()

    def _announce_env(self) -> None:
        self.callbacks.on_environment_created(
            env_runner=self,
            metrics_logger=self.metrics,
            env=self.env,
            env_context=EnvContext(
                self.config.env_config,
                self.worker_index,
                num_workers=self.num_workers,
                recreated_worker=self._recreated,
            ),
        )

    def make_module(self) -> None:
        """Make pipelines and module for the environments' spaces."""
        config = self.config
        single = self._single_spaces()
        spaces = {"__env_single__": single}
        env: Any = self.env
        self._env_to_module = config.build_env_to_module_connector(env=env, spaces=spaces)
        self._module_to_env = config.build_module_to_env_connector(env=env, spaces=spaces)
        self._module_to_env.check_pure()
        self._pure_env_to_module = cast(EnvToModulePipeline, self._env_to_module.pure_part())
        self._has_host_pieces = bool(self._env_to_module.host_front())
        pipeline = self._env_to_module
        self._module_spaces = (pipeline.observation_space, pipeline.action_space)
        module: Any = self._given_module
        if module is None:
            spec = config.get_multi_rl_module_spec(spaces={DEFAULT_MODULE_ID: self._module_spaces}, inference_only=True)
            module = spec.build(seed=0 if config.seed is None else int(config.seed))
        gpus = [d for d in jax.local_devices() if d.platform != "cpu"] if config.num_gpus_per_env_runner else []
        device = gpus[0] if gpus else jax.local_devices(backend="cpu")[0]
        ids = list(module)
        self._module_ids = ids
        self._policy = HostPolicy(
            PolicyStep(
                module_id=DEFAULT_MODULE_ID,
                pure=PureModule(module),
                env_to_module=self._pure_env_to_module,
                module_to_env=self._module_to_env,
            ),
            settings=self._traced_settings(),
            static_settings={
                mid: {name: config.get_config_for_module(mid).static_value(name) for name in config._static_settings}
                for mid in ids
            },
            device=device,
            seed=self._policy_seed(),
        )
        self._builder = EpisodeBuilder(*self._module_spaces, config.episode_lookback_horizon)
        self._live: LiveEpisodes | None = None
        self._host_batch: dict[str, Any] | None = None
        self._connectors: Any = self._fresh_connectors()

    def _traced_settings(self) -> dict[str, dict[str, Any]]:
        return {mid: self.config.get_config_for_module(mid).traced_values() for mid in self._module_ids}

    def reset(self, config: AlgorithmConfig) -> None:
        """Start from the beginning with a config that differs in traced settings only; programs are kept.

        The weights stay as they are until others are set; callbacks are new objects.
        """
        self.config = config.copy(copy_frozen=True)
        self._make_callbacks()
        self._policy.set_settings(self._traced_settings())
        self._connectors = self._fresh_connectors()
        self._weights_seq_no = self._num_env_steps = self._others_env_steps = self._num_env_steps_reported = 0
        self._ended, self._last_sample, self._timings = [], None, {}
        self.metrics.reset()
        self.reseed(self.seed_of(config), self.worker_index, 0)
        if self._vector_env is not None:
            self._announce_env()

    def _single_spaces(self) -> tuple[gym.Space, gym.Space]:
        if self._vector_env is not None:
            own = (self._vector_env.single_observation_space, self._vector_env.single_action_space)
            return self.config.observation_space or own[0], self.config.action_space or own[1]
        assert self._given_spaces is not None
        return self._given_spaces["__env_single__"]

    def _fresh_connectors(self) -> Any:
        num_envs = max(1, self.num_envs)
        return (self._pure_env_to_module.init(num_envs), self._module_to_env.init(num_envs))

    def get_spaces(self) -> dict[str, tuple[gym.Space, gym.Space]]:
        single = self._single_spaces()
        env = self._vector_env
        batched = single if env is None else (env.observation_space, env.action_space)
        return {"__env__": batched, "__env_single__": single, DEFAULT_MODULE_ID: self._module_spaces}

    @property
    def spaces(self) -> dict[str, tuple[gym.Space, gym.Space]]:
        """See `get_spaces`."""
        return self.get_spaces()

    @property
    def module(self) -> RLModule:
        """The acting module with its current weights; one object until other weights come."""
        return self._policy.module

    def assert_healthy(self) -> None:
        """Raise if there is no module, or no environment although this runner should have one.

        Raises:
            RuntimeError: If `stop` was called.
        """
        if self._vector_env is None and self._given_spaces is None:
            raise RuntimeError(f"{type(self).__name__} {self.worker_index} was stopped.")

    def stop(self) -> None:
        if self._vector_env is not None:
            self._vector_env.close()
            self._vector_env = None

    # -------------------------------------------------------------------------------------------------- sampling

    def sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool | None = None,
        random_actions: bool = False,
        force_reset: bool = False,
    ) -> list[SingleAgentEpisode]:
        """Episodes, or pieces of episodes.

        Observations are the module's inputs: what the env-to-module pipeline made of the environment's.

        Args:
            num_timesteps: Step until at least so many env steps are there; running episodes are continued by the next
                call. Default: with ``batch_mode="truncate_episodes"`` ``rollout_fragment_length`` steps of every
                environment, with ``"complete_episodes"`` one episode of each.
            num_episodes: Instead, reset everything and return exactly so many finished episodes, environment ``i``'s
                first ``n // B + (i < n % B)``, so that short ones are not preferred; the next call resets, too.
            explore: Sample actions or take the greedy ones; None for ``config.explore``.
            random_actions: Draw actions from the action space instead.
            force_reset: Reset all environments first and drop running episodes.

        Raises:
            ValueError: If both amounts are given, one is below 1, this runner has no environments, or one of them
                returned something that is not finite.
            ConsecutiveFailuresError: If environments failed too often in a row.
            Exception: What an environment raised; see the class.
        """
        check_amounts(num_timesteps, num_episodes)
        mode = self._mode(explore, random_actions)
        if num_timesteps is None and num_episodes is None and self.config.batch_mode == "complete_episodes":
            num_episodes = self.num_envs
        started = time.perf_counter()
        num_steps = self.config.get_rollout_fragment_length(self.worker_index)
        if num_timesteps is not None:
            num_steps = -(-num_timesteps // self.num_envs) if self.num_envs else 1

        def attempt() -> list[SingleAgentEpisode]:
            if num_episodes is not None:
                return self._sample_episodes(num_episodes, mode)
            return [episode for _, episode in self._record_episodes(num_steps, mode)]

        episodes = self._attempted(attempt, force_reset or num_episodes is not None)
        if num_episodes is not None:
            self._needs_reset = True
        else:
            episodes += (self._live or self._builder).cut()
        if self.config.episodes_to_numpy:
            for episode in episodes:
                episode.to_numpy()
        self._time_sample(started)
        self._log_timings()
        self.callbacks.on_sample_end(env_runner=self, metrics_logger=self.metrics, samples=episodes)
        return episodes

    def sample_block(
        self, *, num_steps: int | None = None, explore: bool | None = None, takes_metrics: bool = True
    ) -> SampleBlock:
        """`num_steps` steps of every environment as arrays: what training uses, without making episodes.

        Args:
            num_steps: None for ``rollout_fragment_length``.
            explore: Sample actions or take the greedy ones; None for ``config.explore``.
            takes_metrics: Whether the block has the metrics. Short blocks take less time without; `take_metrics` has
                those of several then.

        Raises:
            ValueError: If this runner has no environments, or one of them returned something that is not finite.
            ConsecutiveFailuresError: If environments failed too often in a row.
            Exception: What an environment raised; see the class.
        """
        started = time.perf_counter()
        length = num_steps or self.config.get_rollout_fragment_length(self.worker_index)
        mode = self._mode(explore, False)
        recording, *_ = self._attempted(lambda: self._record_some(length, mode), False)
        if self._live is None:
            # Whoever calls sample() in between starts with episodes of their own.
            self._builder.reset()
        elif self.callbacks.overrides("on_sample_end"):
            samples = [episode for _, episode in self._live.take_finished()] + self._live.cut()
            self.callbacks.on_sample_end(env_runner=self, metrics_logger=self.metrics, samples=samples)
        else:
            self._live.take_finished()
            self._live.cut()
        ended = self.take_ended_episodes()
        self._time_sample(started)
        states = self._connector_state()
        return SampleBlock(
            columns=recording.columns(),
            num_env_steps=recording.num_env_steps,
            weights_seq_no=self._weights_seq_no,
            episodes=ended,
            metrics=self.take_metrics() if takes_metrics else {},
            connector_state=states if any(jax.tree.leaves(state) for state in states.values()) else None,
            worker_index=self.worker_index,
            serial=self._num_recordings - 1,
            starts=recording.starts,
            num_restarts=self._num_restarts,
        )

    def act(self, observation: Any, *, explore: bool, key: jax.Array) -> dict[str, Any]:
        """Both pipelines and the module on one observation, seen as the first of an episode.

        Args:
            observation: One observation of the environment, without batch axis.
            explore: Sample the action or take the greedy one.
            key: PRNG key.

        Returns:
            The columns behind the module-to-env pipeline, as NumPy arrays without batch axis.

        Raises:
            ValueError: If the observation does not fit the observation space.
        """
        batch = {Columns.OBS: checked_observation(self._single_spaces()[0], observation)}
        if self._has_host_pieces:
            episode = SingleAgentEpisode()
            episode.add_env_reset(jax.tree.map(lambda x: x[0], batch[Columns.OBS]))
            batch = self._run_host_front([episode], "explore" if explore else "greedy")
        timesteps = counters.from_int(self._timesteps())
        outputs = self._policy.act_once(self._connectors[0], batch, key, timesteps, explore=explore)
        return jax.tree.map(lambda x: x[0], outputs)

    def _mode(self, explore: bool | None, random_actions: bool) -> Mode:
        if random_actions:
            return "random"
        return "explore" if (self.config.explore if explore is None else explore) else "greedy"

    def reseed(self, *seeds: int) -> None:
        """Reset all environments at the next ``sample()``, with seeds that follow from these alone.

        Args:
            *seeds: Integers of any size. The runner's index is not among them unless it is given.
        """
        self._seeds = seeds
        self._num_env_failures = 0
        self._resets = 0
        self._needs_reset = True
        self._policy.reseed(self._policy_seed())

    def _env_seed(self, index: int) -> int:
        """Seed of one environment: no failure is repeated with the seed that led to it."""
        return derived_seed("environment", *self._seeds, self._num_env_failures, index)

    def _policy_seed(self) -> int:
        return derived_seed("policy", *self._seeds)

    def on_restarted(self, num_restarts: int) -> None:
        """Take a seed that no runner with this index had, so that its episodes are not repeated."""
        self._num_restarts = num_restarts
        self.reseed(self.seed_of(self.config), self.worker_index, num_restarts)

    # ------------------------------------------------------------------------------------------ failed environments

    def _attempted(self, attempt: Callable[[], Result], force_reset: bool) -> Result:
        """What `attempt` returns once no environment fails in it; leaves no traces of attempts that failed."""
        before = _Before(
            self._connectors,
            self._num_env_steps,
            list(self._ended),
            # Only these callbacks and host pieces log anything while a recording runs, but for timers.
            copy.deepcopy(self.metrics.get_state()) if self._watches_episodes or self._has_host_pieces else None,
        )
        failures = 0
        while True:
            self._env_error = self._callback_error = None
            try:
                if self._env_is_broken:
                    self._renew_env()
                self._prepare(force_reset)
                result = attempt()
            except Exception as error:
                self._connectors = before.connectors
                self._num_env_steps, self._ended = before.num_env_steps, list(before.ended)
                if before.metrics is not None:
                    self.metrics.set_state(copy.deepcopy(before.metrics))
                self._needs_reset = True
                if error is not self._env_error:
                    raise
                failures += 1
                self._num_env_failures += 1
                self._env_is_broken = True
                self._tolerate(error, failures)
            else:
                self._has_sampled = True
                return result

    @property
    def _replaces_envs(self) -> bool:
        """Whether environments that fail are made anew. The very first failure is a mistake."""
        return bool(self.config.restart_failed_sub_environments) and self._has_sampled

    def _tolerate(self, error: Exception, failures: int, what_is_dropped: str = "what was being sampled") -> None:
        """Log what an environment raised, or raise it."""
        if not self._replaces_envs:
            raise error
        tolerance = self.config.num_consecutive_env_runner_failures_tolerance
        if failures > tolerance:
            raise ConsecutiveFailuresError.of(
                f"Environments of EnvRunner {self.worker_index}", failures, tolerance, error
            ) from error
        logger.error(
            "An environment of EnvRunner %d failed: it is made anew, and %s is dropped.",
            self.worker_index,
            what_is_dropped,
            exc_info=error,
        )
        self.metrics.log_value("num_env_failures", 1, reduce="sum")

    def _recover(self, index: int, error: Exception) -> tuple[Any, dict[str, Any]]:
        """Make the environment anew that failed while the others go on.

        Returns:
            ``(its first observation, info)``.
        """
        env = self._vector_env
        assert env is not None
        while True:
            self._num_env_failures += 1
            failures = self._failures[index] = self._failures.get(index, 0) + 1
            self._tolerate(error, failures, "its episode")
            try:
                env.renew(index)
                self._announce_env()
                return env.reset_one(index, self._env_seed(index))
            except Exception as another:
                error = another

    def _renew_env(self) -> None:
        """Make the failed environment anew, or all of them where nobody knows which one it is."""
        env = self._vector_env
        assert env is not None
        try:
            if env.renew(self._failed_index):
                self._announce_env()
            else:
                env.discard()
                self.make_env()
        except Exception as error:
            self._env_error = error
            raise
        self._env_is_broken, self._failed_index = False, None
        # The random numbers of an environment that is new would start where those of the first one did.
        self._resets = 0

    def _step_env(self, env: HostVectorEnv, actions: Any, before_reset: Any = None) -> VectorStep:
        try:
            return env.step(actions, before_reset, self._recover if self._replaces_envs else None)
        except Exception as error:
            # Failures that are too many have been counted.
            if error is not self._callback_error and not isinstance(error, ConsecutiveFailuresError):
                self._env_error = error
            raise

    def _check_finite(self, recording: Recording) -> None:
        """Look for NaN and infinity in a whole recording at once."""
        found = recording.first_not_finite()
        if found is None:
            return
        step, index, what = found
        self._failed_index = index
        self._env_error = ValueError(
            f"Environment {index} of EnvRunner {self.worker_index} (env_config: worker_index={self.worker_index}, "
            f"vector_index={index}) returned {what} that is not finite, in step {step} of the {recording.num_steps} "
            f"that were being sampled. Repair the environment, wrap it with something that replaces NaN and infinity, "
            f"or set fault_tolerance(restart_failed_sub_environments=True) to drop such steps and go on with a new one."
        )
        raise self._env_error

    def _prepare(self, force_reset: bool) -> None:
        if self._vector_env is None:
            raise ValueError(
                f"EnvRunner {self.worker_index} has no environments to sample from: actors do that. Set "
                f"env_runners(create_env_on_local_worker=True), or call it on "
                f"algorithm.env_runner_group.foreach_env_runner(...)."
            )
        if force_reset or self._needs_reset:
            self._reset_all(self._vector_env)

    def _reset_all(self, env: HostVectorEnv) -> None:
        num_envs = self.num_envs
        # Only the first reset is seeded: from then on every environment goes its own way.
        seeds = [self._env_seed(i) for i in range(num_envs)] if self._resets == 0 else None
        started = time.perf_counter()
        try:
            obs, infos = env.reset(seed=seeds)
        except Exception as error:
            self._env_error = error
            raise
        self.metrics.log_value("env_reset_timer", time.perf_counter() - started)
        self._resets += 1
        self._needs_reset = False
        self._obs = obs
        self._reset_infos = {index: info for index, info in enumerate(infos) if info}
        self._reset = np.ones(num_envs, bool)
        self._valid = np.ones(num_envs, bool) if env.resets_in_next_step else None
        self._prev_actions = zeros(self._env_to_module.action_space, (num_envs,))
        self._no_actions = self._prev_actions
        self._prev_rewards = np.zeros(num_envs, np.float32)
        self._returns = np.zeros(num_envs, np.float64)
        self._lengths = np.zeros(num_envs, np.int64)
        self._started_at = np.full(num_envs, time.perf_counter())
        # Histories start anew, statistics stay.
        self._connectors = (
            self._pure_env_to_module.rebatch(self._connectors[0], num_envs),
            self._module_to_env.rebatch(self._connectors[1], num_envs),
        )
        self._builder.reset()
        if self._watches_episodes or self._has_host_pieces:
            self._live = LiveEpisodes(
                self._call_hook,
                num_envs,
                self.config.episode_lookback_horizon,
                keeps_chunks=self.callbacks.overrides("on_episode_end"),
            )
            for index in range(num_envs):
                self._live.start(index, jax.tree.map(lambda x, i=index: np.array(x[i]), obs), infos[index])
            if self._has_host_pieces:
                self._host_batch = self._run_host_front(self._live.episodes, self._mode(None, False))

    def _call_hook(self, hook: str, env_index: int, episode: SingleAgentEpisode, **more: Any) -> None:
        if not self._watches_episodes:
            return
        self.callbacks.call(
            hook,
            episode=episode,
            env_runner=self,
            metrics_logger=self.metrics,
            env=self.env,
            env_index=env_index,
            rl_module=self.module if self.callbacks.overrides(hook) else None,
            **more,
        )

    def _timesteps(self) -> int:
        """Lifetime env steps over all runners, as far as this one knows; evaluation's own count nowhere."""
        return self._others_env_steps + self._num_env_steps * self._steps_per_own_step

    @property
    def _steps_per_own_step(self) -> int:
        return 0 if self.config.in_evaluation else max(1, self.num_workers)

    def _record_some(
        self, num_steps: int, mode: Mode, *, wants_episodes: bool = False
    ) -> tuple[Recording, list[Sequence[dict]], dict[tuple[int, int], dict]]:
        """`_record`, once more if environments that failed left nothing of it."""
        while True:
            recorded = self._record(num_steps, mode, wants_episodes=wants_episodes)
            if recorded[0].num_env_steps or not recorded[0].num_failures:
                return recorded
            self._builder.reset()

    def _record(
        self, num_steps: int, mode: Mode, *, wants_episodes: bool = False
    ) -> tuple[Recording, list[Sequence[dict]], dict[tuple[int, int], dict]]:
        """The hot loop: `num_steps` vector steps.

        Args:
            num_steps: How many.
            mode: How to choose actions.
            wants_episodes: Whether final observations and infos of all episodes are kept, not only what an update
                needs.

        Returns:
            ``(recording, infos per step, infos of resets)``.
        """
        env, policy, live = self._vector_env, self._policy, self._live
        assert env is not None
        clock = time.perf_counter
        learns = not self.config.in_evaluation and mode != "random"
        timesteps, steps_per_own_step = self._timesteps(), self._steps_per_own_step
        obs, reset, valid = self._obs, self._reset, self._valid
        prev_actions, prev_rewards = self._prev_actions, self._prev_rewards
        connectors = self._connectors
        recording: Recording | None = None
        infos: list[Sequence[dict]] = []
        reset_infos = {(0, index): info for index, info in self._reset_infos.items()}
        acting = stepping = 0.0
        layout: Any = None
        same_actions = False
        for t in range(num_steps):
            began = clock()
            batch = {Columns.OBS: obs} if self._host_batch is None else self._host_batch
            matrix, loose, connectors = policy.act(
                mode,
                connectors,
                batch,
                reset,
                prev_actions,
                prev_rewards,
                timesteps,
                valid,
                update_statistics=learns,
            )
            if recording is None:
                layout = policy.layout(mode)
                same_actions = layout.columns[Columns.ACTIONS] == layout.columns[Columns.ACTIONS_FOR_ENV]
                own = None if policy.records_obs else batch[Columns.OBS]
                recording = Recording(num_steps, self.num_envs, layout, own, starts=reset)
            loose = [np.asarray(x) for x in loose] if loose else ()
            if not policy.records_obs:
                # Now: the environments may write their next observations into the same buffers.
                own = batch[Columns.OBS]
                recording.add_obs((own,) if isinstance(own, np.ndarray) else jax.tree.leaves(own))
            if live is not None:
                live.saw(layout.read(Columns.OBS, matrix, loose) if policy.records_obs else batch[Columns.OBS])
            acted = clock()
            is_last = t == num_steps - 1
            actions = layout.read(Columns.ACTIONS, matrix, loose)
            for_env = actions if same_actions else layout.read(Columns.ACTIONS_FOR_ENV, matrix, loose)
            inputs = None
            if live is None:
                step = self._step_env(env, for_env)
            else:
                columns = {name: layout.read(name, matrix, loose) for name in layout.columns}
                step, inputs = self._step_live(env, live, for_env, columns, connectors, timesteps, mode, is_last)
            stepping += clock() - acted
            acting += acted - began
            recording.add(matrix, loose, step)
            for index in step.failed:
                recording.drop_running(index)
            self._returns += step.rewards
            self._lengths += 1 if step.valid is None else step.valid
            prev_actions, prev_rewards = actions, recording.rewards[t]
            ended = step.terminateds | step.truncateds
            any_ended = ended.any()
            if any_ended or is_last:
                needed = ended if wants_episodes else step.truncateds
                if is_last:
                    needed = np.ones_like(ended)
                if needed.any():
                    if inputs is None:
                        behind = _behind(step, ended)
                        inputs = self._final_inputs(behind, connectors, prev_actions, prev_rewards, timesteps)
                    recording.add_final(needed, inputs)
            if wants_episodes:
                infos.append(step.infos)
                if step.reset_infos is not None:
                    for index in np.flatnonzero(step.resets).tolist():
                        reset_infos[(t + 1, index)] = step.reset_infos[index]
            if any_ended:
                self._note_ended(np.flatnonzero(ended))
            if (any_ended or step.valid is not None) and step.resets.any():
                clear = step.resets
                prev_actions = jax.tree.map(lambda a, n, c=clear: _where(c, n, a), prev_actions, self._no_actions)
                prev_rewards = np.where(clear, np.float32(0.0), prev_rewards)
                self._returns[clear] = 0.0
                self._lengths[clear] = 0
                self._started_at[clear] = clock()
            obs, reset = step.obs, step.resets
            valid = None if valid is None else ~ended
            timesteps += steps_per_own_step * (self.num_envs if step.valid is None else int(step.valid.sum()))
        assert recording is not None
        self._check_finite(recording)
        self._obs, self._reset, self._valid = obs, reset, valid
        self._prev_actions, self._prev_rewards = prev_actions, prev_rewards
        self._connectors = connectors
        self._reset_infos = {index: info for (t, index), info in reset_infos.items() if t == num_steps}
        self._num_env_steps += recording.num_env_steps
        self._num_recordings += 1
        if self._failures:
            self._failures = {i: n for i, n in self._failures.items() if i not in recording.valid_envs}
        self._timed("env_step_timer", stepping / num_steps)
        self._timed("rlmodule_inference_timer", acting / num_steps)
        return recording, infos, reset_infos

    def _step_live(
        self,
        env: HostVectorEnv,
        live: LiveEpisodes,
        actions_for_env: Any,
        columns: dict[str, Any],
        connectors: Any,
        timesteps: int,
        mode: Mode,
        is_last: bool,
    ) -> tuple[VectorStep, Any]:
        """One step of the environments with running episodes, host pieces and callbacks.

        Returns:
            ``(step, the module's view of what is behind it)``; the latter is None unless an episode ended, or this is
            the last step of a recording.
        """
        host_batch = inputs = None

        def report(step: VectorStep) -> None:
            # Environments whose episode ended are in their final state here, for callbacks that look at them.
            try:
                take_in(step)
            except Exception as error:
                self._callback_error = error
                raise

        def take_in(step: VectorStep) -> None:
            nonlocal host_batch, inputs
            ended = step.terminateds | step.truncateds
            behind = _behind(step, ended)
            live.append(step, columns, behind, self._weights_seq_no)
            if self._host_batch is not None:
                host_batch = self._host_front_after(step, live.episodes, mode)
                behind = host_batch[Columns.OBS]
            if is_last or ended.any():
                rewards = np.asarray(step.rewards, np.float32)
                inputs = self._final_inputs(behind, connectors, columns[Columns.ACTIONS], rewards, timesteps)
            live.report(step, inputs)

        step = self._step_env(env, actions_for_env, report)
        live.begin(step)
        if host_batch is not None:
            self._host_batch = self._with_rows(host_batch, step.resets, live.episodes, mode)
        return step, inputs

    def _run_host_front(self, episodes: list[SingleAgentEpisode], mode: Mode) -> dict[str, Any]:
        """What the host pieces of the pipeline make of the episodes' last observations, ``{column: [n, ...]}``."""
        return run_host_front(
            self._env_to_module,
            episodes=episodes,
            rl_module=self.module,
            explore=mode == "explore",
            metrics=self.metrics,
        )

    def _host_front_after(self, step: VectorStep, episodes: list[SingleAgentEpisode], mode: Mode) -> dict[str, Any]:
        """`_run_host_front` after a step. Where it only reset, the host pieces have seen the last observation."""
        if step.valid is None:
            return self._run_host_front(episodes, mode)
        assert self._host_batch is not None
        return self._with_rows(self._host_batch, step.valid, episodes, mode)

    def _with_rows(
        self, batch: dict[str, Any], where: np.ndarray, episodes: list[SingleAgentEpisode], mode: Mode
    ) -> dict[str, Any]:
        """The batch with the rows of a mask ``[B]`` made from the last observations of their episodes."""
        rows = np.flatnonzero(where)
        if not len(rows):
            return batch
        fresh = self._run_host_front([episodes[row] for row in rows], mode)

        def replaced(leaf: np.ndarray, new: np.ndarray) -> np.ndarray:
            leaf = leaf.copy()
            leaf[rows] = new
            return leaf

        return jax.tree.map(replaced, batch, fresh)

    def _final_inputs(self, behind: Any, connectors: Any, prev_actions: Any, prev_rewards: Any, timesteps: int) -> Any:
        """The module's view of observations behind a step; no statistics learn from them."""
        if not self._policy.records_obs:
            return behind
        return self._policy.observe_final(connectors, behind, prev_actions, prev_rewards, timesteps)

    def _note_ended(self, indices: np.ndarray) -> None:
        now = time.perf_counter()
        for index in indices:
            self._ended.append(
                (
                    int(index),
                    float(self._returns[index]),
                    int(self._lengths[index]),
                    now - float(self._started_at[index]),
                )
            )

    def _record_episodes(self, num_steps: int, mode: Mode) -> list[tuple[int, SingleAgentEpisode]]:
        """Record, and return ``(environment, episode)`` of what ended."""
        recording, infos, reset_infos = self._record_some(num_steps, mode, wants_episodes=True)
        if self._live is not None:
            return self._live.take_finished()
        return self._builder.add(
            recording.columns(), infos=infos, reset_infos=reset_infos, weights_seq_no=self._weights_seq_no
        )

    def _sample_episodes(self, num_episodes: int, mode: Mode) -> list[SingleAgentEpisode]:
        num_envs = self.num_envs
        quota = episode_quota(num_episodes, num_envs)
        finished: list[list[SingleAgentEpisode]] = [[] for _ in range(num_envs)]
        before, self._ended = self._ended, []
        while any(len(own) < wanted for own, wanted in zip(finished, quota, strict=True)):
            for index, episode in self._record_episodes(EPISODE_CHUNK, mode):
                if len(finished[index]) < quota[index]:
                    finished[index].append(episode)
        self._builder.reset()
        # Statistics, too, are of these episodes only.
        for index, wanted in enumerate(quota):
            before += [ended for ended in self._ended if ended[0] == index][:wanted]
        self._ended = before
        return [episode for own in finished for episode in own]

    # --------------------------------------------------------------------------------------------------- metrics

    def _time_sample(self, started: float) -> None:
        if self._last_sample is not None:
            self._timed("time_between_sampling", started - self._last_sample)
        self._last_sample = time.perf_counter()
        self._timed("sample", self._last_sample - started)

    def _timed(self, name: str, seconds: float) -> None:
        """Note a duration for `_log_timings`: logging each of them would take longer than some of them do."""
        total, number = self._timings.get(name, (0.0, 0))
        self._timings[name] = (total + seconds, number + 1)

    def _log_timings(self) -> None:
        for name, (total, number) in self._timings.items():
            self.metrics.log_value(name, total / number)
        self._timings = {}

    def take_metrics(self) -> dict[str, Any]:
        """What `metrics` was told since the last time, for `MetricsLogger.aggregate`."""
        self._log_timings()
        return self.metrics.reduce()

    def get_metrics(self) -> dict[str, Any]:
        window = self.config.metrics_num_episodes_for_smoothing
        for _, episode_return, length, duration in self._ended:
            for key, value in (("return", episode_return), ("len", length)):
                for how in ("mean", "min", "max"):
                    self.metrics.log_value(f"episode_{key}_{how}", value, reduce=how, window=window)
            self.metrics.log_value("episode_duration_sec_mean", duration, reduce="mean", window=window)
        self.metrics.log_value("num_episodes", len(self._ended), reduce="sum")
        self.metrics.log_value("num_episodes_lifetime", len(self._ended), reduce="lifetime_sum")
        self._ended = []
        steps = self._num_env_steps - self._num_env_steps_reported
        self._num_env_steps_reported = self._num_env_steps
        self._log_timings()
        self.metrics.log_value("num_env_steps_sampled", steps, reduce="sum")
        self.metrics.log_value("num_env_steps_sampled_lifetime", steps, reduce="lifetime_sum")
        return self.metrics.reduce()

    _num_env_steps_reported = 0
    _num_recordings = 0

    def take_ended_episodes(self) -> EndedEpisodes:
        """Returns, lengths and durations of the episodes that ended since the last call or block."""
        ended, self._ended = self._ended, []
        return EndedEpisodes.of([statistics for _, *statistics in ended])

    # ----------------------------------------------------------------------------------------------------- state

    def _connector_state(self) -> dict[str, Any]:
        """The env-to-module pipeline's state on the host, piece by piece."""
        if not jax.tree.leaves(self._connectors[0]):
            return {}
        self._pure_env_to_module.state = jax.device_get(self._connectors[0])
        return self._env_to_module.get_state()

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Weights, connector states, counters and random numbers as nested dicts of NumPy arrays.

        The environments' own states are not among it: nothing in gymnasium's interface gives them.

        Args:
            components: Only these of `STATE_COMPONENTS`; None for all.
            not_components: Leave these out.
            **kwargs: None.
        """
        make: dict[str, Callable[[], Any]] = {
            "rl_module": lambda: dict(zip(("params", "rest"), self._policy.get_weights(), strict=True)),
            "env_to_module_connector": self._env_to_module_state,
            "module_to_env_connector": self._module_to_env_state,
            "weights_seq_no": lambda: self._weights_seq_no,
            "num_env_steps_sampled_lifetime": lambda: self._others_env_steps + self._num_env_steps,
            "random": self._policy.get_random_state,
            "metrics_logger": self.metrics.get_state,
        }
        return {n: make[n]() for n in selected(STATE_COMPONENTS, components, not_components, "an EnvRunner")}

    def _env_to_module_state(self) -> dict[str, Any]:
        """With the states of pieces that run on the host."""
        return self._connector_state() or (self._env_to_module.get_state() if self._has_host_pieces else {})

    def acting_parts(self) -> tuple[MultiRLModule, EnvToModulePipeline, ModuleToEnvPipeline]:
        """The modules, without current weights, and both pipelines, without current states."""
        return self._policy.modules, cast(EnvToModulePipeline, self._env_to_module), self._module_to_env

    def _module_to_env_state(self) -> dict[str, Any]:
        self._module_to_env.state = jax.device_get(self._connectors[1])
        return self._module_to_env.get_state()

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """What builds a runner in the same place, with environments of its own."""
        return (), {
            "config": self.config,
            "worker_index": self.worker_index,
            "num_workers": self.num_workers,
            "spaces": self._given_spaces,
        }

    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        """Both connector pipelines."""
        return [
            (COMPONENT_ENV_TO_MODULE_CONNECTOR, self._env_to_module),
            (COMPONENT_MODULE_TO_ENV_CONNECTOR, self._module_to_env),
        ]

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over parts of what `get_state` returned; histories of running episodes stay.

        With "random", the next ``sample()`` resets all environments, with seeds that follow from it: none goes on.

        Raises:
            ValueError: For unknown parts.
        """
        unknown = sorted(set(state) - set(STATE_COMPONENTS))
        if unknown:
            raise ValueError(f"Unknown components {unknown} of an EnvRunner; it has {list(STATE_COMPONENTS)}.")
        if "rl_module" in state:
            self._policy.set_weights(state["rl_module"]["params"], state["rl_module"].get("rest", {}))
        connector_state = state.get("env_to_module_connector")
        if connector_state and self.config.in_evaluation:
            # It is that of training's pipeline, and evaluation_config may name other pieces.
            connector_state = known_statistics(self._env_to_module.names, self._histories, connector_state)
        if connector_state:
            present = self._pure_env_to_module.state = jax.device_get(self._connectors[0])
            self._env_to_module.set_state(connector_state)
            given = self._pure_env_to_module.state
            if "random" not in state:
                given = with_statistics(present, given, self._histories)
            self._connectors = (given, self._connectors[1])
        if state.get("module_to_env_connector"):
            self._module_to_env.state = jax.device_get(self._connectors[1])
            self._module_to_env.set_state(state["module_to_env_connector"])
            self._connectors = (self._connectors[0], self._module_to_env.state)
        if "random" in state:
            # Environments start anew, unlike before: their own states are not saved.
            key, num_calls = np.asarray(state["random"]["key"]).tolist(), state["random"]["num_calls"]
            self.reseed(derived_seed("restored", *key, num_calls))
            self._policy.set_random_state(state["random"])
        if "metrics_logger" in state:
            self.metrics.set_state(state["metrics_logger"])
        if "weights_seq_no" in state:
            self._weights_seq_no = int(state["weights_seq_no"])
        if "num_env_steps_sampled_lifetime" in state:
            self._note_lifetime_steps(int(state["num_env_steps_sampled_lifetime"]))

    def _note_lifetime_steps(self, num_env_steps: int) -> None:
        """Take over what all runners together have sampled; own steps count from here on."""
        self._others_env_steps = num_env_steps
        self._num_env_steps_reported -= self._num_env_steps
        self._num_env_steps = 0

    def share_weights(self, learner: Learner, *, num_env_steps_sampled_lifetime: int) -> None:
        """Act with the current weights of a learner in this process, without a copy of them.

        Args:
            learner: Makes new arrays when it changes its parameters.
            num_env_steps_sampled_lifetime: Env steps that all runners together have sampled.
        """
        policy = self._policy
        policy.adopt_weights(*learner.weights_in_place(*policy.refs, policy.sharding))
        self._weights_seq_no = learner.num_updates
        self._note_lifetime_steps(num_env_steps_sampled_lifetime)

    @functools.cached_property
    def _histories(self) -> Any:
        """Which leaves of the env-to-module pipeline's state are histories."""
        return histories(self._pure_env_to_module)

    def merge_connector_deltas(self) -> None:
        """Count this runner's own new statistics as known: what a group of one runner does in place of a merge."""
        merged = self._pure_env_to_module.merge(self._connectors[0], None)
        self._connectors = (jax.device_get(merged), self._connectors[1])


@dataclasses.dataclass(frozen=True)
class _Before:
    """What a failed attempt to sample goes back to."""

    connectors: Any
    num_env_steps: int
    ended: list[tuple[int, float, int, float]]
    metrics: dict[str, Any] | None


def _behind(step: VectorStep, ended: np.ndarray) -> Any:
    """The observations behind a step, in front of any reset, as arrays of their own."""
    if step.final_obs is None:
        return np.array(step.obs) if isinstance(step.obs, np.ndarray) else jax.tree.map(np.array, step.obs)
    return jax.tree.map(lambda final, obs: _where(ended, final, obs), step.final_obs, step.obs)


def _where(mask: np.ndarray, yes: np.ndarray, no: np.ndarray) -> np.ndarray:
    return np.where(mask.reshape(mask.shape + (1,) * (np.ndim(no) - 1)), yes, no)
