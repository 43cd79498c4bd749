"""The same config with several seeds: how much of a result is luck."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl_stack.runs.curves import RETURN, STEPS, Band
from jaxrl_stack.runs.history import History
from jaxrl_stack.runs.plots import bands_of, plot_runs
from jaxrl_stack.runs.run import Run
from jaxrl_stack.runs.terminal import number_text
from jaxrl_stack.runs.writers import as_json

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig


@dataclasses.dataclass(frozen=True)
class SeedRuns:
    """Runs of one config that differ in their seed.

    Attributes:
        runs: One for each seed, in their order.
        defaults: The settings that the algorithm has unless told otherwise, as plain values.
    """

    runs: tuple[Run, ...]
    defaults: Mapping[str, Any]

    @property
    def histories(self) -> list[History]:
        """The tables of the runs."""
        return [run.history for run in self.runs]

    def band(self, key: str = RETURN, x: str = STEPS, *, aggregate: str = "iqm", band: float = 0.95) -> Band:
        """What the seeds say together; the arguments are those of `plot`."""
        return bands_of(self.runs, key, x, aggregate=aggregate, band=band)[0]

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        key: str = RETURN,
        x: str = STEPS,
        *,
        aggregate: str = "iqm",
        band: float = 0.95,
        title: str | None = None,
    ) -> Any:
        """A figure of the seeds: their aggregate with a bootstrap band, and each of them as a faint line.

        Args:
            path: Where to write it, a ``.png``, ``.svg`` or ``.pdf``; None for nowhere.
            key: The number that is drawn.
            x: What it is drawn over: "steps", "seconds", "iterations", or the name of a column.
            aggregate: "iqm" (the interquartile mean), "mean" or "median".
            band: Confidence of the band.
            title: Above it.

        Returns:
            The `RunFigure`, which notebooks show.

        Raises:
            ImportError: Without matplotlib: ``pip install 'jaxrl-stack[plots]'``.
            KeyError: If the runs have no such number.
            ValueError: If nothing can be drawn, or `path` has another end.
        """
        return plot_runs(self.runs, key, x, path, aggregate=aggregate, band=band, title=title)

    def report(self, path: str | os.PathLike[str], *, title: str | None = None) -> Path:
        """Write the report of the seeds as one HTML file; see `write_report`."""
        from jaxrl_stack.runs.report import write_report

        return write_report(self.runs, path, defaults=self.defaults, title=title)


def run_seeds(
    config: AlgorithmConfig, seeds: int | Iterable[int], until: Mapping[str, float], *, progress: bool = True
) -> SeedRuns:
    """Train a config with several seeds, one after the other.

    The programs of the first seed are those of all: the others load them from the compilation cache.

    Args:
        config: What is trained; it is not changed, and its own ``seed`` does not count.
        seeds: How many, for 0, 1, 2, ...; or the seeds themselves.
        until: When each of them ends, ``{"num_env_steps_sampled_lifetime": 200_000}``: what `Algorithm.learn` takes.
            Curves are compared where all seeds have been, so let all train for as long.
        progress: Whether to print a line for each seed.

    Returns:
        Their histories, with ``plot(path)`` and ``report(path)``.

    Raises:
        ValueError: If there are no seeds, or `until` is None or names what results do not hold.
    """
    chosen = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not chosen:
        raise ValueError(f"run_seeds(seeds={seeds!r}): must be at least one.")
    if until is None:
        raise ValueError("run_seeds(until=None): say when a run ends, {'num_env_steps_sampled_lifetime': 200_000}.")
    runs = []
    for place, seed in enumerate(chosen, start=1):
        started = time.perf_counter()
        algo = config.copy(copy_frozen=False).debugging(seed=seed).build_algo()
        try:
            algo.learn(until, progress=False)
        finally:
            algo.stop()
        runs.append(Run.of(algo, f"seed {seed}"))
        if progress:
            last = algo.history.last
            print(
                f"seed {seed} ({place} of {len(chosen)}): return {number_text(last.get(RETURN, math.nan))} after "
                f"{last[STEPS]:,.0f} steps, {time.perf_counter() - started:.1f} s",
                flush=True,
            )
    return SeedRuns(tuple(runs), as_json(type(algo).get_default_config().to_dict()))
