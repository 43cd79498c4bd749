"""A training step, and the verbs of a place that runs it."""

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
    """Everything that changes during training. To a training step all of it is opaque but `kept`.

    Attributes:
        learner: Replicated over the devices. None on the host, whose learners keep it.
        runner: Sharded: leaves ``[D, ...]`` outside of the mapped program. None on the host, likewise.
        kept: What the training step keeps from call to call: replay, a data set; None if nothing.
        timesteps: uint32[2] (hi, lo), lifetime env steps sampled; replicated. None on the host.
    """

    learner: Any = None
    runner: Any = None
    kept: Any = None
    timesteps: Any = None


class Kept:
    """What a training step keeps from call to call: the one reference to it, so that who replaces it frees the old.

    Attributes:
        value: A pytree; None before the start, and if there is nothing.
    """

    def __init__(self) -> None:
        self.value: Any = None

    def start(self, make: Callable[[], Any]) -> None:
        """Begin with what `make` returns; there is room for one alone."""
        self.value = None
        self.value = make()

    def replace(self, make: Callable[[], Any], otherwise: Callable[[], Any]) -> None:
        """Go on with what `make` returns, which may take the old buffers over; if it raises, begin with `otherwise`."""
        with deferred_interrupt():
            try:
                self.value = make()
            except BaseException:
                self.start(otherwise)
                raise


