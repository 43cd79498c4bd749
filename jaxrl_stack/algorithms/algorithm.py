"""Class `Algorithm`: builds env runners, learners and modules from a config, trains them, and reports results."""

from __future__ import annotations

import collections
import contextlib
import logging
import operator
import os
import pathlib
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import jax

from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
from jaxrl_stack.algorithms.base_checks import as_bytes
from jaxrl_stack.algorithms.evaluations import EnvEvaluations, EvaluationCounts, OfflineEvaluations
from jaxrl_stack.algorithms.iteration_numbers import lifetime_counts
from jaxrl_stack.algorithms.iterations import Iteration, Iterations
from jaxrl_stack.algorithms.module_changes import (
    changed_modules,
    check_is_everywhere,
    match_modules,
    ray_kept,
    stored_modules_added,
    with_stored_modules,
)
from jaxrl_stack.algorithms.recording import record
from jaxrl_stack.algorithms.result_names import known_result, result_template, root_logger
from jaxrl_stack.algorithms.setting_changes import (
    SettingChanges,
    changed_config,
    number_at,
    plain_number,
    settings_of,
    value_of,
    with_replaced_settings,
)
from jaxrl_stack.algorithms.setting_values import same
from jaxrl_stack.algorithms.settings_display import env_name, short
from jaxrl_stack.algorithms.single_actions import checked_state, policy_of
from jaxrl_stack.algorithms.stored_run import (
    SavedCheckpoint,
    cannot_be_built,
    check_code,
    check_modules,
    config_to_store,
    restored_checkpoint,
    stored_config,
)
from jaxrl_stack.callbacks.utils import CallbackList
from jaxrl_stack.checkpoints.checkpointable import Checkpointable, Parts, opened, read_state, selected
from jaxrl_stack.checkpoints.names import ALGORITHM_METADATA_FILE
from jaxrl_stack.checkpoints.plain_data import DAMAGES, code_named_by
from jaxrl_stack.compat.algorithm_calls import (
    FOREIGN_MEMBERS,
    OLD_MEMBERS,
    AnsweringClass,
    train_takes_nothing,
    unknown_arguments,
)
from jaxrl_stack.compat.renamed import old_members
from jaxrl_stack.core import (
    COMPONENT_ENV_TO_MODULE_CONNECTOR,
    COMPONENT_LEARNER,
    COMPONENT_LEARNER_GROUP,
    COMPONENT_METRICS_LOGGER,
    COMPONENT_REPLAY_BUFFER,
    COMPONENT_RL_MODULE,
    DEFAULT_MODULE_ID,
)
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.env.created_envs import close_unused, creators_called_once
from jaxrl_stack.execution.driver import Driver
from jaxrl_stack.execution.episode_results import episode_results, mean_returns_by_id
from jaxrl_stack.execution.make_driver import make_driver
from jaxrl_stack.execution.on_policy import OnPolicyStep
from jaxrl_stack.execution.state_migration import state_for_modules
from jaxrl_stack.execution.training_step import TrainingStep
from jaxrl_stack.policy.policy import Policy
from jaxrl_stack.runs.best import FOLDER, Best
from jaxrl_stack.runs.commands import (
    ADD_MODULE,
    CHANGE_MAPPING,
    CHANGE_SETTINGS,
    FROM_CHECKPOINT,
    REMOVE_MODULE,
    RESTORE,
    SET_STATE,
    SET_WEIGHTS,
    CommandLog,
)
from jaxrl_stack.runs.forks import parent_of, recomputed_iteration
from jaxrl_stack.runs.history import History
from jaxrl_stack.runs.long_iterations import LongIterations
from jaxrl_stack.runs.machine import machine_facts, why_not_recomputable
from jaxrl_stack.runs.origin import PARENT
from jaxrl_stack.runs.output import RunOutput
from jaxrl_stack.runs.result import Result, ResultPart
from jaxrl_stack.runs.run import Run
from jaxrl_stack.runs.stop import Plateau, StopCriteria, StopReason, Until
from jaxrl_stack.runs.stored_checkpoints import StoredCheckpoints, mark_of
from jaxrl_stack.runs.writers import as_json
from jaxrl_stack.utils.class_paths import ClassLoader
from jaxrl_stack.utils.compilation_cache import enable_compilation_cache
from jaxrl_stack.utils.devices import num_joined_processes, of_first_process
from jaxrl_stack.utils.fingerprints import FINGERPRINT, fingerprint_of
from jaxrl_stack.utils.interrupts import deferred_interrupt
from jaxrl_stack.utils.metrics import ENV_RUNNER_RESULTS, EVALUATION_ITERATION_TIMER, NUM_ENV_STEPS_SAMPLED_LIFETIME
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.profiling import Profiler
from jaxrl_stack.utils.resources import check_resources, resource_bundles
from jaxrl_stack.utils.results import merge_nested
from jaxrl_stack.utils.streams import Stream, stream_key
from jaxrl_stack.utils.system_load import SystemLoad

if TYPE_CHECKING:
    from ray.tune import PlacementGroupFactory

    from jaxrl_stack.algorithms.games import Player
    from jaxrl_stack.core.learner.learner import Learner
    from jaxrl_stack.core.learner.learner_group import LearnerGroup
    from jaxrl_stack.core.module_map import ModuleMap
    from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModuleSpec
    from jaxrl_stack.core.rl_module.rl_module import RLModule, RLModuleSpec
    from jaxrl_stack.env.env_runner import EnvRunner
    from jaxrl_stack.env.env_runner_group import EnvRunnerGroup
    from jaxrl_stack.execution.league import League
    from jaxrl_stack.offline.offline_evaluation_runner_group import OfflineEvaluationRunnerGroup
    from jaxrl_stack.videos.video import Video

logger = logging.getLogger(__name__)

_CHANGED_BY_RESET = ("seed", "results_dir")
"""Settings that nothing is built from which `Algorithm.reset` keeps."""


def _writes_files() -> bool:
    """Whether this process writes the files of a run. If several processes are joined by `jax.distributed`, only
    process 0 does.
    """
    return num_joined_processes() == 1 or jax.process_index() == 0


def _of_driver(path: str, doc: str) -> Any:
    """Creates a read-only property of `Algorithm` that returns an attribute of `Algorithm.driver` (the object that
    samples and learns). `path` is the attribute's name.
    """
    return property(operator.attrgetter(f"driver.{path}"), doc=doc)


