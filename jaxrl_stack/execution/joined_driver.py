"""Learner actors that step JAX environments: each runs the on-device driver on its devices, joined to one program."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.callbacks.utils import CallbackList
from jaxrl_stack.checkpoints.checkpointable import Checkpointable
from jaxrl_stack.checkpoints.files import Component
from jaxrl_stack.core import COMPONENT_LEARNER_GROUP, COMPONENT_REPLAY_BUFFER
from jaxrl_stack.core.learner.joined_learners import JoinedLearners
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.learner.learner_actor import LearnerActor
from jaxrl_stack.core.learner.learner_group import LearnerGroup
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModuleSpec
from jaxrl_stack.env.env_runner_group import EnvRunnerGroup
from jaxrl_stack.env.registry import ResolvedEnv, resolve_env
from jaxrl_stack.execution.device_driver import DeviceDriver
from jaxrl_stack.execution.driver import Driver
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger
from jaxrl_stack.utils.resources import (
    check_resources,
    create_placement_group,
    remove_placement_group,
    start_ray_if_needed,
)

if TYPE_CHECKING:
    from jaxrl_stack.acting.recording import EndedEpisodes
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.core.rl_module.rl_module import RLModule
    from jaxrl_stack.execution.training_step import TrainingStep


def config_of_all(config: AlgorithmConfig) -> AlgorithmConfig:
    """The config of the one learner that N learner actors are together: sizes per learner become those of all."""
    config, num_learners = config.copy(copy_frozen=False), int(config.num_learners)
    settings = {"train_batch_size_per_learner": config.total_train_batch_size}
    if config.minibatch_size is not None:
        settings["minibatch_size"] = config.minibatch_size * num_learners
    # An actor sees no accelerators but its own.
    config.update_from_dict({**settings, "num_learners": 0, "local_gpu_idx": 0})
    config.freeze()
    return config


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far the actors are, and what belongs to the last training step alone.

    Attributes:
        counts: Values of the attributes of `Driver` that count.
        device_seconds: Time that it spent waiting for compiled programs.
        episode_metrics: What callbacks have logged in one actor.
    """

    counts: dict[str, int]
    device_seconds: float = 0.0
    episode_metrics: dict[str, Any] | None = None

    @classmethod
    def of(cls, driver: Driver, **more: Any) -> Progress:
        """Where a driver stands."""
        names = ("num_env_steps", "num_env_steps_trained", "num_updates", "num_episodes")
        return cls({name: getattr(driver, name) for name in names}, **more)


