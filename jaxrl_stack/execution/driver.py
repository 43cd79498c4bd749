"""Interface between an Algorithm and its training backend, with implementations for JAX environments, host environments
and recorded data.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import pathlib
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from jaxrl_stack.core.module_map import ModuleMap
from jaxrl_stack.env.env_runner_group import health_of
from jaxrl_stack.execution.state_migration import AtWork
from jaxrl_stack.utils import resources
from jaxrl_stack.utils.interrupts import deferred_interrupt
from jaxrl_stack.utils.memory import MemoryEstimate, format_bytes
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger
from jaxrl_stack.utils.results import is_name_of_runners

if TYPE_CHECKING:
    import jax

    from jaxrl_stack.acting.recording import EndedEpisodes
    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.callbacks.utils import CallbackList
    from jaxrl_stack.checkpoints.checkpointable import Checkpointable
    from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline
    from jaxrl_stack.connectors.module_to_env import ModuleToEnvPipeline
    from jaxrl_stack.core.learner.learner import Learner
    from jaxrl_stack.core.learner.learner_group import LearnerGroup
    from jaxrl_stack.core.rl_module.rl_module import MultiRLModule, RLModule
    from jaxrl_stack.env.env_context import EnvContext
    from jaxrl_stack.env.env_runner import EnvRunner
    from jaxrl_stack.env.env_runner_group import EnvRunnerGroup
    from jaxrl_stack.env.jax_env import JaxEnv
    from jaxrl_stack.execution.evaluation import Evaluation
    from jaxrl_stack.execution.league import League
    from jaxrl_stack.execution.training_step import TrainingStep
    from jaxrl_stack.videos.episodes import RecordedEpisode

logger = logging.getLogger(__name__)


class Driver(abc.ABC):
    """Runs the training of one algorithm: samples from an environment or reads data, makes updates, and evaluates in
    separate environments or on separate data.

    Args:
        algorithm: Algorithm of this driver, for callbacks; None in a learner actor.
        config: The algorithm's frozen config.
        step: The algorithm's training step, owned by this driver.
        callbacks: The algorithm's callbacks.

    Attributes:
        spaces: ``{"__env__", "__env_single__", module_id: (observation space, action space)}``.
        learner: The Learner of this process; None if learners are actors.
        learner_group: All learners.
        env_runner: The EnvRunner of this process; None if there is none.
        env_runner_group: All EnvRunners of training; empty if training samples no environment.
        evaluation: Evaluation in an environment.
        evaluates_on_data: Whether there is also an evaluation on data.
        jax_env: The JAX environment that training steps in this process, or None.
        env_context: Context from which that environment was created.
        placement: Placement groups of `reserve_actors`.
        acting_modules: Templates of the acting modules; empty before learners exist, and if learner actors sample.
        is_on_device: Whether environments run inside of a compiled program.
        at_work: The running work.
        can_change_modules: Whether another driver with other modules can take over its state.
        lacks_env_runners: Whether all EnvRunners are actors that are being restarted, so that nothing is sampled.
        num_training_steps_per_call: Training steps per call of `training_step`.
        counted_per_env_step: Counted steps per step of an environment: the number of its agents with
            ``count_steps_by="agent_steps"``, if it is known in advance, else 1.
        episode_metrics: Logger for episode callbacks of this process.
        module_map: Map from agents to modules.
        num_env_steps: Lifetime env steps.
        device_seconds: Seconds spent waiting for compiled programs since `start_iteration`.
        compile_seconds: Seconds that other processes have spent compiling since `start_iteration`; this process has a
            separate clock.
        rollout_memory: Memory of the rollout of one EnvRunner.
        train_batch_memory: Memory of the batch of one update.
        kept_memory: Memory of the training step's kept data, when full; None if there is none or it is unknown.
        opponents_memory: Memory of snapshots that are opponents; None without the setting ``opponents``.
        available_memory: Bytes that were free at build time; None if unknown.
        num_episodes: Lifetime finished episodes.
        num_agent_steps: Lifetime completed steps of each of several agents; None for one agent.
        num_opponent_steps: Part of the agents' steps that snapshots of the policy have completed.
        num_env_steps_trained: Lifetime env steps in updates.
        description: Place of training, in a few words.
        replay_buffer: The training step's kept data as users see it, or None.
        league: Snapshots that play against the policy, and their games; None without the setting ``opponents``.
    """

    spaces: dict[str, tuple[Any, Any]]
    learner: Learner | None
    learner_group: LearnerGroup
    env_runner: EnvRunner | None
    env_runner_group: EnvRunnerGroup
    evaluation: Evaluation
    jax_env: JaxEnv | None = None
    env_context: EnvContext | None = None
    placement: resources.Placement = resources.Placement()
    acting_modules: Mapping[str, RLModule] = MappingProxyType({})
    is_on_device: ClassVar[bool] = False
    can_change_modules: ClassVar[bool] = True
    lacks_env_runners: bool = False
    num_training_steps_per_call: int = 1
    counted_per_env_step: int = 1
    rollout_memory: MemoryEstimate
    train_batch_memory: MemoryEstimate
    kept_memory: MemoryEstimate | None
    opponents_memory: MemoryEstimate | None = None
    available_memory: int | None
    num_episodes: int
    num_agent_steps: dict[Any, int] | None = None
    num_opponent_steps: int = 0
    num_env_steps_trained: int
    description: str
    replay_buffer: Checkpointable | None = None
    league: League | None = None

    def __init__(self, algorithm: Algorithm, config: AlgorithmConfig, step: TrainingStep, callbacks: CallbackList):
        self.algorithm = algorithm
        self.config = config
        self.step = step
        # Who the agents are is known when there is an environment.
        self.module_map = ModuleMap({}, is_multi_agent=True) if config.is_multi_agent else config.module_map
        self.callbacks = callbacks
        self.episode_metrics = MetricsLogger(
            root=True, stats_cls_lookup=config.stats_cls_lookup, reserved=is_name_of_runners
        )
        self.device_seconds = self.compile_seconds = 0.0
        self._on_stop = contextlib.ExitStack()
        self._has_reserved = False
        self._on_data: dict[str, Any] = {}
        self.at_work = AtWork()

    @property
    def num_env_steps_lost(self) -> int:
        """Lifetime number of sampled env steps that were lost before an update read them, because a node died; 0
        without Ray actors.
        """
        return 0

    def reserve_actors(self) -> None:
        """Connects to Ray, and reserves resources of all actors of the algorithm; a second call does nothing.

        Raises:
            ValueError: If the only node of the cluster is too small.
            TimeoutError: If other programs do not release the resources of the only node in time.
        """
        if self._has_reserved:
            return
        self._on_stop.callback(resources.start_ray_if_needed(self.config).release)
        self.placement = resources.create_placement(self.config)
        self._on_stop.callback(resources.remove_placement, self.placement)
        self._has_reserved = True

    def on_env_runners_recreated(self, group: EnvRunnerGroup, indices: list[int]) -> None:
        """Calls the user's callback `on_env_runners_recreated` after EnvRunner actors were restarted.

        Args:
            group: Group of the actors.
            indices: Ids of the actors.
        """
        self.callbacks.on_env_runners_recreated(
            algorithm=self.algorithm,
            env_runner_group=group,
            env_runner_indices=indices,
            is_evaluation=group.is_evaluation,
        )

    # ---------------------------------------------------------------------------------------------------- memory

    def memory_estimate(self) -> dict[str, Any]:
        """Returns the estimated memory of the rollout, the train batch, the replay buffer and the opponent snapshots,
        and the available memory; see `Algorithm.memory_estimate`.
        """
        return {
            "rollout": self.rollout_memory.to_dict(),
            "train_batch": self.train_batch_memory.to_dict(),
            "available_bytes": self.available_memory,
            **({} if self.kept_memory is None else {"replay": self.kept_memory.to_dict()}),
            **({} if self.opponents_memory is None else {"opponents": self.opponents_memory.to_dict()}),
        }

    def _log_memory(self) -> None:
        free = "" if self.available_memory is None else f"; {format_bytes(self.available_memory)} are free"
        if self.rollout_memory.num_bytes != self.train_batch_memory.num_bytes:
            logger.info("%s.", self.rollout_memory)
        logger.info("%s%s.", self.train_batch_memory, free)

    # -------------------------------------------------------------------------------------------------- training

    def start_iteration(self) -> None:
        """Prepares the driver for an iteration, before its first training step: resets the timers, and prepares the
        evaluation (see `Evaluation.start_iteration`).
        """
        self.device_seconds = self.compile_seconds = 0.0
        self.evaluation.start_iteration()

    @contextlib.contextmanager
    def iteration(self) -> Iterator[None]:
        """Context in which an iteration's training steps run. At the end of the iteration, pauses background updates,
        so that the learners do not change between iterations.
        """
        self.start_iteration()
        with self.at_work.on("an iteration"):
            try:
                yield
            finally:
                with deferred_interrupt():
                    self.step.pause()

    @abc.abstractmethod
    def training_step(self, iteration: int) -> None:
        """Runs one training step (sampling and updates) of the algorithm.

        Args:
            iteration: Number of the running iteration, from 1, for messages.
        """

    def time_shares(self, folder: pathlib.Path, seconds: float) -> dict[str, float]:
        """Fraction of the last iteration's time for each part of the training step, ``{part: fraction}``; {} if
        unknown.

        Args:
            folder: Folder with the trace of the iteration.
            seconds: Duration of the iteration.
        """
        return {}

    def count_env_steps(self, num_env_steps: int) -> None:
        """Adds `num_env_steps` to the driver's counter of sampled env steps.

        Needed if a user's `Algorithm.training_step` calls EnvRunners directly, because the driver does not count the
        steps of these calls.
        """
        self.num_env_steps += num_env_steps

    @property
    def num_updates(self) -> int:
        """Updates so far: the ``weights_seq_no`` of the current weights."""
        return self.learner_group.num_updates

    @abc.abstractmethod
    def episode_statistics(self, seconds_per_step: float = 0.0) -> EndedEpisodes:
        """Statistics of finished training episodes (returns, lengths, durations): the last
        ``metrics_num_episodes_for_smoothing`` episodes, ordered from oldest to newest.

        Args:
            seconds_per_step: Wall time of one step of one environment, for episodes whose duration was not measured.
        """

    @abc.abstractmethod
    def learner_results(self, num_updates: int) -> dict[str, Any]:
        """Returns the metrics of the last update, ``{module_id: {metric: number}}``.

        Counters in these metrics, such as trained steps, are instead sums over the last `num_updates` updates; callers
        pass the iteration's number of updates.
        """

    def results(self) -> dict[str, Any]:
        """Metrics of actors, replay buffers, timers and the league for the result of an iteration.

        `learner_results` returns the metrics of updates, and `episode_statistics` the returns and lengths of episodes.
        """
        group = self.env_runner_group
        return {
            **self.step.results(self),
            **({} if self.league is None else {"league": self.league.results()}),
            "fault_tolerance": health_of(group),
            "env_runner_group": {"actor_manager_num_outstanding_async_reqs": group.num_in_flight_async_reqs()},
        }

    # ------------------------------------------------------------------------------------------------ evaluation

    @property
    def eval_env_runner(self) -> EnvRunner | None:
        """EnvRunner of the evaluation in this process; None if only actors evaluate."""
        return self.evaluation.runner

    @property
    def eval_env_runner_group(self) -> EnvRunnerGroup:
        """EnvRunners of the evaluation."""
        return self.evaluation.group

    @property
    @abc.abstractmethod
    def evaluates_on_data(self) -> bool: ...

    @abc.abstractmethod
    def evaluate_on_data(self, iteration: int, call: int = 0) -> dict[str, Any]:
        """Evaluates the modules on held-out recorded data; returns entries of the dict ``result["evaluation"]``.
        Returns {} if the config has no evaluation on held-out data.
        """

    def sync_evaluation(self, iteration: int, call: int = 0) -> None:
        """Passes the current weights and connector statistics to the evaluation's EnvRunners.

        Called before an evaluation that runs at the same time as training. If the config has an evaluation on held-out
        data, also runs this evaluation completely, because it uses the learners and therefore cannot run during
        training.

        Args:
            iteration, call: See `evaluate`.
        """
        self.evaluation.sync()
        self._on_data = self.evaluate_on_data(iteration, call)

    def evaluate(self, iteration: int, call: int = 0, is_training: Callable[[], bool] | None = None) -> dict[str, Any]:
        """Evaluates the present policy once in the evaluation environments, and returns the results.

        Args:
            iteration: Iterations done; it determines the seed.
            call: Number of earlier evaluations since the last iteration; it also determines the seed.
            is_training: Returns whether the concurrent training step still runs, for an evaluation next to training,
                after `sync_evaluation`.

        Returns:
            The dict of ``result["evaluation"]``: "env_runners", facts about runners, and "offline_eval_runners".

        Raises:
            ValueError: If there is neither an environment nor data for evaluation.
        """
        if is_training is None:
            self._on_data = self.evaluate_on_data(iteration, call)
        on_data, self._on_data = self._on_data, {}
        if on_data and not self.evaluation.has_env:
            return on_data
        with self.at_work.on("an evaluation"):
            return {**self.evaluation.evaluate(iteration, call, is_training), **on_data}

    def record(self, iteration: int, call: int, num_episodes: int) -> tuple[list[RecordedEpisode], float]:
        """Runs evaluation episodes and records them for videos; returns the episodes and the environment's frame rate.
        Training and counters do not change.

        Args:
            iteration, call: See `evaluate`.
            num_episodes: Number of episodes, at least 1.

        Returns:
            ``(episodes, frames per second of the environment)``.
        """
        return self.evaluation.record(iteration, call, num_episodes)

    # ---------------------------------------------------------------------------------------------------- access

    @abc.abstractmethod
    def modules(self) -> dict[str, RLModule]:
        """The modules with the current weights, by id."""

    @abc.abstractmethod
    def act(
        self, observation: Any, *, module_id: str, explore: bool, key: jax.Array, recurrent: Any = None
    ) -> dict[str, Any]:
        """Computes an action for one observation: runs the env-to-module pipeline, the module and the module-to-env
        pipeline. Returns the resulting columns as NumPy arrays without a batch axis.

        `recurrent` is the module's state; None for the state at the start of an episode.
        """

    @abc.abstractmethod
    def acting_parts(self, module_id: str) -> tuple[MultiRLModule, EnvToModulePipeline, ModuleToEnvPipeline]:
        """Returns the modules and connector pipelines that together compute actions.

        These are all modules, and the env-to-module and module-to-env pipelines of the module `module_id`. Weights and
        pipeline states may be out of date: a caller that needs current weights and states must set them before it
        computes actions.

        Args:
            module_id: Id of the module. A module without agents uses the pipelines of the first module with agents.
        """

    @abc.abstractmethod
    def env_to_module_state(self) -> dict[str, Any]:
        """Current state of the env-to-module pipeline of training, ``{connector name: its state}``; {} if training has
        no such pipeline.

        With several agents it has a state for each module, ``{module_id: state}``.
        """

    def env_to_module_state_of(self, module_id: str) -> dict[str, Any]:
        """Returns the current state of one module's env-to-module pipeline, ``{connector name: its state}``."""
        state = self.env_to_module_state()
        return state[module_id] if self.module_map.is_multi_agent else state

    def set_weights(self, weights: dict[str, Any]) -> None:
        """Replaces the modules' weights, ``{module_id: {name: array}}``, in the learners and in EnvRunners that have a
        copy.
        """
        self.learner_group.set_weights(weights)

    @property
    def may_skip_steps(self) -> bool:
        """Whether agents may wait in steps in which other agents act.

        If True, batches have a loss mask, which is False in rows without a completed step of the agent.
        """
        return self.jax_env is not None and not self.jax_env.everybody_acts

    @property
    def module_spaces(self) -> dict[str, tuple[Any, Any]]:
        """Spaces of the modules that act for agents, ``{module_id: (observation space, action space)}``."""
        return {mid: self.spaces[mid] for mid in self.module_map.agents_of}

    @property
    def module_ids(self) -> tuple[str, ...]:
        """Ids of the driver's modules (policies)."""
        return tuple(self.module_map.agents_of) if self.learner is None else self.learner.module_ids

    # ----------------------------------------------------------------------------------------------------- state

    kind: str
    """Name of the kind of driver, stored in checkpoints."""

    @abc.abstractmethod
    def components(self) -> list[tuple[str, Any]]:
        """Parts of the algorithm that have separate folders in checkpoints, such as the learners.

        The list has the form ``[(name, part), ...]``. `part` is a `Checkpointable` object or, if this object may be in
        an actor, a description of the object (`Component`).
        """

    @abc.abstractmethod
    def get_state(self) -> dict[str, Any]:
        """Returns all values that change in training, except replay buffers.

        The dict contains the state of each part of the algorithm (see `components`) under the part's name, and all
        other values under ``"driver"``.

        `Algorithm.get_state` adds the state of `stored_replay`.
        """

    @abc.abstractmethod
    def set_state(self, state: dict[str, Any]) -> None:
        """Restores a driver state that `get_state` returned.

        If `state` lacks a part of the algorithm (see `components`), this part does not change. The replay buffer never
        changes here.

        Raises:
            ValueError: If it does not fit. A part of it may have been restored then.
        """

    @property
    def stored_replay(self) -> Checkpointable | None:
        """Replay buffer that checkpoints contain; None if the algorithm has no replay buffer, or with
        ``store_buffer_in_checkpoints=False``.
        """
        replay: Any = self.replay_buffer
        return None if replay is None or not self.config.store_buffer_in_checkpoints else replay

    def set_replay_state(self, state: dict[str, Any]) -> None:
        """Restores the replay buffer; called after `set_state`.

        `state` is a driver state that `get_state` returned. If the replay buffer was saved, `state` also contains the
        state of `stored_replay` under ``"replay_buffer"``.

        Raises:
            ValueError: If it does not fit. Nothing has changed then.
        """
        self.step.set_kept_state(self, state)

    def write_output(self) -> None:
        """Closes the files that record sampled steps, so that they can be read. Unfinished episodes are not written
        yet; they go to later files.
        """
        self.env_runner_group.write_output()
        self.evaluation.write_output()

    @abc.abstractmethod
    def change_settings(self, config: AlgorithmConfig, names: Collection[str]) -> None:
        """Changes the values of traced settings (hyperparameters that are arguments of compiled programs) without
        recompiling.

        Args:
            config: Config that differs from the present one in traced settings only.
            names: The settings that differ.

        Raises:
            ValueError: If the learners cannot use them. Nothing has changed then.
        """

    @abc.abstractmethod
    def reset(self, config: AlgorithmConfig, callbacks: CallbackList) -> bool:
        """Starts training again from initial weights without recompiling. If that is impossible, changes nothing and
        returns False.

        Args:
            config: Config that differs in traced settings and seed only.
            callbacks: New callbacks of the config.
        """

    def stop(self) -> None:
        """Releases devices, actors and environments; a second call does nothing."""
        try:
            self.step.stop()
        finally:
            self._on_stop.close()
