"""Training of one config with several seeds, to measure the effect of chance."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from jaxrl_stack.runs.curves import RETURN, STEPS, Band
from jaxrl_stack.runs.plots import bands_of, compare, ending_header
from jaxrl_stack.runs.series import MAX_GROUPS, Series, Trial, check_until, chosen_seeds, kept_in_folder, train_all
from jaxrl_stack.runs.terminal import table_text

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig


@dataclasses.dataclass(frozen=True)
class SeedRuns(Series):
    """Runs of one config with different seeds; ``print(seeds)`` shows a table with the final return of each seed."""

    def band(self, key: str = RETURN, x: str = STEPS, *, aggregate: str = "iqm", band: float = 0.95) -> Band:
        """Aggregates the runs of all seeds to one `Band` (curve with an interval). Arguments: see `plot`."""
        return bands_of(self.runs, key, x, aggregate=aggregate, band=band)[0]

    def table(self, key: str = RETURN, x: str = STEPS) -> str:
        """Formats the performance of the runs in the metric `key` as a table for terminals.

        The table has one row for each seed. If there are several seeds, a last row has their interquartile mean.

        A seed without such a number, for example because no episode has ended, has dashes and does not count.

        Args:
            key: The number that is shown.
            x: Axis of its curves; see `plot`.

        Raises:
            KeyError: If the runs have no such number.
        """
        known = [run for run in self.runs if key in run.history]
        together = compare(known or self.runs, key, x)[0]
        header = ["run", *ending_header(x)]
        rows = []
        for run in self.runs:
            cells = compare([run], key, x)[0].cells(1) if key in run.history else ["1", *("–" for _ in header[2:])]
            rows.append([run.name, *cells])
        if len(self.runs) > 1:
            rows.append(["all", *together.cells(together.num_runs)])
        return table_text(header, rows)

    def __str__(self) -> str:
        try:
            return self.table()
        except KeyError:
            return f"{', '.join(run.name for run in self.runs)}: no mean return. table(key) shows another number."


def run_seeds(
    config: AlgorithmConfig,
    seeds: int | Iterable[int],
    until: Mapping[str, float],
    *,
    progress: bool = True,
    one_program: bool = True,
    checkpoint_seconds: float | None = None,
    restore: str | os.PathLike[str] | None = None,
) -> SeedRuns:
    """Trains a config with several seeds, in one compiled program if possible.

    On a JAX environment, the seeds are the members of a `Population` and train at the same time on the config's
    devices. Otherwise they train one after the other, and a line prints the reason. In a population, all seeds continue
    until the last one has reached the goal.

    Args:
        config: Config of all runs, which is not changed; its ``seed`` has no effect. With ``results_dir`` set, every
            run writes to a folder below it.
        seeds: Number of seeds, which are then 0, 1, 2, ...; or a list of seeds.
        until: Goal of each seed, see `Algorithm.learn`: ``{"num_env_steps_sampled_lifetime": 200_000}``. Curves are
            compared on the steps that all seeds have, so give all seeds the same number of steps.
        progress: Whether to print the progress.
        one_program: False trains one seed after the other, each exactly as a single run.
        checkpoint_seconds: Time from one checkpoint in ``results_dir`` to the next. The same call then continues after
            a kill, and does not repeat finished seeds. Each seed writes its files when it is finished.
        restore: Checkpoint of one algorithm, or ``"RUN@35"``, that all seeds continue: weights, environments and
            counters are equal, random streams differ. It needs one program; see `Population.continue_from`.

    Returns:
        The runs, with ``print(seeds)``, ``seeds.plot(path)`` and ``seeds.report(path)``; after Ctrl-C only finished
        seeds.

    Raises:
        ValueError: If there are no seeds, `until` is None or names a number that results do not have, or
            ``results_dir`` has runs with other settings, which the message names.
        KeyboardInterrupt: If no seed was finished.
    """
    chosen = chosen_seeds(seeds, "run_seeds")
    check_until(until, "run_seeds")
    if restore is not None and checkpoint_seconds is not None:
        raise ValueError(
            f"run_seeds(restore={os.fspath(restore)!r}, checkpoint_seconds={checkpoint_seconds!r}): "
            "runs that restore a checkpoint cannot be resumed after a kill. Leave checkpoint_seconds out."
        )
    trials = [Trial(config, seed, restore=None if restore is None else os.fspath(restore)) for seed in chosen]
    folder = kept_in_folder(trials, until, checkpoint_seconds, where="run_seeds")
    trained = train_all(
        trials,
        until,
        progress=progress,
        one_program=one_program,
        max_groups=MAX_GROUPS,
        where="run_seeds",
        folder=folder,
    )
    return SeedRuns(**vars(trained))
