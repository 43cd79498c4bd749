"""Driver whose learner actors also step JAX environments: each actor has an on-device driver, and all run one joint
program.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.callbacks.utils import CallbackList
from jaxrl_stack.checkpoints.checkpointable import Checkpointable
from jaxrl_stack.checkpoints.files import Component
from jaxrl_stack.core import COMPONENT_EVAL_ENV_RUNNER, COMPONENT_LEARNER_GROUP, COMPONENT_REPLAY_BUFFER
from jaxrl_stack.core.learner.joined_learners import JoinedLearners
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.learner.learner_actor import LearnerActor
from jaxrl_stack.core.learner.learner_group import LearnerGroup
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModuleSpec
from jaxrl_stack.env.env_runner_group import EnvRunnerGroup
from jaxrl_stack.env.registry import ResolvedEnv
from jaxrl_stack.execution.device_driver import DeviceDriver
from jaxrl_stack.execution.driver import Driver
from jaxrl_stack.execution.evaluation import Evaluation, evaluation_config
from jaxrl_stack.execution.make_evaluation import make_evaluation
from jaxrl_stack.utils.compile_clock import CompileClock
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger
from jaxrl_stack.videos.episodes import PackedFrames, RecordedEpisode

if TYPE_CHECKING:
    from jaxrl_stack.acting.recording import EndedEpisodes
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.core.rl_module.rl_module import RLModule
    from jaxrl_stack.execution.training_step import TrainingStep
    from jaxrl_stack.utils.memory import MemoryEstimate


def config_of_all(config: AlgorithmConfig) -> AlgorithmConfig:
    """Returns the config of a single learner with the total sizes of N learner actors: sizes per learner are multiplied
    by N.
    """
    config, num_learners = config.copy(copy_frozen=False), int(config.num_learners)
    settings = {"train_batch_size_per_learner": config.total_train_batch_size}
    if config.minibatch_size is not None:
        settings["minibatch_size"] = config.minibatch_size * num_learners
    # An actor sees no accelerators but its own.
    config.update_from_dict({**settings, "num_learners": 0, "local_gpu_idx": 0})
    config.freeze()
    return config


class DriverActor(LearnerActor):
    """Learner actor that also samples: it owns an on-device driver, and trains that driver's learner.

    Args:
        make: ``config -> Driver``.
        **kwargs: See `LearnerActor`.
    """

    def __init__(self, *, make: Callable[[AlgorithmConfig], Driver], **kwargs: Any):
        super().__init__(**kwargs)
        self._make = make

    def _make_learner(self) -> Learner:
        self._driver = self._make(config_of_all(self._config))
        return cast(Learner, self._driver.learner)

    def drive(self, func: Callable[..., Any] | str, *args: Any, returns: bool = True) -> Any:
        """Calls ``func(driver, *args)`` with this actor's driver, and returns the result.

        If `func` is a str, calls the driver's method of this name with ``*args``. If `returns` is False, returns None
        instead of the result.
        """
        result = getattr(self._driver, func)(*args) if isinstance(func, str) else func(self._driver, *args)
        return result if returns else None


class JoinedDrivers(JoinedLearners):
    """Group of the learner actors of a `JoinedDriver`.

    No other process has their samples and weights, so lost actors are not restarted.

    Args:
        config, placement_group: See `JoinedLearners`.
        **actor_arguments: Arguments of `DriverActor`.
    """

    actor_class = DriverActor

    def _restart(self, lost: Exception) -> NoReturn:
        self._kill()
        raise RuntimeError(
            "A learner actor was lost, and all other learner actors were stopped, because they cannot continue without "
            "the lost actor's environments. Continue from the last checkpoint: Algorithm.from_checkpoint(path). "
            f"Reason: {lost.__cause__}"
        ) from lost.__cause__

    def _remember(self, state: dict[str, Any], num_sent: int) -> None:
        super()._remember(state, num_sent)
        # There is no restart from it.
        self._snapshot = {}

    def drive_all(self, func: Callable[..., Any] | str, *args: Any, first_returns: bool = False) -> list[Any]:
        """Calls ``func(driver, *args)`` in all learner actors at the same time, for joint computations.

        Args:
            func: Function, which is pickled, or the name of a method.
            *args: Arguments, which are pickled; Ray replaces references by their objects.
            first_returns: Whether only the first actor returns its result, and the others None.
        """

        def send() -> list[Any]:
            wanted = [i == 0 or not first_returns for i in range(self.num_learners)]
            return self._gather(
                [actor.drive.remote(func, *args, returns=own) for actor, own in zip(self._actors, wanted, strict=True)]
            )

        return self._with_restart(send)

    def drive_first(self, func: Callable[..., Any] | str, *args: Any) -> Any:
        """Calls ``func(driver, *args)`` in the first learner actor only, for computations that need one actor."""
        return self._with_restart(lambda: self._gather([self._actors[0].drive.remote(func, *args)]))[0]


class JoinedDriver(Driver):
    """Trains on a JAX environment in learner actors, which run one compiled program together over the devices of all
    actors.

    This process does not compute: it calls the actors, and returns the first one's results for all.

    Args:
        resolved: The environment, which every actor creates.
        algorithm, config, step, callbacks: See `Driver`. Each actor has its own training step of this class.
    """

    kind = "device"
    is_on_device = True
    can_change_modules = False
    learner = None
    env_runner = None
    _counts_are_old = False

    def __init__(self, resolved: ResolvedEnv | None, *args: Any):
        super().__init__(*args)
        config = self.config
        try:
            self.reserve_actors()
            make = functools.partial(_make_driver, type(self.step), self.step.one_per_call, resolved is not None)
            self._actors = JoinedDrivers(config, self.placement.learners, module_spec=None, make=make)
            self._on_stop.callback(self._actors.shutdown)
            self.learner_group = LearnerGroup(config=config, actors=self._actors)
            self.env_runner_group = EnvRunnerGroup(False, config=config, num_env_runners=0)
            fixed: _Fixed = self._actors.drive_first(_fixed)
            self.spaces = fixed.spaces
            self.rollout_memory = fixed.rollout_memory
            self.train_batch_memory = fixed.train_batch_memory
            self.available_memory = fixed.available_memory
            self.num_training_steps_per_call = fixed.num_training_steps_per_call
            self.description = f"{fixed.description} of {config.num_learners} learner actor(s)"
            self.kept_memory = fixed.kept_memory
            self.replay_buffer = _ReplayOfActors(self._actors) if fixed.has_replay else None
            self._acts_in_evaluation = resolved is None
            self._evaluates_on_data = fixed.evaluates_on_data
            self.evaluation = make_evaluation(self, on_device=functools.partial(_EvaluationInActors, self._actors))
            self._on_stop.callback(self.evaluation.stop)
            self._take_counts()
        except BaseException:
            self.stop()
            raise

    # -------------------------------------------------------------------------------------------------- training

    def start_iteration(self) -> None:
        super().start_iteration()
        if self._counts_are_old:
            self._take_counts()

    def training_step(self, iteration: int) -> None:
        # Whatever comes in between, an actor may be ahead of what is known here.
        self._counts_are_old = True
        answers = self._actors.drive_all(_train, iteration)
        self.device_seconds += answers[0].device_seconds
        self.compile_seconds += answers[0].compile_seconds
        logged = [answer.logged for answer in answers if answer.logged]
        if logged:
            self.episode_metrics.aggregate(logged)
        self._take_counts(answers[0].counts)

    def _take_counts(self, counts: _Counts | None = None) -> None:
        counts = self._actors.drive_first(_counts) if counts is None else counts
        assert counts is not None
        self._actors.num_updates = counts.num_updates
        self.num_env_steps = counts.num_env_steps
        self.num_env_steps_trained = counts.num_env_steps_trained
        self.num_episodes = counts.num_episodes
        self._counts_are_old = False

    def count_env_steps(self, num_env_steps: int) -> None:
        super().count_env_steps(num_env_steps)
        self._actors.drive_all("count_env_steps", num_env_steps)

    def episode_statistics(self, seconds_per_step: float = 0.0) -> EndedEpisodes:
        return self._actors.drive_first("episode_statistics", seconds_per_step)

    def learner_results(self, num_updates: int) -> dict[str, Any]:
        return self._actors.drive_first("learner_results", num_updates)

    def results(self) -> dict[str, Any]:
        return self._actors.drive_all("results", first_returns=True)[0]

    @property
    def evaluates_on_data(self) -> bool:
        return self._evaluates_on_data

    def evaluate_on_data(self, iteration: int, call: int = 0) -> dict[str, Any]:
        if not self._evaluates_on_data:
            return {}
        result, compile_seconds = self._actors.drive_all(_evaluate_on_data, iteration, call, first_returns=True)[0]
        self.compile_seconds += compile_seconds
        return result

    # ---------------------------------------------------------------------------------------------------- access

    def modules(self) -> dict[str, RLModule]:
        return self.learner_group.copied_modules()

    def act(self, observation: Any, *, key: jax.Array, **kwargs: Any) -> dict[str, Any]:
        if self._acts_in_evaluation:
            return self.evaluation.act(observation, key=key, **kwargs)
        return act_in_actor(self._actors, observation, key=key, **kwargs)

    def acting_parts(self, module_id: str) -> tuple[Any, Any, Any]:
        return self.evaluation.acting_parts(module_id) if self._acts_in_evaluation else parts_in_actor(self._actors)

    def env_to_module_state(self) -> dict[str, Any]:
        return self._actors.drive_first("env_to_module_state")

    @property
    def module_ids(self) -> tuple[str, ...]:
        return tuple(self._actors.info["module_ids"])

    # ----------------------------------------------------------------------------------------------------- state

    def components(self) -> list[tuple[str, Any]]:
        own = {COMPONENT_LEARNER_GROUP: self.learner_group}
        parts = [(name, own.get(name, part)) for name, part in self._actors.drive_first(_components)]
        evaluation = self.evaluation.described_runner()
        return parts if evaluation is None else [*parts, (COMPONENT_EVAL_ENV_RUNNER, evaluation)]

    def get_state(self) -> dict[str, Any]:
        if self._counts_are_old:
            self._take_counts()
        (state, *_) = self._actors.drive_all("get_state", first_returns=True)
        evaluation = self.evaluation.get_state()
        if evaluation is not None:
            state[COMPONENT_EVAL_ENV_RUNNER] = evaluation
        return {**state, "driver": {**state["driver"], "episode_metrics": self.episode_metrics.get_state()}}

    def set_state(self, state: dict[str, Any]) -> None:
        state = {name: part for name, part in state.items() if name != COMPONENT_REPLAY_BUFFER}
        if "driver" in state:
            logged = state["driver"]["episode_metrics"]
            # What actors log is added to it here.
            nothing = MetricsLogger(root=True, stats_cls_lookup=self.config.stats_cls_lookup).get_state()
            state["driver"] = {**state["driver"], "episode_metrics": nothing}
        self._set("set_state", state)
        if "driver" in state:
            self.episode_metrics.set_state(logged)

    def set_replay_state(self, state: dict[str, Any]) -> None:
        self._set("set_replay_state", state)

    def _set(self, method: str, state: dict[str, Any]) -> None:
        self._actors.drive_all(method, self._actors.backend.put(state))  # once for all actors
        self._take_counts()

    def change_settings(self, config: AlgorithmConfig, names: Collection[str]) -> None:
        self._actors.drive_all("change_settings", config_of_all(config), tuple(names))
        self.config = self._actors.config = self.learner_group.config = config
        self.evaluation.change_settings(evaluation_config(config), names)

    def reset(self, config: AlgorithmConfig, callbacks: CallbackList) -> bool:
        if not all(self._actors.drive_all(_reset, config_of_all(config))):
            return False
        self.config = self._actors.config = self.learner_group.config = config
        self.callbacks = callbacks
        self.episode_metrics.reset()
        self.evaluation.reset(evaluation_config(config))
        self._take_counts()
        return True


class _EvaluationInActors(Evaluation):
    """Evaluates in a JAX environment in the first learner actor; every actor has the weights and environments.

    Args:
        actors: All actors.
        driver, config: See `Evaluation`.
    """

    def __init__(self, actors: JoinedDrivers, driver: Driver, config: AlgorithmConfig):
        super().__init__(driver, config)
        self._actors = actors
        self._group = EnvRunnerGroup(False, config=config, num_env_runners=0, is_evaluation=True)

    @property
    def runner(self) -> None:
        return None

    @property
    def group(self) -> EnvRunnerGroup:
        return self._group

    def evaluate(self, iteration: int, call: int = 0, is_training: Any = None) -> dict[str, Any]:
        result, compile_seconds = self._actors.drive_first(_evaluate, iteration, call)
        self._driver.compile_seconds += compile_seconds
        return result

    def record(self, iteration: int, call: int, num_episodes: int) -> tuple[list[RecordedEpisode], float]:
        return self._actors.drive_first(_record, iteration, call, num_episodes)

    def act(self, observation: Any, *, key: jax.Array, **kwargs: Any) -> dict[str, Any]:
        return act_in_actor(self._actors, observation, key=key, **kwargs)

    def acting_parts(self, module_id: str) -> tuple[Any, Any, Any]:
        return parts_in_actor(self._actors)


class _ReplayOfActors(Checkpointable):
    """Replay buffers of all learner actors, as one component of checkpoints."""

    def __init__(self, actors: JoinedDrivers):
        self._actors = actors

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """Returns the arrays of the replay buffers on all D devices of the actors, ``{array name: [D, ...]}``.

        If several modules have replay buffers, returns ``{module_id: {array name: [D, ...]}}``.
        """
        return self._actors.drive_all(lambda driver: driver.replay_buffer.get_state(), first_returns=True)[0]

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores the replay buffers of all learner actors from a state that `get_state` returned; does nothing for an
        empty state.

        Raises:
            ValueError: If it has another capacity, other environments, or another number of devices.
        """
        self._actors.drive_all(lambda driver, state: driver.replay_buffer.set_state(state), state)

    def _state_to_go_back_to(self) -> dict[str, Any]:
        # As large as what is restored.
        return {}


