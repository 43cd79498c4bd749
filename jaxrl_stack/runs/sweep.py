"""Sweeps: train a config with every combination of some settings, with several seeds each."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from jaxrl_stack.runs.agent_returns import EVALUATED_RETURN
from jaxrl_stack.runs.budget import Budget, end_of_domain
from jaxrl_stack.runs.curves import RETURN, STEPS, key_label, x_axis
from jaxrl_stack.runs.halving import Halving
from jaxrl_stack.runs.lineage import Lineage
from jaxrl_stack.runs.pbt import PBT
from jaxrl_stack.runs.plots import Comparison, Ending, compare, ending_header
from jaxrl_stack.runs.run import common_title, value_text
from jaxrl_stack.runs.scheduled import check_scheduled, default_metric, train_scheduled
from jaxrl_stack.runs.search_space import check_num_samples, combinations
from jaxrl_stack.runs.searched import Search, Trained, default_halving, train_searched
from jaxrl_stack.runs.searchers import Objective, RandomSearch, prepared
from jaxrl_stack.runs.series import MAX_GROUPS, Series, Trial, check_until, chosen_seeds, kept_in_folder, train_all
from jaxrl_stack.runs.stop import StopCriteria, Until
from jaxrl_stack.runs.terminal import table_text
from jaxrl_stack.runs.tune_schedulers import Schedule, read_scheduler
from jaxrl_stack.utils.optional_packages import optional_import

if TYPE_CHECKING:
    import pandas

    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig


Mode = Literal["max", "min"]


@dataclasses.dataclass(frozen=True)
class SweepRow(Ending):
    """Final performance of one combination of settings: interquartile mean over its seeds, and a 95 % interval.

    Attributes:
        settings: The combination: name -> value.
        num_seeds: Number of trained seeds.
        num_iterations: Iterations of the longest run.
        is_confirmed: Whether the runs confirm a result of the search with other seeds.
    """

    settings: Mapping[str, Any]
    num_seeds: int
    num_iterations: int
    is_confirmed: bool = False


@dataclasses.dataclass(frozen=True)
class Sweep(Series):
    """Runs of a sweep. ``print(sweep)`` shows a table of the combinations of settings, the best combination first.

    Attributes:
        config: Config of the sweep, with its original values.
        combinations: Combinations of the settings, in the order of creation.
        members: Combination and seed of each of `runs`.
        lineage: Copies of population-based training; None without it. The combinations are then the last settings of
            each member.
        has_rungs: Whether runs have different lengths because of successive halving. Longer runs are then better.
        confirmation: Runs of the best combinations with seeds that the search has not used; None without a budget.
        space: Search space, for the ends of its domains.
        metric: Number that ranks combinations by default: the metric of the scheduler or searcher.
        mode: "max" if the highest value of `metric` is best, "min" if the lowest is.
    """

    config: AlgorithmConfig
    combinations: tuple[Mapping[str, Any], ...]
    members: tuple[tuple[int, int], ...]
    lineage: Lineage | None = None
    has_rungs: bool = False
    confirmation: Sweep | None = None
    space: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    metric: str = RETURN
    mode: Mode = "max"

    @property
    def names(self) -> list[str]:
        """Names of the swept settings."""
        return list(self.combinations[0])

    def _ranking(self, key: str | None, mode: Mode | None) -> tuple[str, Mode]:
        """Returns the metric by which runs are compared, and "max" or "min"."""
        number = self.metric if key is None else key
        which = (self.mode if number == self.metric else "max") if mode is None else mode
        if which not in ("max", "min"):
            raise ValueError(f"mode={mode!r}: must be 'max' or 'min'.")
        return number, which

    def rows(self, key: str | None = None, x: str = STEPS, *, mode: Mode | None = None) -> list[SweepRow]:
        """Final performance of each combination of settings that has at least one finished seed, best first.

        Each combination has one `SweepRow`. The rows of `confirmation` (the best combinations of a search, trained
        again with new seeds) come before all others, because the best results of the search itself are partly luck.

        Seeds without a value of `key` are ignored. Combinations without any value have NaN and come last among
        their kind (confirmed or searched).

        Args:
            key: Number to compare; None for `metric`.
            x: The x axis of the curves; see `plot`.
            mode: "max" if the highest number is best, "min" if the lowest is; None for `Sweep.mode` if the number is
                `metric`, and for "max" otherwise.

        Raises:
            KeyError: If the runs have no such number.
            ValueError: If `mode` is neither "max" nor "min".
        """
        key, mode = self._ranking(key, mode)
        found = []
        for place, settings in enumerate(self.combinations):
            alike = [run for run, (combination, _) in zip(self.runs, self.members, strict=True) if combination == place]
            if alike:
                num_iterations = max(len(run.history) for run in alike)
                having = [run for run in alike if run.history.has_number(key)]
                if having:
                    # Members whose settings have changed stay in their combination.
                    having = [dataclasses.replace(run, settings=having[0].settings) for run in having]
                    found.append(_row(settings, compare(having, key, x), num_iterations))
                else:
                    nan, end = math.nan, min(float(run.history[x_axis(x)][-1]) for run in alike)
                    found.append(SweepRow(nan, nan, nan, nan, end, settings, len(alike), num_iterations))
        if all(math.isnan(row.last) for row in found) and key not in (RETURN, EVALUATED_RETURN, self.metric):
            compare(self.runs, key, x)  # raises, with similar names

        def rank(row: SweepRow) -> tuple[float, ...]:
            length = row.num_iterations if self.has_rungs else 0
            return math.isnan(row.last), -length, -row.last if mode == "max" else row.last

        ordered = sorted(found, key=rank)
        confirmed = [] if self.confirmation is None else self.confirmation.rows(key, x, mode=mode)
        return [*(dataclasses.replace(row, is_confirmed=True) for row in confirmed), *ordered]

    def best(self, key: str | None = None, x: str = STEPS, *, mode: Mode | None = None) -> SweepRow:
        """Returns the best combination of settings with its final performance: the first entry of `rows`.

        Raises:
            ValueError: If no run has the number, for example because no episode has ended.
        """
        best = self.rows(key, x, mode=mode)[0]
        if math.isnan(best.last):
            raise ValueError(f"best(): no run has a value of {self._ranking(key, mode)[0]!r} yet. Train longer.")
        return best

    def best_member(self, key: str | None = None, x: str = STEPS, *, mode: Mode | None = None) -> int:
        """Index of the best combination of settings in `combinations`.

        With population-based training, `combinations` has one entry for each member; the result is the index of the
        best member.
        """
        settings = self.best(key, x, mode=mode).settings
        # Members of one population may have equal settings.
        same = (lambda own: own is settings) if self.lineage is not None else (lambda own: own == settings)
        return next(i for i, own in enumerate(self.combinations) if same(own))

    def best_config(self, key: str | None = None, x: str = STEPS, *, mode: Mode | None = None) -> AlgorithmConfig:
        """Returns a copy of the config with the settings of the best combination; see `best`."""
        return self.config.with_settings(self.best(key, x, mode=mode).settings)

    def table(self, key: str | None = None, x: str = STEPS, *, mode: Mode | None = None) -> str:
        """Formats the combinations of settings and their final performance (`rows`) as a table for terminals.

        Sentences below the table name settings whose best value is near a bound of the search space. If the table is
        not ranked by the highest mean return, another sentence names the metric that ranks it.
        """
        rows = self.rows(key, x, mode=mode)
        length = ["iterations"] if self.has_rungs else []
        kind = [] if self.confirmation is None else ["return"]
        cells = [
            [
                *map(value_text, row.settings.values()),
                *(["confirmed" if row.is_confirmed else "searched"] if kind else []),
                *([str(row.num_iterations)] if self.has_rungs else []),
                *row.cells(row.num_seeds),
            ]
            for row in rows
        ]
        table = table_text([*self.names, *kind, *length, *ending_header(x)], cells)
        number, which = self._ranking(key, mode)
        ranked = f"Ranked by {number}, {'highest' if which == 'max' else 'lowest'} first."
        ends = [] if math.isnan(rows[0].last) else self._lines_of_ends(rows[0].settings)
        return "\n".join([table, *([] if (number, which) == (RETURN, "max") else [ranked]), *ends])

    def _lines_of_ends(self, best: Mapping[str, Any]) -> list[str]:
        """Returns a sentence for each setting whose best value is near a bound of the setting's search space.

        `best` is the best combination of settings, and contains these values. Near means within 5 % of the width of the
        setting's search space (its domain), on a logarithmic scale for log-uniform domains.
        """
        lines = []
        for name, values in self.space.items():
            end = end_of_domain(values, best.get(name))
            if end is not None:
                lines.append(
                    f"The best {name}={value_text(best[name])} is within 5 % of the {end} end of its domain, "
                    f"{value_text(values.lower)} to {value_text(values.upper)}. Widen the domain."
                )
        return lines

    def __str__(self) -> str:
        return self.table()

    def to_pandas(self) -> pandas.DataFrame:
        """Metrics of all runs as a DataFrame in long form: a row for each iteration of each run.

        The columns are the swept settings, the seed, and the columns of the run's `History`. With population-based
        training, each row has the values that the settings had in its iteration.

        Raises:
            ImportError: Without pandas: ``pip install pandas``.
        """
        frames = []
        for run, (combination, seed) in zip(self.runs, self.members, strict=True):
            frame = run.history.to_pandas()
            settings = {**self.combinations[combination], "seed": seed}
            for place, (name, value) in enumerate(settings.items()):
                values = [value] * len(frame)
                if self.lineage is not None and name in self.names:
                    values = self.lineage.values_of(combination, name, len(frame))
                frame.insert(place, name, values)
            frames.append(frame)
        module = optional_import("pandas", purpose="Sweep.to_pandas", install="pandas")
        return module.concat(frames, ignore_index=True)

    def heat_map(
        self,
        path: str | os.PathLike[str] | None = None,
        key: str | None = None,
        x: str = STEPS,
        *,
        title: str | None = None,
    ) -> Any:
        """Draws the final performance (`SweepRow.last`) for each pair of values of two settings.

        Args:
            path: File to write, a ``.png``, ``.svg`` or ``.pdf``; None writes none.
            key: Number to draw; None for `metric`.
            x: The x axis of the curves; see `plot`.
            title: Title of the figure; None for the names of algorithm and environment.

        Returns:
            The `RunFigure`, which notebooks show.

        Raises:
            ImportError: Without matplotlib: ``pip install 'jaxrl-stack[plots]'``.
            KeyError: If the runs have no such number.
            ValueError: If the sweep is not over a grid of two settings, a scheduler has ended runs early, or `path`
                has another ending.
        """
        from jaxrl_stack.runs.figures import draw_heat_map

        key, _ = self._ranking(key, None)
        lengths = [len(run.history) for run in self.runs]
        if self.has_rungs and min(lengths) < max(lengths):
            raise ValueError(
                f"heat_map(): successive halving has ended runs after {min(lengths)} of {max(lengths)} iterations, so "
                "that their metrics cannot be compared. Use table(), or run_sweep without scheduler."
            )
        if len(self.names) != 2:
            raise ValueError(
                f"heat_map() needs a sweep over two settings, and this one is over {', '.join(self.names)}. Use plot() "
                "or table()."
            )
        down, across = self.names
        rows, columns = (list(dict.fromkeys(value_text(one[name]) for one in self.combinations)) for name in self.names)
        if len(rows) * len(columns) != len(self.combinations):
            raise ValueError(
                f"heat_map() needs a full grid of {len(rows)} values of {down} and {len(columns)} of {across}, but the "
                f"sweep has {len(self.combinations)} combinations. Use plot() or table()."
            )
        found = {(value_text(r.settings[down]), value_text(r.settings[across])): r.last for r in self.rows(key, x)}
        values = np.array([[found.get((row, column), np.nan) for column in columns] for row in rows])
        labels = {"row_label": down, "column_label": across, "value_label": f"{key_label(key)}, last 10 %"}
        above = common_title(self.runs) if title is None else title
        return draw_heat_map(values, rows=rows, columns=columns, **labels, title=above, path=path)

    def plot_lineage(
        self,
        path: str | os.PathLike[str] | None = None,
        key: str | None = None,
        *,
        mode: Mode | None = None,
        title: str | None = None,
    ) -> Any:
        """Draws the settings of all members over the iterations of population-based training, a panel for each setting.

        The thick line shows the values that led to the best member.

        Args:
            path: File to write, a ``.png``, ``.svg`` or ``.pdf``; None writes none.
            key, mode: See `rows`.
            title: Title of the figure; None for the names of algorithm and environment.

        Returns:
            The `RunFigure`, which notebooks show.

        Raises:
            ImportError: Without matplotlib: ``pip install 'jaxrl-stack[plots]'``.
            KeyError: If the runs have no number `key`.
            ValueError: If the sweep has no lineage, or `path` has another ending.
        """
        from jaxrl_stack.runs.figures import draw_lineage

        if self.lineage is None:
            raise ValueError(
                "plot_lineage() draws the copies of members in population-based training, which this sweep did not "
                "use. Call run_sweep(..., scheduler=PopulationBasedTraining(...))."
            )
        num_iterations = max(len(run.history) for run in self.runs)
        above = self.runs[0].title if title is None else title
        return draw_lineage(self.lineage, num_iterations, self.best_member(key, mode=mode), title=above, path=path)


def _row(settings: Mapping[str, Any], compared: Sequence[Comparison], num_iterations: int) -> SweepRow:
    (one,) = compared
    return SweepRow(one.last, one.low, one.high, one.area, one.x, settings, one.num_runs, num_iterations)


def run_sweep(
    config: AlgorithmConfig,
    space: Mapping[str, Any],
    *,
    seeds: int | Iterable[int] = 1,
    until: Until,
    num_samples: int = 1,
    progress: bool = True,
    one_program: bool = True,
    max_groups: int = MAX_GROUPS,
    checkpoint_seconds: float | None = None,
    scheduler: Any = None,
    search_alg: Any = None,
    budget: Any = None,
) -> Sweep:
    """Trains a config with every combination of some settings, each with several seeds.

    All settings are checked before the first run starts. On a JAX environment, combinations that differ only in traced
    settings (lr, gamma, clip_param, ...) and in numbers of ``env_config`` are, with their seeds, the members of a
    `Population`, one compiled program. Each value of another setting needs another population. On other environments
    the runs train one after the other, and a line prints the reason.

    Args:
        config: Config of all runs, which is not changed. With ``results_dir`` set, every run writes to a folder below
            it.
        space: Name of a setting -> a list of values, ``tune.grid_search([...])``, or an object to sample from, such as
            ``tune.loguniform(1e-4, 1e-2)`` or any object with a ``sample()`` method. ``"env_config/gravity"`` is an
            entry of ``env_config``.
        seeds: Number of seeds, which are then 0, 1, 2, ...; or a list of seeds. Every combination is trained with all.
        until: Goal of each run, see `Algorithm.learn`: ``{"num_env_steps_sampled_lifetime": 200_000}``.
        num_samples: Repetitions of each combination of the lists, with new samples of sampled values. With
            `search_alg`, the number of combinations; with `budget`, an upper limit, and 1 stands for as many as the
            budget has room for.
        progress: Whether to print the progress.
        one_program: False trains one run after the other, each exactly as a single run.
        max_groups: Maximum number of populations.
        checkpoint_seconds: Time from one checkpoint in ``results_dir`` to the next. The same call then continues after
            a kill, and does not repeat finished runs. Each run writes its files when it is finished.
        scheduler: Ray Tune's ``ASHAScheduler`` (successive halving) or ``PopulationBasedTraining``, whose arguments
            are read; all runs are then members of one population. Without ``metric`` the score is the mean return, of
            evaluations if the config has them. With population-based training the members have the seeds s, s + 1, ...,
            where s is 0 or from ``seeds=[s]``; the seed of `config` is not used.
        search_alg: Searcher of Ray Tune, such as ``OptunaSearch()``, or an object with its methods
            ``suggest(trial_id)`` and ``on_trial_complete(trial_id, result, error)``. It suggests up to 16 combinations
            at a time, a wave (64 with successive halving), and gets the final value of its metric for each, an
            interquartile mean over the seeds. The space consists of domains, or is {} if the searcher has one.
        budget: Seconds, text such as ``"10 min"`` or ``"2 h"``, or ``{"num_env_steps_sampled_lifetime": n}`` for the
            env steps of all runs together. Waves of combinations train until it is used up, compilation included. The
            last fifth trains the best three combinations with three seeds that the search has not used; `best` and
            the table rank these first. Without `search_alg` the samples are random, and waves use successive
            halving with factor 4 if one program can train them.

    Returns:
        The runs, with ``print(sweep)``, ``sweep.plot(path)``, ``sweep.heat_map(path)``, ``sweep.best()`` and
        ``sweep.to_pandas()``; after Ctrl-C the finished ones, and with a scheduler all up to the last iteration.

    Raises:
        ValueError: If `space` is empty, a setting is unknown, a value is invalid, there are no seeds, more than
            `max_groups` programs would be compiled, `until` is None or names a number that results do not have,
            ``results_dir`` has runs with other settings, which the message names, or a population cannot train the runs
            with the scheduler.
        KeyboardInterrupt: If no run was finished.
    """
    chosen = chosen_seeds(seeds, "run_sweep")
    check_until(until, "run_sweep")
    schedule = None if scheduler is None else read_scheduler(scheduler, "run_sweep")
    StopCriteria(until).check_evaluation(config.evaluation_interval)
    if search_alg is not None or budget is not None:
        how: Any = {"checkpoint_seconds": checkpoint_seconds, "progress": progress, "one_program": one_program}
        amount = None if budget is None else Budget.read(budget, "run_sweep")
        return _searched(config, space, search_alg, amount, chosen, until, num_samples, schedule, **how)
    tried = combinations(space, num_samples, "run_sweep")
    members = [(place, seed) for place in range(len(tried)) for seed in chosen]
    if isinstance(schedule, PBT):
        if len(chosen) > 1:
            raise ValueError(
                f"run_sweep(seeds={seeds!r}): population-based training gives its members consecutive seeds. Set only "
                "the seed of the first member: seeds=[0]. To train another population, call run_sweep again."
            )
        # A copy continues differently from its source because of its seed.
        members = [(place, chosen[0] + place) for place in range(len(tried))]
    trials = [_trial(config, tried[place], seed) for place, seed in members]
    if schedule is not None:
        how = {"progress": progress, "one_program": one_program}
        return _scheduled(config, space, tried, members, trials, schedule, until, checkpoint_seconds, **how)
    folder = kept_in_folder(trials, until, checkpoint_seconds, where="run_sweep")
    trained = train_all(
        trials,
        until,
        progress=progress,
        one_program=one_program,
        max_groups=max_groups,
        where="run_sweep",
        folder=folder,
    )
    finished = tuple(members[place] for place in trained.places)
    return Sweep(**vars(trained), config=config.copy(copy_frozen=False), combinations=tuple(tried), members=finished)


def _searched(
    config: AlgorithmConfig,
    space: Mapping[str, Any],
    search_alg: Any,
    budget: Budget | None,
    seeds: Sequence[int],
    until: Until,
    num_samples: int,
    schedule: Schedule | None,
    **how: Any,
) -> Sweep:
    """Trains the runs of a sweep for `run_sweep` if ``search_alg`` or ``budget`` is set."""
    where = "run_sweep"
    check_num_samples(num_samples, where)
    if isinstance(schedule, PBT):
        raise ValueError(
            f"{where}(scheduler=PopulationBasedTraining(...)) cannot be combined with search_alg or budget, because it "
            "trains one population, but search_alg and budget train several groups of runs, one after the other. "
            "Leave out search_alg and budget."
        )
    default = default_metric(config)
    if search_alg is None:
        searcher: Any = RandomSearch(space, where)
        objective = (
            Objective(default, "max") if schedule is None else Objective(schedule.metric or default, schedule.mode)
        )
    else:
        other = None
        if schedule is not None and (schedule.metric is not None or schedule.mode == "min"):
            other = Objective(schedule.metric or default, schedule.mode)
        searcher, objective = search_alg, prepared(search_alg, space, default, where, other)
    halving = schedule
    if halving is not None:
        if callable(until):
            raise ValueError(_needs_a_number(until))
        if halving.metric is None:
            halving = dataclasses.replace(halving, metric=objective.metric, mode=objective.mode)
    elif search_alg is None and how["one_program"] and config.why_no_population() is None:
        halving = default_halving(until, objective)
    limit: int | None = num_samples
    if search_alg is None:
        limit = None if num_samples == 1 else len(combinations(space, num_samples, where))
    elif budget is not None and num_samples == 1:
        limit = None
    given: Any = {"config": config, "space": space, "until": until, "halving": halving, "trial": _trial, **how}
    found = train_searched(
        Search(searcher=searcher, objective=objective, seeds=seeds, num_samples=limit, budget=budget, **given)
    )
    ranked = objective._asdict()
    confirmed = None if found.confirmed is None else _sweep_of(found.confirmed, config, **ranked)
    more: Any = {"confirmation": confirmed, "space": space, "has_rungs": halving is not None, **ranked}
    return _sweep_of(found.search, config, **more)


def _sweep_of(trained: Trained, config: AlgorithmConfig, **more: Any) -> Sweep:
    given: Any = {"combinations": tuple(trained.combinations), "members": tuple(trained.members)}
    return Sweep(**vars(trained.series), config=config.copy(copy_frozen=False), **given, **more)


def _scheduled(
    config: AlgorithmConfig,
    space: Mapping[str, Any],
    tried: Sequence[Mapping[str, Any]],
    members: Sequence[tuple[int, int]],
    trials: Sequence[Trial],
    schedule: Schedule,
    until: Until,
    checkpoint_seconds: float | None,
    *,
    progress: bool,
    one_program: bool,
) -> Sweep:
    """Trains the runs of a sweep for `run_sweep` if ``scheduler`` is set, but neither ``search_alg`` nor ``budget``."""
    where = "run_sweep"
    if callable(until):
        raise ValueError(_needs_a_number(until))
    goal = StopCriteria(until).targets
    check_scheduled(trials, schedule, space, goal, one_program=one_program, where=where)
    folder = kept_in_folder(trials, goal, checkpoint_seconds, schedule=schedule, where=where)
    trained, lineage = train_scheduled(trials, schedule, goal, progress=progress, where=where, folder=folder)
    finished = [members[place] for place in trained.places]
    return Sweep(
        **vars(trained),
        config=config.copy(copy_frozen=False),
        combinations=tuple(tried if lineage is None else lineage.present),
        members=tuple(finished),
        lineage=lineage,
        has_rungs=isinstance(schedule, Halving),
        metric=schedule.metric or default_metric(config),
        mode=schedule.mode,
    )


def _needs_a_number(until: Until) -> str:
    return (
        f"run_sweep(until={until!r}): must be a dict or a number of iterations with a scheduler: "
        f"until={{'training_iteration': 200}}."
    )


def _trial(config: AlgorithmConfig, settings: Mapping[str, Any], seed: int) -> Trial:
    """Creates a planned run (`Trial`) of the sweep with these settings, after checking that they are valid together.

    Raises:
        ValueError: If they are not valid.
    """
    trial = Trial(config, seed, settings)
    try:
        trial.config().validate()
    except ValueError as error:
        shown = " ".join(f"{name}={value_text(value)}" for name, value in settings.items())
        raise ValueError(f"run_sweep with {shown}: {error}") from error
    return trial
