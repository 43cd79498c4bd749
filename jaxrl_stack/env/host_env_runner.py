"""Env runner of environments on the host (outside jit), for one agent or several."""

from __future__ import annotations

import abc
import collections
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import jax
import numpy as np

from jaxrl_stack.acting.host_policy import HostPolicy, Mode
from jaxrl_stack.acting.module_policies import ModulePolicies
from jaxrl_stack.acting.recording import NO_STEP_TIMES, EndedEpisodes, SampleBlock, SampleReport, StepTimes
from jaxrl_stack.callbacks.utils import CallbackList, overrides_episode_hooks
from jaxrl_stack.checkpoints.checkpointable import Parts, selected
from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline
from jaxrl_stack.core.block import Block
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import Part, RecordingId, Versions
from jaxrl_stack.core.layouts import Layouts, layout_of_block
from jaxrl_stack.core.rl_module.functional import PureModule
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModuleSpec
from jaxrl_stack.core.rl_module.rl_module import RLModule, RLModuleSpec
from jaxrl_stack.env.acting_settings import policy_device, static_settings, traced_settings
from jaxrl_stack.env.created_envs import creators_called_once
from jaxrl_stack.env.env_context import EnvContext
from jaxrl_stack.env.env_runner import EnvRunner, check_amounts
from jaxrl_stack.env.episode_quota import EpisodeQuota
from jaxrl_stack.env.fault_tolerant_envs import Attempts, FaultTolerantEnvs
from jaxrl_stack.env.host_connectors import HostConnectors
from jaxrl_stack.env.module_connectors import ModuleConnectors
from jaxrl_stack.env.sampling_metrics import SamplingMetrics
from jaxrl_stack.env.vector.host_vector_env import make_vector_env
from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.policy.inputs import checked_observations
from jaxrl_stack.utils import counters
from jaxrl_stack.utils.actor_setup import is_actor_process, set_up_actor, was_actor_restarted
from jaxrl_stack.utils.compilation_cache import enable_compilation_cache
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.results import is_name_of_runners
from jaxrl_stack.utils.seeds import derived_seed
from jaxrl_stack.utils.spaces import difference
from jaxrl_stack.utils.spaces.integers import has_wide_integers, with_floats

if TYPE_CHECKING:
    from jaxrl_stack.acting.rollout import Rollout, RolloutRecording
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.connectors.module_to_env import ModuleToEnvPipeline
    from jaxrl_stack.core.learner.learner import Learner
    from jaxrl_stack.core.module_map import ModuleMap
    from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModule
    from jaxrl_stack.env.module_pipelines import ModulePipelines

_RUNNING_EPISODES = "running_episodes"
EPISODE_CHUNK = 64
"""Vector steps that are recorded at a time while whole episodes are sampled."""


