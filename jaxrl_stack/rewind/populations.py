"""Recomputation of a population's iterations, bit for bit, from its nearest stored checkpoint.

::

    population = population_at("results/population", 41)     # all members after iteration 41

All members are repeated together: a single run differs from a member by the order of sums. An iteration is repeated
with its recorded number of training steps, and the commands of ``commands.jsonl`` are applied between iterations.
Evaluations are not repeated. Nothing is written to the folder.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_stack.algorithms.population import Population
from jaxrl_stack.checkpoints.names import METADATA_FILE
from jaxrl_stack.checkpoints.newest import name_of
from jaxrl_stack.rewind.base_replay import BaseReplay
from jaxrl_stack.rewind.population_timeline import PopulationTimeline
from jaxrl_stack.rewind.replay import NO_EVALUATIONS, WRITES_NOTHING
from jaxrl_stack.rewind.verification import (
    FingerprintDifference,
    Verification,
    changed_checkpoints,
    changed_commands,
    check_range,
    compared,
)
from jaxrl_stack.runs.commands import Command
from jaxrl_stack.runs.machine import machine_differences
from jaxrl_stack.runs.timeline import NotRecomputableError
from jaxrl_stack.utils.class_paths import ClassLoader

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig


class PopulationReplay(BaseReplay[Population, PopulationTimeline]):
    """Trains recorded iterations of a population again, from a stored checkpoint or from the start, with the commands
    (recorded calls) between them.

    Args:
        timeline: Timeline of the population.
        config: Config of the population, if checkpoints lack code of it, such as lambdas; None for the stored one.
        allow: Classes and functions of yours that the checkpoints name; see `Population.from_checkpoint`.

    Attributes:
        trained: The population, after `start`.
        started_at: Iteration of the state that `start` began with.

    Raises:
        NotRecomputableError: If its iterations cannot be repeated.
    """

    def __init__(
        self, timeline: PopulationTimeline, *, config: AlgorithmConfig | None = None, allow: Iterable[Any] = ()
    ):
        why_not = timeline.origin.get("why_not_recomputable")
        if why_not is not None:
            raise NotRecomputableError(f"{timeline.directory}: cannot be recomputed bit for bit, because {why_not}")
        super().__init__(timeline, allow)
        self._config = config

    def start(self, iteration: int) -> None:
        timeline = self.timeline
        if iteration != timeline.first:
            timeline.recorded(iteration)
        checkpoint = timeline.nearest(iteration)
        if checkpoint is None and timeline.num_restored:
            call = timeline.commands[timeline.num_restored - 1].call
            known = min(timeline.checkpoints, default=None)
            remedy = "Store more: reporting(checkpoint_frequency=1)." if known is None else f"Choose {known} or later."
            raise NotRecomputableError(
                f"{timeline.directory}: iteration {iteration} cannot be recomputed, because the state that {call}() "
                f"loaded is not recorded, and no checkpoint is stored between that call and the iteration. {remedy}"
            )
        settings = WRITES_NOTHING | NO_EVALUATIONS
        given = {} if self._config is None else {"config": self._config}
        source = checkpoint or timeline.checkpoints[min(timeline.checkpoints)]
        self._trained = Population.from_checkpoint(source.path, allow=self._allow, **given)
        replaced = {name: value for name, value in settings.items() if name in self.trained.config}
        self.trained._replace_settings(replaced)
        if checkpoint is None:
            # The members as they were built, in the same program.
            self.trained.restart(self.trained.members)
        self._set_num_commands(0 if checkpoint is None else timeline.commands_at(checkpoint))
        self.started_at = self.trained.iteration

    def _apply(self, command: Command) -> None:
        getattr(self.trained, command.call)(**command.arguments(ClassLoader(self._allow)))


def population_at(
    directory: str | os.PathLike[str],
    iteration: int,
    *,
    config: AlgorithmConfig | None = None,
    allow: Iterable[Any] = (),
) -> Population:
    """Recomputes the state of a population after an iteration, bit for bit.

    Args:
        directory: Folder of the population, ``results_dir/population``.
        iteration: Number of finished iterations; 0 is the state before the first one.
        config: Config of the population, if it contains code that checkpoints lack, such as lambdas.
        allow: Classes and functions of yours that the checkpoints name; see `Population.from_checkpoint`.

    Returns:
        The population, which writes no files. Commands that followed the iteration, such as `Population.copy`, are not
        applied to it, unless a stored checkpoint of the iteration contains them.

    Raises:
        NotRecomputableError: If the iteration never happened, there is nothing to begin with, or a recorded call cannot
            be repeated. It is a ValueError.
        ValueError: If a file has changed.
    """
    return PopulationReplay(PopulationTimeline(Path(directory)), config=config, allow=allow).run_to(iteration).trained


def rewind_population(
    directory: str | os.PathLike[str],
    iteration: int,
    *,
    config: AlgorithmConfig | None = None,
    allow: Iterable[Any] = (),
) -> tuple[Path, int]:
    """Stores the checkpoint of an iteration in the folder of a population; recomputes the iteration if it is not
    stored.

    Args:
        directory, iteration, config, allow: See `population_at`.

    Returns:
        ``(path of the checkpoint, number of recomputed iterations)``.

    Raises:
        NotRecomputableError: See `population_at`.
    """
    timeline = PopulationTimeline(Path(directory))
    if iteration in timeline.checkpoints:
        return timeline.checkpoints[iteration].path, 0
    replay = PopulationReplay(timeline, config=config, allow=allow).run_to(iteration)
    with replay.running():
        path = timeline.directory / name_of(iteration)
        replay.trained.save_to_path(path)
    return path, iteration - replay.started_at


def verify_population(
    directory: str | os.PathLike[str],
    first: int | None = None,
    last: int | None = None,
    *,
    config: AlgorithmConfig | None = None,
    allow: Iterable[Any] = (),
    progress: Callable[[int], object] = lambda iteration: None,
) -> Verification:
    """Recomputes iterations of a population and compares them with what was recorded.

    It checks the checksums of commands and stored checkpoints first. Then it compares the fingerprint of each member in
    each recomputed iteration, and all leaves of the members' states where a checkpoint is stored.

    Args:
        directory: Folder of the population, ``results_dir/population``.
        first, last: First and last iteration; None for those of the population.
        config, allow: See `population_at`.
        progress: Called with each compared iteration.

    Raises:
        NotRecomputableError: If an iteration never happened, or the population cannot be repeated.
    """
    folder = Path(directory)
    name = folder.absolute().name
    try:
        timeline = PopulationTimeline(folder)
    except NotRecomputableError:
        raise
    except ValueError as error:
        return Verification(name, first or 0, last or 0, changed=(str(error),))
    if first is None:
        # Iterations between a restored state and the next checkpoint cannot be repeated.
        first = 1 + (min(timeline.checkpoints, default=timeline.first) if timeline.num_restored else timeline.first)
    last = timeline.last if last is None else last
    check_range(timeline, first, last)
    found = Verification(name, first, last, machine=tuple(machine_differences(timeline.origin)))
    changed = [*changed_commands(timeline.commands), *changed_checkpoints(timeline, last, metadata_file=METADATA_FILE)]
    if changed or found.machine:
        return dataclasses.replace(found, changed=tuple(changed))
    replay = PopulationReplay(timeline, config=config, allow=allow)
    with replay.running():
        replay.start(first - 1)
        machine = machine_differences(timeline.origin, replay.trained.driver.devices)
        if machine:
            return dataclasses.replace(found, machine=tuple(machine))
        return compared(
            replay,
            found,
            progress,
            difference=lambda iteration: _fingerprint_difference(replay, iteration),
            state=lambda: replay.trained.get_state("driver"),
        )


def _fingerprint_difference(replay: PopulationReplay, iteration: int) -> FingerprintDifference | None:
    """Finds the first member whose fingerprint (hash of the parameters) differs from the recorded one; None if all are
    equal.
    """
    present = replay.trained.driver.fingerprints()
    for member, (low, high) in sorted(replay.timeline.recorded(iteration).fingerprints.items()):
        if not np.array_equal([low, high], [present["low"][member], present["high"][member]]):
            return FingerprintDifference(member)
    return None
