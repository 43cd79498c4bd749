"""Interfaces of the data from which training draws batches: `Source`, and `Replay`, a source that training also fills.

Sources are recorded data on the devices (`ResidentData`), streamed (`StreamedData`), or from a user's class
(`OwnSamples`). Replays are `HostReplay`, `DeviceRing`, and `Mixture`, a replay with a share from another source.

A source belongs to one module; a replay to one module, or to several that share a buffer. The training step *keeps* its
state: a buffer on the host, arrays on the devices, or None if the object itself has the state. Calls inside of a
training step take and return it. On the device these calls are traced with the state of one device; between calls of
the program its leaves are ``[D, ...]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np

    from jaxrl_stack.checkpoints.checkpointable import Checkpointable
    from jaxrl_stack.core.experience import Experience
    from jaxrl_stack.execution.facts import Facts
    from jaxrl_stack.execution.training_step import Draws, Kept, TrainState
    from jaxrl_stack.replay.draw_forms import DrawForm
    from jaxrl_stack.utils.memory import MemoryEstimate


def num_learner_shares(facts: Facts) -> int:
    """Number of equal parts of a train batch: one for each learner actor, or for each device of the learner in this
    process.
    """
    return int(facts.config.num_learners) if facts.learner is None else facts.learner.num_devices


class Drawn(NamedTuple):
    """Train batch drawn for one module.

    `items` has the buffer indices of the batch's transitions or sequences. With these indices, an update's results,
    such as new priorities, are written back.

    Attributes:
        columns: ``{column: pytree [N, ...]}``, for connectors and losses.
        items: Indices of the drawn items, for `Replay.write_back`; None from a source without it.
    """

    columns: dict[str, Any]
    items: Any = None


class HasState(Protocol):
    """Base of the objects that deliver training data (data sets, replay buffers): creates, saves and restores their
    state.

    Attributes:
        draws: Random streams that the training step needs for this data source, by name; {} if the source has its own
            generator.
        estimate: Memory of its state; None if unknown.
    """

    @property
    def draws(self) -> Mapping[str, Draws]: ...

    @property
    def estimate(self) -> MemoryEstimate | None: ...

    def init(self) -> Any:
        """Creates the initial state of this data source, such as an empty replay buffer."""
        ...

    def change_settings(self, config: Any) -> None:
        """Changes the values of traced settings (hyperparameters that are arguments of compiled programs) that this
        data source uses.
        """
        ...

    def reset(self, config: Any) -> None:
        """Prepares a restart of this data source with a changed config.

        The config differs from the present config only in the seed and traced settings (hyperparameters). Afterwards,
        the caller creates the source's state again with `init`.
        """
        ...

    def get_state(self, kept: Any) -> dict[str, Any]:
        """Returns a data source's read position, random generators and metrics for checkpoints: all values that change,
        except the stored steps.
        """
        ...

    def set_state(self, kept: Any, state: Mapping[str, Any]) -> Any:
        """Restores values from `state`, a result of `get_state`, and returns this data source's state `kept` with these
        values.

        Ignores entries of `state` that this source does not know.
        """
        ...


class Source(HasState, Protocol):
    """Source of one module's train batches, such as a data set."""

    def draw(self, kept: Any, state: TrainState, place: Any) -> tuple[Any, TrainState, Drawn]:
        """Draws the next train batch from this data source, and returns it with the source's new state.

        Args:
            kept: State of this source.
            state: State of the training step, from which `place` reads random numbers and traced settings.
            place: The `Place` of the training step.
        """
        ...


class Replay(HasState, Protocol):
    """Replay buffer: a source that stores samples, and accepts new values, such as priorities, of drawn items.

    Attributes:
        capacity: Capacity in env steps.
        writes: Names of an update's values for `write_back`; () if nothing is written back.
    """

    @property
    def capacity(self) -> int: ...

    @property
    def writes(self) -> tuple[str, ...]: ...

    def add(self, kept: Any, experience: Experience) -> Any:
        """Adds sampled steps (`Sampled.experience`) to this replay buffer; ignores the steps of modules that do not use
        this buffer.
        """
        ...

    def can_draw(self, kept: Any) -> bool:
        """Whether this replay buffer has enough steps to draw a batch."""
        ...

    def draw(self, kept: Any, state: TrainState, place: Any) -> tuple[Any, TrainState, dict[str, Drawn]]:
        """Draws the next train batch of each module.

        On the host, the result has no entry for a module without stored steps; on the device, the rows of such a
        module's batch are masked.

        Args:
            kept, state, place: See `Source.draw`.
        """
        ...

    def write_back(self, kept: Any, drawn: Mapping[str, Drawn], logged: Mapping[str, Mapping[str, Any]]) -> Any:
        """Writes values that an update computed for drawn items, such as priorities or latents, into the replay buffer.

        Args:
            kept: State at the draw or later.
            drawn: The drawn batches.
            logged: Values that the update logged for each item, ``{module_id: {name: [N, ...]}}``, with all names in
                `writes`, for the drawn modules that are trained.
        """
        ...

    def cut(self, kept: Any) -> Any:
        """Marks the ends of unfinished episodes in the replay buffer, so that steps added later do not continue
        them."""
        ...

    def look_at(self, kept: Any, what: DrawForm, number: int, seed: int) -> dict[str, Any]:
        """Draws `number` transitions or sequences from the replay buffer, without changing the buffer.

        `seed` determines the random choice. Returns columns ``[number, ...]``. The reward of an n-step transition is
        the undiscounted sum of its steps' rewards.
        """
        ...

    def not_finite(self, kept: Any) -> dict[str, dict[str, np.ndarray]]:
        """Finds stored steps that contain NaN or infinity.

        Returns ``{module_id: {column: bool [environments, steps]}}``, True for these steps, newest step last; {} if
        steps are already checked when they are sampled.
        """
        ...

    def component(self, kept: Kept) -> Checkpointable:
        """Returns the object by which users of the ``Algorithm`` and checkpoints access the replay buffer. `kept` holds
        the buffer's state.
        """
        ...

    def results(self, kept: Any, num_env_steps: int) -> dict[str, Any]:
        """Returns the replay buffer's metrics for an iteration's result; `num_env_steps` is the number of lifetime
        sampled env steps.
        """
        ...
