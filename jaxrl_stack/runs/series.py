"""Training of a series (several runs with the same goal): as members of populations, or one after the other."""

from __future__ import annotations

import dataclasses
import math
import numbers
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from jaxrl_stack.runs.axes import AxisOptions
from jaxrl_stack.runs.curves import RETURN, STEPS
from jaxrl_stack.runs.history import History
from jaxrl_stack.runs.plots import plot_runs
from jaxrl_stack.runs.run import Run, folder_of, run_name
from jaxrl_stack.runs.series_folder import Measure, SeriesFolder
from jaxrl_stack.runs.stop import StopCriteria, Until
from jaxrl_stack.runs.stored_checkpoints import WITHOUT_FOLDER
from jaxrl_stack.runs.terminal import number_text
from jaxrl_stack.runs.writers import as_json
from jaxrl_stack.utils.memory import TooManyError

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig


@dataclasses.dataclass(frozen=True)
class Series:
    """Several runs that were trained to the same goal.

    Attributes:
        runs: Runs in the requested order; after Ctrl-C the finished ones.
        defaults: Default settings of the algorithm, as plain values.
        places: Indices of `runs` among all requested runs.
        is_one_program: Whether the runs were members of populations, each one program; otherwise they were trained one
            after the other.
    """

    runs: tuple[Run, ...]
    defaults: Mapping[str, Any]
    places: tuple[int, ...]
    is_one_program: bool

    @property
    def histories(self) -> list[History]:
        """Histories (tables of metrics by iteration) of the runs."""
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
        """Draws the runs: for each config the aggregate of its seeds with a bootstrap band; for a single config also
        each seed as a faint line.

        Args:
            path: File to write, a ``.png``, ``.svg`` or ``.pdf``; None writes none.
            key: Number to draw.
            x: The x axis: "steps", "seconds", "iterations", or the name of a column.
            aggregate: Aggregate of the seeds: "iqm" (the interquartile mean), "mean" or "median".
            band: Confidence of the band.
            title: Title of the figure; None for the common part of several configs' labels.
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
        """Writes the report of the runs as one HTML file; see `write_report`."""
        from jaxrl_stack.runs.report import write_report

        return write_report(self.runs, path, defaults=self.defaults, title=title)


@dataclasses.dataclass(frozen=True)
class Trial:
    """Planned run of a series (several runs with one goal): config, seed and settings.

    Attributes:
        base: Common config of all runs of the series; each run has a folder below its ``results_dir``.
        seed: Seed of this run.
        settings: Individual settings of this run.
        restore: Checkpoint that the run continues; None for a new run.
    """

    base: AlgorithmConfig
    seed: int
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    restore: str | None = None

    @property
    def name(self) -> str:
        """Name of the run: ``"lr=0.001 seed=3"``, or ``"seed 3"`` if its `settings` are empty."""
        return run_name(self.seed, self.settings)

    @property
    def folder(self) -> Path | None:
        """Folder of the run, ``<results_dir>/lr=0.001_seed=3``; None if the config has no ``results_dir``."""
        return None if self.base.results_dir is None else folder_of(self.name, self.base.results_dir)

    def config(self) -> AlgorithmConfig:
        """Unfrozen copy of the run's config."""
        own = self.base.with_settings(self.settings).debugging(seed=self.seed)
        return own if self.folder is None else own.reporting(results_dir=self.folder)

    def member_config(self) -> AlgorithmConfig:
        """Unfrozen copy of the run's config, for a member of a population.

        The copy's ``results_dir`` is the common folder of all runs instead of this run's folder, because the population
        writes the folders of all members.
        """
        return self.base.with_settings(self.settings).debugging(seed=self.seed)

    @property
    def member(self) -> dict[str, Any]:
        """Seed and settings of the run, ``{"seed": int, "settings": dict}``: the form in which
        ``build_population(members=)`` and `Population.restart` receive each member.
        """
        return {"seed": self.seed, "settings": self.settings}

    def without_folder(self) -> Trial:
        """Returns the run with ``results_dir=None``, so that it writes no files."""
        return dataclasses.replace(self, base=self.base.copy(copy_frozen=False).reporting(**WITHOUT_FOLDER))