class DriverActor(LearnerActor):
    """Holds an on-device driver, whose learner is the one of this actor.

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

    def drive(self, func: Callable[..., Any], *args: Any, returns: bool = True) -> Any:
        """``func(driver, *args)``; None instead of its result if that is not to be sent."""
        result = func(self._driver, *args)
        return result if returns else None


class JoinedDrivers(JoinedLearners):
    """The actors of a `JoinedDriver`.

    What they have sampled and learned is in no other process, so that lost ones do not start again by themselves.

    Args:
        config: The algorithm's config.
        make: ``config -> Driver``, called in every actor.
        placement_group: Its last bundles are the actors'.
    """

    actor_class = DriverActor

    def __init__(self, config: AlgorithmConfig, make: Callable[[AlgorithmConfig], Driver], placement_group: Any):
        self._make = make
        super().__init__(config, None, placement_group)

    def _actor_arguments(self) -> dict[str, Any]:
        return {**super()._actor_arguments(), "make": self._make}

    def _restart(self, lost: Exception) -> NoReturn:
        self._kill()
        raise RuntimeError(
            f"A learner actor was lost, and the others cannot go on without its environments: all of them were ended. "
            f"What was learned since the last checkpoint is lost. Go on from that one with "
            f"Algorithm.from_checkpoint(path). The reason was: {lost.__cause__}"
        ) from lost.__cause__

    def _remember(self, state: dict[str, Any], num_sent: int) -> None:
        super()._remember(state, num_sent)
        # There is no restart from it.
        self._snapshot = {}

    def drive_all(self, func: Callable[..., Any], *args: Any, first_returns: bool = False) -> list[Any]:
        """``func(driver, *args)`` in all actors at once: what they do together.

        Args:
            func: Pickled.
            *args: Likewise; Ray puts the objects in the place of references.
            first_returns: Whether only the first one's result is wanted; those of the others are None then.
        """

        def send() -> list[Any]:
            wanted = [i == 0 or not first_returns for i in range(self.num_learners)]
            return self._gather(
                [actor.drive.remote(func, *args, returns=own) for actor, own in zip(self._actors, wanted, strict=True)]
            )

        return self._with_restart(send)

    def drive_first(self, func: Callable[..., Any], *args: Any) -> Any:
        """``func(driver, *args)`` in the first actor alone: what every one of them can do by itself."""
        return self._with_restart(lambda: self._gather([self._actors[0].drive.remote(func, *args)]))[0]


class JoinedDriver(Driver):
    """Trains on a JAX environment in learner actors, which are joined to one program as if it had all their devices.

    This process has no part in it: it asks the actors, and hands out what the first one says of all.

    Args:
        resolved: The environment, which every actor makes for itself.
        algorithm, config, step, callbacks: See `Driver`. Each actor has a training step of its own, of this class.
    """

    kind = "device"
    is_on_device = True
    learner = None
    env_runner = None
    eval_env_runner = None

    def __init__(self, resolved: ResolvedEnv | None, *args: Any):
        super().__init__(*args)
        config = self.config
        self._placement_group: Any = None
        self._num_episodes = self._num_updates = self._num_env_steps_trained = 0
        self._lease = start_ray_if_needed(config)
        try:
            check_resources(config)
            self._placement_group = create_placement_group(config)
            make = functools.partial(
                _make_driver,
                step_class=type(self.step),
                has_env=resolved is not None,
                one_per_call=self.step.one_per_call,
            )
            self._actors = JoinedDrivers(config, make, self._placement_group)
            self.learner_group = LearnerGroup(config=config, actors=self._actors)
            self.env_runner_group = EnvRunnerGroup(False, config=config, num_env_runners=0)
            self.eval_env_runner_group = EnvRunnerGroup(
                False, config=config.get_evaluation_config_object(), num_env_runners=0, is_evaluation=True
            )
            for name, value in self._actors.drive_first(_facts).items():
                setattr(self, name, value)
            self.step.kept_memory = self._kept_memory
            self._take(self._actors.drive_first(Progress.of))
        except BaseException:
            self.stop()
            raise

    _has_replay = False
    _kept_memory = None
    _description = ""

    @property
    def replay_buffer(self) -> Checkpointable | None:
        return _ReplayOfActors(self._actors) if self._has_replay else None

    @property
    def description(self) -> str:
        return f"{self._description} of {len(self.learner_group)} learner actor(s)"

    # -------------------------------------------------------------------------------------------------- training

    def training_step(self, iteration: int) -> None:
        progress = self._actors.drive_all(_train, iteration)
        self.device_seconds += progress[0].device_seconds
        logged = [own.episode_metrics for own in progress if own.episode_metrics]
        if logged:
            self.episode_metrics.aggregate(logged)
        self._take(progress[0])

    def _take(self, progress: Progress) -> None:
        counts = progress.counts
        self.num_env_steps, self._num_env_steps_trained = counts["num_env_steps"], counts["num_env_steps_trained"]
        self._num_episodes, self._num_updates = counts["num_episodes"], counts["num_updates"]
        self._actors.num_updates = self._num_updates

    def count_env_steps(self, num_env_steps: int) -> None:
        super().count_env_steps(num_env_steps)
        self._actors.drive_all(operator.methodcaller("count_env_steps", num_env_steps))

    @property
    def num_env_steps_trained(self) -> int:
        return self._num_env_steps_trained

    @property
    def num_episodes(self) -> int:
        return self._num_episodes

    def episode_statistics(self, seconds_per_step: float = 0.0) -> EndedEpisodes:
        return self._actors.drive_first(operator.methodcaller("episode_statistics", seconds_per_step))

    def learner_results(self, num_updates: int) -> dict[str, Any]:
        return self._actors.drive_first(operator.methodcaller("learner_results", num_updates))

    def results(self) -> dict[str, Any]:
        return self._of_all(operator.methodcaller("results"))

    def _of_all(self, func: Callable[..., Any], *args: Any) -> Any:
        """What the first actor says of what all do together."""
        return self._actors.drive_all(func, *args, first_returns=True)[0]

    def evaluate(self, iteration: int, call: int = 0, is_training: Any = None) -> dict[str, Any]:
        del is_training  # evaluation programs run between training programs
        return self._actors.drive_first(operator.methodcaller("evaluate", iteration, call))

    # ---------------------------------------------------------------------------------------------------- access

    def modules(self) -> dict[str, RLModule]:
        multi = self._actors.first(_module_spec).build(seed=0)
        states = self.learner_group.get_weights()
        for module_id, module in multi.items():
            module.set_state(states[module_id])
        return dict(multi.items())

    def act(self, observation: Any, *, explore: bool, key: jax.Array) -> dict[str, Any]:
        return self._actors.drive_first(_act, observation, explore, np.asarray(jax.random.key_data(key)))

    def acting_parts(self) -> tuple[Any, Any, Any]:
        return self._actors.first(_module_spec).build(seed=0), *self._actors.drive_first(_pipelines)

    def env_to_module_state(self) -> dict[str, Any]:
        return self._actors.drive_first(operator.methodcaller("env_to_module_state"))

    @property
    def module_ids(self) -> tuple[str, ...]:
        return tuple(self._actors.info["module_ids"])

    # ----------------------------------------------------------------------------------------------------- state

    def components(self) -> list[tuple[str, Any]]:
        own = {COMPONENT_LEARNER_GROUP: self.learner_group}
        return [(name, own.get(name, part)) for name, part in self._actors.drive_first(_components)]

    def get_state(self) -> dict[str, Any]:
        state = self._of_all(operator.methodcaller("get_state"))
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
        import ray  # pyright: ignore[reportMissingImports]

        # Once for all actors.
        self._take(self._of_all(_changed, method, ray.put(state)))

    def reset(self, config: AlgorithmConfig) -> bool:
        if not all(self._actors.drive_all(operator.methodcaller("reset", config_of_all(config)))):
            return False
        self.config = self._actors.config = self.learner_group.config = config
        self.episode_metrics.reset()
        self._take(self._actors.drive_first(Progress.of))
        return True

    def stop(self) -> None:
        # Also after a constructor that failed half-way.
        if "_actors" in vars(self):
            self._actors.shutdown()
        if self._placement_group is not None:
            remove_placement_group(self._placement_group)
            self._placement_group = None
        self._lease.release()


class _ReplayOfActors(Checkpointable):
    """The replay memories of all actors as a part of checkpoints."""

    def __init__(self, actors: JoinedDrivers):
        self._actors = actors

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """What the memories hold, by name, leaves ``[D, ...]``."""
        return self._actors.drive_all(_replay_state, first_returns=True)[0]

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` returned; nothing if it is empty.

        Raises:
            ValueError: If it is of another capacity, of other environments, or of another number of devices.
        """
        self._actors.drive_all(_set_replay_state, state)

    def _state_to_go_back_to(self) -> dict[str, Any]:
        # As large as what is restored.
        return {}


