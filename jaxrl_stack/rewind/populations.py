"""Recomputation of a population's iterations, bit for bit, from its nearest stored checkpoint.

::

    population = population_at("results/population", 41)     # all members after iteration 41

All members are repeated together: a single run differs from a member by the order of sums. An iteration is repeated
with its recorded number of training steps, and the commands of ``commands.jsonl`` are applied between iterations.
Evaluations are not repeated. Nothing is written to the folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl_stack.algorithms.population import Population
from jaxrl_stack.checkpoints.names import METADATA_FILE
from jaxrl_stack.rewind.base_replay import NO_EVALUATIONS, WRITES_NOTHING, BaseReplay
from jaxrl_stack.rewind.population_timeline import PopulationTimeline
from jaxrl_stack.runs.commands import Command
from jaxrl_stack.runs.origin import read_origin
from jaxrl_stack.runs.timeline import NotRecomputableError
from jaxrl_stack.utils.class_paths import ClassLoader

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.utils.devices import Device


class PopulationReplay(BaseReplay[Population, PopulationTimeline]):
    """Trains recorded iterations of a population again, from a stored checkpoint or from the start, with the commands
    (recorded calls) between them.

    Args:
        directory: Folder of the population, ``results_dir/population``.
        config, allow: See `population_at`.

    Raises:
        NotRecomputableError: If the folder is not the folder of a population, has no checkpoint, or lacks numbers.
        ValueError: If a file is damaged.
    """

    metadata_file = METADATA_FILE

    def __init__(self, directory: Path, *, config: AlgorithmConfig | None = None, allow: Iterable[Any] = ()):
        super().__init__(PopulationTimeline(directory), read_origin(directory), config=config, allow=allow)

    def start(self, iteration: int) -> None:
        timeline = self.timeline
        why_not = self.origin.get("why_not_recomputable")
        if why_not is not None:
            raise NotRecomputableError(
                f"{timeline.directory}: the population cannot be recomputed bit for bit, because {why_not}"
            )
        if iteration != timeline.first:
            timeline.recorded(iteration)
        checkpoint = timeline.nearest(iteration)
        if checkpoint is None and timeline.origin is not None:
            known = min(timeline.checkpoints, default=None)
            remedy = "Store more: reporting(checkpoint_frequency=1)." if known is None else f"Choose {known} or later."
            raise NotRecomputableError(
                f"{timeline.directory}: iteration {iteration} cannot be recomputed, because the state that "
                f"{timeline.origin.call}() loaded is not recorded, and no checkpoint is stored between that call and "
                f"the iteration. {remedy}"
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

    @property
    def devices(self) -> Sequence[Device]:
        return self.trained.driver.devices

    def state(self) -> Mapping[str, Any]:
        return self.trained.get_state("driver")

    def fingerprints(self) -> dict[int | None, tuple[float, float]]:
        found = self.trained.driver.fingerprints()
        return dict(enumerate(zip(found["low"].tolist(), found["high"].tolist(), strict=True)))

    def recorded_fingerprints(self, iteration: int) -> dict[int | None, tuple[float, float]]:
        return dict(sorted(self.timeline.recorded(iteration).fingerprints.items()))

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
    return PopulationReplay(Path(directory), config=config, allow=allow).run_to(iteration).trained