def chosen_seeds(seeds: int | Iterable[int], where: str) -> list[int]:
    """Converts the argument `seeds` to a list: 0, 1, 2, ... for a number, or the given seeds.

    Raises:
        ValueError: If there are none, one occurs twice, or one is not an integer.
    """
    listed = list(seeds) if isinstance(seeds, Iterable) else [seeds]
    if any(isinstance(seed, bool) or not isinstance(seed, numbers.Integral) for seed in listed):
        raise ValueError(f"{where}(seeds={seeds!r}): must be a number of seeds, or a list of integers: seeds=[0, 1].")
    chosen = [int(seed) for seed in listed] if isinstance(seeds, Iterable) else list(range(int(seeds)))
    if not chosen:
        raise ValueError(f"{where}(seeds={seeds!r}): must be at least one seed. Set seeds=3, or a list: seeds=[0, 1].")
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"{where}(seeds={seeds!r}): contains a seed twice. List each seed once.")
    return chosen


def check_until(until: Until, where: str) -> None:
    """Raises ValueError if `until`, the criterion at which runs end, is None.

    Raises:
        ValueError: If `until` is None.
    """
    if until is None:
        raise ValueError(
            f"{where}(until=None): until is required. Set the end of a run: "
            f"until={{'num_env_steps_sampled_lifetime': 200_000}}."
        )


MAX_GROUPS = 8
"""Default maximum number of populations of a series, each with a separate program. `train_all` refuses more."""


def kept_in_folder(
    trials: Sequence[Trial],
    until: Until,
    checkpoint_seconds: float | None,
    *,
    measure: Measure | None = None,
    schedule: Any = None,
    where: str,
) -> SeriesFolder:
    """Creates the `SeriesFolder` of a series (several runs with one goal). After a kill, the series continues from this
    folder.

    Args:
        trials: Trials of the series, with one ``results_dir``.
        until: Goal of each run.
        checkpoint_seconds: Time from one checkpoint to the next. None creates a folder that stores nothing.
        measure: Function that scores finished runs.
        schedule: Arguments of the sweep's scheduler; None without one.
        where: Name of the caller, for messages.

    Raises:
        ValueError: There is no ``results_dir``, it has another series, or `until` is not a dict.
    """
    runs = [(trial.seed, trial.settings) for trial in trials]
    base = trials[0].base
    if checkpoint_seconds is None:
        return SeriesFolder(None, base, runs, {}, where=where)
    if base.results_dir is None:
        raise ValueError(
            f"{where}(checkpoint_seconds={checkpoint_seconds!r}) needs a folder for checkpoints. Set "
            f"config.reporting(results_dir='results/mine')."
        )
    if not isinstance(until, Mapping):
        raise ValueError(
            f"{where}(until={until!r}): must be a dict if checkpoint_seconds is set: "
            f"{{'num_env_steps_sampled_lifetime': 200_000}}."
        )
    goal = StopCriteria(until).targets
    path = Path(base.results_dir)
    how: Any = {"checkpoint_seconds": checkpoint_seconds, "measure": measure, "schedule": schedule}
    return SeriesFolder(path, base, runs, goal, **how, where=where)


