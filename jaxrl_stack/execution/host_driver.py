"""The driver of host environments: EnvRunners in this process or in Ray actors, compiled updates, timers."""

from __future__ import annotations

import collections
import itertools
import logging
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import gymnasium as gym
import numpy as np

from jaxrl_stack import core
from jaxrl_stack.acting.recording import EndedEpisodes, SampleBlock, newest_connector_states
from jaxrl_stack.core.experience import Experience, LostExperienceError, joined
from jaxrl_stack.core.learner.learner_group import LearnerGroup
from jaxrl_stack.env.env_runner_group import EnvRunnerGroup, merges_env_runner_states, sample_for_evaluation
from jaxrl_stack.env.recording import record_on_host
from jaxrl_stack.env.runner_actors import NoHealthyEnvRunnerError
from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner
from jaxrl_stack.execution import memory
from jaxrl_stack.execution.driver import LocalDriver, episode_results
from jaxrl_stack.execution.evaluation import Amounts, Share, evaluation_results
from jaxrl_stack.execution.rollout_ops import sample_once, sample_rounds
from jaxrl_stack.execution.training_step import Place, TrainState
from jaxrl_stack.utils import resources
from jaxrl_stack.utils.actor_manager import original_error
from jaxrl_stack.utils.actor_setup import prepare_host_process
from jaxrl_stack.utils.metrics import ENV_RUNNER_SAMPLING_TIMER, LEARNER_UPDATE_TIMER
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger
from jaxrl_stack.utils.profiling import shares_of_timers
from jaxrl_stack.utils.results import adds_up
from jaxrl_stack.utils.seeds import derived_seed

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.callbacks.utils import CallbackList
    from jaxrl_stack.core.learner.learner import Learner
    from jaxrl_stack.core.rl_module.rl_module import RLModule
    from jaxrl_stack.videos.episodes import RecordedEpisode

logger = logging.getLogger(__name__)


