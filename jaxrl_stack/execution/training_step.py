"""Base class of training steps (sampling or reading data, then updates), and `Place`: the operations that a training
step calls.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from flax import struct

from jaxrl_stack.utils.interrupts import deferred_interrupt

if TYPE_CHECKING:
    import jax
    import numpy as np

    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.checkpoints.checkpointable import Checkpointable
    from jaxrl_stack.core.experience import Experience
    from jaxrl_stack.execution.driver import Driver
    from jaxrl_stack.execution.facts import Facts
    from jaxrl_stack.execution.local_driver import LocalDriver
    from jaxrl_stack.execution.plans import Plan, SampledUpdate, SamplePlan
    from jaxrl_stack.utils.memory import MemoryEstimate


@struct.dataclass
class TrainState:
    """All values that change during training.

    A training step reads and replaces only `kept` (replay buffer or data set); the other fields belong to the
    operations of `Place`, such as sampling and updates.

    Attributes:
        learner: State of the learner, replicated over the devices. None on the host, whose learners keep it.
        runner: State of the runner, sharded with leaves ``[D, ...]`` outside of the mapped program. None on the host.
        kept: Data that the training step keeps between calls, such as replay or a data set, or None.
        timesteps: uint32[2] (hi, lo), lifetime sampled env steps, replicated. None on the host.
    """

    learner: Any = None
    runner: Any = None
    kept: Any = None
    timesteps: Any = None


class Kept:
    """Holder of the data that a training step stores between calls, such as a replay buffer.

    If a new value is stored, the memory of the old value is freed.

    Attributes:
        value: A pytree; None before the start, and without kept data.
    """

    def __init__(self) -> None:
        self.value: Any = None

    def start(self, make: Callable[[], Any]) -> None:
        """Frees the stored data, then stores the result of `make()`, because old and new data may not fit into memory
        together.
        """
        self.value = None
        self.value = make()

    def replace(self, make: Callable[[], Any], otherwise: Callable[[], Any]) -> None:
        """Replaces the stored data by the result of `make()`, which may reuse the old arrays. If `make` raises, stores
        `otherwise()` and raises again.
        """
        with deferred_interrupt():
            try:
                self.value = make()
            except BaseException:
                self.start(otherwise)
                raise


class KeptPart(Kept):
    """Access to a part of a training step's stored data (`Kept`), such as one of several replay buffers.

    An assignment to `value` replaces this part in the stored data.

    Args:
        whole: Owner of all kept data.
        get: ``value of the whole -> value of the part``.
        put: ``(value of the whole, value of the part) -> value of the whole``.
    """

    def __init__(self, whole: Kept, get: Callable[[Any], Any], put: Callable[[Any, Any], Any]):
        self._whole, self._get, self._put = whole, get, put

    @property
    def value(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return None if self._whole.value is None else self._get(self._whole.value)

    @value.setter
    def value(self, value: Any) -> None:
        self._whole.value = self._put(self._whole.value, value)


class Draws(NamedTuple):
    """Stream of random numbers for a training step on the device.

    A call of the compiled program draws the numbers (or their PRNG keys) of all its training steps at once, which is
    faster than one by one.

    Attributes:
        number: Number of calls of `Place.draw` in one training step.
        make: ``PRNG key -> random numbers`` of one call.
        size: Number of these random numbers.
    """

    number: int
    make: Callable[[jax.Array], Any]
    size: int


class Sampled(NamedTuple):
    """Result of `Place.sample`: the new state and the sampled steps.

    Attributes:
        state: State after sampling.
        experience: Sampled steps.
    """

    state: TrainState
    experience: Experience


class Place(Protocol):
    """Operations that a training step calls, such as sampling and updates. On the device, all of them are traced into
    one program.
    """

    def sample(self, state: TrainState, plan: SamplePlan) -> Sampled:
        """Steps the environments with the current weights, for all sampling rounds of T steps that the plan contains.

        Args:
            state: State before sampling.
            plan: Plan from `Facts.plan_samples`.

        Returns:
            Columns ``[T, num_shares * B, ...]``; on the host in parts, one per share.
        """
        ...

    def request(self, state: TrainState, plan: SamplePlan) -> TrainState:
        """Sends rollout requests to the EnvRunner actors, and returns immediately.

        Every actor below its limit of unfinished requests gets one request. A rollout has T steps of each of the
        actor's environments, or consists of whole episodes.
        """
        return state

    def collect(self, state: TrainState, plan: SamplePlan, *, timeout_seconds: float) -> Sampled:
        """Waits at most `timeout_seconds` for a runner to finish; returns the samples of finished runners, maybe none.

        On the device, and for environments in this process, it samples one share now.
        """
        ...

    def num_updates(self, state: TrainState) -> Any:
        """Number of updates so far, which is also the version of the weights: an int on the host, a scalar array in a
        program on the device.
        """
        ...

    def num_env_steps(self, state: TrainState) -> Any:
        """Number of env steps sampled so far: an int on the host; in a program on the device, a uint32 array with the
        number's lower 32 bits.
        """
        ...

    def count_env_steps(self, state: TrainState, number: int) -> TrainState:
        """Adds `number` to the count of env steps, and returns the new state. Training steps that read recorded data
        instead of stepping environments call this method.
        """
        ...

    def update(self, state: TrainState, experience: Experience, plan: SampledUpdate[Any]) -> tuple[TrainState, Any]:
        """Makes one update on the sampled steps `experience`, and returns ``(state, metrics)``. `plan` has the sizes of
        the update; `TrainingStep.plan` requests it with `Facts.plan_update`.
        """
        ...

    def update_rows(self, state: TrainState, rows: Experience) -> tuple[TrainState, Any, Mapping[Any, Any]]:
        """Makes one gradient step on a batch of N rows, ``[N, ...]``.

        Returns:
            ``(state, metrics, {(module_id, name): [N, ...]})``: the new state, the metrics, and the values that the
            loss logged for each row.
        """
        ...

    def publish(self, state: TrainState) -> TrainState:
        """Sends new weights and merged connector states to the runners."""
        return state

    def repeat(self, function: Callable[..., Any], state: TrainState, times: Any) -> tuple[TrainState, Any]:
        """Calls `function` `times` times, each time with the state that the previous call returned.

        `function` maps a state to ``(new state, metrics)``. Returns the last state and the last metrics.

        Args:
            function: The function to call.
            state: State before the first call.
            times: Number of calls, an int; on the device also an int32 array. For 0 calls, metrics are None on the host
                and zeros on the device.
        """
        result = None
        for _ in range(int(times)):
            state, result = function(state)
        return state, result

    def draw(self, state: TrainState, stream: str) -> tuple[TrainState, Any]:
        """Returns ``(state, numbers)`` with the next random numbers of the stream `stream`.

        `stream` is a key of `TrainingStep.draws`. On the host, `numbers` is None, because replay buffers there have
        their own generators.
        """
        return state, None

    def has_sampled(self, num_steps: int) -> bool:
        """Whether the number of steps sampled since the start of training has reached `num_steps`.

        Steps are counted in the unit of ``count_steps_by``. In a compiled program on the device, `num_steps` must be
        the training step's `learning_starts`.
        """
        ...

    def timed(self, timer: str, function: Callable[..., Any], *args: Any) -> Any:
        """Calls ``function(*args)`` and returns the result; on the host, also measures the duration.

        If the training step runs on the host, adds the duration of the call to the timer `timer`; in a compiled program
        on the device, ignores `timer`.
        """
        ...


class AsynchronousPlace(Place, Protocol):
    """Extends `Place` (operations that a training step calls) for training steps whose updates run in the background.

    The additional operations wait for Ray references, store results of updates, and send weights to the runners.

    Attributes:
        timesteps: Lifetime counters, as arguments of updates.
    """

    @property
    def timesteps(self) -> dict[str, int]: ...

    def collect(
        self, state: TrainState, plan: SamplePlan, *, timeout_seconds: float, also: Sequence[Any] = ()
    ) -> Sampled:
        """Waits at most `timeout_seconds`, until a runner has finished or a Ray reference in `also` is ready. Returns
        the samples of finished runners, maybe none, like `Place.collect`.
        """
        ...

    def note_update(self, metrics: list[dict[str, Any]]) -> None:
        """Stores the results of an update for the iteration's result. `metrics` has one dict for each learner."""
        ...

    def note_lag(self, num_updates: float) -> None:
        """Stores the policy lag of the last update: the number of updates between the weights that sampled its batch
        and the weights from which the update started.
        """
        ...

    def publish_weights(self, weights: Mapping[str, Any]) -> None:
        """Sends `weights` to the runners. `weights` has the entries of a result of
        `core.learner.learner_actor.weights_for_runners`: the modules' weights, and the learner's number of updates.
        """
        ...


