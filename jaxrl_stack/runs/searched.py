"""Sweep in which a searcher suggests combinations of settings in waves.

All combinations of a wave are trained before the searcher suggests the next wave. The search ends if the searcher has
no more suggestions, or if the number of samples or the budget is reached. If the sweep has a budget, it then trains the
best combinations again with new seeds.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxrl_stack.runs.budget import CONFIRMED_SHARE, Budget
from jaxrl_stack.runs.curves import ITERATIONS, STEPS
from jaxrl_stack.runs.halving import Halving
from jaxrl_stack.runs.plots import compare
from jaxrl_stack.runs.run import Run
from jaxrl_stack.runs.scheduled import Halver, Scores, check_scheduled, deciding
from jaxrl_stack.runs.searchers import FINISHED, Objective, flat
from jaxrl_stack.runs.series import Series, Trial, kept_in_folder, known_defaults, train_one_by_one
from jaxrl_stack.runs.series_folder import SeriesFolder, argument_text, schedule_text, without_addresses, write_json
from jaxrl_stack.runs.statistics import counted
from jaxrl_stack.runs.stop import StopCriteria, Until
from jaxrl_stack.runs.writers import as_json
from jaxrl_stack.utils.memory import TooManyError

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.algorithms.population import Population

WAVE, WAVE_WITH_HALVING = 16, 64
"""Numbers of combinations in a wave, without and with successive halving, which ends most runs early."""
NUM_CONFIRMED, NUM_FRESH_SEEDS = 3, 3
"""Best combinations that are trained again at the end of a budget, and seeds of each."""
SEARCH_FILE = "search.json"


@dataclasses.dataclass(frozen=True)
class Search:
    """Arguments of a sweep in which a searcher suggests the settings of the runs.

    Attributes:
        config: Config of all runs.
        space: Search space.
        searcher: Searcher that has the space.
        objective: Number that it optimizes.
        seeds: Seeds of each combination.
        until: Goal of each run.
        num_samples: Number of combinations; None for as many as the budget has room for.
        budget: Budget; None without one.
        halving: Successive halving of each wave; None trains all runs to the goal.
        checkpoint_seconds, progress, one_program: See `run_sweep`.
        trial: Creates a valid run from config, settings and seed.
    """

    config: AlgorithmConfig
    space: Mapping[str, Any]
    searcher: Any
    objective: Objective
    seeds: Sequence[int]
    until: Until
    num_samples: int | None
    budget: Budget | None
    halving: Halving | None
    checkpoint_seconds: float | None
    progress: bool
    one_program: bool
    trial: Callable[[AlgorithmConfig, Mapping[str, Any], int], Trial]
    where: str = "run_sweep"


class Trained(NamedTuple):
    """Runs that were trained with combinations of settings, and the combination and seed of each run.

    Attributes:
        series: The runs.
        combinations: Combinations of the settings.
        members: Combination and seed of each run.
    """

    series: Series
    combinations: list[Mapping[str, Any]]
    members: list[tuple[int, int]]

    def runs_of(self, place: int) -> list[Run]:
        """Returns the runs that were trained with the combination at index `place` of `combinations`."""
        return [run for run, (own, _) in zip(self.series.runs, self.members, strict=True) if own == place]


class Searched(NamedTuple):
    """Result of `train_searched`: the runs of the search, and runs with new seeds that confirm its best settings.

    Attributes:
        search: Runs of the search.
        confirmed: Runs of the best combinations with fresh seeds; None without a budget or after Ctrl-C.
    """

    search: Trained
    confirmed: Trained | None


def default_halving(until: Until, objective: Objective) -> Halving | None:
    """Default successive halving for a goal in iterations or env steps.

    At 1/16 and at 1/4 of the goal, about the best quarter of the runs continues. None for other goals, and for goals
    below 4.

    The first rung is iteration 2 or later: in iteration 1, combinations with the same seed act alike.
    """
    if callable(until):
        return None
    goal = StopCriteria(until).targets
    time_attr = next((name for name in (ITERATIONS, STEPS) if goal.get(name, 0) >= 4), None)
    if time_attr is None:
        return None
    max_t = goal[time_attr]
    first = max(2.0 if time_attr == ITERATIONS else 1.0, max_t // 16)
    return Halving(max_t, first, time_attr=time_attr, metric=objective.metric, mode=objective.mode)


def train_searched(search: Search) -> Searched:
    """Trains waves of suggested combinations until the searcher has no more suggestions, or the number of samples or
    the budget is reached.

    A wave trains all its combinations with all seeds, then the searcher gets their results. A wave starts if it and the
    confirmation fit into the budget, judged by the waves before it; at least one is trained.

    Raises:
        ValueError: If the searcher suggests invalid settings, results lack its metric, or the folder has another sweep.
        KeyboardInterrupt: If no run was finished.
    """
    record = Record.of(search)
    trainer = Trainer(search)
    waves: list[Trained] = []
    try:
        while (settings := record.next_wave(len(waves), trainer.wave_size, trainer.expected_steps)) is not None:
            started, base = time.perf_counter(), trainer.base(f"wave_{len(waves):03}")
            trials = [search.trial(base, own, seed) for own in settings for seed in search.seeds]
            runs, is_done = trainer.train(trials)
            waves.append(_trained(trials, runs, settings, search.seeds, trainer))
            if not is_done:
                return Searched(_joined(waves), None)
            record.finish_wave(len(waves) - 1, waves[-1], time.perf_counter() - started)
        if search.budget is None:
            return Searched(_joined(waves), None)
        if search.progress and len(waves) == 1 and record.spent > (1 - CONFIRMED_SHARE) * search.budget.amount:
            spent, smaller = search.budget.text(record.spent), max(2, len(waves[0].combinations) // 4)
            print(
                f"One wave has taken {spent} of a budget of {search.budget.text()}. For a smaller wave, set "
                f"num_samples={smaller}, or lower until.",
                flush=True,
            )
        found = _joined(waves)
        best = [found.combinations[place] for place in _best(found, search)[:NUM_CONFIRMED]]
        if not best:  # all have diverged
            return Searched(found, None)
        first = max(search.seeds) + 1
        fresh = range(first, first + NUM_FRESH_SEEDS)
        if search.progress:
            print(
                f"Confirmation: the best {counted(len(best), 'combination')} with {len(fresh)} fresh seeds.", flush=True
            )
        trials = [search.trial(trainer.base("confirmed"), own, seed) for own in best for seed in fresh]
        runs, is_done = trainer.train(trials, is_search=False)
        return Searched(found, _trained(trials, runs, best, fresh, trainer) if is_done else None)
    finally:
        trainer.stop()


def _trained(
    trials: Sequence[Trial],
    runs: Mapping[int, Run],
    settings: Sequence[Mapping[str, Any]],
    seeds: Sequence[int],
    trainer: Trainer,
) -> Trained:
    places = sorted(runs)
    ordered = tuple(dataclasses.replace(runs[place], name=trials[place].name) for place in places)
    series = Series(ordered, trainer.defaults, tuple(places), not trainer.is_alone)
    members = [(place // len(seeds), trials[place].seed) for place in places]
    return Trained(series, list(settings), members)


def _joined(waves: Sequence[Trained]) -> Trained:
    """Joins several waves (combinations of settings that were trained together) to one `Trained`, which contains the
    runs, combinations and seeds of all waves.
    """
    runs = tuple(run for wave in waves for run in wave.series.runs)
    if not runs:
        raise KeyboardInterrupt
    starts = np.cumsum([0, *(len(wave.combinations) for wave in waves)]).tolist()
    members = [
        (start + place, seed) for start, wave in zip(starts, waves, strict=False) for place, seed in wave.members
    ]
    series = dataclasses.replace(waves[0].series, runs=runs, places=tuple(range(len(runs))))
    return Trained(series, [one for wave in waves for one in wave.combinations], members)


def _score(trained: Trained, place: int, search: Search) -> float:
    """Final value of the searcher's metric for a combination of settings, aggregated over the combination's runs.

    Runs that diverged or lack a finite value of the metric are left out. NaN if no run remains, for example because no
    episode ended.
    """
    runs = [run for run in trained.runs_of(place) if _has_score(run, search)]
    if not runs:
        return math.nan
    (row,) = compare(runs, search.objective.metric, STEPS)
    return row.last


def _has_score(run: Run, search: Search) -> bool:
    return not run.has_diverged and run.history.has_number(search.objective.metric)


def _require_scores(trained: Trained, search: Search) -> None:
    """Raises an error if all runs that have not diverged lack a finite value of the searcher's metric. If all runs have
    diverged, raises no error.

    Raises:
        ValueError: If none of these runs has such a value; the message names the metric.
    """
    runs = [run for run in trained.series.runs if not run.has_diverged]
    if not runs or any(_has_score(run, search) for run in runs):
        return
    try:
        compare(runs, search.objective.metric, STEPS)
    except (KeyError, ValueError) as error:
        raise ValueError(f"{search.where}, metric of search_alg: {error.args[0]}") from error


def _best(trained: Trained, search: Search) -> list[int]:
    """Ranks the distinct combinations of settings by their final metric, best first.

    With successive halving, combinations whose longest run has more iterations come first, and the metric ranks
    combinations with equally long runs. Returns the indices of the combinations; combinations without a metric are
    omitted.
    """
    sign = -1 if search.objective.mode == "max" else 1
    found = []
    for place in range(len(trained.combinations)):
        score = _score(trained, place, search)
        if not math.isnan(score):
            found.append((-_num_iterations(trained, place) if search.halving else 0, sign * score, place))
    order = [place for *_, place in sorted(found)]
    combinations = [trained.combinations[place] for place in order]
    return [place for i, place in enumerate(order) if combinations[i] not in combinations[:i]]


def _num_iterations(trained: Trained, place: int) -> int:
    """Largest number of iterations among the runs of a combination of settings."""
    return max(len(run.history) for run in trained.runs_of(place))


class Trainer:
    """Trains the runs of a sweep.

    The runs of a wave (several combinations of settings) are members of one population, which is restarted with new
    members for the next wave. With ``one_program=False``, or if the config does not allow a population, the runs are
    trained one after the other.

    Args:
        search: Arguments of the sweep.

    Attributes:
        defaults: See `Series`.
        is_alone: Whether runs train one after the other.
        wave_size: Combinations of a wave.
    """

    def __init__(self, search: Search):
        self._search = search
        # The number that the searcher optimizes, as a goal, whose checks name it.
        self._metric = StopCriteria({search.objective.metric: math.inf}, f"{search.where}, metric of search_alg")
        self._metric.check_evaluation(search.config.evaluation_interval)
        self._metric.check_names(search.config._known_result())
        reason = search.config.why_no_population() if search.one_program else None
        self.is_alone = reason is not None or not search.one_program
        if reason is not None and search.progress:
            print(f"Runs train one after the other: {reason}.", flush=True)
        self._population: Population | None = None
        self._limit: int | None = None
        self._num_built, self._largest = 0, list[dict[str, Any]]()
        self.defaults: Mapping[str, Any] = known_defaults(Trial(search.config, 0))
        self.wave_size = WAVE_WITH_HALVING if search.halving else WAVE
        if search.num_samples is not None:
            self.wave_size = min(self.wave_size, search.num_samples)

    def base(self, name: str) -> AlgorithmConfig:
        """Returns a copy of the sweep's config for some of its runs, such as the runs of one wave.

        If the sweep has a ``results_dir``, the copy's ``results_dir`` is the subfolder `name` of that folder.
        """
        directory = self._search.config.results_dir
        own = self._search.config.copy(copy_frozen=False)
        return own if directory is None else own.reporting(results_dir=str(Path(directory, name)))

    def expected_steps(self) -> float:
        """Returns the number of env steps after which a run ends at the latest.

        The number is computed from the stop criteria of the runs. Returns 0 if the number is unknown, for example if a
        return is the only criterion.
        """
        search = self._search
        if callable(search.until):
            return 0.0
        goal = self._end_of_runs().targets
        lengths = [goal[STEPS]] if STEPS in goal else []
        if ITERATIONS in goal and not self.is_alone:
            trial = Trial(search.config, search.seeds[0]).without_folder()
            population = trial.base.build_population(members=[trial.member])
            driver = population.driver
            lengths.append(goal[ITERATIONS] * driver.num_training_steps_per_call * driver.plan.num_env_steps)
            population.stop()
        return float(min(lengths, default=0.0))

    def _end_of_runs(self) -> StopCriteria:
        """Stop criteria of the runs: the goal of the sweep. With successive halving and ``stop_last_trials=True``, a
        run also ends when ``time_attr`` reaches ``max_t`` (attributes of `Halving`).
        """
        until, halving = self._search.until, self._search.halving
        return StopCriteria(until) if halving is None else halving.with_end(until)

    def train(self, trials: Sequence[Trial], *, is_search: bool = True) -> tuple[dict[int, Run], bool]:
        """Trains the planned runs, except runs that the sweep's folder already contains as finished.

        Args:
            trials: The runs.
            is_search: Whether successive halving may end runs early.

        Returns:
            The finished runs by index, and whether these are all; False after Ctrl-C.
        """
        # A searcher may suggest a combination twice.
        identities = [(trial.seed, repr(dict(trial.settings))) for trial in trials]
        firsts = [identities.index(one) for one in identities]
        unique = sorted(set(firsts))
        found, is_done = self._train_unique([trials[place] for place in unique], is_search=is_search)
        places = {place: unique.index(first) for place, first in enumerate(firsts)}
        return {place: found[own] for place, own in places.items() if own in found}, is_done

    def _train_unique(self, trials: Sequence[Trial], *, is_search: bool) -> tuple[dict[int, Run], bool]:
        search = self._search
        folder = kept_in_folder(trials, search.until, search.checkpoint_seconds, where=search.where)
        folder.check_kind(search.where, is_one_program=not self.is_alone)
        if self.is_alone:
            if search.halving is not None:
                self._check_halving(trials, search.halving)
            series = train_one_by_one(trials, range(len(trials)), search.until, folder, progress=search.progress)
            return dict(zip(series.places, series.runs, strict=True)), len(series.runs) == len(trials)
        halving = search.halving if is_search and len(trials) > 1 else None
        self._check(trials, halving)
        runs = folder.finished()
        if len(trials) > len(self._largest):
            self._largest = [trial.member for trial in trials]
        while pending := [place for place in range(len(trials)) if place not in runs]:
            if not self._train_together(trials, folder.begun(pending) or pending, halving, folder, runs):
                return runs, False
        return runs, True

    def _check_halving(self, trials: Sequence[Trial], halving: Halving) -> None:
        search = self._search
        goal = StopCriteria(search.until).targets
        check_scheduled(trials, halving, search.space, goal, one_program=search.one_program, where=search.where)

    def _check(self, trials: Sequence[Trial], halving: Halving | None) -> None:
        """Checks that one compiled program can train all runs; raises ValueError if not."""
        search = self._search
        if halving is not None:
            self._check_halving(trials, halving)
            return
        first = trials[0].member_config()
        for trial in trials[1:]:
            if not trial.member_config().can_be_members(first):
                names = first.settings_between_populations(trial.member_config()) or ["env_config"]
                raise ValueError(
                    f"{search.where}: suggested runs differ in {', '.join(names)}, but one compiled program "
                    f"trains all of them. Remove these settings from the space, or set one_program=False."
                )

    def _train_together(
        self,
        trials: Sequence[Trial],
        places: Sequence[int],
        halving: Halving | None,
        folder: SeriesFolder,
        runs: dict[int, Run],
    ) -> bool:
        """Trains the runs with the indices `places` as members of one population.

        Adds the trained runs to `runs`, ``{index: run}``. If memory is too small for all, trains only the first
        indices, as many as fit. Returns False after Ctrl-C.
        """
        search, directory = self._search, trials[0].base.results_dir
        own = [trials[place].without_folder() for place in places]
        population = self._started(own)
        places, own = places[: len(population)], own[: len(population)]
        population.check_names(self._metric)
        wave = folder.wave(places, population, is_one_program=True)
        # Runs without rungs, such as those of the confirmation, end at the same time.
        goal, halver = search.until if search.halving is None else self._end_of_runs().targets, None
        if halving is not None:
            halver = Halver(
                population, halving, Scores(population, halving, search.where), own, progress=search.progress
            )

        how: Any = {"after_iteration": deciding(halver, wave), "continues": wave.is_restored}
        if not wave.is_trained and not population.learn(goal, progress=search.progress, **how)["done"]:
            # With a scheduler, runs count up to the last iteration.
            if halving is not None and population.iteration:
                if folder.path is None and directory is not None:
                    population.write_runs(directory)
                runs |= dict(zip(places, population.runs(), strict=True))
            return False
        try:
            if folder.path is None and directory is not None:
                population.write_runs(directory)
            finished = wave.finish(population.runs())
        except KeyboardInterrupt:
            return False
        runs |= dict(zip(places, finished, strict=True))
        return True

    def _started(self, trials: Sequence[Trial]) -> Population:
        """Returns a population whose members are the given runs.

        Restarts the population of the previous wave with these runs if it is large enough, else builds a new one. If
        memory is too small for all runs, the members are only the first runs, as many as fit.

        A new population is built for the largest wave so far, also if an earlier call of `run_sweep` trained that wave.
        Thus, arrays have the same shapes, and sums the same order, as without an interruption. Exception: if the
        population cannot restart with the given runs, a new one is built for these runs only.
        """
        base, members = trials[0].base, [trial.member for trial in trials[: self._limit]]
        if self._population is None or len(members) > self._num_built:
            self.stop()
            largest = max(self._largest, members, key=len)
            self._population, members = self._built(base, largest), members[: self._limit]
            self._num_built = len(self._population)
            if members == largest[: self._limit]:
                return self._population
        try:
            self._population.restart(members)
        except ValueError:  # other numbers of the environment differ than in the waves before
            self.stop()
            self._population = self._built(base, members)
            self._num_built = len(self._population)
        return self._population

    def _built(self, base: AlgorithmConfig, members: list[dict[str, Any]]) -> Population:
        try:
            population = base.build_population(members=members[: self._limit])
        except TooManyError as error:
            if not error.num_fitting:
                raise
            self._limit = error.num_fitting
            population = base.build_population(members=members[: self._limit])
        self.defaults = as_json(population.get_default_config().to_dict())
        return population

    def stop(self) -> None:
        """Stops the population that trains the runs, if one exists, and discards it."""
        if self._population is not None:
            self._population.stop()
            self._population = None


class Record:
    """Record of a sweep's waves (combinations of settings that are trained together).

    The record contains the suggested settings, the seconds and env steps that each wave took, and the state of the
    searcher. A killed sweep can continue if its record is stored in a folder.

    The searcher is saved after the suggestions of each wave, before it trains. A call that continues restores the last
    of these states, trains the rest of that wave, and reports its results.

    Args:
        search: Arguments of the sweep.
        path: Folder; None stores nothing.

    Raises:
        ValueError: If the folder has another sweep; names the arguments that differ.
    """

    def __init__(self, search: Search, path: Path | None):
        self._search, self._path = search, path
        self._waves: list[dict[str, Any]] = []
        self._started, self._earlier_seconds = time.perf_counter(), 0.0
        self._is_finished = self._has_scores = False
        if path is None:
            return
        self._content = {
            "settings": as_json(search.config.to_dict()),
            "space": {name: argument_text(values) for name, values in search.space.items()},
            "searcher": f"{type(search.searcher).__module__}.{type(search.searcher).__qualname__}",
            "seeds": list(search.seeds),
            "until": as_json(StopCriteria(search.until).targets),
            "num_samples": search.num_samples,
            "budget": None if search.budget is None else dataclasses.asdict(search.budget),
            "halving": None if search.halving is None else schedule_text(search.halving),
        }
        file = path / SEARCH_FILE
        if not file.exists():
            return
        stored = json.loads(file.read_text(encoding="utf-8"))
        own, former = (without_addresses(one) for one in (self._content, stored.get("content", {})))
        differing = [name for name in own if former.get(name) != own[name]]
        if differing:
            raise ValueError(
                f"{search.where}: the runs in {path} were started with other values of {', '.join(differing)}. Pass "
                f"the values of the earlier call, or use another results_dir."
            )
        self._waves = stored["waves"]
        measured = sum(wave["seconds"] or 0.0 for wave in self._waves)
        self._earlier_seconds = stored.get("spent_seconds", measured)
        self._is_finished = stored.get("is_finished", False)
        if self._waves:
            search.searcher.restore(str(self._searcher_file(len(self._waves) - 1)))

    @classmethod
    def of(cls, search: Search) -> Record:
        """Creates the record of a sweep's waves.

        If ``results_dir`` and ``checkpoint_seconds`` are set, the record is stored in the folder ``results_dir``, so
        that a killed sweep can continue. Otherwise, the record exists only in memory.
        """
        directory = search.config.results_dir
        is_kept = search.checkpoint_seconds is not None and directory is not None
        return cls(search, Path(str(directory)) if is_kept else None)

    def next_wave(self, number: int, size: int, expected_steps: Callable[[], float]) -> list[Mapping[str, Any]] | None:
        """Returns the combinations of settings that wave `number` of the search trains together.

        If the wave is recorded, returns its recorded combinations, else new combinations that the searcher suggests.
        Returns None if the search has ended.

        Args:
            number: Index of the wave.
            size: Maximum number of combinations.
            expected_steps: Function that returns the env steps of a whole run, 0 if unknown.

        Raises:
            ValueError: If the searcher suggests no settings at all, different ones, or invalid values.
        """
        if number < len(self._waves):
            return [dict(own) for own in self._waves[number]["settings"].values()]
        suggested = {} if self._is_finished else self._suggested(size, expected_steps)
        if not suggested:
            # The same call may later have more time, and must confirm the same combinations.
            self._is_finished = True
            self._write()
            return None
        if self._path is not None:
            self._save_searcher(number)
        self._waves.append({"settings": suggested, "seconds": None, "env_steps": None})
        self._write()
        if self._search.progress:
            print(f"Wave {number + 1}: {counted(len(suggested), 'combination')}{self._spent_text()}.", flush=True)
        return list(suggested.values())

    def _suggested(self, size: int, expected_steps: Callable[[], float]) -> dict[str, Mapping[str, Any]]:
        """Asks the searcher for the combinations of settings to train next.

        Returns ``{trial id: settings}`` with at most as many combinations as `size`, the number of samples and the
        budget allow; {} if the search has ended.
        """
        search = self._search
        size = min(size, self._room_in_samples(), self._room_in_budget(expected_steps))
        suggested: dict[str, Mapping[str, Any]] = {}
        first = sum(len(wave["settings"]) for wave in self._waves)
        while len(suggested) < size:
            trial_id = f"{first + len(suggested):05}"
            own = search.searcher.suggest(trial_id)
            if own == FINISHED:
                self._is_finished = True
            if not isinstance(own, Mapping):
                break
            suggested[trial_id] = flat(own)
        if not suggested and not self._waves:
            raise ValueError(
                f"{search.where}: search_alg suggested no settings. Pass the search space to {search.where}, or create "
                f"search_alg with one: OptunaSearch(space=...)."
            )
        names = {tuple(sorted(own)) for own in suggested.values()}
        if len(names) > 1:
            raise ValueError(
                f"{search.where}: search_alg must suggest values for the same settings in each suggest(), but "
                f"suggested values for different settings: {sorted(names)}. Return all settings from each suggest()."
            )
        for own in suggested.values():
            search.trial(search.config, own, search.seeds[0])  # raises if they are invalid
        return suggested

    def finish_wave(self, number: int, trained: Trained, seconds: float) -> None:
        """Stores the cost of a wave (combinations of settings trained together), and reports the wave's results to the
        searcher.

        The cost consists of seconds and env steps; a cost that is already stored does not change. The results are
        reported only if no later wave is recorded. If a later wave is recorded, the searcher was restored from a later
        state and already knows these results.

        Raises:
            ValueError: If no run of the search so far has a finite value of the searcher's metric, although not all
                runs of the wave have diverged.
        """
        wave, search = self._waves[number], self._search
        if wave["seconds"] is None:
            steps = [float(run.history[STEPS][-1]) for run in trained.series.runs if len(run.history)]
            wave |= {"seconds": seconds, "env_steps": sum(steps), "longest_run": max(steps, default=0.0)}
        self._has_scores = self._has_scores or any(_has_score(run, search) for run in trained.series.runs)
        if not self._has_scores:
            _require_scores(trained, search)
        # The restored searcher knows the results of earlier waves.
        if number == len(self._waves) - 1:
            for place, (trial_id, settings) in enumerate(wave["settings"].items()):
                score = _score(trained, place, search)
                if math.isnan(score):
                    search.searcher.on_trial_complete(trial_id, None, error=True)
                    continue
                length = _num_iterations(trained, place)
                result = {search.objective.metric: score, ITERATIONS: length, "config": dict(settings)}
                search.searcher.on_trial_complete(trial_id, result, error=False)
        self._write()

    def _room_in_samples(self) -> int:
        """Returns the number of combinations of settings that the search may still try until it reaches
        ``num_samples``.

        If ``num_samples`` is None, returns `WAVE_WITH_HALVING`, the largest size of a wave (combinations that are
        trained together).
        """
        if self._search.num_samples is None:
            return WAVE_WITH_HALVING
        return self._search.num_samples - sum(len(wave["settings"]) for wave in self._waves)

    def _room_in_budget(self, expected_steps: Callable[[], float]) -> int:
        """Returns the largest size of the next wave (combinations of settings trained together) that the sweep's budget
        allows.

        The budget is in seconds or env steps. The size is at least 1 for the first wave. A part of the budget is
        reserved to train the best combinations again with new seeds. If the sweep has no budget, returns the largest
        size of any wave, `WAVE_WITH_HALVING`.
        """
        budget, search = self._search.budget, self._search
        if budget is None:
            return WAVE_WITH_HALVING
        costs = [wave["seconds" if budget.is_seconds else "env_steps"] for wave in self._waves]
        if budget.is_seconds:
            if not costs:
                return WAVE_WITH_HALVING
            # The first wave compiles; the others take about the same time, and the confirmation at most that.
            expected, reserve = max(costs[1:] or costs), max(CONFIRMED_SHARE * budget.amount, min(costs))
            return WAVE_WITH_HALVING if self.spent + expected <= budget.amount - reserve else 0
        longest = max([wave["longest_run"] for wave in self._waves]) if self._waves else expected_steps()
        if not longest:
            return 1  # which shows the length of a run
        reserve = max(CONFIRMED_SHARE * budget.amount, longest * NUM_CONFIRMED * NUM_FRESH_SEEDS)
        free = (budget.amount - reserve - self.spent) / (longest * len(search.seeds))
        fitting = (n for n in range(WAVE_WITH_HALVING, 0, -1) if _num_full_runs(n, search.halving) <= free)
        return next(fitting, 0 if costs else 1)

    @property
    def spent(self) -> float:
        """Amount that the search has used of its budget, in this call and earlier ones: seconds or env steps."""
        budget = self._search.budget
        assert budget is not None
        if not budget.is_seconds:
            return sum(wave["env_steps"] or 0.0 for wave in self._waves)
        return self._spent_seconds

    @property
    def _spent_seconds(self) -> float:
        """Seconds that the search has taken in this and earlier calls, including compilation and the time between
        trainings.
        """
        return self._earlier_seconds + time.perf_counter() - self._started

    def _spent_text(self) -> str:
        budget = self._search.budget
        return "" if budget is None else f", {budget.text(self.spent)} of {budget.text()} spent"

    def _write(self) -> None:
        if self._path is not None:
            state = {"waves": as_json(self._waves), "spent_seconds": self._spent_seconds}
            content = {"content": self._content, **state, "is_finished": self._is_finished}
            write_json(self._path / SEARCH_FILE, content)

    def _searcher_file(self, number: int) -> Path:
        assert self._path is not None
        return self._path / f"searcher_{number:03}"

    def _save_searcher(self, number: int) -> None:
        path = self._searcher_file(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.new")
        try:
            self._search.searcher.save(str(draft))
        except (AttributeError, NotImplementedError) as error:
            raise ValueError(
                f"{self._search.where}: search_alg has no save(), which checkpoint_seconds needs. Implement save(path) "
                f"and restore(path), or leave checkpoint_seconds out."
            ) from error
        draft.replace(path)


def _num_full_runs(number: int, halving: Halving | None) -> float:
    """Training steps of a wave (runs that are trained together), in units of one complete run. Runs that successive
    halving ends early count as fractions.
    """
    if halving is None:
        return number
    ends, total = [0.0, *halving.rungs, halving.max_t], 0.0
    for start, end in itertools.pairwise(ends):
        total += number * (end - start) / halving.max_t
        number = 1 + math.floor((number - 1) / halving.reduction_factor)
    return total
