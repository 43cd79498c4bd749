"""Base class that trains recorded iterations of a run or population again, with the commands (calls) between them."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from jaxrl_stack.checkpoints.checksums import changed_files
from jaxrl_stack.checkpoints.newest import name_of
from jaxrl_stack.runs.commands import Command
from jaxrl_stack.runs.stored_checkpoints import WITHOUT_FOLDER
from jaxrl_stack.runs.timeline import BaseTimeline, NotRecomputableError, StoredCheckpoint

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.algorithms.population import Population
    from jaxrl_stack.utils.devices import Device

TrainedT = TypeVar("TrainedT", "Algorithm", "Population")
TimelineT = TypeVar("TimelineT", bound=BaseTimeline[Any])

WRITES_NOTHING = {**WITHOUT_FOLDER, "loggers": None, "profile_iterations": None, "evaluation_video_interval": None}
NO_EVALUATIONS = {"evaluation_interval": None, "offline_evaluation_interval": None}


class BaseReplay(abc.ABC, Generic[TrainedT, TimelineT]):
    """Trains recorded iterations of a run or a population again, with the commands (recorded calls) between them.

    Args:
        timeline: Timeline of its folder.
        origin: Content of ``run.json`` in its folder.
        config: Config of the run, if checkpoints lack some of its code, such as lambdas; None for the stored config.
        allow: Classes and functions of yours that the checkpoints name.

    Attributes:
        timeline, origin: See `Args`.
        metadata_file: Name of the metadata file in its checkpoints.
        started_at: Iteration of the state that `start` began with.
        num_commands: Number of commands applied so far.
    """

    metadata_file: ClassVar[str]
    started_at: int
    num_commands: int
    _trained: TrainedT | None = None

    def __init__(
        self,
        timeline: TimelineT,
        origin: Mapping[str, Any],
        *,
        config: AlgorithmConfig | None = None,
        allow: Iterable[Any] = (),
    ):
        self.timeline, self.origin = timeline, origin
        self._config, self._allow = config, tuple(allow)

    @property
    def trained(self) -> TrainedT:
        """Algorithm or population that repeats recorded training iterations; exists only after `start` has built it."""
        assert self._trained is not None, "start() builds it"
        return self._trained

    @abc.abstractmethod
    def start(self, iteration: int) -> None:
        """Builds the algorithm or population in the state of the nearest checkpoint at or before an iteration.

        If no such checkpoint is stored, or the checkpoint cannot be used, builds the state in which the run began.

        Args:
            iteration: Number of finished iterations, at least 0.

        Raises:
            NotRecomputableError: If there is no such iteration or no state to begin with.
        """

    @property
    @abc.abstractmethod
    def devices(self) -> Sequence[Device] | None:
        """JAX devices that train the algorithm or population; None if remote learners (Ray actors) train it."""

    @abc.abstractmethod
    def state(self) -> Mapping[str, Any]:
        """Returns the present training state, for comparison with the state in a checkpoint.

        The state is nested like the state that `StoredCheckpoint.state` returns. The state of a population contains
        only the entry ``"driver"``, with the training states of its members.
        """

    @abc.abstractmethod
    def fingerprints(self) -> dict[int | None, tuple[float, float]]:
        """Computes the fingerprints (hashes) of the present parameters of the algorithm or population.

        Returns:
            Member of the population -> ``(low, high)``. A single run has the key None. {} if learners are actors.
        """

    @abc.abstractmethod
    def recorded_fingerprints(self, iteration: int) -> dict[int | None, tuple[float, float]]:
        """Returns the fingerprints (hashes of the parameters) that were recorded after an iteration, in the form that
        `fingerprints` returns; {} if none were recorded.
        """

    def different_members(self, iteration: int) -> list[int | None]:
        """Lists the members of a population whose fingerprint (hash of the parameters) differs from the recorded
        fingerprint.

        Compares the present fingerprint with the fingerprint recorded after the iteration. For a single run, the list
        is [None] if the fingerprint differs, otherwise []. If no fingerprints were recorded, the list is [].
        """
        recorded = self.recorded_fingerprints(iteration)
        present = self.fingerprints() if recorded else {}
        return [member for member, own in recorded.items() if own != present.get(member)]

    def changes(self, last: int) -> Iterator[str]:
        """Yields a sentence for each change of the stored files, such as checkpoints, since they were written.

        Args:
            last: Last iteration whose checkpoint is read.
        """
        timeline = self.timeline
        for command in timeline.commands:
            try:
                command.check_arrays()
            except ValueError as error:
                yield str(error)
        for iteration, checkpoint in timeline.checkpoints.items():
            if iteration > last:
                continue
            files = changed_files(checkpoint.path, self.metadata_file)
            if files:
                yield f"{checkpoint.path}: {', '.join(files)} differ from the written files."
                continue
            try:
                checkpoint.state()
            except ValueError as error:
                yield str(error)
            if checkpoint.num_commands is not None and checkpoint.num_commands > len(timeline.commands):
                yield (
                    f"{timeline.directory}: {name_of(iteration)} follows {checkpoint.num_commands} commands, and "
                    f"commands.jsonl has {len(timeline.commands)}."
                )

    @abc.abstractmethod
    def _apply(self, command: Command) -> None:
        """Repeats a command (recorded method call) on the algorithm or population."""

    def run_to(self, iteration: int) -> Self:
        """Builds the algorithm or population (see `start`), then repeats its iterations up to and including the given
        one. If an error occurs, stops the algorithm or population.

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

    def run_to_before(self, iteration: int) -> int:
        """Builds the algorithm or population in an earlier state, and repeats the run until just before an iteration.

        `start` describes the earlier state. Repeats the iterations from this state up to ``iteration - 1``, and all
        commands (recorded calls) before `iteration`.

        Args:
            iteration: Number of the iteration, at least 1.

        Returns:
            The iteration's number of training steps.

        Raises:
            NotRecomputableError: See `start` and `step`.
        """
        self.timeline.recorded(iteration)
        with self.run_to(iteration - 1).stopped_on_failure():
            return self.prepare()

    def step(self) -> None:
        """Repeats the next iteration, after the commands (recorded calls) that precede it.

        Raises:
            NotRecomputableError: If a command cannot be repeated.
        """
        self.trained._repeat_iteration(self.prepare())

    def prepare(self) -> int:
        """Prepares the next iteration: applies the commands (recorded calls) that precede this iteration.

        Skips commands that are already applied. Returns the recorded number of training steps of this iteration.
        """
        iteration = self.trained.iteration + 1
        recorded = self.timeline.recorded(iteration)
        self._catch_up(self.timeline.num_commands_before(iteration))
        return recorded.num_training_steps

    def catch_up_with(self, checkpoint: StoredCheckpoint) -> None:
        """Applies the missing commands (recorded calls), so that the present state can be compared with a checkpoint.

        These are the commands whose effects `checkpoint` contains and that are not applied yet. The checkpoint must
        belong to the present iteration.
        """
        self._catch_up(self.timeline.commands_at(checkpoint))

    def _catch_up(self, number: int) -> None:
        for command in self.timeline.commands[self.num_commands : number]:
            if command.reason is not None:
                raise NotRecomputableError(
                    f"{command.path}: {command.call}() at iteration {command.iteration} cannot be repeated, because "
                    f"{command.reason}. Recompute an iteration before this call. Or recompute the iteration of the "
                    "first checkpoint that was stored after this call, or a later iteration."
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