class TrainingStep(abc.ABC):
    """Training step of an algorithm: computes sizes, samples and makes updates, and stores data such as a replay buffer
    (`kept`).

    Each object belongs to one driver. Only `plan` and `reset` change it; its call is pure if it is traced.

    Drivers and programs read the `Plan` that `plan` returns. If `plan` returns None, it has set attributes of the same
    names, which are the plan.

    Args:
        config: The algorithm's frozen config.
        one_per_call: Whether every call of the driver makes one training step, because an algorithm overrides
            `training_step`.

    Attributes:
        needs_env: Whether it samples from environments, whose kind then determines the driver.
        draws_rows: Whether it has `OfflineStep.draw_rows`, for losses of recorded rows without an update.
        reads_on_host: For a step without samples: whether `HostDriver` runs it on rows from the host's memory, for
            example if the data is larger than the device. Otherwise it is a part of `DeviceDriver`'s compiled program,
            with its kept data on the devices. ``__init__`` may set it by the config.
        uses_replay: Whether it learns from kept steps any number of times, instead of once from each sampled step. Then
            connectors that measure sampled steps are refused.
        trains_several_agents: Whether it supports modules of several agents.
        may_skip_updates: Whether a call that learns may make no update; results then have the last update.
        trains_populations: For a step without samples: whether members of a population can share its kept data.
        learning_starts: Lifetime env steps before the first update, which `reset` may change; None for a step that
            always learns.
        kept: The present kept data.
        num_env_steps, rows_per_update, num_updates, draws, batch_memory, kept_memory: See `Plan`.
    """

    needs_env: ClassVar[bool] = True
    draws_rows: ClassVar[bool] = False
    reads_on_host: bool = False
    uses_replay: ClassVar[bool] = False
    trains_several_agents: ClassVar[bool] = True
    may_skip_updates: ClassVar[bool] = False
    trains_populations: ClassVar[bool] = False
    learning_starts: int | None = None
    num_env_steps: int = 0
    rows_per_update: int
    num_updates: int = 1
    draws: Mapping[str, Draws] = {}
    batch_memory: MemoryEstimate | None = None
    kept_memory: MemoryEstimate | None = None

    def __init__(self, config: AlgorithmConfig, *, one_per_call: bool = False):
        self.config: Any = config
        self.one_per_call = one_per_call
        self.kept = Kept()

    @classmethod
    def for_config(cls, config: AlgorithmConfig) -> type[TrainingStep]:
        """Returns the training step class for a config: this class. Subclasses override this method if the config's
        settings decide between several classes.
        """
        return cls

    # ----------------------------------------------------------------------------------------------------------- sizes

    @abc.abstractmethod
    def plan(self, facts: Facts) -> Plan | None:
        """Computes the numbers of steps and rows that sampling and updates take.

        The driver calls this method after spaces, learners and pipelines are known, and before it allocates large
        arrays.

        Args:
            facts: Facts of its driver. `Facts.plan_samples` and `Facts.plan_update` plan samples and updates from them,
                from which memory is estimated.

        Returns:
            The plan; None if it is in attributes of this step and in plans requested from `facts`.

        Raises:
            ValueError: If sizes do not fit; names the settings.
        """

    # ------------------------------------------------------------------------------------------------------------ call

    @abc.abstractmethod
    def __call__(self, state: TrainState, place: Place) -> tuple[TrainState, Any]:
        """Makes one training step and returns ``(state, metrics of the last update)``; metrics are None without an
        update.
        """

    def pause(self) -> None:  # noqa: B027 - most do nothing beside their call
        """Pauses the step's background updates, if it makes any.

        Called at the end of an iteration, so that the learners do not change until the next training step.
        """

    def stop(self) -> None:  # noqa: B027 - likewise
        """Releases the threads and actors of the training step."""

    # --------------------------------------------------------------------------------------------------- evaluation

    def held_out_rows(self) -> Experience | None:
        """Returns recorded rows that training does not use, so that evaluations can compute the loss on these rows.

        Callers first call the method `plan`, which fixes the sizes of the training step.

        Every evaluation calls it. Rows of the same shapes share one compiled program.

        Returns:
            `Experience.of_rows` of NumPy arrays, for each module a multiple of the learners' devices, equal in all
            processes. None for no evaluation on data.
        """
        return None

    def env_to_module_state(self) -> dict[str, Any]:
        """Returns the env-to-module connector states, such as normalization statistics, that the step has computed
        from recorded training data.

        The result is ``{connector name: state}``. Returns {} if the step samples environments, because the EnvRunners
        then have these states. Callers first call the method `plan`, which fixes the sizes of the training step.
        """
        return {}

    # ------------------------------------------------------------------------------------------------ what it keeps

    def init_kept(self) -> Any:
        """Creates the data that the training step stores between calls, such as a replay buffer.

        The driver calls this method after the method `plan` has fixed the step's sizes and after the check of free
        memory.
        """
        return None

    def kept_of_seed(self, seed: int) -> dict[str, Any]:
        """Returns the fields of the stored data (replay buffer or data set) that depend on the seed.

        Such a field contains, for example, the keys of the shuffle order. Members of a population differ in these
        fields.
        """
        return {}

    def change_settings(self, config: AlgorithmConfig) -> None:
        """Sets the training step's config to one that differs from the present one only in traced settings
        (hyperparameters that are arguments of compiled programs).
        """
        self.config = config

    def reset(self, config: AlgorithmConfig) -> None:
        """Restarts the training step with a config that differs from the present one only in the seed and traced
        settings (hyperparameters that are arguments of compiled programs).
        """
        self.change_settings(config)

    def drop_kept(self, driver: Driver) -> str:
        """Replaces the step's stored data (replay buffer, position in a data set) by new initial data.

        This is done, for example, after a failed call of the program has destroyed the stored data. Returns a
        description of the lost data, to be appended to the error message; "" if no data was lost.
        """
        return ""

    def not_finite_in_kept(self) -> dict[str, dict[str, np.ndarray]]:
        """Finds steps with NaN or infinity in the replay buffer on the device, for error messages.

        Returns a mask for each column, True for these steps. Returns {} if the training step has no replay buffer on
        the device.

        Returns:
            ``{module_id: {column: bool [environments, steps]}}``, the newest step last.
        """
        return {}

    @property
    def replay_buffer(self) -> Checkpointable | None:
        """Replay buffer of this training step, for ``Algorithm`` users and for checkpoints; None without one."""
        return None

    def set_kept_state(self, driver: Driver, state: dict[str, Any]) -> None:  # noqa: B027 - most keep nothing
        """Restores the replay buffer. The driver calls this method after all other components are restored; for
        `state`, see `Driver.set_replay_state`.

        Raises:
            ValueError: If it does not fit. Nothing has changed then.
        """

    # --------------------------------------------------------------------------------------------------------- results

    def num_env_steps_trained(self, driver: LocalDriver) -> int:
        """Number of env steps that updates have used since the start.

        By default, each sampled step counts once; steps that were lost before an update (their node died) do not count.
        """
        return driver.num_env_steps - driver.num_env_steps_lost

    def results(self, driver: Driver) -> dict[str, Any]:
        """Returns the training step's entries for the result of `Algorithm.train`, nested as in that result; {} if it
        has none.
        """
        return {}

    def get_state(self) -> dict[str, Any]:
        """Returns the training step's state for checkpoints, without stored data (`kept`) such as replay buffers."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:  # noqa: B027 - most have none
        """Restores the training step's state from a result of `get_state`."""