class HostDriver(LocalDriver, Place):
    """Trains on gymnasium environments.

    It is the `Place` of its training step. What a step samples is a list of `SampleBlock`, or of episodes where runners
    only give those.

    Args:
        algorithm, config, step, callbacks: See `Driver`.
    """

    kind = "actors"
    learner: Learner | None
    env_runner: SingleAgentEnvRunner | None

    def __init__(self, *args: Any):
        super().__init__(*args)
        config = self.config
        self._num_actors = config.num_sampling_actors
        uses_actors = self._num_actors or config.num_learners or config.evaluation_num_env_runners
        if not (self._num_actors and config.num_learners):
            prepare_host_process()
        self._placement_group: Any = None
        try:
            self._estimate_memory()
            if uses_actors:
                self._on_stop.callback(resources.start_ray_if_needed(config).release)
                resources.check_resources(config)
                # Once more: only now is it known which machines there are.
                self._estimate_memory()
                self._placement_group = resources.create_placement_group(config)
                self._on_stop.callback(resources.remove_placement_group, self._placement_group)
            self.env_runner_group = self._make_group(config)
            self.env_runner = cast("SingleAgentEnvRunner | None", self.env_runner_group.local_env_runner)
            self.spaces = self.env_runner_group.get_spaces()
            self._estimate_memory(*self.spaces[self.module_id])
            spec = config.get_multi_rl_module_spec(spaces={self.module_id: self.spaces[self.module_id]})
            self.learner_group = LearnerGroup(
                config=config, module_spec=spec, placement_group=self._placement_group if config.num_learners else None
            )
            self._on_stop.callback(self.learner_group.shutdown)
            self.learner = self.learner_group.local_learner
            mid = self.module_id
            module: Any = spec[mid].build(seed=0) if self.learner is None else self.learner.template[mid]
            self.acting_module = module
            if module.is_stateful():
                # Once more: only now is it known what it remembers.
                self._estimate_memory(*self.spaces[self.module_id])
            if self.learner is not None:
                remedy = memory.batch_remedy(config)
                memory.require_device_memory(self.learner.devices, self.train_batch_memory, remedy)
            if config.evaluation_interval or config.evaluation_num_env_runners:
                _ = self.eval_env_runner_group
            self.step.plan(self)
            self._samples_blocks = self._can_sample_blocks()
            self._start()
        except BaseException:
            self.stop()
            raise

    def _estimate_memory(self, *spaces: gym.Space) -> None:
        """Work out what sampling and learning take, and refuse what cannot fit."""
        self.rollout_memory, self.train_batch_memory = self.step.memory_estimates(self, *(spaces or (None, None)))
        self.available_memory = memory.available_host_bytes()
        memory.require_host_memory(self.config, self.rollout_memory, self.train_batch_memory)
        if spaces:
            self._log_memory()

    def num_stacked_frames(self) -> int:
        if not self._samples_as_recorded:
            return 1
        return min(self.env_runner_group.foreach_env_runner(_num_stacked_frames), default=1)

    def _start(self) -> None:
        """No steps, no episodes, the learners' weights everywhere."""
        self.num_env_steps = 0
        self._window: collections.deque[tuple[float, int, float]] = collections.deque(
            maxlen=self.config.metrics_num_episodes_for_smoothing
        )
        self.num_episodes = 0
        self._num_evaluations_skipped = 0
        self._timers: dict[str, float] = {}
        self._runner_metrics = MetricsLogger(root=True, stats_cls_lookup=self.config.stats_cls_lookup)
        self._learned: list[dict[str, Any]] = []
        self._forget_samples()
        self.kept = self.step.init_kept()
        local = self._samples_blocks and not self._num_actors
        self._local_sampler = self.env_runner if local else None
        # With both in this process, parameters stay where they are: no copies for the runner after each gradient step.
        is_local = self._local_sampler is not None and self.learner is not None
        self._shares_weights = is_local and self.step.updates_from_rows
        self._sync_weights()

    def _forget_samples(self) -> None:
        """Take no notice any more of what runners have sampled, or have been asked for."""
        self._connector_states: list[dict[str, Any]] = []
        self._blocks: list[SampleBlock] = []
        self._requested: tuple[Any, dict[str, Any]] | None = None
        self.env_runner_group.forget_requests()

    def _make_group(self, config: AlgorithmConfig, *, is_evaluation: bool = False) -> EnvRunnerGroup:
        role = "eval_env_runner" if is_evaluation else "env_runner"
        group = EnvRunnerGroup(
            config=config,
            local_env_runner=not config.num_sampling_actors or (config.create_local_env_runner and not is_evaluation),
            placement_group=self._placement_group,
            pg_offset=resources.bundle_index(self.config, role) if config.num_sampling_actors else 0,
            is_evaluation=is_evaluation,
            on_env_runners_recreated=self._on_recreated,
        )
        self._on_stop.callback(group.stop)
        return group

    def _on_recreated(self, group: EnvRunnerGroup, indices: list[int]) -> None:
        self.callbacks.on_env_runners_recreated(
            algorithm=self.algorithm,
            env_runner_group=group,
            env_runner_indices=indices,
            is_evaluation=group.is_evaluation,
        )

    # -------------------------------------------------------------------------------------------------- training

    def _can_sample_blocks(self) -> bool:
        """Whether steps are taken as arrays as recorded, without episodes in between."""
        return (
            self.config.batch_mode == "truncate_episodes"
            and self._samples_as_recorded
            and not self.learner_group.has_host_connectors
        )

    @property
    def _samples_as_recorded(self) -> bool:
        """Whether what runners give is what their pipeline made: a `sample` of the user's own may change it."""
        # The class that was given: in an actor, Ray has put functions of its own around the methods.
        runner_class = self.config.env_runner_cls or self.config.get_default_env_runner_class()
        is_own = issubclass(runner_class, SingleAgentEnvRunner)
        return is_own and runner_class.sample is SingleAgentEnvRunner.sample

    def plan_update(self, num_columns: int, **sizes: Any) -> dict[str, Any]:
        # Learners check what they get.
        return sizes

    def training_step(self, iteration: int) -> None:
        state = TrainState(kept=self.kept)
        for num_failures in itertools.count(1):
            try:
                self.kept = self.step(state, self)[0].kept
                return
            except LostExperienceError as error:
                if num_failures > self.config.num_consecutive_env_runner_failures_tolerance:
                    raise
                logger.warning("The train batch is sampled once more. %s", original_error(error))

    def start_iteration(self) -> None:
        super().start_iteration()
        self._timers = {}
        started = time.perf_counter()
        for group in (self.env_runner_group, self._eval_group):
            if group is not None and group.num_remote_env_runners():
                group.probe_unhealthy_env_runners(timeout_seconds=0.0)
        self._clock("restore_env_runners", started)

    def time_shares(self, folder: pathlib.Path, seconds: float) -> dict[str, float]:
        return shares_of_timers(self._timers, seconds)

    def _clock(self, name: str, started: float) -> float:
        now = time.perf_counter()
        self._timers[name] = self._timers.get(name, 0.0) + now - started
        return now

    # ----------------------------------------------------------------------------------------------------------- verbs

    def sample(self, state, *, num_steps, num_shares, at_least) -> tuple[TrainState, Sequence[Any]]:
        """See `Place.sample`."""
        started, group = time.perf_counter(), self.env_runner_group
        if not self._samples_blocks:
            sampled = sample_rounds(group, at_least, timeout_seconds=self.config.sample_timeout_s)
            return state, self._take_in(sampled, started)
        share = self._share(num_steps)
        if self._local_sampler is not None and not self.learner_group.is_remote:
            blocks = [self._local_sampler.sample_block(takes_metrics=False, **share) for _ in range(num_shares)]
        else:
            blocks = group.sample(
                "sample_block",
                [share] * num_shares,
                keep_remote=self.learner_group.is_remote and not self.step.updates_from_rows,
                timeout_seconds=self.config.sample_timeout_s,
            )
        return state, self._take_in(blocks, started)

    def _share(self, num_steps: int) -> dict[str, Any]:
        """Arguments of `SingleAgentEnvRunner.sample_block`."""
        for_replay = self.step.updates_from_rows
        keeps_all = self.learner_group.needs_all_final_obs and not for_replay
        # Replay takes whole observations: one frame per step saves something where blocks travel.
        in_frames = self.step.takes_frames or (for_replay and bool(self._num_actors))
        share = {"num_steps": num_steps, "keeps_all_final_obs": keeps_all}
        return share | {"for_replay": for_replay, "in_frames": in_frames}

    def _take_in(self, samples: Sequence[Any], started: float) -> Sequence[Any]:
        """Take note of blocks, or of `Sampled`, since `started`; the blocks, or all episodes."""
        group, has_blocks = self.env_runner_group, self._samples_blocks
        if has_blocks:
            self._blocks += [block for block in samples if block.connector_state is not None]
        elif merges_env_runner_states(self.config):
            states = group.foreach_env_runner(connector_state, local_env_runner=group.num_remote_env_runners() == 0)
            self._connector_states = [state for state in states if state]
        metrics = [sampled.metrics for sampled in samples if sampled.metrics]
        if metrics:
            self._runner_metrics.aggregate(metrics)
        for sampled in samples:
            ended: EndedEpisodes = sampled.episodes if has_blocks else sampled.ended
            self.num_episodes += len(ended.returns)
            self._window.extend(ended.rows())
        self.num_env_steps += sum(sampled.num_env_steps for sampled in samples)
        self._clock(ENV_RUNNER_SAMPLING_TIMER, started)
        return samples if has_blocks else [episode for sampled in samples for episode in sampled.episodes]

    def request(self, state: TrainState, *, num_steps: int) -> TrainState:
        """See `Place.request`; a runner in this process is asked when its steps are collected."""
        self._requested = ("sample_block", self._share(num_steps)) if self._samples_blocks else (sample_once, {})
        self.env_runner_group.request(*self._requested)
        return state

    def collect(self, state: TrainState, *, timeout_seconds: float) -> tuple[TrainState, Sequence[Any]]:
        """See `Place.collect`."""
        started = time.perf_counter()
        if self._requested is None:
            return state, []
        samples = self.env_runner_group.collect(*self._requested, timeout_seconds=timeout_seconds)
        return state, self._take_in(samples, started)

    def update(self, state: TrainState, sampled: Sequence[Any], plan: dict[str, Any]) -> tuple[TrainState, Any]:
        """See `Place.update`."""
        started = time.perf_counter()
        timesteps = {"num_env_steps_sampled_lifetime": self.num_env_steps}
        if self._samples_blocks:
            experiences = [block.experience for block in sampled]
            if self.learner is not None:
                self._learned = [self.learner.update_block(joined(experiences), timesteps=timesteps, **plan)]
            else:
                self._learned = self.learner_group.update_block(experiences, timesteps=timesteps, **plan)
        else:
            self._learned = self.learner_group.update(episodes=sampled, timesteps=timesteps, **plan)
        self.device_seconds += self._clock(LEARNER_UPDATE_TIMER, started) - started
        return state, self._learned

    def update_rows(self, state: TrainState, rows: dict[str, Any]) -> tuple[TrainState, Any, Mapping[Any, Any]]:
        """See `Place.update_rows`; metrics are asked for when they are reported."""
        started = time.perf_counter()
        learner = self.learner or self.learner_group
        logged = learner.update_rows(Experience.of_rows(rows), timesteps=self.num_env_steps)
        self.device_seconds += self._clock(LEARNER_UPDATE_TIMER, started) - started
        return state, None, logged

    def publish(self, state: TrainState) -> TrainState:
        """See `Place.publish`; where nothing is new, nothing is sent."""
        if self.num_updates != self._published or self._blocks or self._connector_states:
            states = newest_connector_states(self._blocks) if self._blocks else self._connector_states
            self._blocks, self._connector_states = [], []
            self._sync(states)
        return state

    def has_sampled(self, num_env_steps: int) -> bool:
        """See `Place.has_sampled`."""
        return self.num_env_steps >= num_env_steps

    def timed(self, timer: str, function: Callable[..., Any], *args: Any) -> Any:
        """See `Place.timed`."""
        started = time.perf_counter()
        result = function(*args)
        self._clock(timer, started)
        return result

    def _sync(self, connector_states: list[dict[str, Any]]) -> None:
        """Hand new weights and merged connector states to all runners, in one object."""
        started = time.perf_counter()
        merged = None
        if connector_states and merges_env_runner_states(self.config):
            runner = self.env_runner
            if runner is not None and not self._num_actors:
                # Its statistics are all there are: nothing to add up.
                runner.merge_connector_deltas()
            else:
                merged = self.env_runner_group.merge_connector_states(connector_states)
                if not self.config.broadcast_env_runner_states:
                    if runner is not None:
                        runner.set_state({core.COMPONENT_ENV_TO_MODULE_CONNECTOR: merged})
                    merged = None
        started = self._clock("synch_env_connectors", started)
        self._sync_weights(merged)
        self._clock("synch_weights", started)

    def _sync_weights(self, connector_state: dict[str, Any] | None = None) -> None:
        self._published = self.num_updates
        if self._shares_weights and connector_state is None:
            assert self._local_sampler is not None and self.learner is not None
            self._local_sampler.share_weights(self.learner, num_env_steps_sampled_lifetime=self.num_env_steps)
            return
        self._send(self.env_runner_group, connector_state)

    def _send(self, group: EnvRunnerGroup, connector_state: dict[str, Any] | None) -> None:
        """Hand weights, the number of steps and, if there is one, a state of the env-to-module pipeline to a group."""
        more: dict[str, Any] = {"num_env_steps_sampled_lifetime": self.num_env_steps}
        if connector_state:
            more[core.COMPONENT_ENV_TO_MODULE_CONNECTOR] = connector_state
        group.sync_weights(from_worker_or_learner_group=self.learner_group, more_state=more)

    def episode_statistics(self, seconds_per_step: float = 0.0) -> EndedEpisodes:
        # Runners take the time of every episode.
        return EndedEpisodes.of(list(self._window))

    def learner_results(self, num_updates: int) -> dict[str, Any]:
        if not self.step.updates_from_rows:
            return mean_results(self._learned) if self._learned else {}
        return mean_results(self.learner_group.row_results(num_updates)) if self.num_updates else {}

    def results(self) -> dict[str, Any]:
        group = self.env_runner_group
        if self._local_sampler is not None:
            self._runner_metrics.aggregate([self._local_sampler.take_metrics()])
        return {
            **super().results(),
            "env_runners": self._runner_metrics.compile(),
            "timers": dict(self._timers),
            "fault_tolerance": _health_of(group),
            "env_runner_group": {"actor_manager_num_outstanding_async_reqs": group.num_in_flight_async_reqs()},
        }

    # ------------------------------------------------------------------------------------------------ evaluation

    @property
    def eval_env_runner_group(self) -> EnvRunnerGroup:
        if self._eval_group is None:
            config = self.config.get_evaluation_config_object()
            assert config is not None
            self._evaluation_module_spec(config)
            self._eval_group = self._make_group(config, is_evaluation=True)
        return self._eval_group

    @property
    def eval_env_runner(self) -> SingleAgentEnvRunner | None:
        return cast("SingleAgentEnvRunner | None", self.eval_env_runner_group.local_env_runner)

    def sync_evaluation(self, group: EnvRunnerGroup | None = None) -> None:
        """Hand the current weights and the training runners' connector states to a group; by default, evaluation's."""
        self._send(group or self.eval_env_runner_group, self.env_to_module_state())

    @property
    def _runners_keep_their_own(self) -> bool:
        """Whether actors have statistics that are not merged: the first one's stand for all then."""
        return bool(self.env_runner_group.num_remote_env_runners()) and not merges_env_runner_states(self.config)

    def evaluate(self, iteration: int, call: int = 0, is_training: Callable[[], bool] | None = None) -> dict[str, Any]:
        group = self.eval_env_runner_group
        started = time.perf_counter()
        if is_training is None:
            self.sync_evaluation()
        config = group.config
        seed = evaluation_seed(config, iteration, call)
        force_reset, timeout = config.evaluation_force_reset_envs_before_iteration, config.evaluation_sample_timeout_s

        def sample(amounts: Amounts, is_first: bool) -> Sequence[Share]:
            own = seed if is_first and force_reset else None
            ids, shares = zip(*amounts, strict=True)
            return group.sample(sample_for_evaluation, shares, ids=ids, seed=own, timeout_seconds=timeout)

        try:
            results = evaluation_results(config, group.sampling_ids(), sample, is_training)
            self._num_evaluations_skipped = 0
        except NoHealthyEnvRunnerError as error:
            self._note_skipped_evaluation(iteration, error)
            empty = episode_results(EndedEpisodes.of(()))
            results = {**empty, "num_episodes": 0, "num_env_steps_sampled": 0}
        results["sample"] = time.perf_counter() - started
        return {
            "env_runners": results,
            **_health_of(group),
            "actor_manager_num_outstanding_async_reqs": group.num_in_flight_async_reqs(),
        }

    def record(self, iteration: int, call: int, num_episodes: int) -> tuple[list[RecordedEpisode], float]:
        config = self.config.get_evaluation_config_object()
        assert config is not None
        seed = evaluation_seed(config, iteration, call)
        return record_on_host(config, self.sync_evaluation, seed=seed, num_episodes=num_episodes)

    def _note_skipped_evaluation(self, iteration: int, reason: NoHealthyEnvRunnerError) -> None:
        self._num_evaluations_skipped += 1
        skipped, most = self._num_evaluations_skipped, self.config.evaluation_error_after_n_consecutive_skips
        if most is not None and skipped > most:
            raise RuntimeError(
                f"{skipped} evaluations in a row found no healthy EnvRunner actor, more than "
                f"evaluation_error_after_n_consecutive_skips={most}. Wait longer for actors with "
                f"evaluation(evaluation_unhealthy_workers_timeout_s=...), or repair what ends them."
            ) from reason
        logger.warning("The evaluation after iteration %d is skipped, the %d. in a row: %s", iteration, skipped, reason)

    # ---------------------------------------------------------------------------------------------------- access

    def _local_runner(self, what: str) -> SingleAgentEnvRunner:
        if self.env_runner is None:
            raise ValueError(
                f"{what} needs an EnvRunner in this process. Set env_runners(create_local_env_runner=True)."
            )
        return self.env_runner

    def modules(self) -> dict[str, RLModule]:
        if self.learner is not None:
            return dict(self.learner.module.items())
        return {self.module_id: self._local_runner("get_module()").module}

    def acting_parts(self) -> tuple[Any, Any, Any]:
        return self._local_runner("get_policy()").acting_parts()

    def env_to_module_state(self) -> dict[str, Any]:
        group = self.env_runner_group
        if self.env_runner is not None and not self._runners_keep_their_own:
            return connector_state(self.env_runner)
        ids = group.healthy_env_runner_ids()[:1]
        states = group.foreach_env_runner(connector_state, local_env_runner=False, remote_worker_ids=ids)
        return states[0] if states else {}

    def act(self, observation: Any, **kwargs: Any) -> dict[str, Any]:
        runner = self._local_runner("compute_single_action()")
        if self._runners_keep_their_own:
            runner.set_state({core.COMPONENT_ENV_TO_MODULE_CONNECTOR: self.env_to_module_state()})
        return runner.act(observation, **kwargs)

    @property
    def description(self) -> str:
        numbers = {"env runner": self._num_actors, "learner": self.config.num_learners}
        return ", ".join(f"{number or 'local'} {what}{'s' * (number > 1)}" for what, number in numbers.items())

    # ----------------------------------------------------------------------------------------------------- state

    def _described_env_runners(self) -> tuple[Any, Any]:
        group = self._eval_group
        eval_runner = None if group is None else _ask_one(group, "describe_component")
        return _ask_one(self.env_runner_group, "describe_component"), eval_runner

    def _sampling_state(self) -> dict[str, Any]:
        runner = _ask_one(self.env_runner_group, "get_state", not_components=core.COMPONENT_RL_MODULE)
        if self._runners_keep_their_own:
            runner[core.COMPONENT_ENV_TO_MODULE_CONNECTOR] = self.env_to_module_state()
        sampling = {core.COMPONENT_ENV_RUNNER: runner}
        if self._eval_group is None:
            return sampling
        # For a look into the checkpoint: every evaluation starts from what training has.
        names = [core.COMPONENT_ENV_TO_MODULE_CONNECTOR, core.COMPONENT_MODULE_TO_ENV_CONNECTOR, "weights_seq_no"]
        return {**sampling, core.COMPONENT_EVAL_ENV_RUNNER: _ask_one(self._eval_group, "get_state", components=names)}

    def _own_state(self) -> dict[str, Any]:
        return {
            "episodes": vars(self.episode_statistics()),
            "num_episodes_lifetime": self.num_episodes,
            "runner_metrics": self._runner_metrics.get_state(),
            "remote_env_runners": self._remote_states(),
        }

    def _remote_states(self) -> dict[str, dict[str, Any]]:
        """``{id: state}`` of the actors, as far as it is not the same in all runners."""
        # Between iterations all have the same statistics, unless these are not to be merged.
        parts = ["random", "metrics_logger", core.COMPONENT_MODULE_TO_ENV_CONNECTOR]
        if self._runners_keep_their_own:
            parts.append(core.COMPONENT_ENV_TO_MODULE_CONNECTOR)
        states = self.env_runner_group.foreach_env_runner(
            "get_state", kwargs={"components": parts}, return_actor_ids=True, local_env_runner=False
        )
        return {str(i): state for i, state in states}

    def _set_sampling_state(self, state: dict[str, Any], own: dict[str, Any] | None) -> None:
        if own is not None:
            self._forget_samples()
            self._window.clear()
            self._window.extend(EndedEpisodes(**own["episodes"]).rows())
            self.num_episodes = int(own["num_episodes_lifetime"])
            self._runner_metrics.set_state(own["runner_metrics"])
        runner = dict(state.get(core.COMPONENT_ENV_RUNNER, {}))
        others = {} if own is None else own["remote_env_runners"]
        self._sync_weights(runner.get(core.COMPONENT_ENV_TO_MODULE_CONNECTOR) or None)
        group = self.env_runner_group
        parts = {"random", "metrics_logger", core.COMPONENT_MODULE_TO_ENV_CONNECTOR} & runner.keys()
        if not parts:
            return
        # Once more with the random numbers, with which no episode goes on: histories and all.
        connector = {n: runner[n] for n in (core.COMPONENT_ENV_TO_MODULE_CONNECTOR,) if n in runner}
        if self.env_runner is not None:
            self.env_runner.set_state({**connector, **{name: runner[name] for name in parts}})
        ids = group.healthy_env_runner_ids()
        for i in ids:
            # Another number of runners: those that were not there before draw from numbers of their own.
            own_parts = connector | (others.get(str(i)) or {"random": _for_runner(runner["random"], i)})
            group.foreach_env_runner(
                "set_state", kwargs={"state": own_parts}, local_env_runner=False, remote_worker_ids=[i]
            )

    def set_weights(self, weights: dict[str, Any]) -> None:
        """Replace weights in learners and runners."""
        self.learner_group.set_weights(weights)
        self._sync_weights()

    def reset(self, config: AlgorithmConfig, callbacks: CallbackList) -> bool:
        runner_class = config.env_runner_cls or config.get_default_env_runner_class()
        return issubclass(runner_class, SingleAgentEnvRunner) and super().reset(config, callbacks)