def act_in_actor(actors: JoinedDrivers, observation: Any, *, key: jax.Array, **kwargs: Any) -> dict[str, Any]:
    """Computes an action for one observation with the driver in the first learner actor; see `Driver.act`."""
    return actors.drive_first(_act, observation, np.asarray(jax.random.key_data(key)), kwargs)


def parts_in_actor(actors: JoinedDrivers) -> tuple[Any, Any, Any]:
    """Returns the modules, and the connector pipelines of the first module, from the driver in the first learner actor;
    see `Driver.acting_parts`.
    """
    pipelines = actors.drive_first(lambda driver: driver.acting_parts(next(iter(driver.module_map.agents_of)))[1:])
    return actors.first(_module_spec).build(seed=0), *pipelines


# ------------------------------------------------------------------------------------------- what runs in the actors


def _make_driver(step_class: type[TrainingStep], one_per_call: bool, has_env: bool, config: Any) -> DeviceDriver:
    resolved = config._resolve_env() if has_env else None
    step = step_class(config, one_per_call=one_per_call)
    # There is no algorithm in an actor.
    return DeviceDriver(resolved, None, config, step, CallbackList.from_config(config))


class _Fixed(NamedTuple):
    """Attributes of the driver in a learner actor that do not change after construction.

    Attributes:
        has_replay: Whether the step's kept data is a replay memory.
        evaluates_on_data: See `Driver`.
    """

    spaces: dict[str, tuple[Any, Any]]
    rollout_memory: MemoryEstimate
    train_batch_memory: MemoryEstimate
    available_memory: int | None
    num_training_steps_per_call: int
    description: str
    kept_memory: MemoryEstimate | None
    has_replay: bool
    evaluates_on_data: bool


