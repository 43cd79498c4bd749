"""Base class that trains recorded iterations of a run or population again, with the commands (calls) between them."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from jaxrl_stack.runs.commands import Command
from jaxrl_stack.runs.timeline import NotRecomputableError, StoredCheckpoint

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.algorithms.population import Population
    from jaxrl_stack.rewind.population_timeline import PopulationTimeline
    from jaxrl_stack.runs.timeline import Timeline

TrainedT = TypeVar("TrainedT", "Algorithm", "Population")
TimelineT = TypeVar("TimelineT", "Timeline", "PopulationTimeline")


class BaseReplay(abc.ABC, Generic[TrainedT, TimelineT]):
    """Trains recorded iterations of a run or a population again, with the commands (recorded calls) between them.

    Args:
        timeline: Timeline of its folder.
        allow: Classes and functions of the user that its files name.

    Attributes:
        timeline: See `Args`.
        started_at: Iteration of the state that `start` began with.
        num_commands: Number of commands applied so far.
    """

    started_at: int
    num_commands: int
    _trained: TrainedT | None = None

    def __init__(self, timeline: TimelineT, allow: Iterable[Any]):
        self.timeline, self._allow = timeline, tuple(allow)

    @property
    def trained(self) -> TrainedT:
        """Algorithm or population that repeats the iterations; available after `start`."""
        assert self._trained is not None, "start() builds it"
        return self._trained

    @abc.abstractmethod
    def start(self, iteration: int) -> None:
        """Builds the algorithm or population from the nearest stored state at or before an iteration.

        Args:
            iteration: Number of finished iterations, at least 0.

        Raises:
            NotRecomputableError: If there is no such iteration or no state to begin with.
        """

    @abc.abstractmethod
    def _apply(self, command: Command) -> None:
        """Repeats a command (recorded method call) on the algorithm or population."""

    def run_to(self, iteration: int) -> Self:
        """Calls `start`, then repeats the iterations up to the given one. Stops `trained` if an error occurs.

        Args:
            iteration: See `start`.

        Raises:
            NotRecomputableError: See `start` and `step`.
        """
        with self.stopped_on_failure():
            self.start(iteration)
            while self.trained.iteration < iteration:
                self.step()
        return self

    def step(self) -> None:
        """Repeats the next iteration, after the commands (recorded calls) that precede it.

        Raises:
            NotRecomputableError: If a command cannot be repeated.
        """
        self.trained._repeat_iteration(self.prepare())

    def prepare(self) -> int:
        """Applies the commands (recorded calls) before the next iteration; returns the iteration's number of training
        steps.
        """
        iteration = self.trained.iteration + 1
        recorded = self.timeline.recorded(iteration)
        self._catch_up(self.timeline.num_commands_before(iteration))
        return recorded.num_training_steps

    def catch_up_with(self, checkpoint: StoredCheckpoint) -> None:
        """Applies the remaining commands (recorded calls) whose effects a checkpoint of this iteration contains."""
        self._catch_up(self.timeline.commands_at(checkpoint))

    def _catch_up(self, number: int) -> None:
        for command in self.timeline.commands[self.num_commands : number]:
            if command.reason is not None:
                raise NotRecomputableError(
                    f"{command.path}: {command.call}() at iteration {command.iteration} cannot be repeated, because "
                    f"{command.reason}. Choose an iteration before this call, or from the next stored checkpoint on."
                )
            self._apply(command)
            self._set_num_commands(command.number)

    def _set_num_commands(self, number: int) -> None:
        self.num_commands = self.trained._commands.count = number

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
        """Context manager that stops the algorithm or population `trained` at the end of the ``with`` block."""
        try:
            yield self
        finally:
            self.stop()

    @contextlib.contextmanager
    def stopped_on_failure(self) -> Iterator[None]:
        """Context manager that stops the algorithm or population `trained` if the ``with`` block raises an error."""
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self.stop)
            yield
            on_failure.pop_all()

    def stop(self) -> None:
        """Stops the algorithm or population `trained`, if it is built."""
        if self._trained is not None:
            self._trained.stop()