def train_all(
    trials: Sequence[Trial],
    until: Until,
    *,
    progress: bool,
    one_program: bool,
    max_groups: int,
    where: str,
    folder: SeriesFolder,
) -> Series:
    """Trains all runs: as members of a `Population` if one program can train them, else one after the other.

    Args:
        trials: Trials, at least one.
        until: Goal of each run; see `Algorithm.learn`.
        progress: Whether to print the progress.
        one_program: False trains each run separately.
        max_groups: Maximum number of populations.
        where: Name of the caller, for messages.
        folder: Folder with finished runs, which are not trained again, and checkpoints of others; see `kept_in_folder`.

    Returns:
        The runs, in the order of the trials; after Ctrl-C the finished ones.

    Raises:
        ValueError: If more than `max_groups` programs would be compiled; names the settings that require them.
        KeyboardInterrupt: If no run was finished.
    """
    if folder.path is not None:
        trials = [trial.without_folder() for trial in trials]
    members = [trial.member_config() for trial in trials]
    reason = members[0].why_no_population() if one_program and len(trials) > 1 else None
    if trials[0].restore is not None and (reason is not None or not one_program):
        why = reason or "one_program=False"
        raise ValueError(
            f"{where}(restore={trials[0].restore!r}): restored seeds must train in one compiled program, which is not "
            f"possible here: {why}. To continue a single run, call Algorithm.from_checkpoint(path)."
        )
    alone = not one_program or (len(trials) == 1 and trials[0].restore is None) or reason is not None
    folder.check_kind(where, is_one_program=not alone)
    if alone:
        if reason is not None and progress:
            print(f"{len(trials)} runs one after the other: {reason}.", flush=True)
        return train_one_by_one(trials, range(len(trials)), until, folder, progress=progress)
    groups = _groups(members, lambda config, first: config.can_be_members(first))
    if len(groups) > max_groups:
        names = members[groups[0][0]].settings_between_populations(members[groups[1][0]])
        raise ValueError(
            f"{where}(max_groups={max_groups}): these {len(trials)} runs need {len(groups)} compiled programs, because "
            f"they differ in {', '.join(names)}. Raise max_groups, or set one_program=False to train one run after "
            "the other."
        )
    if progress:
        programs = "one program" if len(groups) == 1 else f"{len(groups)} programs, each compiled once"
        print(f"{len(trials)} runs as members of {programs}.", flush=True)
    return _together(trials, groups, until, folder, progress=progress)


def _together(
    trials: Sequence[Trial], groups: Sequence[Sequence[int]], until: Until, folder: SeriesFolder, *, progress: bool
) -> Series:
    """Trains groups of planned runs, one group after the other.

    The runs of a group are members of one population. If these runs do not all fit into memory, parts of the group are
    trained one after the other.
    """
    runs = folder.finished()
    defaults: Mapping[str, Any] = known_defaults(trials[0])
    for group in groups:
        while pending := [place for place in group if place not in runs]:
            is_done, defaults = _as_population(trials, pending, until, runs, folder, progress=progress)
            if not is_done:
                return _interrupted(trials, runs, defaults, is_one_program=True)
    return series_of(trials, runs, defaults, is_one_program=True)


