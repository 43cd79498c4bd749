"""Interfaces of what gives train batches: a `Source`, and a `Replay`, which is filled while training runs.

Sources are recorded data on the devices (`ResidentData`), streamed (`StreamedData`), or of a user's own class
(`OwnSamples`). Replays are `HostReplay`, `DeviceRing`, and `Mixture`, a replay with a share from another source.

A source belongs to one module; a replay to one, or to several that share a buffer. Its state is *kept* by the training
step: a buffer on the host, arrays on the devices, or None if the object has it. Calls inside of a training step take it
and return it. On the device these are traced, and it is the part of one device; between calls of the program its leaves
are ``[D, ...]``.
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
    """Learners, or devices of the learner in this process, that each get an equal part of a train batch."""
    return int(facts.config.num_learners) if facts.learner is None else facts.learner.num_devices


class Drawn(NamedTuple):
    """A train batch of one module.

    Attributes:
        columns: ``{column: pytree [N, ...]}``, as connectors and losses see them.
        items: Which items of the source these are, for `Replay.write_back`; None from a source without one.
    """

    columns: dict[str, Any]
    items: Any = None


class HasState(Protocol):
    """Gives train batches, and changes by that.

    Attributes:
        draws: Random streams that a training step takes for it, by name; {} if it has a generator.
        estimate: Memory of its state; None if that is not known.
    """

    @property
    def draws(self) -> Mapping[str, Draws]: ...

    @property
    def estimate(self) -> MemoryEstimate | None: ...

    def init(self) -> Any:
        """The state at the start of training."""
        ...

    def change_settings(self, config: Any) -> None:
        """Continue with other values of traced settings."""
        ...

    def reset(self, config: Any) -> None:
        """Take another config, which differs in traced settings and its seed only; `init` comes next."""
        ...

    def get_state(self, kept: Any) -> dict[str, Any]:
        """Position, generators and metrics for checkpoints: everything that changes but contents."""
        ...

    def set_state(self, kept: Any, state: Mapping[str, Any]) -> Any:
        """The state with what `get_state` returned, which may be among other entries."""
        ...


class Source(HasState, Protocol):
    """Gives the train batches of one module."""

    def draw(self, kept: Any, state: TrainState, place: Any) -> tuple[Any, TrainState, Drawn]:
        """The next train batch.

        Args:
            kept: The state of this source.
            state: State of the training step, whose random numbers and traced settings are read by `place`.
            place: Where the training step runs; see `Place`.
        """
        ...


class Replay(HasState, Protocol):
    """Is filled with what is sampled, gives train batches, and takes numbers of drawn items.

    Attributes:
        capacity: Env steps that it holds.
        writes: Names of what `write_back` takes of an update; () if nothing is written back.
    """

    @property
    def capacity(self) -> int: ...

    @property
    def writes(self) -> tuple[str, ...]: ...

    def add(self, kept: Any, experience: Experience) -> Any:
        """Add its modules' steps of what `Place.sample` gave."""
        ...

    def can_draw(self, kept: Any) -> bool:
        """Whether there is something to draw."""
        ...

    def draw(self, kept: Any, state: TrainState, place: Any) -> tuple[Any, TrainState, dict[str, Drawn]]:
        """The next train batch, by module. On the host modules without steps are left out; on the device their rows
        are masked.

        Args:
            kept, state, place: See `Source.draw`.
        """
        ...

    def write_back(self, kept: Any, drawn: Mapping[str, Drawn], logged: Mapping[str, Mapping[str, Any]]) -> Any:
        """Store priorities or latents of drawn items.

        Args:
            kept: The state, of the draw or later.
            drawn: What was drawn.
            logged: What the update logged of each item, ``{module_id: {name: [N, ...]}}``, with all names in `writes`,
                of the modules that were drawn and are trained.
        """
        ...

    def cut(self, kept: Any) -> Any:
        """Let running episodes end: what comes next does not continue what is stored."""
        ...

    def look_at(self, kept: Any, what: DrawForm, number: int, seed: int) -> dict[str, Any]:
        """Columns ``[number, ...]`` of items that are drawn by a seed, with sums of rewards that are not discounted;
        nothing changes."""
        ...

    def not_finite(self, kept: Any) -> dict[str, dict[str, np.ndarray]]:
        """Stored steps that are not finite, bool ``[environments, steps]`` by module and column, the newest step last;
        {} where steps are checked when they are sampled."""
        ...

    def component(self, kept: Kept) -> Checkpointable:
        """The contents, as users see them and checkpoints hold them; `kept` is where the state is."""
        ...

    def results(self, kept: Any, num_env_steps: int) -> dict[str, Any]:
        """Metrics of the iteration; `num_env_steps` are the lifetime env steps sampled."""
        ...