class KeptPart(Kept):
    """A part of what a training step keeps, in its place there.

    Args:
        whole: Where all of it is kept.
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
    """Random numbers that a training step takes, all of a call made at once: one by one they would take longer.

    Attributes:
        number: How often `Place.draw` is called in one training step.
        make: ``PRNG key -> random numbers`` of one of them.
        size: How many numbers those are.
    """

    number: int
    make: Callable[[jax.Array], Any]
    size: int


class Sampled(NamedTuple):
    """Hand-over from those who sample.

    Attributes:
        state: The state after sampling.
        experience: What was sampled.
    """

    state: TrainState
    experience: Experience


class Place(Protocol):
    """What a training step is written against. On the device, all of it is traced into one program."""

    def sample(self, state: TrainState, plan: SamplePlan) -> Sampled:
        """Step the environments with the current weights: all shares of the plan.

        Args:
            state: State before.
            plan: What `Facts.plan_samples` returned.

        Returns:
            Columns ``[T, num_shares * B, ...]``, on the host in parts, one per share.
        """
        ...

    def request(self, state: TrainState, plan: SamplePlan) -> TrainState:
        """Ask every idle runner for one share, and go on."""
        return state

    def collect(self, state: TrainState, plan: SamplePlan, *, timeout_seconds: float) -> Sampled:
        """What has come in of that, waiting at most so long for the first of it; it may be empty.

        On the device, and where environments are stepped in this process, it is one share that is sampled now.
        """
        ...

    def num_updates(self, state: TrainState) -> Any:
        """Updates so far, as versions of weights count them; on the device an array."""
        ...

    def num_env_steps(self, state: TrainState) -> Any:
        """Lifetime env steps sampled; on the device their lower 32 bits, a uint32 array."""
        ...

    def count_env_steps(self, state: TrainState, number: int) -> TrainState:
        """Count env steps that were drawn and not sampled, for a step without environments."""
        ...

    def update(self, state: TrainState, experience: Experience, plan: SampledUpdate[Any]) -> tuple[TrainState, Any]:
        """One update from what was sampled: ``(state, metrics)``. `plan` is what `Facts.plan_update` made."""
        ...

    def update_rows(self, state: TrainState, rows: Experience) -> tuple[TrainState, Any, Mapping[Any, Any]]:
        """One gradient step on rows ``[N, ...]``.

        Returns:
            ``(state, metrics, {(module_id, name): [N, ...]})``; the last one is what the loss logged per row.
        """
        ...

    def publish(self, state: TrainState) -> TrainState:
        """Hand new weights, and merged states of connectors, to the runners."""
        return state

    def repeat(self, function: Callable[..., Any], state: TrainState, times: Any) -> tuple[TrainState, Any]:
        """Call ``state -> (state, metrics)`` so many times in a row; the metrics are those of the last call.

        Args:
            function: What is called.
            state: Before the first call.
            times: An int, 0 included; on the device an int32 array, too. Of 0 calls metrics are None on the host, and
                zeros on the device.
        """
        result = None
        for _ in range(int(times)):
            state, result = function(state)
        return state, result

    def draw(self, state: TrainState, stream: str) -> tuple[TrainState, Any]:
        """The next random numbers of one of `TrainingStep.draws`; None on the host, where memories have generators."""
        return state, None

    def has_sampled(self, num_steps: int) -> bool:
        """Whether so many lifetime steps were sampled, in the unit of ``count_steps_by``; on the device `num_steps` is
        `learning_starts`."""
        ...

    def timed(self, timer: str, function: Callable[..., Any], *args: Any) -> Any:
        """``function(*args)``, whose time is reported under that name where it can be taken."""
        ...


class AsynchronousPlace(Place, Protocol):
    """Place where updates run in the background: also has the verbs of those who wait for runners and learners.

    Attributes:
        timesteps: Lifetime counts, as updates take them.
    """

    @property
    def timesteps(self) -> dict[str, int]: ...

    def collect(
        self, state: TrainState, plan: SamplePlan, *, timeout_seconds: float, also: Sequence[Any] = ()
    ) -> Sampled:
        """See `Place.collect`; returns, maybe without samples, when one of the Ray references `also` is there."""
        ...

    def note_update(self, metrics: list[dict[str, Any]]) -> None:
        """Take over what learners have returned of an update, one dict each: the newest is reported."""
        ...

    def note_lag(self, num_updates: float) -> None:
        """Report by how many updates the weights that sampled were behind those of the last update."""
        ...

    def publish_weights(self, weights: Mapping[str, Any]) -> None:
        """`publish` of weights that were copied when their version was made; see `weights_for_runners`."""
        ...


class TrainingStep(abc.ABC):
    """What is particular to a shape of training step: its sizes, what it keeps, its call, and what it reports.

    One object belongs to one driver. Only `plan` and `reset` change it; its call is pure where it is traced.

    Drivers and programs read the `Plan` that `plan` returns. Attributes of the same names are for subclasses: a `plan`
    that returns None has set them, and they are its plan.

    Args:
        config: The algorithm's frozen config.
        one_per_call: Whether every call of the driver makes one of them: an algorithm's own `training_step` looks at
            each.

    Attributes:
        needs_env: Whether it samples from environments. Their kind says where it runs then.
        draws_rows: Whether it has `OfflineStep.draw_rows`, for those who compute a loss of recorded rows alone.
        reads_on_host: Of a step that samples none: whether its rows come from the host's memory, as those of a data
            set that is larger than the device do, and `HostDriver` runs it. Else it is a part of the compiled program
            of `DeviceDriver`, and what it keeps is on the devices. May be set in ``__init__``, by the config.
        uses_replay: Whether it learns from what it keeps, each step some number of times, and not once from each step
            that was sampled: refuses connectors that measure the latter.
        trains_several_agents: Whether it may have modules of several agents.
        may_skip_updates: Whether a call that learns may make no update: then results hold the last one that was made.
        trains_populations: Of a step that samples none: whether members of a population may share what it keeps.
        learning_starts: Lifetime env steps before the first update, which `reset` may change; None of a shape that
            always learns.
        kept: What it keeps, as it is now.
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
        """The class for a config: this one, unless the algorithm runs in another shape at some places."""
        return cls

    # ----------------------------------------------------------------------------------------------------------- sizes

    @abc.abstractmethod
    def plan(self, facts: Facts) -> Plan | None:
        """Work out the sizes, when spaces, learners and pipelines are known; nothing large is made yet.

        Args:
            facts: What its driver knows by now. `Facts.plan_samples` and `Facts.plan_update` plan what is sampled, and
                updates from it; memory is estimated from these.

        Returns:
            The plan; None if it is in attributes of this step, and in what was asked of `facts`.

        Raises:
            ValueError: If they do not fit; names the settings.
        """

    # ------------------------------------------------------------------------------------------------------------ call

    @abc.abstractmethod
    def __call__(self, state: TrainState, place: Place) -> tuple[TrainState, Any]:
        """One training step: ``(state, metrics of its last update, None without one)``."""

    def pause(self) -> None:  # noqa: B027 - most do nothing beside their call
        """At the end of an iteration: when it returns, nothing changes learners any more until the next call."""

    def stop(self) -> None:  # noqa: B027 - likewise
        """Release threads and actors of its own."""

    # --------------------------------------------------------------------------------------------------- evaluation

    def held_out_rows(self) -> Experience | None:
        """Rows that training never sees, on which evaluations compute the learner's loss; after `plan`.

        Every evaluation asks for them. Rows of the same shapes are one compiled program.

        Returns:
            `Experience.of_rows` of NumPy arrays, a multiple of the learners' devices of each module; the same in all
            processes. None: nothing is evaluated on data.
        """
        return None

    def env_to_module_state(self) -> dict[str, Any]:
        """States of connectors that follow from what is learned from, ``{connector name: state}``, with which policies
        act; after `plan`. Of a step that samples environments, runners have them."""
        return {}

    # ------------------------------------------------------------------------------------------------ what it keeps

    def init_kept(self) -> Any:
        """What it keeps, when it starts; after `plan`, and after memory was found to do."""
        return None

    def kept_of_seed(self, seed: int) -> dict[str, Any]:
        """Fields of what it keeps that follow from the seed: a member of a population has its own, and keeps them."""
        return {}

    def change_settings(self, config: AlgorithmConfig) -> None:
        """Continue with another config, which differs in traced settings only."""
        self.config = config

    def reset(self, config: AlgorithmConfig) -> None:
        """Start from the beginning with another config, which differs in traced settings and its seed only."""
        self.change_settings(config)

    def drop_kept(self, driver: Driver) -> str:
        """Start again with nothing, after a failure that took it; what is lost, for the message."""
        return ""

    def not_finite_in_kept(self) -> dict[str, dict[str, np.ndarray]]:
        """Steps of what it keeps on the device that are not finite, for errors; {} if it keeps no steps there.

        Returns:
            ``{module_id: {column: bool [environments, steps]}}``, the newest step last.
        """
        return {}

    @property
    def replay_buffer(self) -> Checkpointable | None:
        """What it keeps, as users and checkpoints see it; None if that is nothing."""
        return None

    def set_kept_state(self, driver: Driver, state: dict[str, Any]) -> None:  # noqa: B027 - most keep nothing
        """Take over that of `replay_buffer` out of a whole state of `Driver`, when everything else is.

        Raises:
            ValueError: If it does not fit; nothing has changed then.
        """

    # --------------------------------------------------------------------------------------------------------- results

    def num_env_steps_trained(self, driver: LocalDriver) -> int:
        """Lifetime env steps that updates were made from: those that were sampled, where each is used once."""
        return driver.num_env_steps

    def results(self, driver: Driver) -> dict[str, Any]:
        """What belongs into the result of an iteration, nested."""
        return {}

    def get_state(self) -> dict[str, Any]:
        """What of it changes beside `kept`."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:  # noqa: B027 - most have none
        """Take over what `get_state` returned."""