class HostEnvRunner(EnvRunner):
    """Steps environments in this process and chooses actions with compiled modules; base class for one agent and for
    several.

    It has a `HostPolicy` and `ConnectorStates` per module, and a `Rollout`, which steps the environments with them.
    `SingleAgentEnvRunner` and `MultiAgentEnvRunner` make the pipelines and the rollout for their environments.

    Args:
        config, worker_index, num_workers, recreated_worker, spaces, module, **kwargs: See `SingleAgentEnvRunner`.

    Attributes:
        metrics: A `MetricsLogger`; callbacks get it, `get_metrics` reduces it.
        num_workers: Number of runner actors.
        num_episodes_not_restored: Number of times that an environment started a new episode in place of a stored one,
            with ``replayable_episodes``; it is part of checkpoints. If it is larger than in the checkpoint, or than in
            an earlier one of the run, the run did not continue bit for bit.
    """

    metrics: MetricsLogger
    num_workers: int
    _counts: SamplingMetrics
    _policies: ModulePolicies
    _connectors: ModuleConnectors
    _host_connectors: dict[str, HostConnectors]
    _given_spaces: dict[str, tuple[gym.Space, gym.Space]] | None
    _rollout: Rollout
    _module_ids: list[str]
    _keeps_all_of_steps = False
    """Whether final observations and infos of all episodes are kept, for `_note_block`."""

    @creators_called_once()
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
            raise TypeError(f"{type(self).__name__}() got unknown arguments {unknown}. Remove them.")
        set_up_actor(num_cpus=config.num_cpus_per_env_runner, num_gpus=config.num_gpus_per_env_runner)
        if is_actor_process():
            enable_compilation_cache(config.compilation_cache_dir or None)
        # Its own, and open: a curriculum changes `env_config` in the runner and calls `make_env`.
        config = config.copy(copy_frozen=False)
        super().__init__(config=config, worker_index=worker_index or 0)
        self.num_workers = config.num_sampling_actors if num_workers is None else num_workers
        recreated = recreated_worker or was_actor_restarted()
        self.metrics = MetricsLogger(stats_cls_lookup=config.stats_cls_lookup, reserved=is_name_of_runners)
        self._counts = SamplingMetrics(
            self.metrics,
            config.metrics_num_episodes_for_smoothing,
            steps_per_own_step=0 if config.in_evaluation else max(1, self.num_workers),
        )
        self._make_callbacks()
        self._worker_info = {
            "worker_index": self.worker_index,
            "num_workers": self.num_workers,
            "recreated_worker": recreated,
        }
        self._given_spaces = spaces
        self._given_module = module
        self._acts_at_random = False
        self.weights_seq_no = 0
        self.num_episodes_not_restored = 0
        self._num_restarts = 0
        self._envs = FaultTolerantEnvs(
            config=config,
            has_stepped=recreated,
            make_vector=lambda seed: make_vector_env(self.config, **self._worker_info, seed=seed),
            worker_index=self.worker_index,
            seeds=(self.seed_of(config), self.worker_index, 0),
            metrics=self.metrics,
            on_created=self._announce_env,
        )
        beside_actors = worker_index == 0 and self.num_workers > 0 and not config.create_env_on_local_worker
        if not beside_actors:
            self.make_env()
            self._observe_floats()
        elif spaces is None:
            raise ValueError(
                f"{type(self).__name__}(worker_index={worker_index}) creates no environments, because "
                f"{self.num_workers} actors create them. It therefore needs the argument spaces=, which is missing. "
                "Pass spaces=runner.get_spaces() of an EnvRunner with environments, or set "
                "env_runners(create_env_on_local_worker=True)."
            )
        self.make_module()
        if self._envs.replayable is not None:
            self._note_not_restored(0)

    @staticmethod
    def seed_of(config: AlgorithmConfig) -> int:
        """Returns the seed from which all runners with this config derive their random numbers.

        This is the config's root seed, or for evaluation a seed derived from the root seed.
        """
        return derived_seed("evaluation", config.root_seed) if config.in_evaluation else config.root_seed

    # ----------------------------------------------------------------------------------------------------- building

    def _make_callbacks(self) -> None:
        self.callbacks = CallbackList.from_config(self.config)
        self._watches_episodes = overrides_episode_hooks(self.callbacks)

    @property
    def env(self) -> gym.vector.VectorEnv | None:
        """The vector environment; None for a runner without environments."""
        return None if self._envs.vector is None else self._envs.vector.env

    @property
    def num_envs(self) -> int:
        """Number of environments, ``B``."""
        return self._envs.num_envs

    @property
    def has_stepped(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._envs.has_stepped

    def make_env(self) -> None:
        """Closes the present environments and creates new ones from `config`.

        The next ``sample()`` resets them; unfinished episodes are dropped. Example of a change of the task::

            def set_task(env_runner):
                env_runner.config.environment(env_config={"task": 2})
                env_runner.make_env()

            algo.env_runner_group.foreach_env_runner(set_task)

        Raises:
            ValueError: If the module was made for other spaces.
        """
        self._envs.make()

    def _observe_floats(self) -> None:
        """Makes the environments return float32 observations instead of integers, if int32 cannot hold the integers.

        Makes no change if a connector accepts only one of the two dtypes, or if float32 would change the shape or the
        kind of dtype (integer, float) of the modules' inputs.
        """
        vector = self._envs.vector
        if vector is None or not has_wide_integers(vector.single_observation_space):
            return
        spaces = [vector.single_observation_space, with_floats(vector.single_observation_space)]
        try:
            of_integers, of_floats = map(self._module_inputs, spaces)
        except (TypeError, ValueError):  # a connector takes one of them only
            return
        if all(difference(a, b) is None for a, b in zip(of_integers, of_floats, strict=True)):
            self._envs.observe_as(spaces[1])
            notice_once(
                f"environment({self.config.env!r}): its observation space has integers beyond int32. They become "
                f"float32, which is exact only up to {2**24}: return smaller numbers, such as the time since reset in "
                "place of a clock."
            )

    def _announce_env(self) -> None:
        context = EnvContext(self.config.env_config, **self._worker_info)
        self.callbacks.on_environment_created(
            env_runner=self, metrics_logger=self.metrics, env=self.env, env_context=context
        )

    @property
    @abc.abstractmethod
    def module_map(self) -> ModuleMap:
        """Map of agents to the modules that act for them."""

    @abc.abstractmethod
    def _make_pipelines(self) -> ModulePipelines:
        """Creates new connector pipelines of every module, in their initial states."""

    @abc.abstractmethod
    def _module_inputs(self, observation_space: gym.Space) -> list[gym.Space]:
        """Returns the input space of each module for environments with the given observation space: the output space of
        the module's env-to-module pipeline.
        """

    @abc.abstractmethod
    def _new_rollout(self) -> Rollout:
        """Creates the sampling loop (`Rollout`) with this runner's policies and connectors."""

    @abc.abstractmethod
    def _input_spaces(self) -> Mapping[str, tuple[gym.Space, gym.Space]]:
        """Returns the spaces of one agent's observations and actions before connectors change them, by module:
        ``{module_id: (observation space, action space)}``.
        """

    def make_module(self) -> None:
        """Builds connector pipelines and RLModules for the environments' spaces, and the sampling loop that computes
        actions with these modules and pipelines.
        """
        connectors = self._make_connectors()
        module = self._built_modules(connectors.pipelines.spaces)
        self._module_ids = list(module)
        config, ids = self.config, self._module_ids
        settings, static, device = traced_settings(config, ids), static_settings(config, ids), policy_device(config)
        steps = connectors.pipelines.steps(PureModule(module))
        self._policies = ModulePolicies(
            {
                mid: HostPolicy(step, settings=settings, static_settings=static, device=device, seed=0)
                for mid, step in steps.items()
            },
            self.module_map,
        )
        self._policies.reseed(self._policy_seed())
        self._make_rollout(connectors)

    def _make_connectors(self) -> ModuleConnectors:
        return ModuleConnectors(self._make_pipelines(), max(1, self.num_envs))

    def _make_rollout(self, connectors: ModuleConnectors) -> None:
        """Stores the runner's connectors, and creates the sampling loop (`Rollout`) that uses them."""
        self._connectors = connectors
        self._host_connectors = {
            mid: HostConnectors(own.env_to_module, functools.partial(self._policies.module_of, mid), self.metrics)
            for mid, own in connectors.items()
            if own.has_host_connectors
        }
        self._rollout = self._new_rollout()

    def _built_modules(self, spaces: Mapping[str, tuple[gym.Space, gym.Space]]) -> MultiRLModule:
        """Returns the RLModules passed to the constructor; without them, builds the config's RLModules for the given
        spaces.

        If the config has no RLModules (a generic `AlgorithmConfig`), builds modules that compute nothing; actions are
        random.
        """
        given: Any = self._given_module
        if given is not None:
            return given
        try:
            spec = self.config.get_multi_rl_module_spec(spaces=spaces, inference_only=True)
        except NotImplementedError:
            self._acts_at_random = True
            none = {
                mid: RLModuleSpec(module_class=RLModule, observation_space=own[0], action_space=own[1])
                for mid, own in spaces.items()
            }
            spec = MultiRLModuleSpec(rl_module_specs=none)
        modules: Any = spec.build(seed=self.config.root_seed)
        return modules

    @property
    def module(self) -> Any:
        """Module that acts, with its current weights; a MultiRLModule for multi-agent environments.

        It is the same object until other weights are set.
        """
        return self.module_map.unwrapped(self._policies.module)

    def _single_spaces(self) -> tuple[Any, Any]:
        """Observation and action space of one environment."""
        vector = self._envs.vector
        if vector is not None:
            return vector.single_observation_space, vector.single_action_space
        assert self._given_spaces is not None
        return self._given_spaces["__env_single__"]

    def get_spaces(self) -> dict[str, tuple[gym.Space, gym.Space]]:
        single = self._single_spaces()
        return {"__env__": single, "__env_single__": single, **self._connectors.pipelines.spaces}

    def change_settings(self, settings: Mapping[str, Any]) -> None:
        super().change_settings(settings)
        self._policies.set_settings(traced_settings(self.config, self._module_ids))

    def reset(self, config: AlgorithmConfig) -> None:
        """Resets the runner to a new config, with new callbacks, connectors and episodes.

        Only settings that are arguments of compiled programs may differ from the previous config, so that nothing is
        compiled again.

        The weights stay as they are until others are set; callbacks and connectors are new objects. If `env` or
        ``env_config`` of the runner's own config was changed (see `make_env`), environments are created again.
        """
        has_task = config.is_same(self.config, "env", "env_config")
        self.config = config.copy(copy_frozen=False)
        self._make_callbacks()
        self._policies.set_settings(traced_settings(self.config, self._module_ids))
        self.weights_seq_no = 0
        self._counts.reset()
        self.num_episodes_not_restored = 0
        if self._envs.replayable is not None:
            self._note_not_restored(0)
        if self.env is not None:
            if has_task:
                self._announce_env()
            else:
                self.make_env()
        # Those that run on the host keep their state in attributes. The policy has compiled pure ones of before, which
        # are the same functions.
        self._make_rollout(self._make_connectors())
        self._forget_episodes()
        self.reseed(self.seed_of(config), self.worker_index, 0)

    def assert_healthy(self) -> None:
        """Raises RuntimeError if the runner has no environments because `stop` closed them. A runner that was built
        without environments is healthy.

        Raises:
            RuntimeError: If `stop` was called.
        """
        if self.env is None and self._given_spaces is None:
            raise RuntimeError(f"{type(self).__name__} {self.worker_index} was stopped. Build another from its config.")

    def stop(self) -> None:
        self._envs.close()

    # ----------------------------------------------------------------------------------------------------- sampling

    def sample(
        self, *, num_timesteps=None, num_episodes=None, explore=None, random_actions=False, force_reset=False
    ) -> list[Any]:
        """Samples episodes, or chunks of episodes.

        Observations are the module's inputs: the outputs of the env-to-module pipeline, not the observations of the
        environment.

        Args:
            num_timesteps: Least number of env steps (with ``count_steps_by="agent_steps"``: of steps that agents
                complete); the next call continues the unfinished episodes. Default: with
                ``batch_mode="truncate_episodes"``, ``rollout_fragment_length`` steps of every environment; with
                ``"complete_episodes"``, one episode of each.
            num_episodes: Instead, reset all environments and return exactly ``n = num_episodes`` finished episodes,
                the first ``n // B + (i < n % B)`` of environment ``i``, so that short episodes are not preferred; the
                next call resets all environments, too.
            explore: Whether to sample actions instead of taking the greedy ones; None: ``config.explore``.
            random_actions: Draw actions from the action space, not from the policy.
            force_reset: Reset all environments first and drop unfinished episodes.

        Raises:
            ValueError: If both amounts are given, one is below 1, this runner has no environments, or one of them
                returned something that is not finite.
            ConsecutiveFailuresError: If environments failed too often in a row.
            Exception: What an environment raised; see the class.
        """
        check_amounts(num_timesteps, num_episodes)
        # Episodes may be built while environments are stepped: then running ones of blocks before begin again.
        self._envs.needs_reset |= not self._rollout.has_episodes
        mode = self._mode(explore, random_actions)
        if num_timesteps is None and num_episodes is None and self.config.batch_mode == "complete_episodes":
            num_episodes = self.num_envs
        started = time.perf_counter()
        num_steps = self.config.get_rollout_fragment_length(self.worker_index)
        if num_timesteps is not None:
            num_steps = -(-num_timesteps // self.num_envs) if self.num_envs else 1

        episodes: list[Any] = []
        attempts = self._attempts(force_reset=force_reset or num_episodes is not None)
        for attempt in attempts:
            with attempt:
                self._reset_if_needed(wants_episodes=True)
                if num_episodes is None:
                    episodes = self._record_amount(num_steps, mode)
                else:
                    episodes = self._sample_episodes(num_episodes, mode)
        if num_episodes is None:
            episodes += self._rollout.cut()
        else:
            self._envs.needs_reset = True
        if self.config.episodes_to_numpy:
            for episode in episodes:
                episode.to_numpy()
        self._note_episodes(episodes)
        self._counts.time_sample(started)
        self._counts.log_means()
        with attempts.dropped_on_error():
            self.callbacks.on_sample_end(env_runner=self, metrics_logger=self.metrics, samples=episodes)
        return episodes

    def sample_block(
        self,
        *,
        num_steps: int | None = None,
        explore: bool | None = None,
        keeps_all_final_obs: bool = False,
        takes_metrics: bool = True,
        layouts: Layouts | None = None,
        keeps_times: bool = False,
    ) -> SampleBlock:
        """Samples `num_steps` steps of every environment for training: returns a `SampleBlock` with arrays by module;
        builds episode objects only if callbacks or connectors in Python need them.

        Args:
            num_steps: None for ``rollout_fragment_length``.
            explore: Sample actions or take the greedy ones; None for ``config.explore``.
            keeps_all_final_obs: Whether FINAL_OBS holds the observations after steps that terminated an episode, too.
            takes_metrics: Whether the block contains the metrics. Short blocks are faster without; `take_metrics` then
                returns the metrics of several blocks.
            layouts: Layouts of the columns, by module; None for whole observations, in the chunks that losses see.
            keeps_times: Whether the part has `times`; ignored for one agent, which acts in every step.

        Returns:
            Columns ``[T, R, ...]`` of a module with S agents, ``R = S * B``: rows of its first agent first. With
            several agents, each row begins with complete steps; ``LOSS_MASK`` is False after them.

        Raises:
            ValueError: If this runner has no environments, or one of them returned something that is not finite.
            ConsecutiveFailuresError: If environments failed too often in a row.
            Exception: Raised by an environment; see `SingleAgentEnvRunner`.
        """
        started = time.perf_counter()
        length = num_steps or self.config.get_rollout_fragment_length(self.worker_index)
        mode = self._mode(explore, False)
        wants_episodes = keeps_all_final_obs or self._keeps_all_of_steps
        recording: Any = None
        attempts = self._attempts()
        for attempt in attempts:
            with attempt:
                self._reset_if_needed(wants_episodes=False)
                recording = self._rollout.record(
                    length,
                    mode,
                    learns=self._learns(mode),
                    weights_seq_no=self.weights_seq_no,
                    wants_episodes=wants_episodes,
                    keeps_times=keeps_times,
                )
        self._note_block(recording)
        live = self._rollout.live
        if live is not None:
            samples = [episode for _, episode in live.take_finished()] + live.cut()
            with attempts.dropped_on_error():
                self.callbacks.on_sample_end(env_runner=self, metrics_logger=self.metrics, samples=samples)
        # A call of sample() starts with episodes of its own.
        self._rollout.forget_episodes()
        part = self._part_of(recording, layouts)
        self._counts.time_sample(started)
        # Before the metrics, which numbers of modules may be among.
        ended, agent_steps = self.take_ended_episodes(), self.take_agent_steps()
        report = SampleReport(
            ended,
            self.take_metrics() if takes_metrics else {},
            self._connectors.compiled_state(),
            agent_steps,
            self.take_step_times(),
        )
        return SampleBlock(part, report)

    def act(
        self, observation: Any, *, module_id: str, explore: bool, key: jax.Array, recurrent: Any = None
    ) -> dict[str, Any]:
        """Computes the action for one observation of an agent: env-to-module pipeline, module, module-to-env pipeline.
        Connectors treat the observation as the first of an episode.

        Args:
            observation: One observation, without batch axis.
            module_id: The module that acts; one that acts for no agent has the pipelines of the first one that does.
            explore: Sample the action or take the greedy one.
            key: PRNG key.
            recurrent: State of the module, without batch axis; None for the initial state.

        Returns:
            The columns that the module-to-env pipeline made, as NumPy arrays without batch axis.

        Raises:
            ValueError: If the observation does not fit the observation space, or the module is for learners only.
        """
        acting = module_id if module_id in self._connectors else next(iter(self._connectors))
        observation = checked_observations(self._input_spaces()[acting][0], observation, 0)
        batch = {Columns.OBS: jax.tree.map(lambda x: x[None], observation)}
        if acting in self._host_connectors:
            episode = SingleAgentEpisode()
            episode.add_env_reset(observation)
            mode = "explore" if explore else "greedy"
            batch = self._host_connectors[acting].run([episode], mode, self._policies.module_of(module_id))
        if recurrent is not None:
            batch = {**batch, Columns.STATE_IN: jax.tree.map(lambda x: x[None], recurrent)}
        timesteps = counters.from_int(self._counts.timesteps)
        env_to_module, _ = self._connectors[acting].value
        return self._policies[acting].act_once(
            env_to_module, batch, key, timesteps, module_id=module_id, explore=explore
        )

    def reseed(self, *seeds: int) -> None:
        """Makes the next ``sample()`` call reset all environments, with seeds derived only from the given integers.

        Args:
            *seeds: Integers of any size. The runner's index is not among them unless it is given.
        """
        self._envs.reseed(*seeds)
        self._policies.reseed(self._policy_seed())

    def _policy_seed(self) -> int:
        return derived_seed("policy", *self._envs.seeds)

    def on_restarted(self, num_restarts: int) -> None:
        """Sets a new seed after a restart, so that the runner does not repeat its earlier episodes."""
        self._num_restarts = num_restarts
        self.reseed(self.seed_of(self.config), self.worker_index, num_restarts)

    def _mode(self, explore: bool | None, random_actions: bool) -> Mode:
        if random_actions or self._acts_at_random:
            return "random"
        return "explore" if (self.config.explore if explore is None else explore) else "greedy"

    def _learns(self, mode: Mode) -> bool:
        """Whether sampling updates the running statistics of connectors. Sampling for evaluation does not, nor does
        sampling of random actions (`mode` "random").
        """
        return not self.config.in_evaluation and mode != "random"

    @property
    def _sees_every_step(self) -> bool:
        """Whether user code (callbacks or connectors in Python) runs in every env step.

        If True, the rollout maintains episode objects, which this code reads. Because this code may log metrics, the
        logged metrics are also restored after a failed sampling attempt.
        """
        return self._watches_episodes or bool(self._host_connectors)

    @property
    def _call_for_episode(self) -> Callable[..., None]:
        """Function ``(hook name, env index, episode, **more)`` that calls a hook of the user's callbacks, with this
        runner and its metrics logger as further arguments.
        """
        return functools.partial(self.callbacks.call_for_episode, env_runner=self, metrics_logger=self.metrics)

    def _attempts(self, *, force_reset: bool = False) -> Attempts:
        """Returns the `Attempts` loop, which repeats sampling if environments fail.

        After a failed attempt, the loop restores the connector states and the counts of steps and episodes from before
        the first attempt.
        """
        if self.env is None:
            raise _error_without_envs(self.worker_index, self.config, self._envs.problem) from self._envs.problem
        self._envs.needs_reset |= force_reset
        connectors = self._connectors.value
        # Only callbacks and host connectors log anything while a recording runs, but for durations.
        counts = self._counts.snapshot(with_logged=self._sees_every_step)

        def roll_back() -> None:
            self._connectors.value = connectors
            self._counts.roll_back(counts)

        return Attempts(self._envs, roll_back)

    def _reset_if_needed(self, *, wants_episodes: bool) -> None:
        if self._envs.needs_reset:
            self._forget_episodes()
            self._rollout.reset(self._mode(None, False), wants_episodes=wants_episodes)

    def _forget_episodes(self) -> None:
        """Drops the unfinished episode objects that `sample` builds, so that later steps do not continue them."""
        self._rollout.forget_episodes()

    def _record_amount(self, num_steps: int, mode: Mode) -> list[Any]:
        """Samples `num_steps` env steps of each of the ``B`` environments, and returns the episodes that ended.

        With ``count_steps_by="agent_steps"``, samples at least ``num_steps * B`` steps in total over all agents.
        """
        return [episode for _, episode in self._record_episodes(num_steps, mode)]

    def _record_episodes(self, num_steps: int, mode: Mode) -> list[tuple[int, Any]]:
        """Samples `num_steps` env steps of every environment; returns ``(environment index, episode)`` for each episode
        that ended.
        """
        return self._rollout.take_ended(self._record_for_episodes(num_steps, mode), self.weights_seq_no)

    def _record_for_episodes(self, num_steps: int, mode: Mode) -> RolloutRecording:
        return self._rollout.record(
            num_steps, mode, learns=self._learns(mode), weights_seq_no=self.weights_seq_no, wants_episodes=True
        )

    def _sample_episodes(self, num_episodes: int, mode: Mode) -> list[Any]:
        counts, num_envs = self._counts, self.num_envs
        before, counts.ended, num_env_steps = counts.ended, [], counts.num_env_steps
        episodes = EpisodeQuota(num_episodes, num_envs).fill(lambda: self._record_episodes(EPISODE_CHUNK, mode))
        self._forget_episodes()
        # Statistics, too, are of these episodes only.
        ended = EpisodeQuota(num_episodes, num_envs).add((ended.env_index, ended) for ended in counts.ended)
        counts.ended = before + ended.episodes
        counts.num_env_steps = num_env_steps + sum(map(len, episodes))
        return episodes

    def _note_episodes(self, episodes: Sequence[Any]) -> None:
        """Hook, called with the episodes that `sample` returns. A subclass can write these episodes to files, or count
        the steps of each agent.
        """

    def _note_block(self, recording: Any) -> None:
        """Hook, called with the steps that `sample_block` recorded. A subclass can write these steps to files."""

    def _part_of(self, recording: RolloutRecording, layouts: Layouts | None) -> Part:
        """Converts recorded steps to a `Part` of a train batch: the arrays of each module, and the numbers of env
        steps and agent steps.
        """
        # Layouts of agents that wait have whole observations.
        resets = None if recording.resets is None else recording.resets[: recording.num_steps]
        blocks = {}
        for mid, columns in recording.columns().items():
            own = layouts[mid] if layouts else None
            if own is None:
                own = layout_of_block(self._policies.module_of(mid), columns, recording.num_steps)
            blocks[mid] = Block.of_recording(columns, own, resets)
        steps = recording.num_module_steps()
        if of_agents := recording.num_agent_steps():
            self._counts.agent_steps = collections.Counter(of_agents)
            self._counts.module_steps.update(steps)
        return Part(
            blocks,
            num_agent_steps=sum(steps.values()),
            versions=Versions(self.weights_seq_no, self.weights_seq_no),
            starts=recording.starts(),
            times=recording.times(),
            num_env_steps=recording.num_env_steps,
            source=RecordingId(self.worker_index, self._num_restarts, self._rollout.num_recordings - 1),
        )

    # ------------------------------------------------------------------------------------------------------ metrics

    def take_step_times(self) -> StepTimes:
        """Returns the total duration (seconds) and the number of vector steps since the last call.

        Returns zeros, unless the vector environment steps its sub-environments one after the other in this process.
        """
        times, vector = self._counts.take_step_times(), self._envs.vector
        return times if vector is not None and vector.steps_in_turn else NO_STEP_TIMES

    def take_metrics(self) -> dict[str, Any]:
        """Returns the metrics logged since the last call, for `MetricsLogger.aggregate`.

        Call this method after the other ``take_...`` methods, because it clears the step counts that `take_agent_steps`
        returns: it logs them as metrics first.
        """
        return self._counts.take_logged()

    def get_metrics(self) -> dict[str, Any]:
        return self._counts.report()

    def take_ended_episodes(self) -> EndedEpisodes:
        """Returns the statistics (return, length, duration) of episodes that have ended and are not reported yet.

        Each episode is reported once: by this method, in a `SampleBlock`, or by `get_metrics`.
        """
        return self._counts.take_ended()

    def take_agent_steps(self) -> dict[Any, int]:
        """Returns the number of steps that each agent has completed since the last call of `take_agent_steps`,
        `take_metrics` or `get_metrics`; {} with one agent.
        """
        return self._counts.take_agent_steps()

    # -------------------------------------------------------------------------------------------------------- state

    def acting_parts(self) -> tuple[MultiRLModule, EnvToModulePipeline, ModuleToEnvPipeline]:
        """Returns the objects that compute actions: the MultiRLModule, and the pipelines of the first module that
        controls an agent.

        The result is ``(MultiRLModule of all modules, env-to-module pipeline, module-to-env pipeline)``. The objects do
        not contain the current weights and connector states.
        """
        return next(iter(self.acting_parts_of_modules().values()))

    def acting_parts_of_modules(self) -> dict[str, tuple[MultiRLModule, EnvToModulePipeline, ModuleToEnvPipeline]]:
        """Returns the objects that compute actions, for each module that acts: the MultiRLModule, and connector
        pipelines.

        The result is ``{module_id: (MultiRLModule, env-to-module pipeline, module-to-env pipeline)}``. The
        MultiRLModule contains all modules and is the same object in each tuple; the pipelines differ.
        """
        return {
            mid: (self._policies.modules, own.env_to_module, own.module_to_env)
            for mid, own in self._connectors.pipelines.items()
        }

    def acting_parts_for(self, module_id: str) -> tuple[MultiRLModule, EnvToModulePipeline, ModuleToEnvPipeline]:
        """Returns the objects that compute a module's actions: the MultiRLModule of all modules, and connector
        pipelines.

        The result is ``(MultiRLModule, env-to-module pipeline, module-to-env pipeline)``. A module that controls no
        agent has no pipelines: for such a module, returns the pipelines of the first module that controls an agent.
        """
        return self.acting_parts_of_modules().get(module_id) or self.acting_parts()

    def get_state(self, components: Parts = None, *, not_components: Parts = None, **kwargs: Any) -> dict[str, Any]:
        """Returns weights, connector states, counters and random number states as nested dicts of NumPy arrays.

        States of the environments are not included, because gymnasium's interface does not return them. With
        ``replayable_episodes``, "running_episodes" has the seeds and actions that restore them.

        Args:
            components: Only these; None for all.
            not_components: Leave these out.
            **kwargs: None.
        """
        make = self._parts_of_state()
        return {name: make[name]() for name in selected(make, components, not_components, "an EnvRunner")}

    def _parts_of_state(self) -> dict[str, Callable[[], Any]]:
        return {
            "rl_module": lambda: dict(zip(("params", "rest"), self._policies.get_weights(), strict=True)),
            "env_to_module_connector": self._connectors.get_env_to_module,
            "module_to_env_connector": self._connectors.get_module_to_env,
            "weights_seq_no": lambda: self.weights_seq_no,
            "num_env_steps_sampled_lifetime": lambda: self._counts.lifetime_env_steps,
            "random": self._policies.get_random_state,
            "metrics_logger": self.metrics.get_state,
            **({} if self._envs.replayable is None else {_RUNNING_EPISODES: self._running_episodes}),
        }

    def _running_episodes(self) -> dict[str, Any]:
        """Returns the data from which `_continue_episodes` restores the unfinished episodes: reset seeds, actions, and
        the state of the sampling loop.
        """
        assert self._envs.replayable is not None
        are_running = not self._envs.needs_reset
        rollout: Any = self._rollout
        return {
            **self._envs.replayable.get_state(are_running=are_running),
            "rollout": rollout.get_state() if are_running else None,
            "num_not_restored": self.num_episodes_not_restored,
        }

    def _continue_episodes(self, state: Mapping[str, Any] | None) -> None:
        """Restores the unfinished episodes from `state`, a result of `_running_episodes`.

        If `state` contains no unfinished episodes, continues only the sequence of reset seeds. If `state` is None or
        does not fit this runner, logs a warning, and the environments start new episodes.
        """
        envs = self._envs
        rollout: Any = self._rollout
        self.num_episodes_not_restored = 0 if state is None else int(state["num_not_restored"])
        envs.needs_reset = True
        stored = None if state is None else state["rollout"]
        why = None
        if state is None:
            why = "The checkpoint was saved without replayable_episodes=True"
        elif len(state["num_resets"]) != self.num_envs:
            why = f"The checkpoint has num_envs_per_env_runner={len(state['num_resets'])}, this run {self.num_envs}"
        elif stored is not None and not rollout.fits(stored):
            why = "Callbacks of episodes or host connectors were added, and the checkpoint lacks their episodes"
        if state is None or why is not None:
            envs.warn_of_new_episodes(str(why))
            self._note_not_restored(self.num_envs)
        elif stored is None:
            envs.continue_seeds(state)
        else:
            restored = envs.restore_episodes(state, stored["obs"], stored["returns"])
            rollout.set_state(stored, restored, self._mode(None, False))
            envs.needs_reset = False
            self._note_not_restored(len(restored.problems))
            self._note_restored(rollout.lengths, restored.infos)

    def _note_not_restored(self, number: int) -> None:
        """Adds `number` to `num_episodes_not_restored`, the total number of environments that started new episodes
        because their saved episodes could not be restored. Also logs `number` as a metric.
        """
        self.num_episodes_not_restored += number
        self.metrics.log_value("num_episodes_not_restored", number, reduce="lifetime_sum")

    def _note_restored(self, lengths: np.ndarray, infos: Sequence[dict[str, Any]]) -> None:
        """Hook, called after unfinished episodes of a checkpoint were restored. A subclass that records steps to files
        gets the lengths and last infos of these episodes.

        Args:
            lengths: Steps of the unfinished episodes, int64 ``[B]``.
            infos: Last info of each environment, from a reset or from the last replayed step.
        """

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores the entries of `state`, a complete `get_state()` result or a part of one.

        If the entry "random" (random number states) is missing, the per-environment states of env-to-module connectors,
        such as frame stacks, do not change.

        With "random", the next ``sample()`` resets all environments, with seeds derived from this entry. If `state` has
        "running_episodes", too, and ``replayable_episodes`` is set, environments continue the stored episodes instead
        (see `ReplayableEpisodes`).

        Raises:
            ValueError: For unknown parts.
        """
        # raises for unknown ones
        selected([*self._parts_of_state(), _RUNNING_EPISODES], state, None, "an EnvRunner")
        if "rl_module" in state:
            self._policies.set_weights(state["rl_module"]["params"], state["rl_module"].get("rest", {}))
        self._connectors.set_env_to_module(
            state.get("env_to_module_connector") or {},
            keeps_histories="random" not in state,
            from_training=self.config.in_evaluation,
        )
        self._connectors.set_module_to_env(state.get("module_to_env_connector") or {})
        if "random" in state:
            # Environments start anew, unlike before: their own states are not saved.
            self.reseed(derived_seed("restored", *self._policies.numbers_of(state["random"])))
            self._policies.set_random_state(state["random"])
        if "metrics_logger" in state:
            self.metrics.set_state(state["metrics_logger"])
        if "weights_seq_no" in state:
            self.weights_seq_no = int(state["weights_seq_no"])
        if "num_env_steps_sampled_lifetime" in state:
            self._counts.note_lifetime(int(state["num_env_steps_sampled_lifetime"]))
        if self._envs.replayable is not None and {"random", _RUNNING_EPISODES} & state.keys():
            self._continue_episodes(state.get(_RUNNING_EPISODES))

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """Returns the constructor arguments for another runner with the same config and worker index. That runner
        creates new environments.
        """
        return (), {
            "config": self.config.for_checkpoints(*self._connectors.pipelines.of_config()),
            "worker_index": self.worker_index,
            "num_workers": self.num_workers,
            "spaces": self._given_spaces,
        }

    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        """Returns the objects that have separate folders in checkpoints, as pairs ``(name, object)``: the env-to-module
        and the module-to-env pipeline.
        """
        return self._connectors.pipelines.parts()

    def share_weights(self, learner: Learner, *, num_env_steps_sampled_lifetime: int) -> None:
        """Makes the runner act with the current weights of a learner in the same process, without a copy.

        Args:
            learner: Makes new arrays when it changes its parameters.
            num_env_steps_sampled_lifetime: Env steps that all runners together have sampled.
        """
        policies = self._policies
        params, rest = policies.refs
        policies.adopt_weights(*learner.weights_in_place(params, rest, policies.sharding))
        self.weights_seq_no = learner.num_updates
        self._counts.note_lifetime(num_env_steps_sampled_lifetime)

    def merge_connector_deltas(self) -> None:
        """Updates the running totals of this runner's connectors with the statistics collected since the previous
        merge.

        This is sufficient if the group has only this runner; `EnvRunnerGroup.merge_connector_states` merges the
        statistics of several runners.
        """
        self._connectors.merge_deltas()


def _error_without_envs(worker_index: int, config: AlgorithmConfig, problem: BaseException | None) -> ValueError:
    which = f"EnvRunner {worker_index} has no environments to sample from"
    if problem is not None:
        return ValueError(
            f"{which}: its make_env() raised {type(problem).__name__}: {problem} - with env={config.env!r} and "
            f"env_config={dict(config.env_config)!r}. Change these, env_runner.config.environment(...), and call "
            "env_runner.make_env() again."
        )
    return ValueError(
        f"{which}: actors do that. Set env_runners(create_env_on_local_worker=True), or call it on "
        "algorithm.env_runner_group.foreach_env_runner(...)."
    )
