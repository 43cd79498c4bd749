"""Several configs trained one after the other, each until the same goal: the loop of `run_seeds` and `run_sweep`."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from jaxrl_stack.runs.axes import AxisOptions
from jaxrl_stack.runs.curves import RETURN, STEPS
from jaxrl_stack.runs.history import History
from jaxrl_stack.runs.plots import plot_runs
from jaxrl_stack.runs.run import Run
from jaxrl_stack.runs.stop import Until
from jaxrl_stack.runs.terminal import number_text
from jaxrl_stack.runs.writers import as_json

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig


@dataclasses.dataclass(frozen=True)
class Series:
    """Runs that were trained one after the other.

    Attributes:
        runs: In the order in which they were asked for; after Ctrl-C those that were finished.
        defaults: The settings that the algorithm has unless told otherwise, as plain values.
    """

    runs: tuple[Run, ...]
    defaults: Mapping[str, Any]

    @property
    def histories(self) -> list[History]:
        """The tables of the runs."""
        return [run.history for run in self.runs]

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        key: str = RETURN,
        x: str = STEPS,
        *,
        aggregate: str = "iqm",
        band: float = 0.95,
        title: str | None = None,
        **options: Unpack[AxisOptions],
    ) -> Any:
        """A figure of the runs: the aggregate of the seeds of each config with a bootstrap band; of one config alone
        each seed as a faint line, too.

        Args:
            path: Where to write it, a ``.png``, ``.svg`` or ``.pdf``; None for nowhere.
            key: The number that is drawn.
            x: What it is drawn over: "steps", "seconds", "iterations", or the name of a column.
            aggregate: "iqm" (the interquartile mean), "mean" or "median".
            band: Confidence of the band.
            title: Above it; None for what all configs have in common, where there are several.
            **options: ``ylim=(low, high)``, ``xscale``, ``yscale``: see `AxisOptions`.

        Returns:
            The `RunFigure`, which notebooks show.

        Raises:
            ImportError: Without matplotlib: ``pip install 'jaxrl-stack[plots]'``.
            KeyError: If the runs have no such number.
            ValueError: If nothing can be drawn, or `path` has another end.
        """
        return plot_runs(self.runs, key, x, path, aggregate=aggregate, band=band, title=title, **options)

    def report(self, path: str | os.PathLike[str], *, title: str | None = None) -> Path:
        """Write the report of the runs as one HTML file; see `write_report`."""
        from jaxrl_stack.runs.report import write_report

        return write_report(self.runs, path, defaults=self.defaults, title=title)


class Trial(NamedTuple):
    """A run to come: its name, and what it trains."""

    name: str
    config: AlgorithmConfig


def chosen_seeds(seeds: int | Iterable[int], where: str) -> list[int]:
    """The seeds that are meant: 0, 1, 2, ... of a number, else those that are listed.

    Raises:
        ValueError: If there are none, or one of them twice.
    """
    chosen = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not chosen:
        raise ValueError(f"{where}(seeds={seeds!r}): must be at least one.")
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"{where}(seeds={seeds!r}): the same seed is the same run; leave out what is there twice.")
    return chosen


def check_until(until: Until, where: str) -> None:
    """Refuse to train for ever.

    Raises:
        ValueError: If `until` is None.
    """
    if until is None:
        raise ValueError(f"{where}(until=None): say when a run ends, {{'num_env_steps_sampled_lifetime': 200_000}}.")


def train_each(trials: Sequence[Trial], until: Until, *, progress: bool) -> tuple[dict[int, Run], Mapping[str, Any]]:
    """Train all of these, in an order in which as few programs as possible are compiled.

    Configs that differ in their seed and in traced settings only are trained by one algorithm, which is reset from run
    to run: one compiled program serves them.

    Args:
        trials: At least one.
        until: When each of them ends; see `Algorithm.learn`.
        progress: Whether to print a line for each.

    Returns:
        Place in `trials` -> its run, in ascending order, and the algorithm's `Series.defaults`. Ctrl-C ends the series
        after the running iteration; the runs that were finished before are returned.

    Raises:
        KeyboardInterrupt: If none was.
    """
    algo: Algorithm | None = None
    runs: dict[int, Run] = {}
    try:
        for number, place in enumerate(_order(trials), start=1):
            name, config = trials[place]
            started = time.perf_counter()
            if algo is None or not algo.reset(config):
                if algo is not None:
                    algo.stop()
                algo = config.copy(copy_frozen=False).build_algo()
            if not algo.learn(until, progress=False)["done"]:
                if not runs:
                    raise KeyboardInterrupt
                print(f"Ctrl-C: {len(runs)} of {len(trials)} runs are finished.", flush=True)
                break
            runs[place] = Run.of(algo, name, folder=algo.output.directory)
            if progress:
                last = algo.history.last
                print(
                    f"{name} ({number} of {len(trials)}): return {number_text(last.get(RETURN, math.nan))} after "
                    f"{last[STEPS]:,.0f} steps, {time.perf_counter() - started:.1f} s",
                    flush=True,
                )
    finally:
        if algo is not None:
            algo.stop()
    assert algo is not None
    return dict(sorted(runs.items())), as_json(algo.get_default_config().to_dict())


def _order(trials: Sequence[Trial]) -> list[int]:
    """Places of all trials: those with the programs of the first of them, then those of the next one, and so on."""
    groups: list[list[int]] = []
    for place, trial in enumerate(trials):
        alike = (group for group in groups if trial.config.shares_programs_with(trials[group[0]].config))
        group = next(alike, None)
        if group is None:
            groups.append([place])
        else:
            group.append(place)
    return [place for group in groups for place in group]