def _as_population(
    trials: Sequence[Trial],
    group: Sequence[int],
    until: Until,
    runs: dict[int, Run],
    folder: SeriesFolder,
    *,
    progress: bool,
) -> tuple[bool, Mapping[str, Any]]:
    """Trains a group of planned runs as one population.

    If memory is too small for all, trains parts of the group one after the other with the same compiled program.

    If the folder has a checkpoint of some trials, only these are trained.

    Args:
        trials: All trials.
        group: Indices of the trials to train.
        until, progress, folder: See `train_all`.
        runs: Gets the finished runs, by index.

    Returns:
        Whether all are finished, False after Ctrl-C; and the algorithm's `Series.defaults`.
    """
    group = folder.begun(group) or group
    members = [trials[place].member for place in group]
    base = trials[group[0]].base
    size = len(group)
    try:
        population = base.build_population(members=members)
    except TooManyError as error:
        if not error.num_fitting:
            raise
        num_waves = -(-len(group) // error.num_fitting)
        size = -(-len(group) // num_waves)
        print(f"{len(group)} runs in {num_waves} waves of at most {size}, which fit into memory.", flush=True)
        population = base.build_population(members=members[:size])
    defaults = as_json(population.get_default_config().to_dict())
    try:
        for start in range(0, len(group), size):
            if start:
                population.restart(members[start : start + size])
            places = group[start : start + size]
            restore = trials[places[0]].restore
            if restore is not None:
                population.continue_from(restore)
            wave = folder.wave(places, population, is_one_program=True)
            how: Any = {"after_iteration": wave.save_if_due, "continues": wave.is_restored}
            if not wave.is_trained and not population.learn(until, progress=progress, **how)["done"]:
                return False, defaults
            try:
                finished = wave.finish(population.runs())
            except KeyboardInterrupt:
                return False, defaults
            for place, run in zip(places, finished, strict=True):
                runs[place] = dataclasses.replace(run, name=trials[place].name)
    finally:
        population.stop()
    return True, defaults


def train_one_by_one(
    trials: Sequence[Trial], places: Sequence[int], until: Until, folder: SeriesFolder, *, progress: bool
) -> Series:
    """Trains planned runs one after the other, in an order that compiles few programs.

    Configs that differ only in seed and traced settings are trained by one algorithm, which is reset for each run and
    keeps its compiled program.

    Args:
        trials: All trials.
        places: Indices of the trials to train.
        until, folder, progress: See `train_all`.
    """
    algo: Algorithm | None = None
    runs = folder.finished()
    configs = [trial.config() for trial in trials]
    groups = _groups(configs, lambda config, first: config.shares_programs_with(first))
    order = [place for group in groups for place in group if place in places and place not in runs]
    defaults: Mapping[str, Any] = known_defaults(trials[0])
    try:
        for place in order:
            name, config = trials[place].name, configs[place]
            started = time.perf_counter()
            if algo is None or not algo.reset(config):
                if algo is not None:
                    algo.stop()
                algo = config.copy(copy_frozen=False).build_algo()
                defaults = as_json(algo.get_default_config().to_dict())
            wave = folder.wave([place], algo, is_one_program=False)
            save = wave.save_if_due
            if not wave.is_trained and not algo.learn(until, progress=False, after_iteration=save)["done"]:
                return _interrupted(trials, runs, defaults, is_one_program=False)
            try:
                (runs[place],) = wave.finish([Run.of(algo, name, folder=algo.output.directory)])
            except KeyboardInterrupt:
                return _interrupted(trials, runs, defaults, is_one_program=False)
            if progress:
                last = algo.history.last
                print(
                    f"{name} ({len(runs)} of {len(trials)}): return {number_text(last.get(RETURN, math.nan))} after "
                    f"{last[STEPS]:,.0f} steps, {time.perf_counter() - started:.1f} s",
                    flush=True,
                )
    finally:
        if algo is not None:
            algo.stop()
    return series_of(trials, runs, defaults, is_one_program=False)


def known_defaults(trial: Trial) -> Mapping[str, Any]:
    """Returns the default settings of a planned run's algorithm as plain values. They are read from a new config, so
    this function does not build the algorithm.
    """
    return as_json(type(trial.base)().to_dict())


def _interrupted(
    trials: Sequence[Trial], runs: Mapping[int, Run], defaults: Mapping[str, Any], *, is_one_program: bool
) -> Series:
    """Prints the number of runs that were finished before Ctrl-C, and returns a `Series` of these runs.

    Raises:
        KeyboardInterrupt: If none was finished.
    """
    if not runs:
        raise KeyboardInterrupt
    print(f"Ctrl-C: {len(runs)} of {len(trials)} runs are finished.", flush=True)
    return series_of(trials, runs, defaults, is_one_program=is_one_program)


def series_of(
    trials: Sequence[Trial], runs: Mapping[int, Run], defaults: Mapping[str, Any], *, is_one_program: bool
) -> Series:
    """Builds a `Series` from finished runs, in the order of `trials` (the planned runs). Each run gets the name of its
    planned run, such as ``"lr=0.001 seed=3"``.

    Args:
        trials: All trials.
        runs: Runs by index of the trial.
        defaults, is_one_program: See `Series`.
    """
    ordered = {place: dataclasses.replace(run, name=trials[place].name) for place, run in sorted(runs.items())}
    return Series(tuple(ordered.values()), defaults, tuple(ordered), is_one_program)


def _groups(configs: Sequence[Any], are_alike: Callable[[Any, Any], bool]) -> list[list[int]]:
    """Divides configs into groups, and returns the indices of each group's configs.

    A config joins the first group for which ``are_alike(config, first config of the group)`` is True, or else begins a
    new group.
    """
    groups: list[list[int]] = []
    for place, config in enumerate(configs):
        group = next((group for group in groups if are_alike(config, configs[group[0]])), None)
        if group is None:
            groups.append([place])
        else:
            group.append(place)
    return groups