# ------------------------------------------------------------------------------------------- what runs in the actors


def _make_driver(
    config: AlgorithmConfig, *, step_class: type[TrainingStep], has_env: bool, one_per_call: bool
) -> DeviceDriver:
    resolved = resolve_env(config.env, config.env_config) if has_env else None
    step = step_class(config, one_per_call=one_per_call)
    # There is no algorithm in an actor.
    return DeviceDriver(resolved, None, config, step, CallbackList.from_config(config))


def _facts(driver: Driver) -> dict[str, Any]:
    """Attributes that a driver has from the beginning on."""
    names = ("spaces", "rollout_memory", "train_batch_memory", "available_memory", "num_training_steps_per_call")
    kept = {"_kept_memory": driver.step.kept_memory, "_has_replay": driver.replay_buffer is not None}
    return {name: getattr(driver, name) for name in names} | kept | {"_description": driver.description}


def _train(driver: Driver, iteration: int) -> Progress:
    driver.start_iteration()
    driver.training_step(iteration)
    return Progress.of(
        driver, device_seconds=driver.device_seconds, episode_metrics=driver.episode_metrics.reduce() or None
    )


def _changed(driver: Driver, method: str, state: dict[str, Any]) -> Progress:
    getattr(driver, method)(state)
    return Progress.of(driver)


def _act(driver: Driver, observation: Any, explore: bool, key: np.ndarray) -> dict[str, Any]:
    return driver.act(observation, explore=explore, key=jax.random.wrap_key_data(jnp.asarray(key)))


def _pipelines(driver: Driver) -> tuple[Any, Any]:
    return driver.acting_parts()[1:]


def _components(driver: Driver) -> list[tuple[str, Component]]:
    return [
        (name, part if isinstance(part, Component) else part.describe_component()) for name, part in driver.components()
    ]


def _replay_state(driver: Any) -> dict[str, Any]:
    return driver.replay_buffer.get_state()


def _set_replay_state(driver: Any, state: dict[str, Any]) -> None:
    driver.replay_buffer.set_state(state)


def _module_spec(learner: Learner) -> MultiRLModuleSpec:
    return MultiRLModuleSpec.from_module(learner.module)