class Algorithm(Checkpointable, metaclass=AnsweringClass):
    """Trains the modules of a config. Each call of `train` runs one iteration.

    Args:
        config: An `AlgorithmConfig`; a frozen, validated copy is kept.
        env: Overrides ``config.env``.

    Attributes:
        metrics: A `MetricsLogger` for callbacks and user code; what is logged appears in the next result.
        callbacks: Calls the hooks of ``config.callbacks``.
        driver: Samples, learns and evaluates: on the device for a JAX environment, with env runners for others.
        history: The numbers of all iterations as a table, iterations before a restored checkpoint included.
        output: Writes results as `reporting` configures; ``output.directory`` is the folder, None before the first
            result.
        stop_criteria: Goals of the running `learn`. Reaching one sets ``result["done"]``. None outside of `learn`.
        stop_reason: The goal that the last result has reached, in words; None if it has reached none.
        best: Highest mean return so far and the path of its checkpoint; None without ``reporting(keep_best=...)``.
        stored_checkpoints: Checkpoints of ``reporting(checkpoint_frequency=...)``. ``paths``, ``{iteration: folder}``,
            contains the checkpoints that were not removed.
    """

    # --------------------------------------------------------------------------------------------------- building

    def __init__(self, config: AlgorithmConfig | None = None, env: Any = None, **kwargs: Any):
        if not isinstance(config, dict | AlgorithmConfig):
            # Packages that take "MlpPolicy" take the environment after it.
            named = env if env is not None else config if isinstance(config, str) else None
            environment = "gymnax/CartPole-v1" if named is None else named
            raise TypeError(
                f"{type(self).__name__}(config={short(config)}): must be an AlgorithmConfig or a dict of settings. Use "
                f"{type(self.get_default_config()).__name__}().environment({short(environment)}).build_algo()."
            )
        if kwargs:
            hint = config.suggestion(next(iter(kwargs))) if isinstance(config, AlgorithmConfig) else ""
            raise TypeError(
                f"{type(self).__name__}() got unknown arguments {sorted(kwargs)}; it takes config and env.{hint}"
            )
        config = self._own_config(config)
        if env is not None:
            config.environment(env)
        with creators_called_once():
            config.validate()
            config.freeze()
            self._config = config
            self.metrics = root_logger(config)
            self.setup(config)

    @classmethod
    def _own_config(cls, config: AlgorithmConfig | dict[str, Any]) -> AlgorithmConfig:
        """Converts `config` to an unfrozen config of this algorithm.

        If `config` is a config of this algorithm, returns a copy. If `config` is a dict or another algorithm's config,
        applies settings to this algorithm's default config: all settings of the dict, or the settings that were
        explicitly set in the other config.
        """
        own = cls.get_default_config()
        if isinstance(config, type(own)):
            own = config.copy(copy_frozen=False)
        elif isinstance(config, AlgorithmConfig):
            own.update_from_dict({name: config.stored_value(name) for name in config.explicitly_set})
        else:
            own.update_from_dict(config)
        if own.algo_class is None:
            own.algo_class = cls
        return own

    _default_config_class: type[AlgorithmConfig] = AlgorithmConfig

    @classmethod
    def get_default_config(cls) -> AlgorithmConfig:
        """The default config of this algorithm."""
        return cls._default_config_class(algo_class=cls)

    @classmethod
    def default_resource_request(cls, config: AlgorithmConfig | dict[str, Any]) -> PlacementGroupFactory:
        """Resources of a Ray Tune trial of this algorithm: a bundle for its main process, and one for every actor.

        Use it for a trial that builds the algorithm itself: ``tune.with_resources(function, resources=...)``.

        Args:
            config: A config, or a dict of settings.

        Raises:
            ValueError: If settings are invalid, or the cluster is too small for the trial.
        """
        import ray
        from ray.tune import PlacementGroupFactory

        own = cls._own_config(config)
        own.validate()
        if ray.is_initialized():
            check_resources(own, main_process=True)
        bundles, strategy = resource_bundles(own)
        return PlacementGroupFactory(bundles, strategy=strategy)

    training_step_class: type[TrainingStep] = OnPolicyStep
    """The shape of the algorithm's training step; both drivers run it."""

    def setup(self, config: AlgorithmConfig) -> None:
        """Builds everything that training needs: environments, modules, learners, evaluation, and the output of
        results.
        """
        logging.getLogger("jaxrl_stack").setLevel(config.log_level)
        self._evaluated = EvaluationCounts()
        self._offline_evaluations = OfflineEvaluations(self, self._evaluated)
        self._start_anew(config, CallbackList.from_config(config))
        self._load = SystemLoad()
        self._long_iterations = LongIterations(type(self).__name__)
        self._is_stopped = False
        # The last result of `get_policy`: the next one takes its programs over.
        self._served: Policy | None = None
        enable_compilation_cache(config.compilation_cache_dir or None)
        self.output = self._new_output(config)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self.output.close)
            self.driver: Driver = self._make_driver(config)
            on_failure.callback(self.driver.stop)
            self._offline_evaluations.start()
            on_failure.callback(self._offline_evaluations.stop)
            self.metrics.reported = self._reported
            self._call_init_callbacks()
            on_failure.pop_all()

    def _call_init_callbacks(self) -> None:
        with self._commands.repeated():
            self.callbacks.on_algorithm_init(algorithm=self, metrics_logger=self.metrics)
        self._callback_states = self.callbacks.states()
        self._first_counters = self._counters.copy()

    def _make_driver(self, config: AlgorithmConfig) -> Driver:
        """Creates the driver of a config: the object that samples, learns and evaluates."""
        resolved, step_class = None, self.training_step_class.for_config(config)
        if config.env is not None or step_class.needs_env:
            resolved = config._resolve_env()
            for hint in filter(None, (resolved.hint, *config.sampling_hints())):
                notice_once(hint)
        if config.num_sampling_actors and not config.create_env_on_local_worker:
            close_unused()
        with self._eager_if_asked():
            step = step_class(config, one_per_call=self.overrides_training_step())
            return make_driver(resolved, self, config, step, self.callbacks)

    def _start_anew(self, config: AlgorithmConfig, callbacks: CallbackList) -> None:
        """Resets the values that an algorithm accumulates over its iterations, such as counters, history, evaluation
        sums and setting changes.
        """
        self._reported_config = config.to_dict()
        # Of the settings that have changed since: their values when this algorithm was built.
        self._built_with: dict[str, Any] = {}
        # Run and iteration of the checkpoint that this run continues.
        self._parent: dict[str, Any] | None = None
        self._commands = CommandLog(is_kept=config.results_dir is not None and _writes_files())
        self._callback_states: dict[str, bytes | None] = {}
        self.callbacks = callbacks
        # For callbacks: RLlib's curriculum scripts keep their present task in it.
        self._counters: collections.Counter[str] = collections.Counter()
        self._first_counters = self._counters.copy()
        self._iterations = Iterations()
        self._evaluated.set_state({})
        self._env_evaluations = EnvEvaluations(self, self._evaluated)
        self._offline_evaluations.last = None
        self._action_count = 0
        self._profiler = Profiler(config.profile_iterations)
        self._setting_changes = SettingChanges()
        self._last_result: dict[str, Any] = {}
        self.stop_criteria: StopCriteria | None = None
        self.stop_reason: StopReason | None = None
        self.history = History()
        self.best = self._new_best(config)
        self.stored_checkpoints = StoredCheckpoints(
            lambda path: self.save_to_path(path, blocking=False),
            frequency=config.checkpoint_frequency,
            num_to_keep=config.num_to_keep,
            max_bytes=as_bytes(config.checkpoint_max_bytes),
            mark=lambda iteration: mark_of(self.history, self.iteration - iteration),
        )

    def _new_best(self, config: AlgorithmConfig) -> Best | None:
        evaluates = bool(config.evaluation_interval)
        return Best(evaluates=evaluates, keeps=config.keep_best) if config.keep_best else None

    def _new_output(self, config: AlgorithmConfig) -> RunOutput:
        names = (type(self).__name__, env_name(config.env))
        where: Any = (config.results_dir, config.loggers) if _writes_files() else ()
        return RunOutput(*names, self._reported_config, *where, facts=self._facts_of_run)

    def _facts_of_run(self) -> dict[str, Any]:
        """Data for ``run.json``: facts about the machine, and why the run cannot be recomputed bit for bit.

        The facts include the devices. The reason is None if the run can be recomputed. If the run continues from a
        checkpoint, the data include this checkpoint.
        """
        devices = [] if self.learner is None else self.learner.devices
        parent = {} if self._parent is None else {PARENT: self._parent}
        return {
            **parent,
            "machine": machine_facts(devices),
            "why_not_recomputable": why_not_recomputable(self.config, devices),
        }

    # ------------------------------------------------------------------------------------------------------ parts

    @property
    def config(self) -> AlgorithmConfig:
        """The algorithm's config, which is frozen."""
        return self._config

    @config.setter
    def config(self, value: Any) -> None:
        raise AttributeError(
            f"{type(self).__name__}.config cannot be replaced. Call change_settings(lr=...) to continue training with "
            f"other values, or reset(config) to start from the beginning."
        )

    spaces: dict[str, tuple[Any, Any]] = _of_driver(
        "spaces", '``{"__env__", "__env_single__", module_id: (observation space, action space)}``.'
    )
    learner: Learner | None = _of_driver(
        "learner", "The Learner of this process; None if learners are actors (see `learner_group`)."
    )
    learner_group: LearnerGroup = _of_driver("learner_group", "All learners.")
    env_runner: EnvRunner | None = _of_driver("env_runner", "The EnvRunner of this process; None if there is none.")
    env_runner_group: EnvRunnerGroup = _of_driver("env_runner_group", "All EnvRunners.")
    eval_env_runner: EnvRunner | None = _of_driver(
        "eval_env_runner", "The EnvRunner of this process that evaluates; None if only actors do."
    )
    eval_env_runner_group: EnvRunnerGroup = _of_driver("eval_env_runner_group", "All EnvRunners that evaluate.")
    num_env_steps_sampled_lifetime: int = _of_driver("num_env_steps", "Env steps sampled so far.")
    local_replay_buffer: Checkpointable | None = _of_driver(
        "replay_buffer",
        "The replay buffer of an off-policy algorithm, with `get_state` and `set_state`; None for on-policy "
        "algorithms. With host environments it is an `EpisodeReplayBuffer`; with JAX environments it is stored on the "
        "devices of the environments.",
    )

    league: League | None = _of_driver(
        "league", "Snapshots that play against the policy, and their games; None without ``opponents``."
    )

    @property
    def iteration(self) -> int:
        """Number of iterations done so far. Restoring a checkpoint sets it to the checkpoint's number of iterations."""
        return self._iterations.done

    training_iteration = iteration

    @property
    def offline_data(self) -> Any:
        """The `OfflineData` that training reads; None if training samples an environment."""
        return getattr(self.driver.step, "data", None)

    def memory_estimate(self) -> dict[str, Any]:
        """Estimates the memory that sampling and learning will need, from the sizes of spaces and recurrent states.

        Returns:
            ``{"rollout": ..., "train_batch": ..., "available_bytes": ...}``: the rollout that one EnvRunner records at
            a time, the batch of one update, and the bytes that were free at build time (None if unknown). The first two
            are dicts of `MemoryEstimate.to_dict` (``num_bytes``, ``num_rows``, ``bytes_per_row``, ``counts``,
            ``columns``). "replay" is the size of the full replay buffer, if the algorithm has one. "opponents" is the
            size of the snapshots in the stack and of the blocks that play them, with ``opponents``. Where agents take
            turns, rollout and train batch include the rows of waiting agents, which are computed and masked; rows of
            snapshots are computed and not stored.
        """
        return self.driver.memory_estimate()

    # --------------------------------------------------------------------------------------------------- training

    def training_step(self) -> None:
        """Samples a train batch and updates the modules on it. Override this method to train in another way.

        An override logs into ``self.metrics`` and returns None.
        """
        self.driver.training_step(self.iteration + 1)

    @classmethod
    def overrides_training_step(cls) -> bool:
        """Whether a subclass overrides `training_step`."""
        return cls.training_step is not Algorithm.training_step

    def train(self, *unknown: Any, **more_unknown: Any) -> Result:
        """Runs one iteration: trains, evaluates if an evaluation is due, and returns the results.

        Args:
            *unknown, **more_unknown: Must be empty. The error for a number names the call of `learn` that trains that
                long.

        Returns:
            RLlib's nested result dict; ``print(result)`` shows its main numbers. All keys exist from the first
            iteration on, with NaN for unknown values. The exception is ``evaluation``, which the first evaluation adds
            and the next one replaces. ``timers/{compile,device,host}_s`` split the iteration's wall time.

        Raises:
            TypeError: For any argument.
        """
        if unknown or more_unknown:
            raise train_takes_nothing(self, unknown, more_unknown)
        self._check_is_running()
        self._wait_for_evaluations()
        with self._commands.around_iteration(self):
            iteration, number = self._iterations.begin(), self.iteration + 1
            with (
                self.driver.iteration(),
                self._told_if_long(number),
                self._eager_if_asked(),
                self._env_evaluations.concurrent_with(number),
                self._offline_evaluations.concurrent_with(number),
                self._profiler.around(number, self.driver, self.output.directory) as profiled,
            ):
                for _ in iteration.training_steps(self.driver, self.config, number=self._num_training_steps):
                    counted = self._env_steps_counted()
                    self._after_training_step(self.training_step(), counted)
            iteration.end_training(self.driver)
            self._evaluated.num_calls = 0
            result = self._training_result(iteration)
            evaluation = self._results_of_evaluations()
            if not evaluation:
                result.pop("evaluation", None)
            iteration.add_times(result, self.driver)
            self._add_logged(result, iteration)
            iteration.add_rates(result)
            # Last: sums that an evaluation function has logged start anew in the iteration after it.
            merge_nested(result, {"evaluation": evaluation} if evaluation else {})
            result |= {"profile": profiled} if profiled else {}
            self._report(result)
            return result

    _num_training_steps: int | None = None
    """Training steps of the running iteration if it repeats a recorded one."""

    def _repeat_iteration(self, num_training_steps: int) -> Result:
        """Runs one iteration with a given number of training steps, to repeat a recorded iteration exactly.

        Args:
            num_training_steps: ``num_training_step_calls_per_iteration`` in the result of the recorded iteration.
        """
        self._num_training_steps = num_training_steps
        try:
            return self.train()
        finally:
            self._num_training_steps = None

    def _eager_if_asked(self) -> contextlib.AbstractContextManager[None]:
        return jax.disable_jit(bool(self.config.disable_jit))

    def _told_if_long(self, iteration: int) -> contextlib.AbstractContextManager[None]:
        """Context manager that prints a line if the iteration takes long; does nothing inside `learn`, which shows the
        progress itself.
        """
        if self.stop_criteria is not None:
            return contextlib.nullcontext()
        return self._long_iterations.around(iteration)

    def _env_steps_counted(self) -> tuple[int, float]:
        """Returns two counts of env steps: this algorithm's count, and the count in the logged EnvRunner results.

        If a user's `training_step` calls EnvRunners directly, only the second count includes the steps that these calls
        sampled; `_after_training_step` adds the difference to the first count.
        """
        return self.driver.num_env_steps, self._logged((ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME))

    def _logged(self, key: tuple[str, ...]) -> float:
        return self.metrics.peek(key) if key in self.metrics else 0.0

    def _after_training_step(self, returned: Any, before: tuple[int, float]) -> None:
        """Checks that `training_step` returned no value, and counts env steps that it sampled by calling EnvRunners
        directly.

        Raises if `training_step` returned a value. The direct calls occur in a `training_step` that a user has
        written. `before` is the result of `_env_steps_counted` before the training step.
        """
        if returned is not None:
            raise ValueError(
                f"{type(self).__name__}.training_step() must return None, but returned "
                f"{type(returned).__name__}. Log results with self.metrics.log_value(...)."
            )
        by_driver, aggregated = self._env_steps_counted()
        not_counted = int(aggregated - before[1]) - (by_driver - before[0])
        if not_counted > 0:
            self.driver.count_env_steps(not_counted)

    def _training_result(self, iteration: Iteration) -> Result:
        """Builds the result of an iteration's training. Evaluation results and values logged by callbacks are added
        later.
        """
        result, driver = self._empty_result(), self.driver
        merge_nested(result, driver.results())
        seconds_per_step = iteration.seconds_per_env_step(self.config.num_envs_per_env_runner)
        episodes = driver.episode_statistics(seconds_per_step)
        means = episodes.mean_returns(driver.module_map)
        iteration.add_numbers(result, driver, episodes=episode_results(episodes), means=means)
        result["perf"] |= self._load.read()
        return result

    def _empty_result(self) -> Result:
        module_ids = self.driver.module_ids
        if self._result_template is None or self._result_template[0] != module_ids:
            template = result_template(self.config, module_ids, self.driver.module_map.module_of)
            self._result_template = (module_ids, template)
        result = Result({part: ResultPart(part) for part in ("env_runners", "learners")})
        merge_nested(result, self._result_template[1])
        return result

    _result_template: tuple[Any, dict[str, Any]] | None = None

    def _results_of_evaluations(self) -> dict[str, Any]:
        """Collects the results of concurrent evaluations, and runs other evaluations that are due at the end of this
        iteration.

        Returns the results of the last evaluation in environments and of the last evaluation on recorded data; either
        may be from an earlier iteration.
        """
        in_envs, on_data = self._env_evaluations, self._offline_evaluations
        if not in_envs.end_concurrent() and in_envs.is_due(self.iteration):
            with self._told_if_long(self.iteration):
                self.evaluate()
        if not on_data.end_concurrent() and on_data.is_due(self.iteration):
            self.evaluate_offline()
        return {**in_envs.results, **on_data.results}

    def _add_logged(self, result: Result, iteration: Iteration) -> None:
        """Adds to an iteration's result all values that callbacks and training steps have logged, and the durations of
        training steps and evaluation.
        """
        merge_nested(result["env_runners"], self.driver.episode_metrics.compile())
        result["timers"]["training_step"] = iteration.seconds / iteration.num_training_steps
        if self._env_evaluations.seconds is not None and self.config.evaluation_interval:
            result["timers"][EVALUATION_ITERATION_TIMER] = self._env_evaluations.seconds
        logged = self.metrics.compile()
        # A training step of the user's own has its episodes there.
        if (mean := logged.get(ENV_RUNNER_RESULTS, {}).get("episode_return_mean")) is not None:
            result["env_runners"] |= mean_returns_by_id(mean, {}, self.driver.module_map)
        merge_nested(result, logged)

    def _report(self, result: Result) -> None:
        """Reports the result of an iteration, checks the stop criteria, and saves the checkpoints that are due.

        Passes the result to the callbacks, the history and the files of the run.
        """
        result["config"] = dict(self._reported_config)
        self._last_result = result
        config = self.config  # which a callback may change from the next iteration on
        self.log_result(result)
        if config.results_dir and self.learner is not None:
            # After callbacks, which may replace weights: of the parameters that a checkpoint of this iteration has.
            result[FINGERPRINT] = fingerprint_of(self.learner.state.params)
        # A callback may have ended the run, as with Tune.
        self.stop_reason = None if self.stop_criteria is None else self.stop_criteria.reached(result)
        if self.stop_reason is not None:
            result["done"] = True
        num_env_steps = int(self.history.last.get(NUM_ENV_STEPS_SAMPLED_LIFETIME, 0))  # when it began
        changed = self._setting_changes.values(config, num_env_steps)
        self.history.append(result, changed)
        self.output.write(result, changed)
        self._commands.write_to(self.output.directory)
        if self.best is not None and self.best.is_beaten_by(result):
            # In joined processes all take part in saving, and the first one knows where.
            folder = of_first_process(lambda: os.path.join(str(self.output.directory), FOLDER))
            self.best.path = self.save_to_path(folder)
        self.stored_checkpoints.after_iteration(self.output.directory, self.iteration)

    def log_result(self, result: dict[str, Any]) -> None:
        """Passes an iteration's result to the callback ``on_train_result``; runs in every iteration, before `train`
        returns.
        """
        self.callbacks.on_train_result(algorithm=self, metrics_logger=self.metrics, result=result)

    def _reported(self) -> dict[str, Any]:
        """Last iteration's result, updated with the current step and episode counters. For names that were not logged,
        `metrics.peek` searches this result.
        """
        last, counts = (
            self._last_result,
            lifetime_counts(self._iterations.progress(self.driver), self.driver.module_map),
        )
        return {
            **last,
            NUM_ENV_STEPS_SAMPLED_LIFETIME: self.driver.num_env_steps,
            ENV_RUNNER_RESULTS: {**last.get(ENV_RUNNER_RESULTS, {}), **counts},
        }

    def learn(
        self,
        until: Until = None,
        *,
        plateau: Plateau | Mapping[str, Any] | None = None,
        progress: bool = True,
        after_iteration: Callable[[str], object] | None = None,
        **unknown: Any,
    ) -> Result:
        """Trains until a goal is reached, such as a mean return or a number of iterations, and shows the progress.

        Ctrl-C ends it after the running iteration. The training state is kept, and training can continue. With
        ``reporting(checkpoint_frequency=...)``, the last iteration is stored in each case.

        Args:
            until: The goal, as in Ray Tune: ``{"env_runners/episode_return_mean": 475, "time_total_s": 60}`` stops when
                the first of these values of the result is reached (paths or nested dicts). Or a number of further
                iterations, or a function of the result. None trains until Ctrl-C.
            plateau: Also stops when a number no longer improves: ``Plateau(patience=100_000, min_delta=5)``, or a dict
                of these arguments, for the mean return over 100,000 environment steps. Each call starts the count
                again.
            progress: Show speed, remaining time and returns: with a curve in a notebook, on two redrawn lines in a
                terminal, as plain lines elsewhere.
            after_iteration: Called after each iteration with the reason to stop in words, which is empty while training
                continues. It can save a checkpoint, for example.
            **unknown: Must be empty. The error for other packages' ``total_timesteps`` names the equivalent goal.

        Returns:
            The last result; `history` has all of them. If the goal is reached already, nothing is trained.

        Raises:
            ValueError: If results have no value with a name in `until`; before training where possible.
            TypeError: For an unknown argument.
        """
        if unknown:
            raise unknown_arguments(self, "learn", unknown, takes="until, plateau, progress and after_iteration")
        self._check_is_running()
        from jaxrl_stack.runs.displays import make_display  # what draws takes a while to import
        from jaxrl_stack.runs.learn import learn

        criteria = self._checked_criteria(until, plateau)
        last = self._last_result
        if isinstance(last, Result) and last["training_iteration"] == self.iteration:
            reached = criteria.reached(last)
            if reached:
                self.stop_reason = reached
                return last
        display = make_display(criteria, is_quiet=not progress)
        display.header(f"{type(self).__name__} in {short(self.config.env)}, until {criteria}.")
        with display:
            task = "training" if last else "compiling the training program"
            outcome = learn(self, criteria, display, task, after_iteration)
        for line in outcome.lines(self.output.directory) if progress else ():
            print(line)
        return outcome.result

    def _checked_criteria(self, until: Until, plateau: Plateau | Mapping[str, Any] | None) -> StopCriteria:
        criteria = StopCriteria(until, iteration=self.iteration, plateau=plateau)
        criteria.check_evaluation(self.config.evaluation_interval)
        known = known_result(self.config, self.driver.module_ids)
        if known is not None:
            merge_nested(known, self._last_result)
        criteria.check_names(known)
        return criteria

    # ------------------------------------------------------------------------------------------------- evaluation

    def evaluate(self, parallel_train_future: Any = None, **unknown: Any) -> Result:
        """Evaluates the current weights in separate environments, and returns the metrics. By default, resets these
        environments first (``evaluation_force_reset_envs_before_iteration``).

        It runs exactly ``evaluation_duration`` episodes (or at least this number of timesteps), without a bias to short
        episodes. Seeds depend on the config's seed, the iteration and the number of evaluations since then, so episodes
        differ between calls. The training state does not change.

        Without an environment, computes only the loss on the recorded rows that the training step holds out. A
        ``custom_evaluation_function`` replaces the evaluation.

        Args:
            parallel_train_future: Future of a concurrent training; an evaluation of "auto" duration ends with it.
            **unknown: Must be empty. The error for other packages' ``n_eval_episodes`` names the setting.

        Returns:
            The dict of ``result["evaluation"]``: ``{"env_runners": {...}}``, and ``"offline_eval_runners"`` with the
            loss on the held-out rows of the training step (`TrainingStep.held_out_rows`). Without an environment, the
            first key is missing; without held-out rows, the second key is missing.

        Raises:
            TypeError: For an unknown argument.
            ValueError: If there is neither an environment nor held-out rows.
        """
        if unknown:
            raise unknown_arguments(self, "evaluate", unknown, takes="parallel_train_future")
        self._check_is_running()
        is_training = None if parallel_train_future is None else lambda: not parallel_train_future.done()
        self._wait_for_evaluations()
        return self._env_evaluations.run(is_training)

    def evaluate_offline(self) -> Result:
        """Evaluates the current weights on recorded data, and returns the metrics. The settings
        ``evaluation(offline_...)`` configure the evaluation. Trains nothing.

        Returns:
            The part of ``result["evaluation"]`` on recorded data: ``{"offline_eval_runners": {...}}``, with the numbers
            of healthy and restarted runners, and "off_policy_estimator".

        Raises:
            ValueError: If there is no recorded data, or it does not fit the module.
        """
        self._check_is_running()
        self._offline_evaluations.wait()
        return self._offline_evaluations.run()

    def _wait_for_evaluations(self) -> None:
        for evaluations in (self._offline_evaluations, self._env_evaluations):
            evaluations.wait()

    @property
    def offline_eval_runner_group(self) -> OfflineEvaluationRunnerGroup:
        """Runners that evaluate on recorded data; created at the first access."""
        return self._offline_evaluations.group

    def restore_env_runners(self, env_runner_group: EnvRunnerGroup) -> list[int]:
        """Puts EnvRunner actors that Ray has restarted back into their group, after sending them weights and connector
        states.

        Sampling does this in every iteration.

        Returns:
            Ids of the actors that were put back.
        """
        return env_runner_group.probe_unhealthy_env_runners()

    def restore_offline_eval_runners(self, runner_group: OfflineEvaluationRunnerGroup) -> list[int]:
        """Puts offline evaluation actors that Ray has restarted back into their group. Every offline evaluation also
        does this itself.

        Returns:
            Ids of the actors that were put back.
        """
        return runner_group.probe_unhealthy_runners()

    def record(
        self,
        path: str | os.PathLike[str],
        episodes: int = 1,
        *,
        against: Player | None = None,
        seat: Any = None,
        seed: int = 0,
        fps: float | None = None,
    ) -> Video:
        """Records a video of episodes. The policies act with the current weights, as in `evaluate`.

        ``seed=0`` records the episodes of the first evaluation after the present iteration. With ``B`` environments,
        environment ``i`` contributes its first ``n // B + (i < n % B)`` episodes. Counters and the training state do
        not change.

        gymnasium environments draw themselves (``render_mode="rgb_array"``), JAX environments by `JaxEnv.render`. This
        package draws gymnax's classic control and MinAtar. For other environments, the video shows the observations
        with a label.

        In a game of several agents, the policies play all of them. ``record("game.gif", against="snapshot_3")`` plays
        a game of the trained policy against another player.

        Args:
            path: File that ends in .mp4, .webm or .gif; missing folders are created. The first two need PyAV (``pip
                install 'jaxrl-stack[video]'``); without it, a .gif is written instead.
            episodes: Number of episodes, one after the other.
            against: Player of the other seats, in a JAX game of agents with equal spaces: the name of a snapshot in
                `league`, a checkpoint of an Algorithm or Policy, a `Policy`, an `Algorithm` or ``"random"``. None
                plays as the evaluation does.
            seat: Agent that the trained policy plays in games `against` another player; None draws it for each game.
            seed: Selects the episodes: other numbers give other episodes.
            fps: Frames per second; None for the environment's rate.

        Returns:
            The `Video`, which a notebook shows as a player; its `path` is the file.

        Raises:
            TypeError: If `against` is none of these.
            ValueError: For another ending, fewer than one episode, another `seed` than an integer of 32 bits,
                observations that cannot be drawn, or an unknown rival or seat.
            TimeoutError: If the episodes are not over within ``evaluation_sample_timeout_s``.
        """
        self._check_is_running()
        with self._eager_if_asked():
            return record(self, path, episodes, against=against, seat=seat, seed=seed, fps=fps)

    def report(self, path: str | os.PathLike[str], *, title: str | None = None) -> pathlib.Path:
        """Writes a report of this run: one HTML file that needs no server and no network.

        It contains the curves of `history`, the newest video of the run's directory, findings in words, settings that
        differ from the defaults, versions, and the command that repeats the run.

        Args:
            path: File such as ``report.html``. Missing folders are created, an existing file is replaced.
            title: Title of the report; None for the names of algorithm and environment.

        Returns:
            The path of the file.

        Raises:
            ImportError: Without matplotlib: ``pip install 'jaxrl-stack[plots]'``.
            ValueError: If `path` does not end in ``.html``.
        """
        from jaxrl_stack.runs.report import write_report

        defaults = as_json(self.get_default_config().to_dict())
        return write_report(Run.of(self, folder=self.output.directory), path, defaults=defaults, title=title)

    # ----------------------------------------------------------------------------------------------------- acting

    def compute_single_action(
        self,
        observation: Any,
        state: Any = None,
        *,
        explore: bool | None = None,
        policy_id: str = DEFAULT_MODULE_ID,
        full_fetch: bool = False,
        **unknown: Any,
    ) -> Any:
        """Computes the action for one observation of the environment, through both connector pipelines.

        Connectors that keep a history per episode (frame stacks, previous actions) treat the observation as the first
        one of an episode.

        Args:
            observation: One observation of the environment, without batch axis.
            state: Recurrent state of the module that the previous call in this episode returned; None at its start.
            explore: True samples the action, False takes the greedy one, None uses ``config.explore``.
            policy_id: Id of the module that acts.
            full_fetch: Also return the recurrent state and the module's outputs.
            **unknown: Must be empty. The error for other packages' ``deterministic`` names `explore`.

        Returns:
            The action for the environment (NumPy); with a state or `full_fetch`, ``(action, next state, outputs)``.

        Raises:
            ValueError: If the observation does not fit the observation space, the state does not fit the module, or the
                module is for learners only.
            KeyError: If the module does not exist.
            TypeError: For an unknown argument.
        """
        if unknown:
            takes = "observation, state, explore, policy_id and full_fetch"
            raise unknown_arguments(self, "compute_single_action", unknown, takes=takes)
        self._check_has_module(policy_id, "compute_single_action(observation, policy_id={!r})")
        recurrent = None
        if state:
            module = self.driver.acting_parts(policy_id)[0][policy_id]
            recurrent = checked_state(policy_id, module, state)
        explore = bool(self.config.explore) if explore is None else bool(explore)
        self._action_count += 1
        key = jax.random.fold_in(stream_key(self.config.root_seed, Stream.SINGLE_ACTION), self._action_count)
        outputs = self.driver.act(observation, module_id=policy_id, explore=explore, key=key, recurrent=recurrent)
        action = outputs.pop(Columns.ACTIONS_FOR_ENV)
        after = outputs.pop(Columns.STATE_OUT, {})
        return (action, after, outputs) if full_fetch or recurrent is not None else action

    def compute_actions(
        self,
        observations: Mapping[Any, Any],
        state: Mapping[Any, Any] | None = None,
        *,
        explore: bool | None = None,
        policy_id: str | None = None,
        full_fetch: bool = False,
        **unknown: Any,
    ) -> Any:
        """Computes an action for every observation of a dict ``{agent id: observation}``, with one call of
        `compute_single_action` per observation.

        If the config has several agents, each agent's policy computes the agent's action.

        Args:
            observations: ``{agent id: observation}``; any keys if the config has one agent.
            state: Recurrent states by agent that the previous call in this episode returned; {} at its start. Agents
                that it leaves out start with the initial state.
            explore: See `compute_single_action`.
            policy_id: Id of the module that acts for all agents; None for the modules that `policy_mapping_fn` returns.
            full_fetch: Also return the recurrent states and the modules' outputs.
            **unknown: Must be empty.

        Returns:
            ``{agent id: action}``; with a state or `full_fetch`, ``(actions, next states, outputs)``, each by agent.

        Raises:
            ValueError: As in `compute_single_action`, or if the policy of an agent is unknown.
            KeyError: If the module does not exist.
            TypeError: For an unknown argument.
        """
        if unknown:
            takes = "observations, state, explore, policy_id and full_fetch"
            raise unknown_arguments(self, "compute_actions", unknown, takes=takes)
        policies = {agent: policy_id or policy_of(self.driver.module_map, agent) for agent in observations}
        states = state or {}
        found = {
            agent: self.compute_single_action(
                obs, states.get(agent), explore=explore, policy_id=policies[agent], full_fetch=True
            )
            for agent, obs in observations.items()
        }
        actions, after, outputs = ({agent: own[i] for agent, own in found.items()} for i in range(3))
        return (actions, after, outputs) if full_fetch or state is not None else actions

    def get_policy(self, policy_id: str = DEFAULT_MODULE_ID) -> Policy:
        """Returns the acting part of a trained algorithm as one object: both connector pipelines and the module, with
        their current states.

        It is a snapshot: further training does not change it. `evaluate` takes the same greedy actions.

        Args:
            policy_id: Id of the module that acts.

        Raises:
            KeyError: If the module does not exist.
            ValueError: If this process has no EnvRunner to take the connectors from.
        """
        self._check_has_module(policy_id, "get_policy({!r})")
        # The learners' weights: a runner gets them when it samples next.
        weights = self.get_weights([policy_id])[policy_id]
        return self._policy(policy_id, weights, self.driver.env_to_module_state_of(policy_id))

    def _policy(self, policy_id: str, weights: dict[str, Any], env_to_module_state: dict[str, Any]) -> Policy:
        """Creates the policy of a module, with given weights and a given state of the env-to-module pipeline."""
        driver, config = self.driver, self.config
        module, env_to_module, module_to_env = driver.acting_parts(policy_id)
        settings = {}
        for mid in driver.module_ids:
            own = config.get_config_for_module(mid)
            settings[mid] = own.traced_values() | {n: own.static_value(n) for n in config._static_settings}
        with self._eager_if_asked():
            policy = Policy(
                module,
                env_to_module,
                module_to_env,
                module_id=policy_id,
                settings=settings,
                timesteps=self.driver.num_env_steps,
                seed=self.config.root_seed,
                like=self._served,
            )
            policy.set_state({COMPONENT_RL_MODULE: weights, COMPONENT_ENV_TO_MODULE_CONNECTOR: env_to_module_state})
        self._served = policy
        return policy

    # ---------------------------------------------------------------------------------------------------- modules

    def get_module(self, module_id: str = DEFAULT_MODULE_ID) -> RLModule:
        """Returns the RLModule `module_id` with the current weights.

        Training does not change it. It keeps these weights until the next call, which updates the same object.

        Raises:
            KeyError: If the module does not exist.
        """
        self._check_has_module(module_id, "get_module({!r})")
        return self.driver.modules()[module_id]

    def _check_has_module(self, module_id: str, called: str) -> None:
        """Raises a KeyError if the algorithm has no module `module_id`.

        Args:
            module_id: Its id.
            called: Format string of the call with the id, for the remedy in the message.

        Raises:
            KeyError: If there is none.
        """
        self._check_is_running()
        ids = sorted(self.driver.module_ids)
        if module_id not in ids:
            raise KeyError(
                f"No module {module_id!r}; the modules are {ids}. Call {called.format(ids[0])}, for example."
            )

    def get_weights(self, policies: Collection[str] | None = None) -> dict[str, Any]:
        """Returns ``{module_id: {name: array}}``: copies of the current weights of the named modules, or of all."""
        return self.learner_group.get_weights(policies)

    def set_weights(self, weights: dict[str, Any]) -> None:
        """Replaces the weights of the modules that `weights` contains. `weights` is a dict as `get_weights` returns it.
        Other modules do not change.
        """
        with self._commands.around(self, SET_WEIGHTS, {"weights": weights}):
            self.driver.set_weights(weights)

    def add_module(
        self,
        module_id: str,
        module_spec: RLModuleSpec,
        *,
        config_overrides: Mapping[str, Any] | None = None,
        new_agent_to_module_mapping_fn: Callable[..., str] | None = None,
        new_should_module_be_updated: Any = None,
        add_to_learners: bool = True,
        add_to_env_runners: bool = True,
        add_to_eval_env_runners: bool = True,
    ) -> MultiRLModuleSpec:
        """Adds a policy that acts and learns. Call it between two iterations.

        All other modules keep their weights, optimizer states, connector statistics and random streams bit for bit, and
        counters and metrics continue. The next `train` compiles programs again. If agents get other policies, and
        always on the host, unfinished episodes are dropped and new ones begin. Learners and EnvRunners become new
        objects: get them from the algorithm again.

        Args:
            module_id: Id of the new module.
            module_spec: Spec of the new module. ``RLModuleSpec.from_module(algorithm.get_module("main"))`` makes a
                module like an existing one. The config fills in the rest. By default it has the spaces of the
                other policies, if these are equal. ``load_state_path=`` names a checkpoint to load weights from;
                `set_weights` copies weights of another module:
                ``algorithm.set_weights({module_id: algorithm.get_weights()["main"]})``.
            config_overrides: Settings of this module; see ``rl_module(algorithm_config_overrides_per_module=...)``.
            new_agent_to_module_mapping_fn: Replaces ``multi_agent(policy_mapping_fn=...)``; None keeps it.
            new_should_module_be_updated: Replaces ``multi_agent(policies_to_train=...)``; None keeps it.
            add_to_learners, add_to_env_runners, add_to_eval_env_runners: Must be True: learners and runners have the
                same modules.

        Returns:
            The spec of all modules.

        Raises:
            RuntimeError: If the only policy is "default_policy", or training or an evaluation is running.
            ValueError: If the id exists or is invalid, or an argument does not fit. Nothing has changed then.
        """
        everywhere = {
            "add_to_learners": add_to_learners,
            "add_to_env_runners": add_to_env_runners,
            "add_to_eval_env_runners": add_to_eval_env_runners,
        }
        self._check_is_running()
        check_is_everywhere("add_module", everywhere)
        arguments = {
            "module_id": module_id,
            "module_spec": module_spec,
            "config_overrides": config_overrides,
            "new_agent_to_module_mapping_fn": new_agent_to_module_mapping_fn,
            "new_should_module_be_updated": new_should_module_be_updated,
        }
        # A checkpoint to load may have changed since, and specs in files do not name one.
        loads = getattr(module_spec, "load_state_path", None)
        reason = None if loads is None else f"its module_spec loads {os.fspath(loads)!r}"
        with self._commands.around(self, ADD_MODULE, arguments, reason=reason):
            return self._change_modules(
                f"add_module({module_id!r})",
                added={module_id: module_spec},
                overrides={module_id: config_overrides} if config_overrides else {},
                mapping=new_agent_to_module_mapping_fn,
                should_update=new_should_module_be_updated,
            )

    def remove_module(
        self,
        module_id: str,
        *,
        new_agent_to_module_mapping_fn: Callable[..., str] | None = None,
        new_should_module_be_updated: Any = None,
        remove_from_learners: bool = True,
        remove_from_env_runners: bool = True,
        remove_from_eval_env_runners: bool = True,
    ) -> MultiRLModuleSpec:
        """Removes a policy. Call this method between two iterations. The states of the other modules do not change; see
        `add_module`.

        Args:
            module_id: Id of the module to remove.
            new_agent_to_module_mapping_fn: Replaces ``multi_agent(policy_mapping_fn=...)``; None keeps it. The function
                in use must not return the removed module.
            new_should_module_be_updated: Replaces ``multi_agent(policies_to_train=...)``; None keeps it, without this
                module.
            remove_from_learners, remove_from_env_runners, remove_from_eval_env_runners: Must be True.

        Returns:
            The spec of the remaining modules.

        Raises:
            RuntimeError: If the only policy is "default_policy", or training or an evaluation is running.
            ValueError: If the module does not exist, is the only one, or an agent still has it. Nothing has changed
                then.
        """
        everywhere = {
            "remove_from_learners": remove_from_learners,
            "remove_from_env_runners": remove_from_env_runners,
            "remove_from_eval_env_runners": remove_from_eval_env_runners,
        }
        self._check_is_running()
        check_is_everywhere("remove_module", everywhere)
        mapping, should_update = new_agent_to_module_mapping_fn, new_should_module_be_updated
        arguments = {
            "module_id": module_id,
            "new_agent_to_module_mapping_fn": mapping,
            "new_should_module_be_updated": should_update,
        }
        with self._commands.around(self, REMOVE_MODULE, arguments):
            return self._change_modules(
                f"remove_module({module_id!r})", removed=[module_id], mapping=mapping, should_update=should_update
            )

    def change_mapping(
        self, policy_mapping_fn: Callable[..., str] | None = None, *, policies_to_train: Any = None
    ) -> None:
        """Changes which policies act for the agents, and which policies are trained. Call it between two iterations.

        ::

            algo.change_mapping(lambda agent_id, episode, **kwargs: "main" if agent_id == 0 else "v1")
            algo.change_mapping(policies_to_train=["main"])

        All modules keep their state, as in `add_module`, and unfinished episodes are dropped as there. The next `train`
        compiles programs again. Values that are already in use change nothing. `add_module` and `remove_module`
        can change the same settings together with the modules. `restore_from_path` changes neither setting: with a
        checkpoint from before the call, the algorithm keeps the new mapping.

        Args:
            policy_mapping_fn: Replaces ``multi_agent(policy_mapping_fn=...)``; None keeps it.
            policies_to_train: Replaces ``multi_agent(policies_to_train=...)``; None keeps it.

        Raises:
            RuntimeError: If the only policy is "default_policy", or training or an evaluation is running.
            ValueError: If an argument does not fit the environment or the policies. The policies, their state and the
                mapping have not changed then. If the new programs cannot be built, unfinished episodes are dropped.
        """
        self._check_is_running()
        arguments = {"policy_mapping_fn": policy_mapping_fn, "policies_to_train": policies_to_train}
        if all(value is None or same(value, getattr(self.config, name)) for name, value in arguments.items()):
            return
        with self._commands.around(self, CHANGE_MAPPING, arguments):
            self._change_modules("change_mapping()", mapping=policy_mapping_fn, should_update=policies_to_train)

    def _change_modules(self, called: str, **changes: Any) -> MultiRLModuleSpec:
        """Changes modules and the policy mapping: builds a new driver (the object that samples and learns) and moves
        the whole training state to it.

        After a failure, the algorithm has a driver of its former modules again.

        Args:
            called: Call that makes the change, for messages.
            **changes: Changes, see `changed_modules`.
        """
        change = changed_modules(self.driver, self.config, called, **changes)
        self._wait_for_evaluations()
        driver, before, module_map = self.driver, self.config, self.driver.module_map
        replay = {} if driver.replay_buffer is None else {COMPONENT_REPLAY_BUFFER: driver.replay_buffer.get_state()}
        state_before = driver.get_state() | replay
        spec = change.change_learners(driver.learner_group)
        state = driver.get_state() | replay
        with ray_kept(driver):
            self._offline_evaluations.stop()
            # Before there is another one: devices, actors and some environments have room for one alone.
            driver.stop()
            try:
                self._build_with(change.config, state, module_map)
            except BaseException:
                self._build_with(before, state_before, module_map)
                raise
        return spec

    def _build_with(self, config: AlgorithmConfig, state: dict[str, Any], module_map: ModuleMap) -> None:
        """Replaces the config and the driver (the object that samples and learns).

        The new driver continues from the state of the old driver, `state`.

        Args:
            config: May have other modules.
            state: State of the former driver, with the learners' state of the new config's modules.
            module_map: Module map of the former driver.
        """
        seconds = self.driver.device_seconds, self.driver.compile_seconds
        with contextlib.ExitStack() as on_failure:
            driver = self._make_driver(config)
            on_failure.callback(driver.stop)
            own = state_for_modules(state, module_map, driver.module_map, is_on_device=driver.is_on_device)
            driver.set_state(own)
            if COMPONENT_REPLAY_BUFFER in own:
                driver.set_replay_state(own)
            driver.device_seconds, driver.compile_seconds = seconds
            on_failure.pop_all()
        self.driver, self._config, self._served = driver, config, None
        self._reported_config = config.to_dict()
        self._offline_evaluations.start()

    # --------------------------------------------------------------------------------------------- other settings

    def change_settings(self, **settings: Any) -> None:
        """Changes settings that compiled programs take as arguments (traced settings), such as ``lr``, from the next
        iteration on, without recompiling.

        ::

            algo.change_settings(lr=1e-5)
            algo.change_settings(lr=[[0, 1e-3], [1_000_000, 1e-5]], entropy_coeff=0.0)

        All learners, EnvRunners and evaluation use the new values. After the first change of a setting, `history` has a
        column of its values, such as ``"config/lr"``, and checkpoints restore them. Call it between two iterations:
        after `train`, or in the callback ``on_train_result``.

        Args:
            **settings: Values or schedules by name. Times of schedules count env steps from the beginning of the run.
                For one of several modules: ``algorithm_config_overrides_per_module={"p0": {"lr": 1e-5}}``.

        Raises:
            ValueError: If a setting is unknown, its value is invalid, or the setting is not traced. Nothing has changed
                then.
            RuntimeError: If an iteration or an evaluation is running.
        """
        self._check_is_running()
        self.driver.at_work.check_is_idle("change_settings()")
        self._wait_for_evaluations()
        before = self.config
        with deferred_interrupt(), self._commands.around(self, CHANGE_SETTINGS, settings):
            paths = self._use_settings(settings, "change_settings")
            for path in self._setting_changes.note(before, paths):
                value = value_of(before, path)
                self._built_with.setdefault(path, plain_number(value))
                self.history.add_setting(path, lambda num_env_steps, value=value: number_at(value, num_env_steps))

    def _use_settings(self, settings: Mapping[str, Any], call: str) -> tuple[str, ...]:
        """Changes settings that compiled programs take as arguments (traced settings), such as ``lr``, in training and
        evaluation.

        Returns the paths of the settings: ``"lr"``, or ``"p0/lr"`` for an override of module "p0".
        """
        changed = changed_config(self.config, settings, call)
        self._wait_for_evaluations()
        with self._eager_if_asked():
            self.driver.change_settings(changed.config, changed.names)
        self._config = changed.config
        self._offline_evaluations.use_config(changed.config)
        self._reported_config = changed.config.to_dict()
        return changed.paths

    def reset(self, config: AlgorithmConfig) -> bool:
        """Starts training from the beginning with another config, without recompiling.

        If this is impossible, for example because the new config has other networks, changes nothing and returns False.

        Args:
            config: Config that may differ in traced settings (lr, gamma, clip_param, ...), in `seed` and in
                `results_dir`. All other settings must be the same.

        Returns:
            True if training starts again. False if the compiled programs or the built objects do not fit the config:
            build a new algorithm from the config then.
        """
        self._check_is_running()
        config = config.copy(copy_frozen=False)
        config.validate()
        config.freeze()
        if not config.differs_in_traced_settings_only(self.config, but_for=_CHANGED_BY_RESET):
            return False
        callbacks = CallbackList.from_config(config)
        self._wait_for_evaluations()
        with self._eager_if_asked():
            if not self.driver.reset(config, callbacks):
                return False
        self._config = config
        self._offline_evaluations.use_config(config)
        self.stored_checkpoints.close()
        self._start_anew(config, callbacks)
        self.output.close()
        self.output = self._new_output(config)
        self.metrics = root_logger(config)
        self.metrics.reported = self._reported
        self._call_init_callbacks()
        return True

    # ------------------------------------------------------------------------------------------------ checkpoints

    STATE_FILE_NAME = "algorithm_state"
    METADATA_FILE_NAME = ALGORITHM_METADATA_FILE

    def save(self, checkpoint_dir: str | os.PathLike[str] | None = None) -> SavedCheckpoint:
        """Writes a checkpoint with `save_to_path`. Returns an object like Ray Tune's result: its ``checkpoint.path`` is
        the checkpoint's folder.
        """
        return SavedCheckpoint(self.save_to_path(checkpoint_dir))

    def restore(self, checkpoint_path: str | os.PathLike[str] | SavedCheckpoint) -> None:
        """Same as `restore_from_path`."""
        self.restore_from_path(checkpoint_path)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Same as `save_to_path`, under the name that Ray Tune's `Trainable` uses.

        Args:
            checkpoint_dir: The folder to write to.
        """
        self.save_to_path(checkpoint_dir)

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Same as `restore_from_path`, under the name that Ray Tune's `Trainable` uses.

        Args:
            checkpoint_dir: A folder written by `save_checkpoint` or `save_to_path`.
        """
        self.restore_from_path(checkpoint_dir)

    def restore_from_path(
        self, path: str | os.PathLike[str], *, component: str | None = None, filesystem: Any = None
    ) -> None:
        """Restores the training state of a checkpoint, or only the part that `component` names, such as
        ``"learner_group"``; see `Checkpointable.restore_from_path`.

        The path ``"RUN@35"`` is an iteration of a run's folder; it is recomputed and stored there if necessary.

        JAX environments continue their episodes, bit for bit on the same number of devices. On another number of
        devices, the stored state is the same and the environments are sharded again in their order. Random numbers of
        environments, exploration and random layers then differ, because each device has its own random stream. Shuffled
        minibatches differ too, unless ``num_shuffle_shards`` is set. Another number of environments, and gymnasium
        environments, start new episodes with seeds that differ from the run's first seeds. With ``replayable_episodes``
        gymnasium environments continue their episodes, too. Policies that the stored run has added are added here.
        ``policy_mapping_fn`` and ``policies_to_train`` do not change, even if `change_mapping` has set them after the
        checkpoint was stored.
        """
        self._check_is_running()
        path = recomputed_iteration(path, config=self.config)
        arguments, reason = restored_checkpoint(path, filesystem)
        with self._commands.around(self, RESTORE, {**arguments, "component": component}, reason=reason):
            with stored_modules_added(self, path, component, filesystem):
                super().restore_from_path(path, component=component, filesystem=filesystem)
            self.callbacks.on_checkpoint_loaded(algorithm=self)
        if component is None:
            self._parent = parent_of(arguments["path"])

    @classmethod
    def from_checkpoint(
        cls,
        path: str | os.PathLike[str],
        filesystem: Any = None,
        *,
        config: AlgorithmConfig | None = None,
        allow: Iterable[Any] = (),
        **settings: Any,
    ) -> Self:
        """Builds an algorithm from a checkpoint and restores its state.

        Args:
            path: A folder written by `save_to_path`, or ``"RUN@35"`` for an iteration of a run's folder, which is
                recomputed and stored there if necessary.
            filesystem: See `save_to_path`.
            config: The config to build from, lambdas included; None for the stored config.
            allow: Your classes and functions that the checkpoint names, unless `config` or `settings` contain them; see
                `Checkpointable.from_checkpoint`.
            **settings: Settings that replace stored ones. Settings with lambdas and local classes are required here,
                because checkpoints do not contain these.

        Raises:
            FileNotFoundError: If there is no checkpoint.
            ValueError: If it is damaged, of another algorithm, or needs code that is not in `allow`, `config` or
                `settings`.
        """
        return cls._from_checkpoint(path, filesystem, config, allow, settings)

    @classmethod
    def _from_checkpoint(
        cls,
        path: str | os.PathLike[str],
        filesystem: Any,
        config: AlgorithmConfig | None,
        allow: Iterable[Any],
        settings: Mapping[str, Any],
        *,
        calls_callback: bool = True,
    ) -> Self:
        """Implements `from_checkpoint`; can also skip the callback ``on_checkpoint_loaded``.

        Args:
            path, filesystem, config, allow, settings: See `from_checkpoint`.
            calls_callback: Whether to call ``on_checkpoint_loaded``. A replay begins with a checkpoint that the run
                did not load.
        """
        path = recomputed_iteration(path, config=config, allow=allow)
        with opened(path, filesystem) as stored:
            named = code_named_by(config, config and config.algo_class, settings)
            loader = ClassLoader(allow, own=cls, named=named, written_here=stored.code_written_here())
            check_code(stored, loader, cls, config, settings)
            component = stored.component()
            actual = cls._stored_class(component, loader, f"The checkpoint at {stored.path}")
            if config is None:
                config, _ = stored_config(stored, loader, settings)
            elif settings:
                config = config.copy(copy_frozen=False).update_from_dict(settings)
            # All of it is read, and is known to fit, before anything is built.
            state = read_state(stored, is_weights=False)
            for name in map(config.setting_name, settings):  # they hold, whatever that run has changed them to
                state.get("changed_settings", {}).pop(name, None)
            modules = stored.part(COMPONENT_LEARNER_GROUP).part(COMPONENT_LEARNER).part(COMPONENT_RL_MODULE)
            states = state[COMPONENT_LEARNER_GROUP][COMPONENT_LEARNER][COMPONENT_RL_MODULE]
            check_modules(config, modules, loader, states)
            config = with_stored_modules(config, stored, modules, loader, states)
            try:
                algorithm = actual(config)
            except (ValueError, *DAMAGES) as error:
                raise cannot_be_built(stored, config, error) from error
            try:
                arguments, reason = restored_checkpoint(path, filesystem)
                arguments["settings"] = sorted(map(config.setting_name, settings))
                with algorithm._commands.around(algorithm, FROM_CHECKPOINT, arguments, reason=reason):
                    match_modules(algorithm.learner_group, algorithm.driver.module_ids, modules, loader, states)
                    algorithm._take_over(state, stored)
                    if calls_callback:
                        algorithm.callbacks.on_checkpoint_loaded(algorithm=algorithm)
                algorithm._parent = parent_of(arguments["path"])
            except BaseException:
                algorithm.stop()
                raise
        return algorithm

    def get_state(self, components: Parts = None, *, not_components: Parts = None, **kwargs: Any) -> dict[str, Any]:
        """Returns the whole training state: weights, optimizers, filters, environments, PRNG keys, counters, metrics.

        The internal state of gymnasium environments is not included, as their interface does not expose it.

        Args:
            components: Names to include: "learner_group", "env_runner" and top-level names of the state; None for all.
            not_components: Names to leave out.
            **kwargs: Ignored.
        """
        self._check_is_running()
        replay = self.driver.stored_replay
        state = {
            **self.driver.get_state(),
            # Large: copied if it is asked for.
            **({} if replay is None else {COMPONENT_REPLAY_BUFFER: None}),
            "training_iteration": self.iteration,
            "time_total_s": self._iterations.seconds,
            "evaluation": self._evaluated.get_state(),
            "num_actions_computed": self._action_count,
            "history": self.history.get_state(),
            "changed_settings": self._setting_changes.get_state(self.config),
            COMPONENT_METRICS_LOGGER: self.metrics.get_state(),
        }
        wanted = {n: state[n] for n in selected(list(state), components, not_components, type(self).__name__)}
        if replay is not None and COMPONENT_REPLAY_BUFFER in wanted:
            wanted[COMPONENT_REPLAY_BUFFER] = replay.get_state()
        return wanted

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores the training state from a result of `get_state`. Parts that are missing in `state` do not change.

        Raises:
            ValueError: If the state is of other modules, another environment or other connectors.
        """
        self._check_is_running()
        with self._commands.around(self, SET_STATE, {"state": state}):
            self._set_state(state)

    def _set_state(self, state: dict[str, Any]) -> None:
        self.driver.set_state(state)
        if "training_iteration" in state:
            self._iterations.go_on(int(state["training_iteration"]), float(state["time_total_s"]), self.driver)
            self._evaluated.set_state(state["evaluation"])
            self._action_count = int(state["num_actions_computed"])
            # Those of another iteration, if not of another run.
            self._env_evaluations.last = self._offline_evaluations.last = None
            self._last_result, self.stop_reason = {}, None
            # Checkpoints of before there was one have none.
            self.history.set_state(state.get("history", History().get_state()))
            stored_changes = state.get("changed_settings", {})
            for path in stored_changes:
                self._built_with.setdefault(path, plain_number(value_of(self.config, path)))
            changed = self._setting_changes.restored(self.config, stored_changes)
            if changed:
                self._use_settings(settings_of(self.config, changed), "restore")
        if COMPONENT_METRICS_LOGGER in state:
            self.metrics.set_state(state[COMPONENT_METRICS_LOGGER])
        self.driver.set_replay_state(state)
        if "training_iteration" in state:
            self.stored_checkpoints.restored(self.iteration)

    def _state_to_go_back_to(self) -> dict[str, Any]:
        replay = self.driver.stored_replay
        state = self.get_state(not_components=None if replay is None else COMPONENT_REPLAY_BUFFER)
        held: dict[str, Any] = {}
        if replay is not None:
            # A user's class may do more after it, which may fail.
            is_last = type(self).set_state is Algorithm.set_state
            held = replay._state_to_go_back_to() if is_last else replay.get_state()
        return {**state, COMPONENT_REPLAY_BUFFER: held}

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """Constructor arguments that a checkpoint stores: the config."""
        config = self.config
        if self._replaced_settings:
            config = with_replaced_settings(config, self._replaced_settings)
        return (), {"config": config_to_store(config, self.driver.module_map)}

    _replaced_settings: Mapping[str, Any] = MappingProxyType({})
    """Settings of the recorded run that an algorithm with recomputed state was built without, for its checkpoints."""

    def get_metadata(self) -> dict[str, Any]:
        """Data about a run for the checkpoint's metadata file, such as the iteration, readable without loading the
        checkpoint.
        """
        return {
            "algorithm": type(self).__name__,
            "training_iteration": self.iteration,
            "num_env_steps_sampled_lifetime": self.driver.num_env_steps,
            "driver": self.driver.kind,
            "num_commands": self._commands.count,
            "built_with": dict(self._built_with),
            "stateful_callbacks": self.callbacks.stateful_since(self._callback_states),
            "has_changed_counters": self._counters != self._first_counters,
        }

    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        """Parts of this algorithm that have separate folders in checkpoints, as ``[(name, part)]``.

        The parts are the learner group and, if checkpoints contain them, the EnvRunner, the replay buffer and the
        evaluation EnvRunner. A part that may be in an actor is represented by its description, a `Component`.
        """
        return self.driver.components()

    def _hint_for_misfit(self, state: Mapping[str, Any]) -> str:
        learner = state.get(COMPONENT_LEARNER_GROUP, {}).get(COMPONENT_LEARNER, {})
        stored = learner.get(COMPONENT_RL_MODULE, {})
        try:
            modules = self.driver.modules()
        except ValueError:  # all of them are in actors
            return ""
        hints = (modules[mid]._hint_for_misfit(own) for mid, own in stored.items() if mid in modules)
        return next(filter(None, hints), "")

    def _in_one_process(self, save: Callable[[], str]) -> str:
        return of_first_process(save)

    # -------------------------------------------------------------------------------------------------------- end

    def stop(self) -> None:
        """Releases devices and runners. The algorithm cannot train afterwards."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self.cleanup()

    def cleanup(self) -> None:
        """Releases what `setup` created: actors, environments, device memory and output files."""
        with contextlib.ExitStack() as stack:  # If one of them raises, the others are stopped, too.
            stack.callback(self.driver.stop)
            stack.callback(self._offline_evaluations.stop)
            stack.callback(self.output.close)
            stack.callback(self.stored_checkpoints.close)

    def _check_is_running(self) -> None:
        if self._is_stopped:
            raise RuntimeError(f"This {type(self).__name__} was stopped. Build another one: algo.config.build_algo().")

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(env={short(self.config.env)}, iteration={self.iteration}, "
            f"num_env_steps_sampled_lifetime={self.driver.num_env_steps:,}, {self.driver.description})"
        )

    if not TYPE_CHECKING:
        __getattr__ = old_members(OLD_MEMBERS, FOREIGN_MEMBERS)

    def __reduce__(self) -> Any:
        raise TypeError(
            f"A {type(self).__name__} cannot be pickled or copied, because it holds compiled programs. Save it with "
            f"algorithm.save_to_path(path), and load a copy with {type(self).__name__}.from_checkpoint(path)."
        )
