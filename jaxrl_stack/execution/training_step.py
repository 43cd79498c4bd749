"""Training steps, and the operations that a `Place` provides to them."""

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
    """Everything that changes in training. A training step only uses `kept`; the other parts are opaque to it.

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
    """Owner of the data that a training step keeps between calls; replacing the value frees the old one.

    Attributes:
        value: A pytree; None before the start, and without kept data.
    """

    def __init__(self) -> None:
        self.value: Any = None

    def start(self, make: Callable[[], Any]) -> None:
        """Frees the old value, then stores `make()`: both may not fit into memory."""
        self.value = None
        self.value = make()

    def replace(self, make: Callable[[], Any], otherwise: Callable[[], Any]) -> None:
        """Replaces the value by `make()`, which may reuse the old buffers. If it raises, stores `otherwise()`."""
        with deferred_interrupt():
            try:
                self.value = make()
            except BaseException:
                self.start(otherwise)
                raise


class KeptPart(Kept):
    """A part of a training step's kept data, stored in the whole.

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
    """Random numbers of a training step, created together for a call, which is faster than one by one.

    Attributes:
        number: Number of calls of `Place.draw` in one training step.
        make: ``PRNG key -> random numbers`` of one call.
        size: Number of these random numbers.
    """

    number: int
    make: Callable[[jax.Array], Any]
    size: int


class Sampled(NamedTuple):
    """Result of sampling.

    Attributes:
        state: State after sampling.
        experience: Sampled steps.
    """

    state: TrainState
    experience: Experience


class Place(Protocol):
    """Operations for a training step. On the device, all of them are traced into one program."""

    def sample(self, state: TrainState, plan: SamplePlan) -> Sampled:
        """Steps the environments with the current weights, for all shares of the plan.

        Args:
            state: State before sampling.
            plan: Plan from `Facts.plan_samples`.

        Returns:
            Columns ``[T, num_shares * B, ...]``; on the host in parts, one per share.
        """
        ...

    def request(self, state: TrainState, plan: SamplePlan) -> TrainState:
        """Requests one share of every idle runner, and returns immediately."""
        return state

    def collect(self, state: TrainState, plan: SamplePlan, *, timeout_seconds: float) -> Sampled:
        """Returns shares that are finished, after waiting at most `timeout_seconds` for the first one; may be empty.

        On the device, and for environments in this process, it samples one share now.
        """
        ...

    def num_updates(self, state: TrainState) -> Any:
        """Number of updates so far, the version of weights; an array on the device."""
        ...

    def num_env_steps(self, state: TrainState) -> Any:
        """Lifetime sampled env steps; on the device their lower 32 bits, a uint32 array."""
        ...

    def count_env_steps(self, state: TrainState, number: int) -> TrainState:
        """Counts env steps that were drawn instead of sampled, for a step without environments."""
        ...

    def update(self, state: TrainState, experience: Experience, plan: SampledUpdate[Any]) -> tuple[TrainState, Any]:
        """One update from samples: ``(state, metrics)``. `plan` comes from `Facts.plan_update`."""
        ...

    def update_rows(self, state: TrainState, rows: Experience) -> tuple[TrainState, Any, Mapping[Any, Any]]:
        """One gradient step on rows ``[N, ...]``.

        Returns:
            ``(state, metrics, {(module_id, name): [N, ...]})``, with the values that the loss logged per row.
        """
        ...

    def publish(self, state: TrainState) -> TrainState:
        """Sends new weights and merged connector states to the runners."""
        return state

    def repeat(self, function: Callable[..., Any], state: TrainState, times: Any) -> tuple[TrainState, Any]:
        """Calls ``state -> (state, metrics)`` repeatedly; returns the metrics of the last call.

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
        """The next random numbers of a stream of `TrainingStep.draws`; None on the host, where memories have
        generators.
        """
        return state, None

    def has_sampled(self, num_steps: int) -> bool:
        """Whether `num_steps` lifetime steps were sampled, in the unit of ``count_steps_by``; on the device `num_steps`
        is `learning_starts`.
        """
        ...

    def timed(self, timer: str, function: Callable[..., Any], *args: Any) -> Any:
        """Calls ``function(*args)``, and reports its time under the timer's name if possible."""
        ...


