"""Driver for the host: samples with EnvRunners in this process or in Ray actors, or reads recorded steps from host
memory.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import pathlib
import time
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np

from jaxrl_stack import core
from jaxrl_stack.acting.module_step import ModuleStep
from jaxrl_stack.acting.recorded_step import RecordedStep
from jaxrl_stack.acting.recording import NO_STEP_TIMES, EndedEpisodes
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import LostExperienceError
from jaxrl_stack.core.learner.learner_group import LearnerGroup
from jaxrl_stack.core.learner.recording_programs import RecordingPrograms
from jaxrl_stack.core.rl_module.checks import BATCH_SIZE
from jaxrl_stack.core.rl_module.functional import PureModule
from jaxrl_stack.env.acting_settings import traced_settings
from jaxrl_stack.env.env_errors import EnvRunnersRestartingError
from jaxrl_stack.env.env_runner_group import EnvRunnerGroup, ask_one, merges_env_runner_states
from jaxrl_stack.env.host_env_runner import HostEnvRunner
from jaxrl_stack.env.module_connectors import module_map_of
from jaxrl_stack.execution import memory
from jaxrl_stack.execution.facts import HostFacts
from jaxrl_stack.execution.host_place import HostPlace, SamplingLog, connector_state
from jaxrl_stack.execution.iteration_record import ColumnOrder, IterationRecord
from jaxrl_stack.execution.local_driver import LocalDriver
from jaxrl_stack.execution.make_evaluation import make_data_evaluation, make_evaluation
from jaxrl_stack.execution.plans import plan_of
from jaxrl_stack.execution.slow_steps import note_slow_steps
from jaxrl_stack.execution.training_step import TrainState
from jaxrl_stack.offline.module_inputs import spaces_without_env
from jaxrl_stack.utils import counters, resources, schedules
from jaxrl_stack.utils.actor_manager import original_error
from jaxrl_stack.utils.actor_setup import prepare_host_process
from jaxrl_stack.utils.devices import host_view
from jaxrl_stack.utils.nested import has_equal_bits
from jaxrl_stack.utils.profiling import shares_of_timers
from jaxrl_stack.utils.traced_config import current_values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.callbacks.utils import CallbackList
    from jaxrl_stack.core.learner.learner import Learner
    from jaxrl_stack.core.learner.minibatch_records import Recorder
    from jaxrl_stack.core.learner.update_programs import UpdatePrograms
    from jaxrl_stack.core.rl_module.rl_module import RLModule

logger = logging.getLogger(__name__)


class HostDriver(LocalDriver):
    """Trains on gymnasium environments, or on recorded steps in the host's memory.

    Without environments its group of env runners is empty, so nothing is sampled and no weights are sent. Evaluation's
    runner then acts.

    Args:
        algorithm, config, step, callbacks: See `Driver`.

    Attributes:
        place: The `Place` of its training step.
    """

    kind = "actors"
    learner: Learner | None
    env_runner: HostEnvRunner | None

    def __init__(self, *args: Any):
        super().__init__(*args)
        config = self.config
        self._log = SamplingLog(config)
        self._num_actors = config.num_sampling_actors
        self._iteration_started = time.perf_counter()
        uses_actors = self._num_actors or config.num_learners or config.num_evaluation_actors
        if not (self._num_actors and config.num_learners):
            prepare_host_process()
        try:
            memory.require_counts_on_host(config)
            if uses_actors:
                self.reserve_actors()
                # Once more: only now is it known which machines there are.
                memory.require_counts_on_host(config)
            self.env_runner_group = self._make_group(config)
            self.env_runner = cast("HostEnvRunner | None", self.env_runner_group.local_env_runner)
            self.spaces = self._find_spaces()
            if config.is_multi_agent and self.step.needs_env:
                self.module_map = ask_one(self.env_runner_group, module_map_of)
            spec = config.get_multi_rl_module_spec(spaces=self.module_spaces)
            group = self.placement.learners if config.num_learners else None
            self.learner_group = LearnerGroup(config=config, module_spec=spec, placement_group=group)
            self.learner_group.group_of_neighbours = self.placement.learners
            self._on_stop.callback(self.learner_group.shutdown)
            self.learner = self.learner_group.local_learner
            learner, ids = self.learner, self.module_map.agents_of
            built = {mid: spec[mid].build(seed=0) for mid in ids} if learner is None else learner.template
            self.acting_modules = {mid: built[mid] for mid in ids}
            self.facts = self._make_facts()
            self.plan = plan_of(self.step, self.facts)
            self._estimate_memory()
            self._require_memory()
            self.evaluation = make_evaluation(self)
            self._on_stop.callback(self.evaluation.stop)
            self.data_evaluation = make_data_evaluation(self)
            self._start()
        except BaseException:
            self.stop()
            raise

    def _find_spaces(self) -> dict[str, tuple[Any, Any]]:
        if self.step.needs_env:
            return self.env_runner_group.get_spaces()
        return {self.module_map.module_id: spaces_without_env(self.config)}

    def _make_facts(self) -> HostFacts:
        recorded = {mid: RecordedStep.of_spaces(*self.spaces[mid]) for mid in self.module_map.agents_of}
        if self.step.needs_env and self._samples_as_recorded:
            recorded = ask_one(self.env_runner_group, _recorded_steps)
        group, as_recorded = self.env_runner_group, self._samples_as_recorded
        return HostFacts.of(self, env_runner_group=group, recorded=recorded, samples_as_recorded=as_recorded)

    def _free_memory(self) -> int | None:
        return memory.available_host_bytes()

    def _require_memory(self) -> None:
        """Raises ValueError if a rollout or train batch does not fit in the memory of this machine or of the learner's
        devices.
        """
        config, rollout, batch = self.config, self.rollout_memory, self.train_batch_memory
        memory.require_host_memory(config, batch, config.num_learners)
        if rollout.num_bytes > batch.num_bytes:
            memory.require_host_memory(config, rollout, self._num_actors)
        if self.learner is not None:
            memory.require_device_memory(self.learner.devices, batch, memory.batch_remedy(config))

    def _start(self) -> None:
        """Resets the counters of steps and episodes, and sends the learners' weights to all EnvRunners."""
        self._log = SamplingLog(self.config)
        self.place = HostPlace(
            self.config,
            self.env_runner_group,
            self.learner_group,
            self._log,
            samples_blocks=self._can_sample_blocks(),
            shares_weights=self.step.uses_replay,
        )
        self.step.kept.start(self.step.init_kept)
        self.place.sync_weights()

    @property
    def num_env_steps(self) -> int:
        """Lifetime number of sampled env steps."""
        return self._log.num_env_steps

    @num_env_steps.setter
    def num_env_steps(self, number: int) -> None:
        self._log.num_env_steps = number

    @property
    def num_env_steps_lost(self) -> int:
        """Lifetime number of sampled env steps that were lost before an update read them, because a node died. After
        each loss, training samples the train batch again.
        """
        return self._log.num_env_steps_lost

    @property
    def num_episodes(self) -> int:
        return self._log.num_episodes

    def _make_group(self, config: AlgorithmConfig) -> EnvRunnerGroup:
        group = EnvRunnerGroup(
            config=config,
            local_env_runner=self.step.needs_env and (not self._num_actors or config.create_local_env_runner),
            placement_group=self.placement.runners,
            pg_offset=resources.bundle_index(self.config, "env_runner"),
            on_env_runners_recreated=self.on_env_runners_recreated,
        )
        self._on_stop.callback(group.stop)
        return group

    # -------------------------------------------------------------------------------------------------- training

    def _can_sample_blocks(self) -> bool:
        """Whether runners return blocks: sampled steps as arrays, without episode objects."""
        return (
            self.config.batch_mode == "truncate_episodes"
            # The number of vector steps in which agents complete so many follows from what they do.
            and self.config.count_steps_by == "env_steps"
            and self._samples_as_recorded
            and not self.learner_group.has_host_connectors
        )

    @property
    def _samples_as_recorded(self) -> bool:
        """Whether EnvRunners return the outputs of their connector pipelines unchanged.

        True if the EnvRunner class is a subclass of `HostEnvRunner` that does not override ``sample()``. An override
        may change the outputs.
        """
        # The class that was given: in an actor, Ray has put functions of its own around the methods.
        runner_class = self.config.env_runner_cls or self.config.get_default_env_runner_class()
        is_own = issubclass(runner_class, HostEnvRunner)
        return is_own and runner_class.sample is HostEnvRunner.sample

    @property
    def may_skip_steps(self) -> bool:
        # An environment on the host does not say whether everybody acts in every step.
        return self.module_map.is_multi_agent

    @property
    def num_agent_steps(self) -> dict[Any, int] | None:
        if not self.module_map.is_multi_agent:
            return None
        return {**dict.fromkeys(self.module_map.module_of, 0), **self._log.num_agent_steps}

    def training_step(self, iteration: int) -> None:
        kept = self.step.kept
        for num_failures in itertools.count(1):
            num_env_steps = self.num_env_steps
            try:
                kept.value = self.step(TrainState(kept=kept.value), self.place)[0].kept
                break
            except LostExperienceError as error:
                if not self.place.learner_seconds:  # else an update of this call has read the steps
                    self._log.num_env_steps_lost += self.num_env_steps - num_env_steps
                if num_failures > self.config.num_consecutive_env_runner_failures_tolerance:
                    raise
                logger.warning("Sampling failed, and the train batch is sampled again. %s", original_error(error))
            except EnvRunnersRestartingError as error:
                logger.warning(
                    "A training step of iteration %d had no samples and made no update. %s", iteration, error
                )
                break
            finally:
                self.device_seconds += self.place.learner_seconds
                self.place.learner_seconds = 0.0

    @contextlib.contextmanager
    def recording(self, recorder: Recorder) -> Iterator[IterationRecord]:
        """Context in which a second compiled program also makes each update of the learner, to record it; see
        `DeviceDriver.recording`.

        Args:
            recorder: Sizes of the records.

        Yields:
            The record; episodes are added at the end of the context.
        """
        learner = self.learner
        assert learner is not None, "Learners in actors are refused before."
        columns, update = None, self.plan.update
        if update is not None and not self.module_map.is_multi_agent and self._can_sample_blocks():
            num_envs = int(self.config.num_envs_per_env_runner) // len(learner.devices)
            columns = ColumnOrder(num_envs, update.samples.num_steps, 1, {}, {})
        recorded, num_episodes, programs = IterationRecord(columns), self.num_episodes, learner.programs

        def add(record: dict[tuple[str, ...], np.ndarray], params: Any, trained: Any) -> None:
            recorded.add_update(record)
            recorded.is_exact &= has_equal_bits(*map(host_view, (params, trained)))

        learner.programs = cast("UpdatePrograms", RecordingPrograms(learner, programs, recorder, add))
        try:
            yield recorded
        finally:
            learner.programs = programs
            recorded.add_ended(self._log.last_episodes(), self.num_episodes - num_episodes)

    @property
    def lacks_env_runners(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        group = self.env_runner_group
        return group.num_remote_env_runners() > 0 and not group.num_healthy_remote_env_runners()

    def start_iteration(self) -> None:
        super().start_iteration()
        self.place.timers.clear()
        self.place.forget_trained_steps()
        self._log.step_times = NO_STEP_TIMES
        self._iteration_started = started = time.perf_counter()
        if self.env_runner_group.num_remote_env_runners():
            self.env_runner_group.probe_unhealthy_env_runners(timeout_seconds=0.0)
        self.place.timers.since("restore_env_runners", started)

    def time_shares(self, folder: pathlib.Path, seconds: float) -> dict[str, float]:
        return shares_of_timers(self.place.timers, seconds)

    def episode_statistics(self, seconds_per_step: float = 0.0) -> EndedEpisodes:
        # Runners take the time of every episode.
        return self._log.last_episodes()

    def learner_results(self, num_updates: int) -> dict[str, Any]:
        return self.place.learner_results(num_updates)

    def results(self) -> dict[str, Any]:
        note_slow_steps(self.config, self._log.step_times, time.perf_counter() - self._iteration_started)
        lost = {"num_env_steps_lost_lifetime": self.num_env_steps_lost} if self._num_actors else {}
        return {**lost, **super().results(), **self.place.results()}

    # ---------------------------------------------------------------------------------------------------- access

    def _local_runner(self, what: str) -> HostEnvRunner:
        if self.env_runner is None:
            raise ValueError(
                f"The method {what} needs an EnvRunner in this process. Set env_runners(create_local_env_runner=True)."
            )
        return self.env_runner

    def modules(self) -> dict[str, RLModule]:
        if self.learner is not None:
            return dict(self.learner.module.items())
        if self.env_runner is None:
            return self.learner_group.copied_modules()
        return dict(self.module_map.by_module(self.env_runner.module).items())

    def _what_acts(self, what: str) -> Any:
        """Returns the object that computes actions for `Driver.act`: the EnvRunner of this process, or the driver's
        `Evaluation` object if training has no environment.
        """
        return self._local_runner(what) if self.step.needs_env else self.evaluation

    def acting_parts(self, module_id: str) -> tuple[Any, Any, Any]:
        if not self.step.needs_env:
            return self.evaluation.acting_parts(module_id)
        return self._local_runner("get_policy()").acting_parts_for(module_id)

    @property
    def _runners_keep_their_own(self) -> bool:
        """Whether each EnvRunner actor keeps separate connector statistics.

        True if the config has EnvRunner actors and ``merge_env_runner_states`` turns merging off. Evaluations and
        policies, which need a single state, then use the statistics of the first healthy actor.
        """
        return bool(self.env_runner_group.num_remote_env_runners()) and not merges_env_runner_states(self.config)

    def env_to_module_state(self) -> dict[str, Any]:
        if not self.step.needs_env:
            return self.step.env_to_module_state()
        group = self.env_runner_group
        if (known := self.place.known_connectors()) is not None:
            return known
        if self.env_runner is not None and not self._runners_keep_their_own:
            return connector_state(self.env_runner)
        ids = group.healthy_env_runner_ids()[:1]
        states = group.foreach_env_runner(connector_state, local_env_runner=False, remote_worker_ids=ids)
        return states[0] if states else {}

    def act(self, observation: Any, **kwargs: Any) -> dict[str, Any]:
        runner = self._what_acts("compute_single_action()")
        if self._runners_keep_their_own:
            runner.set_state({core.COMPONENT_ENV_TO_MODULE_CONNECTOR: self.env_to_module_state()})
        return runner.act(observation, **kwargs)

    @property
    def description(self) -> str:
        numbers = {"env runner": self._num_actors} if self.step.needs_env else {}
        numbers["learner"] = self.config.num_learners
        return ", ".join(f"{number or 'local'} {what}{'s' * (number > 1)}" for what, number in numbers.items())

    # ----------------------------------------------------------------------------------------------------- state

    def _described_env_runner(self) -> Any:
        return ask_one(self.env_runner_group, "describe_component") if self.step.needs_env else None

    def _sampling_state(self) -> dict[str, Any]:
        if not self.step.needs_env:
            return {}
        runner = ask_one(self.env_runner_group, "get_state", not_components=core.COMPONENT_RL_MODULE)
        if self._runners_keep_their_own or self.place.known_connectors() is not None:
            runner[core.COMPONENT_ENV_TO_MODULE_CONNECTOR] = self.env_to_module_state()
        return {core.COMPONENT_ENV_RUNNER: runner}

    def _own_state(self) -> dict[str, Any]:
        return {**self._log.get_state(), "remote_env_runners": self._remote_states()}

    def _remote_states(self) -> dict[str, dict[str, Any]]:
        """Returns the parts of the EnvRunner actors' states that are not equal in all actors, such as random states,
        ``{actor id: state}``.
        """
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
            self.place.forget_samples()
            self._log.set_state(own)
        runner = dict(state.get(core.COMPONENT_ENV_RUNNER, {}))
        others = {} if own is None else own["remote_env_runners"]
        self.place.sync_weights(runner.get(core.COMPONENT_ENV_TO_MODULE_CONNECTOR) or None)
        group = self.env_runner_group
        parts = {"random", "metrics_logger", "running_episodes", core.COMPONENT_MODULE_TO_ENV_CONNECTOR} & runner.keys()
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
        """Replaces the modules' weights in learners and EnvRunners."""
        self.learner_group.set_weights(weights)
        self.place.sync_weights()

    def reset(self, config: AlgorithmConfig, callbacks: CallbackList) -> bool:
        runner_class = config.env_runner_cls or config.get_default_env_runner_class()
        return issubclass(runner_class, HostEnvRunner) and super().reset(config, callbacks)


def _for_runner(random: dict[str, Any], worker_index: int) -> dict[str, Any]:
    """Derives a random state for a runner that has none in the checkpoint, from the stored random state of another
    runner.
    """
    if "key" not in random:
        return {mid: _for_runner(own, worker_index) for mid, own in random.items()}
    seeds = np.random.SeedSequence([*np.asarray(random["key"]).tolist(), worker_index])
    return {**random, "key": seeds.generate_state(2)}


def _recorded_steps(runner: HostEnvRunner) -> dict[str, RecordedStep]:
    """Determines the columns that a runner will record for each module, by tracing the module with its pipelines.

    If env-to-module connectors run in Python, returns only the columns that every EnvRunner class records.
    """
    config, recorded = runner.config, {}
    for mid, (modules, env_to_module, module_to_env) in runner.acting_parts_of_modules().items():
        if env_to_module.checked_host_connectors():
            recorded[mid] = RecordedStep.of_spaces(*runner.get_spaces()[mid])
            continue
        first, last = env_to_module.pure_part(), module_to_env.pure_part()
        step = ModuleStep(module_id=mid, pure=PureModule(modules), env_to_module=first, module_to_env=last)
        settings = {"modules": traced_settings(config, list(modules))}
        values = current_values(schedules.shapes_at(settings), counters.zero(), config.get_config_for_module)
        columns = step.shapes(values["modules"], explore=bool(config.explore))
        if config.is_multi_agent:
            columns[Columns.LOSS_MASK] = jax.ShapeDtypeStruct((BATCH_SIZE,), np.bool_)
        recorded[mid] = RecordedStep.of_policy(columns)
    return recorded