class _Counts(NamedTuple):
    """Current counters of the driver in a learner actor. Each field has the name of an attribute of the driver."""

    num_env_steps: int
    num_env_steps_trained: int
    num_updates: int
    num_episodes: int


def _fixed(driver: Driver) -> _Fixed:
    return _Fixed(
        spaces=driver.spaces,
        rollout_memory=driver.rollout_memory,
        train_batch_memory=driver.train_batch_memory,
        available_memory=driver.available_memory,
        num_training_steps_per_call=driver.num_training_steps_per_call,
        description=driver.description,
        kept_memory=driver.kept_memory,
        has_replay=driver.replay_buffer is not None,
        evaluates_on_data=driver.evaluates_on_data,
    )


def _counts(driver: Driver) -> _Counts:
    return _Counts(
        num_env_steps=driver.num_env_steps,
        num_env_steps_trained=driver.num_env_steps_trained,
        num_updates=driver.num_updates,
        num_episodes=driver.num_episodes,
    )


class _Trained(NamedTuple):
    """Counters, times and logged values that a learner actor returns to the `JoinedDriver` after a training step.

    Attributes:
        counts: Counters of the driver.
        device_seconds: Seconds spent waiting for compiled programs.
        compile_seconds: Seconds spent compiling them.
        logged: Values logged by callbacks.
    """

    counts: _Counts
    device_seconds: float
    compile_seconds: float
    logged: dict[str, Any]