class AsynchronousPlace(Place, Protocol):
    """`Place` with background updates, and with operations to wait for runners and learners.

    Attributes:
        timesteps: Lifetime counters, as arguments of updates.
    """

    @property
    def timesteps(self) -> dict[str, int]: ...

    def collect(
        self, state: TrainState, plan: SamplePlan, *, timeout_seconds: float, also: Sequence[Any] = ()
    ) -> Sampled:
        """Collects finished shares, see `Place.collect`; also returns when a Ray reference of `also` is ready."""
        ...

    def note_update(self, metrics: list[dict[str, Any]]) -> None:
        """Records the learners' results of an update, one dict each; the newest is reported."""
        ...

    def note_lag(self, num_updates: float) -> None:
        """Records the number of updates between the weights that sampled and the last update."""
        ...

    def publish_weights(self, weights: Mapping[str, Any]) -> None:
        """`publish` with weights that were copied at their version; see `weights_for_runners`."""
        ...


class TrainingStep(abc.ABC):
    """Training step of an algorithm: its sizes, kept data, computation and results.

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
        """The class for a config: this one, unless the algorithm uses another step for some configs."""
        return cls

    # ----------------------------------------------------------------------------------------------------------- sizes

    @abc.abstractmethod
    def plan(self, facts: Facts) -> Plan | None:
        """Computes the sizes, after spaces, learners and pipelines are known and before large allocations.

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
        """One training step: ``(state, metrics of its last update)``; metrics are None without an update."""

    def pause(self) -> None:  # noqa: B027 - most do nothing beside their call
        """Called at the end of an iteration; after it, nothing changes the learners until the next call."""

    def stop(self) -> None:  # noqa: B027 - likewise
        """Releases its threads and actors."""

    # --------------------------------------------------------------------------------------------------- evaluation

    def held_out_rows(self) -> Experience | None:
        """Rows that training never uses, on which evaluations compute the learner's loss; called after `plan`.

        Every evaluation calls it. Rows of the same shapes share one compiled program.

        Returns:
            `Experience.of_rows` of NumPy arrays, for each module a multiple of the learners' devices, equal in all
            processes. None for no evaluation on data.
        """
        return None

    def env_to_module_state(self) -> dict[str, Any]:
        """States of connectors that depend on the training data, ``{connector name: state}``, for policies; called
        after `plan`. If the step samples environments, runners have these states.
        """
        return {}

    # ------------------------------------------------------------------------------------------------ what it keeps

    def init_kept(self) -> Any:
        """Initial kept data, after `plan` and after the memory check."""
        return None

    def kept_of_seed(self, seed: int) -> dict[str, Any]:
        """Fields of the kept data that depend on the seed, which differ between members of a population."""
        return {}

    def change_settings(self, config: AlgorithmConfig) -> None:
        """Continues with another config that differs in traced settings only."""
        self.config = config

    def reset(self, config: AlgorithmConfig) -> None:
        """Starts from the beginning with another config that differs in traced settings and seed only."""
        self.change_settings(config)

    def drop_kept(self, driver: Driver) -> str:
        """Starts again with empty kept data after a failure that lost it; returns the loss in words for messages."""
        return ""

    def not_finite_in_kept(self) -> dict[str, dict[str, np.ndarray]]:
        """Flags of non-finite steps in kept data on the device, for errors; {} without such steps.

        Returns:
            ``{module_id: {column: bool [environments, steps]}}``, the newest step last.
        """
        return {}

    @property
    def replay_buffer(self) -> Checkpointable | None:
        """Kept data for users and checkpoints, or None."""
        return None

    def set_kept_state(self, driver: Driver, state: dict[str, Any]) -> None:  # noqa: B027 - most keep nothing
        """Restores the state of `replay_buffer` from a whole state of `Driver`, after everything else.

        Raises:
            ValueError: If it does not fit. Nothing has changed then.
        """

    # --------------------------------------------------------------------------------------------------------- results

    def num_env_steps_trained(self, driver: LocalDriver) -> int:
        """Lifetime env steps in updates; by default the sampled steps, each used once."""
        return driver.num_env_steps

    def results(self, driver: Driver) -> dict[str, Any]:
        """Nested entries of an iteration's result."""
        return {}

    def get_state(self) -> dict[str, Any]:
        """State of the step except `kept`."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:  # noqa: B027 - most have none
        """Restores a state that `get_state` returned."""
