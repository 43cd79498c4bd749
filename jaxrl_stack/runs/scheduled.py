"""Training of a sweep's runs with a scheduler, as members of one population."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxrl_stack.runs.agent_returns import EVALUATED_RETURN
from jaxrl_stack.runs.curves import RETURN
from jaxrl_stack.runs.halving import Halving, survivors
from jaxrl_stack.runs.learn import CTRL_C
from jaxrl_stack.runs.lineage import LINEAGE_FILE, Copy, Lineage
from jaxrl_stack.runs.output import free_directory, write_run
from jaxrl_stack.runs.pbt import PBT, explore, quantiles
from jaxrl_stack.runs.run import Run, folder_of, value_text
from jaxrl_stack.runs.search_space import check_space, example_values, is_sampled
from jaxrl_stack.runs.series import Series, Trial, known_defaults, series_of
from jaxrl_stack.runs.series_folder import SeriesFolder, Wave
from jaxrl_stack.runs.stop import StopCriteria
from jaxrl_stack.runs.terminal import number_text
from jaxrl_stack.runs.tune_schedulers import Schedule
from jaxrl_stack.runs.writers import as_json
from jaxrl_stack.utils.memory import TooManyError
from jaxrl_stack.utils.seeds import derived_seed

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.algorithms.population import Population

EXPLOIT_STREAM = "population-based training"
"""Name of the random stream that draws sources and new settings."""


def default_metric(config: AlgorithmConfig) -> str:
    """Metric for a scheduler without a metric: the mean return of evaluations if the config has evaluations, else of
    training.
    """
    return EVALUATED_RETURN if config.evaluation_interval else RETURN


class Trained(NamedTuple):
    """Result of `train_scheduled`: the runs and, with population-based training, the record of copies of members.

    Attributes:
        series: The runs, in the order of the trials.
        lineage: Copies of members; None without population-based training.
    """

    series: Series
    lineage: Lineage | None


class Scores:
    """Reader of the numbers on which a scheduler bases its decisions about the members of a population.

    These are the members' scores (values of ``metric``), and the times of iterations (values of ``time_attr``).

    Args:
        population: The population.
        schedule: Arguments of the scheduler.
        where: Name of the caller, for messages.

    Raises:
        ValueError: If results have no number at ``metric`` or ``time_attr``.
    """

    def __init__(self, population: Population, schedule: Schedule, where: str):
        config = population.config
        interval = config.evaluation_interval
        self._population, self._schedule, self._where = population, schedule, where
        self.metric = schedule.metric or default_metric(config)
        self._interval = interval if interval and self.metric.startswith("evaluation/") else 1
        for name, path in (("metric", self.metric), ("time_attr", schedule.time_attr)):
            criteria = StopCriteria({path: math.inf}, f"{where}, {name} of the scheduler")
            criteria.check_evaluation(interval)
            population.check_names(criteria)

    @property
    def is_complete(self) -> bool:
        """Whether the population members can have scores after the last iteration.

        False if scores come from evaluations and the iteration had no evaluation, else True. The score of a member may
        still be NaN, for example before an episode has ended.
        """
        return self._population.iteration % self._interval == 0

    def times(self) -> list[tuple[float, bool]]:
        """Lists a pair ``(time, has_scores)`` for each iteration so far.

        `time` is the largest value of the scheduler's ``time_attr`` over all members of the population after the
        iteration. `has_scores` is False if scores come from evaluations and the iteration had no evaluation, else True.
        """
        history = self._population.history
        if not len(history):
            return []
        times = np.nanmax(history[self._schedule.time_attr], axis=1)
        return [(float(time), (place + 1) % self._interval == 0) for place, time in enumerate(times)]

    @property
    def time(self) -> float:
        """Value of the scheduler's ``time_attr`` (metric that counts as time) after the last iteration: the largest
        value over all members of the population.
        """
        return float(np.nanmax(self._last(self._schedule.time_attr)))

    def decidable_times(self) -> list[float]:
        """Lists the times of the iterations after which a scheduler can decide about the population members.

        `times` defines the time of an iteration. In these iterations, every member has a score, except members
        that ended before the iteration or diverged in it.
        """
        history, times = self._population.history, self.times()
        if not times:
            return []
        lack = np.isnan(history[self.metric]) & (np.arange(len(times))[:, None] < history.num_iterations)
        for member, ended in self._population.diverged.items():
            lack[ended.iteration - 1, member] = False
        return [time for (time, is_complete), row in zip(times, lack, strict=True) if is_complete and not row.any()]

    def read(self) -> np.ndarray:
        """Reads the scores of the M members in the last iteration, float ``[M]``; NaN for diverged members. Higher is
        better: scores are negated if ``mode="min"``.
        """
        values = self._last(self.metric)
        # The row of the iteration in which a member diverged may have a number.
        values[list(self._population.diverged)] = math.nan
        return values if self._schedule.mode == "max" else -values

    def as_reported(self, score: float) -> float:
        """Converts a member's score, of which higher values are better, to the value of the reported metric: negates it
        if ``mode="min"``.
        """
        return score if self._schedule.mode == "max" else -score

    def _last(self, path: str) -> np.ndarray:
        try:
            return self._population.history.in_last_iteration(path)
        except KeyError as error:
            raise ValueError(f"{self._where}: {error.args[0]}") from error


# ------------------------------------------------------------------------------------------------------------- checks


def check_scheduled(
    trials: Sequence[Trial],
    schedule: Schedule,
    space: Mapping[str, Any],
    goal: Mapping[str, float],
    *,
    one_program: bool,
    where: str,
) -> None:
    """Raises ValueError if one population cannot train these runs with this scheduler.

    Args:
        trials: The runs.
        schedule: Arguments of the scheduler.
        space: Search space of the sweep.
        goal: Goal of each run: path in the result -> value.
        one_program: Argument of the sweep.
        where: Name of the caller, for messages.

    Raises:
        ValueError: Names the setting or argument.
    """
    configs = [trial.member_config() for trial in trials]
    if not one_program:
        raise ValueError(
            f"{where}(one_program=False): a scheduler trains all runs in one compiled program. Leave out "
            "one_program or scheduler."
        )
    if len(trials) < 2:
        raise ValueError(
            f"{where}: a scheduler compares runs, but the sweep has only one run. Set num_samples=32, or list more "
            "values in the space."
        )
    first = configs[0]
    reason = first.why_no_population()
    if reason is not None:
        raise ValueError(
            f"{where}(scheduler=...): a scheduler trains all runs in one compiled program, which is not possible "
            f"here: {reason}. Use Ray Tune:\n{_tuner_call(trials, schedule, space, goal)}"
        )
    other = next((config for config in configs if not config.can_be_members(first)), None)
    if other is not None:
        names = first.settings_between_populations(other) or ["env_config"]
        raise ValueError(
            f"{where}(scheduler=...): runs differ in {', '.join(names)}, but one compiled program trains all "
            "of them. Remove these settings from the space, and call run_sweep once for each of their values."
        )
    for name, off in (("keep_best", False), ("checkpoint_frequency", None)):
        if value := getattr(first, name):
            raise ValueError(
                f"{where}(scheduler=...): reporting({name}={value!r}) is not supported. Set "
                f"config.reporting({name}={off})."
            )
    if isinstance(schedule, PBT):
        _check_mutations(schedule, trials, first, space, where)


def _tuner_call(
    trials: Sequence[Trial], schedule: Schedule, space: Mapping[str, Any], goal: Mapping[str, float]
) -> str:
    """Code that trains the same runs with Ray Tune, for error messages. It assumes that the variables ``config``,
    ``space`` and ``scheduler`` contain the arguments of the sweep.
    """
    config = trials[0].base
    algo = config.algo_class.__name__
    lists = {name: list(dict.fromkeys(trial.settings[name] for trial in trials)) for name in space}
    lists = {name: values for name, values in lists.items() if not is_sampled(space[name])}
    if not isinstance(schedule, PBT) and len(seeds := list(dict.fromkeys(trial.seed for trial in trials))) > 1:
        lists["seed"] = seeds
    grids = "".join(f', "{name}": tune.grid_search({values!r})' for name, values in lists.items())
    settings = f"{{**space{grids}}}" if grids else "space"
    metric = ""
    if schedule.metric is None:
        path = default_metric(config)
        # A scheduler that has a mode takes no other.
        metric = f'metric="{path}", ' + ('mode="max", ' if schedule.mode == "max" else "")
    num_samples = len(trials) // math.prod(map(len, lists.values()))
    tune_config = f"tune.TuneConfig({metric}scheduler=scheduler, num_samples={num_samples})"
    return (
        f'tune.Tuner("{algo}", param_space=config.with_settings({settings}), tune_config={tune_config}, '
        f"run_config=tune.RunConfig(stop={dict(goal)!r})).fit()"
    )


def _check_mutations(
    pbt: PBT, trials: Sequence[Trial], config: AlgorithmConfig, space: Mapping[str, Any], where: str
) -> None:
    for name, values in pbt.mutations.items():
        shown = f"{where}: hyperparam_mutations of {name!r}"
        if name not in space:
            raise ValueError(
                f"{shown}: this setting is not in the search space, so it is equal in all members of the population. "
                f"Add {name!r} to the search space."
            )
        setting = config.setting(name)
        if setting is not None and setting.kind != "traced":
            raise ValueError(
                f"{shown}: this setting cannot change during training, because it is not an argument of the "
                f"compiled program. Remove {name!r} from hyperparam_mutations."
            )
        if isinstance(values, list | tuple) and not values:
            raise ValueError(f"{shown}: the list is empty. Give at least one value.")
        check_space(name, values, f"{where}, hyperparam_mutations")
        first = trials[0].settings[name]
        if name.startswith("env_config/") and all(trial.settings[name] == first for trial in trials):
            raise ValueError(
                f"{shown}: all members begin with {value_text(first)}, so the setting is compiled as a constant, "
                f"which cannot change. List several values in the search space."
            )
        for value in values if isinstance(values, list | tuple) else example_values(values):
            try:
                config.with_settings({name: value}).validate()
            except (TypeError, ValueError) as error:
                raise ValueError(f"{shown}: {error}") from error


# ----------------------------------------------------------------------------------------------------------- training


def train_scheduled(
    trials: Sequence[Trial],
    schedule: Schedule,
    goal: Mapping[str, float],
    *,
    progress: bool,
    where: str,
    folder: SeriesFolder,
) -> Trained:
    """Trains all runs as members of one population, with a scheduler.

    Args:
        trials: Runs that passed `check_scheduled`.
        schedule: Arguments of the scheduler.
        goal: Goal of each run: path in the result -> value.
        progress: Whether to print the progress.
        where: Name of the caller, for messages.
        folder: Folder with finished runs and checkpoints; see `kept_in_folder`.

    Returns:
        The runs; after Ctrl-C up to the last iteration.

    Raises:
        ValueError: If not all runs fit into memory, or results have no number at ``metric`` or ``time_attr``.
    """
    directory = trials[0].base.results_dir
    path = None if directory is None or not isinstance(schedule, PBT) else Path(directory, LINEAGE_FILE)
    runs = folder.finished()
    if runs:
        series = series_of(trials, runs, known_defaults(trials[0]), is_one_program=True)
        return Trained(series, None if path is None else Lineage.read(path))
    if path is not None and folder.path is None:
        path = _free_file(path)
    # The files of runs are written here: those of a population are written at each end of `learn`.
    trials = [trial.without_folder() for trial in trials]
    base, everyone = trials[0].base, list(range(len(trials)))
    try:
        population = base.build_population(members=[trial.member for trial in trials])
    except TooManyError as error:
        raise ValueError(
            f"{where}(scheduler=...) trains all runs at the same time, but only {error.num_fitting} of {len(trials)} "
            f"fit into memory. Lower num_samples, or list fewer values."
        ) from error
    try:
        defaults = as_json(population.get_default_config().to_dict())
        scores = Scores(population, schedule, where)
        wave = folder.wave(everyone, population, is_one_program=True)
        decider: Exploiter | Halver
        if isinstance(schedule, PBT):
            lineage = Lineage(tuple(dict(trial.settings) for trial in trials))
            if wave.is_restored:
                assert path is not None
                lineage = Lineage.read(path).until(population.iteration)
            decider = Exploiter(population, schedule, scores, lineage, path, base)
        else:
            decider = Halver(population, schedule, scores, trials, progress=progress)
            goal = schedule.with_end(goal).targets
        how: Any = {"after_iteration": deciding(decider, wave), "continues": wave.is_restored, "progress": progress}
        is_done = population.learn(goal, **how)["done"]
        trained = population.runs()
        found = dict(enumerate(wave.finish(trained) if is_done else trained))
    finally:
        population.stop()
    if directory is not None and folder.path is None:
        found = {place: _written(run, folder_of(trials[place].name, directory)) for place, run in found.items()}
    return Trained(series_of(trials, found, defaults, is_one_program=True), decider.lineage)


def deciding(decider: Exploiter | Halver | None, wave: Wave) -> Callable[[str], None]:
    """Creates the callback for ``learn(after_iteration=)`` of runs that train together.

    After each iteration, the callback lets the scheduler `decider` end or replace runs, unless `decider` is None. Then
    it saves a checkpoint of the runs if one is due. If training ends for a reason other than Ctrl-C, the callback does
    nothing.
    """

    def after_iteration(reason: str) -> None:
        # Decisions at the end would change settings, or end runs, that nothing trains afterwards.
        if decider is not None and (not reason or reason == CTRL_C):
            decider.decide_if_due()
        wave.save_if_due(reason)

    return after_iteration


def _written(run: Run, asked_for: Path) -> Run:
    """Writes a run's files into the folder `asked_for`.

    If `asked_for` contains another run, writes them into ``<asked_for>_2``, and so on. Returns a copy of the run whose
    `folder` is the folder with the files.
    """
    path = free_directory(asked_for)
    write_run(run, path)
    return dataclasses.replace(run, folder=path)


def _free_file(path: Path) -> Path:
    """Returns `path` if no such file exists, else the first free path such as ``lineage_2.jsonl``."""
    free, number = path, 1
    while free.exists():
        number += 1
        free = path.with_stem(f"{path.stem}_{number}")
    return free


class Halver:
    """Ends the worst runs of a population at the rungs (times of decisions) of successive halving.

    A rung waits until every live run has a score. Combinations whose runs have all reached their goal continue.

    Args:
        population: The population.
        halving: Arguments of successive halving.
        scores: Scores of the members.
        trials: The runs. Runs that differ only in the seed continue together.
        progress: Whether to print a line at each rung.
    """

    lineage = None

    def __init__(
        self, population: Population, halving: Halving, scores: Scores, trials: Sequence[Trial], *, progress: bool
    ):
        self._population, self._halving, self._scores, self._progress = population, halving, scores, progress
        first: list[Mapping[str, Any]] = []
        self._groups = []
        for trial in trials:
            if trial.settings not in first:
                first.append(trial.settings)
            self._groups.append(first.index(trial.settings))
        decided = max(scores.decidable_times(), default=-math.inf)
        self._num_passed = sum(rung <= decided for rung in halving.rungs)
        self._postponed: float | None = None

    def decide_if_due(self) -> None:
        """Ends the worst runs if a rung (time of a decision) is reached and every live run has a score. Call it after
        each iteration.
        """
        population, scores, halving = self._population, self._scores, self._halving
        rungs = halving.rungs
        if not scores.is_complete or self._num_passed == len(rungs) or scores.time < rungs[self._num_passed]:
            return
        rung = rungs[self._num_passed]
        running = [i for i in range(len(population)) if i not in population.stopped]
        values = scores.read()
        lacking = [i for i in running if i not in population.diverged and math.isnan(values[i])]
        if lacking:
            if self._progress and self._postponed != rung:
                print(
                    f"Rung {halving.time_attr}={rung:g} waits: {len(lacking)} of {len(running)} runs have no "
                    f"{scores.metric} yet.",
                    flush=True,
                )
            self._postponed = rung
            return
        self._num_passed = sum(one <= scores.time for one in rungs)
        rung = rungs[self._num_passed - 1]
        groups = [self._groups[i] for i in running]
        short = {group for i, group in zip(running, groups, strict=True) if i not in population.reached}
        chosen = survivors(values[running], groups, halving.reduction_factor)
        staying = [i for i, group in enumerate(groups) if i in chosen or group not in short]
        if len(staying) < len(running):
            population.keep([running[i] for i in staying], f"stopped at the rung {halving.time_attr}={rung:g}")
        if self._progress:
            best = scores.as_reported(float(np.nanmax(values))) if np.isfinite(values).any() else math.nan
            print(
                f"Rung {halving.time_attr}={rung:g}: {len(staying)} of {len(running)} runs continue; the best score is "
                f"{number_text(best)}.",
                flush=True,
            )


class Exploiter:
    """Copies the best members of a population over the worst, and gives the copies new settings.

    Args:
        population: The population.
        pbt: Arguments of population-based training.
        scores: Scores of the members.
        lineage: Copies so far.
        path: File of the lineage; None writes none.
        base: Config of all runs, which says whether a setting takes a value.

    Attributes:
        lineage: Copies so far.
    """

    def __init__(
        self,
        population: Population,
        pbt: PBT,
        scores: Scores,
        lineage: Lineage,
        path: Path | None,
        base: AlgorithmConfig,
    ):
        self._population, self._pbt, self._scores, self._path, self._base = population, pbt, scores, path, base
        self.lineage = lineage
        self._last = 0.0
        for time, is_complete in scores.times():
            self._note(time, is_complete=is_complete)
        self._write()

    def _note(self, time: float, *, is_complete: bool) -> bool:
        """Returns True if population-based training perturbs members at `time`.

        This is the case if a perturbation is due and the iteration has scores (`is_complete`). If True, stores `time`
        as the time of the last perturbation.
        """
        is_due = is_complete and self._pbt.is_due(time, self._last)
        if is_due:
            self._last = time
        return is_due

    def _write(self) -> None:
        if self._path is not None:
            self.lineage.write(self._path)

    def _is_valid(self, name: str, value: Any) -> bool:
        """Whether the config of the population is valid with a new value of one setting."""
        try:
            self._base.with_settings({name: value}).validate()
        except (TypeError, ValueError):
            return False
        return True

    def decide_if_due(self) -> None:
        """Replaces the worst members of the population by copies of the best with perturbed settings, if the
        perturbation interval has passed. Call it after each iteration.
        """
        population, scores = self._population, self._scores
        if not self._note(scores.time, is_complete=scores.is_complete):
            return
        values = scores.read()
        lower, upper = quantiles(values, self._pbt.quantile_fraction, list(population.diverged))
        if not lower:
            return
        # A stream of its own for each perturbation: a resumed run draws the same.
        seed = derived_seed(EXPLOIT_STREAM, population.members[0].seed, population.iteration)
        rng = np.random.default_rng(seed)
        present = self.lineage.present
        copies = []
        for target in lower:
            source = upper[int(rng.integers(len(upper)))]
            new, operations = explore(self._pbt, present[source], rng, self._is_valid)
            copies.append(
                Copy(
                    iteration=population.iteration,
                    source=source,
                    target=target,
                    source_score=scores.as_reported(float(values[source])),
                    target_score=scores.as_reported(float(values[target])),
                    old=present[target],
                    new=new,
                    operations=operations,
                )
            )
        population.copy([one.source for one in copies], [one.target for one in copies])
        population.change_settings({one.target: dict(one.new) for one in copies})
        self.lineage = dataclasses.replace(self.lineage, copies=(*self.lineage.copies, *copies))
        self._write()