def _train(driver: Driver, iteration: int) -> _Trained:
    clock = CompileClock()
    driver.start_iteration()
    driver.training_step(iteration)
    return _Trained(_counts(driver), driver.device_seconds, clock.seconds, driver.episode_metrics.reduce())


def _evaluate(driver: Driver, iteration: int, call: int) -> tuple[dict[str, Any], float]:
    """Runs one evaluation with a learner actor's driver; returns ``(results, seconds spent compiling)``."""
    clock = CompileClock()
    return driver.evaluation.evaluate(iteration, call), clock.seconds


def _evaluate_on_data(driver: Driver, iteration: int, call: int) -> tuple[dict[str, Any], float]:
    """Runs one evaluation on held-out data with a learner actor's driver; returns ``(results, seconds spent
    compiling)``. All learner actors run it at the same time.
    """
    clock = CompileClock()
    return driver.evaluate_on_data(iteration, call), clock.seconds


def _record(driver: DeviceDriver, *args: int) -> tuple[list[RecordedEpisode], float]:
    episodes, fps = driver.record(*args)
    # They are drawn here, where the environment is.
    return [dataclasses.replace(episode, frames=PackedFrames(episode.frames)) for episode in episodes], fps


def _reset(driver: Driver, config: Any) -> bool:
    return driver.reset(config, CallbackList.from_config(config))


def _act(driver: Driver, observation: Any, key: np.ndarray, kwargs: dict[str, Any]) -> dict[str, Any]:
    return driver.act(observation, key=jax.random.wrap_key_data(jnp.asarray(key)), **kwargs)


def _components(driver: Driver) -> list[tuple[str, Component]]:
    return [
        (name, part if isinstance(part, Component) else part.describe_component()) for name, part in driver.components()
    ]


def _module_spec(learner: Learner) -> MultiRLModuleSpec:
    return MultiRLModuleSpec.from_module(learner.module)