def _health_of(group: EnvRunnerGroup) -> dict[str, int]:
    return {
        "num_healthy_workers": group.num_healthy_remote_env_runners(),
        "num_remote_worker_restarts": group.num_remote_worker_restarts(),
        "num_env_runners_dropped_lifetime": group.num_env_runners_dropped_lifetime(),
    }


def _for_runner(random: dict[str, Any], worker_index: int) -> dict[str, Any]:
    """The state of random numbers for a runner that had none, from another one's."""
    seeds = np.random.SeedSequence([*np.asarray(random["key"]).tolist(), worker_index])
    return {**random, "key": seeds.generate_state(2)}


def _ask_one(group: EnvRunnerGroup, method: str, **kwargs: Any) -> Any:
    """A method of one runner: the one of this process, or else the first actor that is well."""
    ids = [] if group.local_env_runner is not None else group.healthy_env_runner_ids()[:1]
    return group.foreach_env_runner(method, kwargs=kwargs, remote_worker_ids=ids)[0]


def _num_stacked_frames(runner: Any) -> int:
    return runner.acting_parts()[1].num_stacked_frames


def evaluation_seed(config: AlgorithmConfig, iteration: int, call: int = 0) -> int:
    """Seed of an evaluation with this config after so many iterations; of several there, the one with this number."""
    return derived_seed("evaluation", SingleAgentEnvRunner.seed_of(config), iteration, call)


def connector_state(runner: Any) -> dict[str, Any]:
    """The state of a runner's env-to-module pipeline, ``{connector name: its state}``."""
    return runner.get_state(core.COMPONENT_ENV_TO_MODULE_CONNECTOR)[core.COMPONENT_ENV_TO_MODULE_CONNECTOR]


def mean_results(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Metrics of several learners as one nested dict: steps trained add up, all other numbers are averaged."""
    if len(results) == 1:
        return results[0]
    out: dict[str, Any] = {}
    for key in dict.fromkeys(name for result in results for name in result):
        values = [result[key] for result in results if key in result]
        if isinstance(values[0], dict):
            out[key] = mean_results(values)
        elif adds_up(key):
            out[key] = sum(values)
        else:
            out[key] = float(np.mean(values))
    return out
