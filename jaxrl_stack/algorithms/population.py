"""Population: many seeds and settings of one config, trained by one compiled program."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np

from jaxrl_stack.algorithms.base_checks import as_bytes
from jaxrl_stack.algorithms.best_members import BestMembers, set_past
from jaxrl_stack.algorithms.iterations import Iteration, Iterations
from jaxrl_stack.algorithms.member_runs import (
    Ended,
    alone,
    closing_lines,
    copy_ends,
    folders_of,
    note_diverged,
    reason_to_stop,
    runs_of,
    sweep_of,
    told_apart_by,
)
from jaxrl_stack.algorithms.member_settings import MemberSettings
from jaxrl_stack.algorithms.members import Member, check_alike, checked_members, member_starts, of_one_device
from jaxrl_stack.algorithms.result_names import known_result
from jaxrl_stack.algorithms.setting_changes import with_replaced_settings
from jaxrl_stack.algorithms.settings_display import env_name, short
from jaxrl_stack.checkpoints.checkpointable import Checkpointable, Parts, selected
from jaxrl_stack.execution.member_statistics import episode_results_of_members
from jaxrl_stack.execution.population_driver import PopulationDriver
from jaxrl_stack.execution.population_evaluation import PopulationEvaluation
from jaxrl_stack.runs.best import EVALUATED_RETURN, FOLDER, Best
from jaxrl_stack.runs.commands import CHANGE_SETTINGS, CONTINUE_FROM, COPY, KEEP, SET_STATE, CommandLog
from jaxrl_stack.runs.curves import RETURN, STEPS
from jaxrl_stack.runs.forks import parent_of, recomputed_iteration
from jaxrl_stack.runs.history import History
from jaxrl_stack.runs.learn import CTRL_C, Interruption
from jaxrl_stack.runs.machine import machine_facts, why_not_recomputable
from jaxrl_stack.runs.member_history import MEMBERS_FILE, MemberHistory
from jaxrl_stack.runs.member_results import MemberResults, population_numbers
from jaxrl_stack.runs.origin import PARENT, POPULATION, add_to_origin, run_origin
from jaxrl_stack.runs.output import new_directory, write_run
from jaxrl_stack.runs.plots import plot_runs
from jaxrl_stack.runs.result import Result
from jaxrl_stack.runs.run import Run, folder_of
from jaxrl_stack.runs.statistics import RunStatistics
from jaxrl_stack.runs.stop import Plateau, StopCriteria, StopReason, Until
from jaxrl_stack.runs.stored_checkpoints import StoredCheckpoints, mark_of
from jaxrl_stack.runs.sweep import Sweep
from jaxrl_stack.runs.writers import as_json
from jaxrl_stack.utils.fingerprints import FINGERPRINT
from jaxrl_stack.utils.results import empty_result, merge_nested

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.runs.axes import AxisOptions

OnDivergence = Literal["freeze", "raise"]


class Population(Checkpointable):
    """Trains many members (seeds and settings of one config) in one compiled program, one iteration per `train` call.

    Each member equals a run of `Algorithm` with its seed and settings on one device: it begins with the same weights,
    environments and random keys, and computes the same numbers up to the order of sums. Members are distributed over
    the config's devices and are independent.

    Args:
        config: Settings that members share; a copy is kept.
        members: `Member` objects or dicts of their fields (seed and settings), at least one. All name the same
            settings. They may differ in traced settings, seeds, and numbers of ``env_config`` that reach
            ``env.params``.
        on_divergence: Treatment of a member with a non-finite loss, gradient, parameter or value of the environment:
            "freeze" keeps its last finite state and continues to train the others, "raise" raises.
        members_at_once: Members that a device trains at the same time; None chooses by the platform.

    Attributes:
        config: The common config.
        members: The members.
        driver: Driver with the members' states and the program.
        history: Numbers of all iterations of all members.
        middle: The history of all members together: its returns are interquartile means over the live members.
        reached: By member, the first time it reached the goal of the running or last `learn`; training continues after
            it.
        diverged: By member, the time and reason of its freeze.
        stopped: By member, the time and reason of its end by `keep`.
        stop_reason: The goal that the last `learn` has reached, in words; None before.
        stored_checkpoints: Checkpoints of ``reporting(checkpoint_frequency=...)``: ``paths`` has those that are kept.
        directory: Folder with the checkpoints of all members together, ``results_dir/population``; None before the
            first iteration, and without ``reporting(checkpoint_frequency=...)``.

    Raises:
        ValueError: If one program cannot serve the members; names the settings.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        members: Sequence[Member | Mapping[str, Any]],
        *,
        on_divergence: OnDivergence = "freeze",
        members_at_once: int | None = None,
    ):
        if on_divergence not in ("freeze", "raise"):
            raise ValueError(f'on_divergence={on_divergence!r}: must be "freeze" or "raise".')
        is_number = isinstance(members_at_once, int) and not isinstance(members_at_once, bool)
        if members_at_once is not None and not (is_number and members_at_once >= 1):
            raise ValueError(f"members_at_once={members_at_once!r}: must be an integer of at least 1, or None.")
        self.on_divergence, self._members_at_once = on_divergence, members_at_once
        self.config = config.copy(copy_frozen=True)
        checked = checked_members(members)
        configs = [of_one_device(member.config(config)) for member in checked]
        check_alike(configs, checked)
        used = config.learner_class.devices_of(config)
        self._template = alone(configs[0]).build_algo()
        self._first = configs[0]
        template: Any = self._template.driver
        try:
            starts = member_starts(configs, self._first, template)
            self.driver = PopulationDriver(template, starts, used, members_at_once)
        except BaseException:
            self._template.stop()
            raise
        self._origin = run_origin(algorithm=type(self._template).__name__)
        self._is_stopped = False
        self._num_training_steps: int | None = None
        self._num_built = len(checked)
        self._begin(checked, configs)

    def _begin(self, members: tuple[Member, ...], configs: list[AlgorithmConfig]) -> None:
        """Initializes the population for iteration 1 of new members: stores the members, and creates their settings, an
        empty history and new counters.
        """
        self.members, self._settings = members, MemberSettings(self.config, members, configs)
        self._evaluation: PopulationEvaluation | None = None
        self._evaluated: dict[str, Any] | None = None
        self._num_evaluations = 0
        losses = self.config.learner_class.all_result_names()
        self._empty = empty_result(self._template.driver.module_ids, loss_keys=losses)
        names = [{**member.settings, "seed": member.seed} for member in self.members]
        self.history, self.middle = MemberHistory(names), History()
        self._iterations = Iterations()
        self.reached: dict[int, Ended] = {}
        self.diverged: dict[int, Ended] = {}
        self.stopped: dict[int, Ended] = {}
        self.stop_reason: StopReason | None = None
        evaluates, keeps = bool(self.config.evaluation_interval), self.config.keep_best
        self._best = BestMembers(len(members), evaluates=evaluates, keeps=keeps) if keeps else None
        self._written: tuple[Path, list[Path]] | None = None
        self._begin_files()

    def _begin_files(self) -> None:
        """Creates new objects that save checkpoints and record commands.

        Does not create the folder for their files: if ``reporting(checkpoint_frequency=...)`` is set, `train` creates a
        new folder after the next iteration.
        """
        self.directory: Path | None = None
        self._commands = CommandLog(is_kept=self.config.checkpoint_frequency is not None)
        self.stored_checkpoints = StoredCheckpoints(
            lambda path: self.save_to_path(path, blocking=False),
            frequency=self.config.checkpoint_frequency,
            num_to_keep=self.config.num_to_keep,
            max_bytes=as_bytes(self.config.checkpoint_max_bytes),
            mark=lambda iteration: mark_of(self.history, self.iteration - iteration),
        )

    def restart(self, members: Sequence[Member | Mapping[str, Any]]) -> None:
        """Replaces all members (runs) of the population by new, untrained members.

        The history and all counters start again; the next `train` call runs iteration 1 of the new members. Reuses the
        compiled training program.

        Args:
            members: Members that fit the program, at most as many as the population has room for.

        Raises:
            ValueError: If there are more, or the program cannot serve them.
        """
        self._check_is_running()
        checked = checked_members(members)
        room = self.driver.room
        if len(checked) > room:
            raise ValueError(
                f"restart() with {len(checked)} members: this population has room for {room}. Pass at most {room}, or "
                f"build another population."
            )
        configs = [of_one_device(member.config(self.config)) for member in checked]
        check_alike([self._first, *configs], [self.members[0], *checked])
        template: Any = self._template.driver
        names = self.driver.axes.env_params
        self.stored_checkpoints.close()
        self.driver.restart(member_starts(configs, self._first, template, names))
        self._begin(checked, configs)

    def continue_from(self, path: str | os.PathLike[str]) -> None:
        """Gives all running members the training state in the checkpoint of one algorithm. The run of this
        algorithm thus continues with several seeds and settings.

        Members that `keep` stopped remain stopped. All others, also diverged ones, get the checkpoint's weights,
        optimizers, environments, replay and counters. Random streams differ between members with different seeds.
        Members take over settings that the run has changed, unless they name the setting themselves or their config had
        another value than the run's first one. They keep all other settings.

        Args:
            path: Checkpoint of an `Algorithm` with the modules and environments of this population, or ``"RUN@35"``;
                see `Algorithm.from_checkpoint`.

        Raises:
            FileNotFoundError: If there is no checkpoint.
            ValueError: If it does not fit.
        """
        self._check_is_running()
        with self._commands.around(self, CONTINUE_FROM, {}, reason="the checkpoint that it read is not recorded"):
            self._continue_from(path)

    def _continue_from(self, path: str | os.PathLike[str]) -> None:
        stored = recomputed_iteration(path, config=self.config)
        self._template.restore_from_path(stored)
        template: Any = self._template
        taken_over = self._settings.taken_over(self._template._setting_changes.stored, "continue_from")
        changed = {member: own for member, own in taken_over.items() if member not in self.stopped}
        self.driver.continue_from(template.driver)
        again = [member for member in self.diverged if member not in self.stopped]
        self.history.leave_out(again)
        for member in again:
            del self.diverged[member]
        if changed:
            self._change(changed)
        seconds = template.get_state("time_total_s")["time_total_s"]
        self._go_on(template.iteration, seconds)
        parent = parent_of(os.path.abspath(stored))
        if parent is not None:
            self._origin = {**self._origin, PARENT: parent}

    def _go_on(self, done: int, seconds: float) -> None:
        """Continues counting iterations and seconds from `done` and `seconds`, the values in a restored state.

        Marks two kinds of this population's checkpoints for removal: checkpoints of later iterations, and checkpoints
        that do not belong to the history of the restored state (see `mark_of`). Removes the file with the table of the
        members' results (`MEMBERS_FILE`), which `write_runs` writes again.
        """
        self._iterations.go_on(done, seconds, self.driver)
        self.stored_checkpoints.restored(self.iteration)
        if self.directory is not None:
            (self.directory / MEMBERS_FILE).unlink(missing_ok=True)

    def memory_estimate(self) -> dict[str, int]:
        """Estimates the bytes of memory that the members need; see `PopulationDriver.memory_estimate`."""
        return self.driver.memory_estimate()

    # ------------------------------------------------------------------------------------------------------ training

    @property
    def iteration(self) -> int:
        """Number of iterations done so far. Restoring a checkpoint sets it to the checkpoint's number of iterations."""
        return self._iterations.done

    @property
    def num_env_steps_sampled_lifetime(self) -> int:
        """Number of env steps that each running member has sampled, the same number for all of them."""
        return self.driver.num_env_steps

    def __len__(self) -> int:
        """Number of members."""
        return len(self.members)

    def train(self) -> Result:
        """Runs one iteration for all members.

        Returns:
            ``{"members": [result of each member, see `Algorithm.train`], "population": {...}, ...}``. "population" has
            the best, median and interquartile mean of the members' returns, and the counts of all members together. At
            the top, env steps are counted per member, and times for all members together.

        Raises:
            FloatingPointError: If a member has diverged, with ``on_divergence="raise"``.
        """
        self._check_is_running()
        driver, iteration = self.driver, self._iterations.begin()
        driver.device_seconds = 0.0
        was_live = driver.is_live.copy()
        for _ in iteration.training_steps(driver, self.config, number=self._num_training_steps):
            driver.training_step()
        iteration.end_training(driver)
        self._num_evaluations = 0
        numbers = self._numbers(iteration)
        if self.config.evaluation_interval and self.iteration % self.config.evaluation_interval == 0:
            self.evaluate()
        iteration.add_times(numbers, driver)
        iteration.add_rates(numbers)
        if self._evaluated is not None:
            merge_nested(numbers, {"evaluation": self._evaluated})
        if self.config.results_dir or self._num_training_steps is not None:
            numbers[FINGERPRINT] = driver.fingerprints()
        result = self._result(numbers, iteration)
        changed = self._settings.numbers(iteration.before.num_env_steps)
        self.history.append({**numbers, "config": changed}, counts=was_live)
        if self._best is not None:
            self._best.update(result["members"], driver.is_live, driver, self._iterations.seconds)
        ill = np.flatnonzero(was_live & ~driver.is_live).tolist()
        note_diverged(ill, self.members, self.diverged, self.iteration, raises=self.on_divergence == "raise")
        if self.config.checkpoint_frequency is not None:
            self.stored_checkpoints.after_iteration(self._made_directory(), self.iteration)
        return result

    def _made_directory(self) -> Path:
        """Returns the population's folder; creates it, with ``run.json`` in it, at the first call."""
        if self.directory is None:
            self.directory = new_directory(Path(self.config.results_dir or "", "population"))
            devices = self.driver.devices
            members = [{"seed": member.seed, "settings": as_json(member.settings)} for member in self.members]
            facts = {"num_members": len(self), "members": members, "machine": machine_facts(devices)}
            add_to_origin(self.directory, {**self._origin, **facts, "why_not_recomputable": self._why_not(devices)})
            self._commands.write_to(self.directory)
        return self.directory

    def _why_not(self, devices: Sequence[Any]) -> str | None:
        """Reason why the population's iterations cannot be recomputed bit for bit, with the remedy; None if they
        can.
        """
        if len(self) != self._num_built:
            return (
                f"restart() trains {len(self)} members by a program for {self._num_built}. "
                "Use config.build_population(members=...)."
            )
        return why_not_recomputable(self.config, devices)

    def _repeat_iteration(self, num_training_steps: int) -> Result:
        """Runs one iteration with a given number of training steps, to repeat a recorded iteration; see
        `Algorithm._repeat_iteration`.
        """
        self._num_training_steps = num_training_steps
        try:
            return self.train()
        finally:
            self._num_training_steps = None

    def _replace_settings(self, settings: Mapping[str, Any]) -> None:
        """Sets new values of settings that do not affect training, before recorded iterations are recomputed.

        `settings` is ``{name: value}``. An example of such a setting is the results folder. Checkpoints of this
        population still contain the original values.
        """
        self._replaced_settings = {name: self.config.stored_value(name) for name in settings}
        self.config = with_replaced_settings(self.config, settings)
        self._best = None
        self._begin_files()

    _replaced_settings: Mapping[str, Any] = MappingProxyType({})
    """Recorded values of the settings that `_replace_settings` has replaced, for checkpoints."""

    def _numbers(self, iteration: Iteration) -> dict[str, Any]:
        """Metrics of an iteration: nested dicts with arrays ``[M]``, one value per member, and numbers that are equal
        for all M members.
        """
        driver, numbers = self.driver, {}
        merge_nested(numbers, self._empty)
        merge_nested(numbers, driver.results())
        assert driver.window is not None, "a call has ended"
        seconds_per_step = iteration.seconds_per_env_step(self.config.num_envs_per_env_runner)
        iteration.add_numbers(numbers, driver, episodes=episode_results_of_members(driver.window, seconds_per_step))
        return numbers

    def _result(self, numbers: dict[str, Any], iteration: Iteration) -> Result:
        """Builds the result of an iteration, and appends a summary over the members to `self.middle`.

        The summary consists of the interquartile mean, the best and the worst return. `self.middle` is the history of
        the population as a whole.
        """
        members = MemberResults(numbers, len(self), self._settings.reported)
        together = population_numbers(members, self.driver.is_live)
        sampled = iteration.num_env_steps * self.driver.num_running
        together |= {
            "num_env_steps_sampled": sampled,
            "num_env_steps_sampled_lifetime": self.driver.num_env_steps_of_all,
            "num_env_steps_sampled_lifetime_throughput": sampled / iteration.seconds,
        }
        shared = {name: value for name, value in numbers.items() if not isinstance(value, dict | np.ndarray)}
        shared["num_env_steps_sampled_lifetime_throughput"] = together["num_env_steps_sampled_lifetime_throughput"]
        result = Result(**shared, timers=dict(numbers["timers"]), population=together, members=members)
        returns = {name: together[f"episode_return_mean_{which}"] for name, which in _MIDDLE.items()}
        self.middle.append({**shared, "timers": result["timers"], "env_runners": returns, "population": together})
        return result

    def evaluate(self) -> MemberResults:
        """Evaluates the current weights of all members that `keep` has not stopped. Resets the evaluation environments
        first.

        Each member plays the same episodes as an `Algorithm` with the member's config, seed and weights, after the same
        number of iterations and of evaluations since the last iteration. Training states do not change.

        Returns:
            For each member the dict of ``result["evaluation"]``: ``{"env_runners": {...}}``, with NaN for stopped
            members.

        Raises:
            TimeoutError: If the episodes take longer than ``evaluation_sample_timeout_s``.
            ValueError: If there is no JAX environment to evaluate in.
        """
        self._check_is_running()
        evaluation = self._evaluating()
        place = self.iteration, self._num_evaluations
        self._num_evaluations += 1
        found = empty_result(evaluation=True)["evaluation"]
        merge_nested(found, evaluation.evaluate(*place))
        self._evaluated = found
        return MemberResults(found, len(self))

    def _evaluating(self) -> PopulationEvaluation:
        if self._evaluation is None:
            self._evaluation = PopulationEvaluation(self.driver, self._settings.configs)
        return self._evaluation

    def _evaluation_counts(self) -> dict[str, Any]:
        return {} if self._evaluation is None else self._evaluation.lifetime

    # ------------------------------------------------------------------------------------------------- until a goal

    def learn(
        self,
        until: Until = None,
        *,
        until_any: bool = False,
        plateau: Plateau | Mapping[str, Any] | None = None,
        progress: bool = True,
        after_iteration: Callable[[str], object] | None = None,
        continues: bool = False,
    ) -> Result:
        """Trains until every live member has reached its goal, such as a number of iterations or a return.

        Shows the progress. Members that diverged or that `keep` stopped are not live.

        A member that has reached its goal continues to train with the others; `reached` has the time. Ctrl-C ends the
        call after the running iteration.

        Args:
            until: Goal of each member, see `Algorithm.learn`; env steps count per member.
            until_any: Stop when the first member has reached the goal.
            plateau: Plateau of each member, see `Algorithm.learn`.
            progress: Show speed, remaining time, and the interquartile mean of the returns.
            after_iteration: See `Algorithm.learn`.
            continues: Whether the call continues one with the same goal after a restore: members that had reached the
                goal need not reach it again.

        Returns:
            The last result.

        Raises:
            ValueError: If results have no value with a name in `until`.
        """
        self._check_is_running()
        from jaxrl_stack.runs.displays import make_display  # what draws takes a while to import

        criteria = [StopCriteria(until, iteration=self.iteration, plateau=plateau) for _ in self.members]
        criteria[0].check_evaluation(self.config.evaluation_interval)
        self.check_names(criteria[0])
        self.reached, self.stop_reason = (self.reached if continues else {}), None
        display = make_display(criteria[0], is_quiet=not progress)
        display.header(f"{self}, until {'one has: ' if until_any else ''}{criteria[0]}.")
        statistics = RunStatistics({**self.middle.last, "training_iteration": self.iteration})
        interruption = Interruption()
        with display, interruption.caught(display.stopping):
            display.begin(self.middle, "compiling the program of all members")
            while True:
                result = self.train()
                live = np.flatnonzero(self.driver.is_live).tolist()
                reason = reason_to_stop(result["members"], live, criteria, self.reached, until_any=until_any)
                is_last = reason is not None or interruption.is_asked_for
                shown = {**result, "env_runners": {"episode_return_mean": self.middle.last.get(RETURN, math.nan)}}
                statistics.update(shown)
                if after_iteration is not None:
                    after_iteration(reason or CTRL_C * interruption.is_asked_for)
                display.iteration(shown, statistics, is_last=is_last)
                if is_last:
                    break
        if self.stored_checkpoints.frequency is not None:
            self.stored_checkpoints.save_last(self.directory, self.iteration)
        self.stop_reason = reason
        result["done"] = reason is not None
        if self.config.results_dir is not None:
            self.write_runs(self.config.results_dir)
        if progress:
            print(
                "\n".join(
                    closing_lines(reason, statistics, self.driver.num_running, len(self.reached), self._num_diverged)
                )
            )
        return result

    @property
    def _num_diverged(self) -> int:
        return len(self.diverged.keys() - self.stopped.keys())

    # --------------------------------------------------------------------------------------------------- its members

    def best_member(self, key: str | None = None) -> int:
        """Index of the member with the highest mean return (or another metric) in the last iteration; stopped and
        diverged members do not count.

        Args:
            key: Path of the number in results; None for the mean return of the last evaluation, or of training without
                evaluations.

        Raises:
            ValueError: If no live member has one yet.
        """
        if key is None:
            key = RETURN if self._evaluated is None else EVALUATED_RETURN
        values = np.where(self.driver.is_live, self.history[key][-1], np.nan)
        if not np.isfinite(values).any():
            raise ValueError(
                f"No running member has a value of {key!r} in the last iteration. Call train() until an episode has "
                "ended, or pass the path of another metric: best_member(key)."
            )
        return int(np.nanargmax(values))

    @property
    def best(self) -> list[Best] | None:
        """One `Best` per member (run): the highest mean return (or other metric), with iteration and checkpoint.

        A `Best` contains the metric's value, the iteration with this value, and the path of the checkpoint that
        `write_runs` saves. Without ``reporting(keep_best=...)``, the property is None.
        """
        return None if self._best is None else self._best.best

    def member(self, which: int | Literal["best"], *, at_best: bool = False) -> Algorithm:
        """Returns a member as an `Algorithm` on one device, for further training, saving, evaluation and serving.

        Args:
            which: Index of the member; "best" stands for `best_member`.
            at_best: Use its state at the highest mean return, with an empty replay buffer; needs
                ``reporting(keep_best=True)``.

        Raises:
            IndexError: If the member does not exist.
            ValueError: If `keep` has stopped it; or with `at_best`, if it has no best state.
        """
        self._check_is_running()
        index = self.best_member() if which == "best" else which
        if not isinstance(index, int) or not 0 <= index < len(self):
            raise IndexError(f"member({which!r}): must be an index from 0 to {len(self) - 1}, or 'best'.")
        if at_best and (self._best is None or not self._best.knows(index)):
            raise ValueError(
                f"member({which!r}, at_best=True): the population has no best state of this member. Set "
                f"reporting(results_dir=..., keep_best=True), and train until an episode has ended."
            )
        if index in self.stopped and not at_best:
            raise ValueError(
                f"member({which!r}): keep() has stopped this member and released its state. Its metrics are in "
                f"runs()[{index}].history."
            )
        directory = self.config.results_dir
        folder = None if directory is None else folder_of(str(self.members[index]), directory)
        algo = alone(self._settings.configs[index], folder).build_algo()
        if at_best and self._best is not None:
            self._best.hand_over(index, algo, self.history)
        else:
            driver: Any = algo.driver
            self.driver.hand_over(index, driver)
            set_past(algo, self.history.of_member(index), self._iterations.seconds, self._settings.changes_of(index))
        return algo

    def runs(self) -> list[Run]:
        """Recorded runs of all members, one `Run` each, for figures and reports. The run of a stopped member ends with
        the last iteration before the stop.
        """
        origin = {**self._origin, "num_members": len(self)}
        if self.directory is not None:
            origin[POPULATION] = os.path.abspath(self.directory)
        ends = [self.reached.get(i) or self.diverged.get(i) or self.stopped.get(i) for i in range(len(self))]
        folders = None if self._written is None else self._written[1]
        return runs_of(self.members, self.history, self._settings.reported, origin, ends, folders)

    def write_runs(self, directory: str | os.PathLike[str]) -> None:
        """Writes one folder per member (run), for `jaxrl plot` and `jaxrl report`.

        A folder contains the member's results, its settings, and facts for repeating the run (command, versions, git
        commit). With ``reporting(keep_best=...)``, it also contains a checkpoint of the member's best state. If
        ``reporting(results_dir=...)`` is set, `learn` calls this method at its end.

        Args:
            directory: Folder in which each member gets a folder, with a number if another run has that name. Files that
                this population has written before are replaced.
        """
        below = Path(directory)
        if self._written is None or self._written[0] != below:
            self._written = below, folders_of(self.members, below)
        folders = self._written[1]
        for run, folder in zip(self.runs(), folders, strict=True):
            write_run(run, folder)
        if self.directory is not None:
            self.history.to_csv(self.directory / MEMBERS_FILE)
        if self._best is not None:
            self._best.save([folder / FOLDER for folder in folders], self._settings.configs, self.history)

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        key: str = RETURN,
        x: str = STEPS,
        *,
        hue: str | None = None,
        title: str | None = None,
        **options: Unpack[AxisOptions],
    ) -> Any:
        """Draws a metric over the course of training: one line with a 95 % confidence band for each combination of
        settings.

        The line is the interquartile mean over all members with this combination. Without `hue`, these members differ
        only in their seeds.

        Args:
            path: File to write, a ``.png``, ``.svg`` or ``.pdf``; None writes none.
            key: Number to draw.
            x: The x axis: "steps", "seconds", "iterations", or the name of a column.
            hue: The only setting that separates curves; members that differ in other settings are grouped. None uses
                all.
            title: Title of the figure.
            **options: ``ylim=(low, high)``, ``xscale``, ``yscale``: see `AxisOptions`.

        Returns:
            The `RunFigure`, which notebooks display.

        Raises:
            ImportError: Without matplotlib: ``pip install 'jaxrl-stack[plots]'``.
            KeyError: If members have no such number.
            ValueError: If members do not differ in `hue`, nothing can be drawn, or `path` has another ending.
        """
        runs = self.runs() if hue is None else told_apart_by(hue, self.runs(), self.members)
        return plot_runs(runs, key, x, path, title=title, **options)

    def as_sweep(self) -> Sweep:
        """The population as a `Sweep`, the result type of `run_sweep`.

        ``print(sweep)`` shows a table of the members' settings, best first. ``sweep.heat_map(path)`` draws the final
        performance for each pair of values of two settings.
        """
        defaults = as_json(self.get_default_config().to_dict())
        return sweep_of(self.runs(), self.members, self.config, defaults)

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Replaces members by copies of other members: weights, optimizers, settings, environments and replay buffers.

        Each member keeps its random streams. Only rows of these members are moved, on their devices; the first call
        compiles the programs for that. A diverged target trains again after the copy, and one that had reached its goal
        has to reach it again.

        Args:
            sources: Indices of the members to copy.
            targets: Indices of the same number of members to replace.

        Raises:
            ValueError: If an index is out of range or of a stopped member, or a target occurs twice.
        """
        self._check_is_running()
        for name, given in (("sources", sources), ("targets", targets)):
            self._check_members(given, f"copy({name}={list(given)})")
        if len(sources) != len(targets) or len(set(targets)) < len(targets):
            raise ValueError(
                f"copy({list(sources)}, {list(targets)}): give as many sources as targets, and each target only once, "
                f"such as copy([0, 0], [2, 3])."
            )
        arguments = {"sources": [int(i) for i in sources], "targets": [int(i) for i in targets]}
        with self._commands.around(self, COPY, arguments):
            self.driver.copy(sources, targets)
            self.history.leave_out([target for target in targets if target in self.diverged])
            copy_ends(self.diverged, sources, targets)
            for target in targets:
                self.reached.pop(target, None)
            self._note_settings(self._settings.copy(sources, targets))

    def change_settings(self, settings: Mapping[int, Mapping[str, Any]] | None = None, **of_all: Any) -> None:
        """Changes settings of members from the next iteration on, without recompiling: settings that compiled programs
        take as arguments (traced settings), such as ``lr``, and numbers of ``env_config``.

        ::

            population.change_settings({17: {"lr": 2e-4}, 18: {"lr": 1e-4, "env_config/gravity": 9.8}})

        `history` has a column of the values of each changed setting, such as ``"config/lr"``.

        Args:
            settings: By index of the member, traced settings, and numbers of ``env_config`` in which members differ.
            **of_all: Must be empty. The error for a setting without a member names the form above.

        Raises:
            ValueError: If a member does not exist, or a setting cannot change. Nothing has changed then.
        """
        self._check_is_running()
        form = 'change_settings({0: {"lr": 1e-4}})'
        if of_all:
            raise ValueError(
                f"change_settings({', '.join(of_all)}=...) lacks the indices of members. Give settings by "
                f"index: {form}."
            )
        settings = {} if settings is None else settings
        for member in settings:
            self._check_members([member], f"change_settings({{{member!r}: ...}})", "keys must be", f": {form}")
        call = "change_settings({%d: ...})"
        self._change({int(i): (own, self._settings.changed(int(i), own, call % i)) for i, own in settings.items()})

    def _change(self, changed: Mapping[int, tuple[Mapping[str, Any], AlgorithmConfig]]) -> None:
        """Applies new settings of population members to training and evaluation. Updates the members' configs and the
        history, and records the change in the command log.

        Args:
            changed: ``{member: (new settings, config that `MemberSettings.changed` returned for these settings)}``.
        """
        template: Any = self._template.driver
        configs = [config for _, config in changed.values()]
        starts = member_starts(configs, self._first, template, self.driver.axes.env_params)
        arguments = {"settings": {i: dict(own) for i, (own, _) in changed.items()}}
        with self._commands.around(self, CHANGE_SETTINGS, arguments):
            self.driver.change_settings(dict(zip(changed, starts, strict=True)))
            self._note_settings(self._settings.change(changed))

    def keep(self, members: Sequence[int], reason: str = "stopped by keep()") -> None:
        """Continues with the given members only, at lower cost; the other members stop.

        ::

            population.learn(10)
            returns = population.history["env_runners/episode_return_mean"][-1]
            population.keep(np.argsort(-returns)[:16])  # the best 16; result["members"] and history keep their indices

        Members keep their indices. A stopped member is no longer live, its last row in `history` is its last iteration,
        `runs` contains its run with this reason, and its numbers in results are NaN. The memory of stopped members is
        released, except for the best states of ``reporting(keep_best=True)``.

        The program is the same until a smaller block has room for all members: on CPUs a block of a quarter, on
        accelerators of a sixteenth of the former size. The next iteration then compiles the program for that size, so
        a population of up to 256 members per device compiles at most three.

        Args:
            members: Indices of the members to keep, at least one.
            reason: Reason for the end of the others, in words.

        Raises:
            ValueError: If there are no members, one occurs twice, or an index is out of range or of a stopped member.
        """
        self._check_is_running()
        kept = [int(i) if isinstance(i, np.integer) else i for i in members]
        call = f"keep({short(kept)})"
        if not kept or len(set(kept)) < len(kept):
            raise ValueError(f"{call}: needs at least one member index, and each index only once: keep([0, 1]).")
        self._check_members(kept, call)
        ended = [i for i in self.driver.running.tolist() if i not in kept]
        if not ended:
            return
        with self._commands.around(self, KEEP, {"members": kept, "reason": reason}):
            self.driver.keep(kept)
            last = Ended(self.iteration, reason, is_goal=False)
            self.stopped |= dict.fromkeys(ended, last)
            self._note_settings(())

    def _check_members(
        self, given: Sequence[Any], call: str, which: str = "the list may contain only", more: str = ""
    ) -> None:
        """Raises for indices of members that do not exist or were stopped by `keep`.

        Raises:
            ValueError: Names the call and the member.
        """
        if any(isinstance(i, bool) or i not in range(len(self)) for i in given):
            raise ValueError(f"{call}: {which} indices of members from 0 to {len(self) - 1}{more}.")
        if stopped := [i for i in given if i in self.stopped]:
            running = [i for i in range(len(self)) if i not in self.stopped]
            raise ValueError(
                f"{call}: keep() has stopped member {stopped[0]}, which cannot continue. Use members that still train: "
                f"{running}."
            )

    def _note_settings(self, new: Sequence[str]) -> None:
        """Updates the history and the evaluation of a population after members' settings or the set of running members
        have changed.

        Adds a column to the history for each setting in `new`, the settings that no member had changed before. Passes
        the members' current configs to the evaluation, if one exists.
        """
        for name in new:
            self.history.add_setting(name, self._settings.first_numbers(name))
        if self._evaluation is not None:
            self._evaluation.change_settings(self._settings.configs)

    def get_default_config(self) -> AlgorithmConfig:
        """The default config of the members' algorithm."""
        return type(self._template).get_default_config()

    def check_names(self, criteria: StopCriteria) -> None:
        """Raises a `StopError` if stop criteria name a metric that results cannot contain. The check needs no result,
        so it can run before training; see `StopCriteria.check_names`.
        """
        criteria.check_names(known_result(self.config, self._template.driver.module_ids))

    # ------------------------------------------------------------------------------------------------- checkpoints

    STATE_FILE_NAME = "population_state"

    def get_state(self, components: Parts = None, *, not_components: Parts = None, **kwargs: Any) -> dict[str, Any]:
        """Returns all values that change in training: states of the members, histories and counters.

        Args:
            components: Names to include; None for all.
            not_components: Names to leave out.
            **kwargs: Ignored.
        """
        self._check_is_running()
        state = {
            "driver": self.driver.get_state(),
            "history": self.history.get_state(),
            "middle": self.middle.get_state(),
            "training_iteration": self.iteration,
            "time_total_s": self._iterations.seconds,
            "evaluation": {"num_calls": self._num_evaluations, **self._evaluation_counts()},
            "evaluated": {} if self._evaluated is None else self._evaluated,
            "reached": {str(i): list(ended) for i, ended in self.reached.items()},
            "diverged": {str(i): list(ended) for i, ended in self.diverged.items()},
            "stopped": {str(i): list(ended) for i, ended in self.stopped.items()},
            "settings": self._settings.get_state(),
        }
        return {n: state[n] for n in selected(list(state), components, not_components, "a Population")}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores a state from `get_state`. Parts that are missing in `state` do not change.

        Raises:
            ValueError: If the state is of other members, modules, environments or connectors.
        """
        self._check_is_running()
        with self._commands.around(self, SET_STATE, {}, reason="the restored state is not recorded"):
            self._set_state(state)

    def _set_state(self, state: dict[str, Any]) -> None:
        if "driver" in state:
            self.driver.set_state(state["driver"])
        if "settings" in state:
            self._settings.set_state(state["settings"])
        if state.keys() & {"driver", "settings"}:
            self._note_settings(())
        if "history" in state:
            self.history.set_state(state["history"])
            self.middle.set_state(state["middle"])
        if "training_iteration" in state:
            # Checkpoints of earlier versions have none.
            self._evaluated = state.get("evaluated") or None
            counts = dict(state["evaluation"])
            self._num_evaluations = int(counts.pop("num_calls"))
            if counts:
                self._evaluating().set_lifetime(counts)
            self.reached = {int(i): Ended(*ended) for i, ended in state["reached"].items()}
            self.diverged = {int(i): Ended(*ended) for i, ended in state["diverged"].items()}
            self.stopped = {int(i): Ended(*ended) for i, ended in state.get("stopped", {}).items()}
            self._go_on(int(state["training_iteration"]), float(state["time_total_s"]))

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """Constructor arguments that a checkpoint stores: the config, the members, `on_divergence` and
        `members_at_once`.
        """
        members = [{"seed": member.seed, "settings": dict(member.settings)} for member in self.members]
        more = {"on_divergence": self.on_divergence, "members_at_once": self._members_at_once}
        runner: Any = self._template.env_runner
        learner = self._template.learner
        pipelines = [] if runner is None else runner.pipelines.of_config()
        config = self.config
        if self._replaced_settings:
            config = with_replaced_settings(config, self._replaced_settings)
        config = config.for_checkpoints(*pipelines, *([] if learner is None else [learner._learner_connector]))
        return (), {"config": config, "members": members, **more}

    def get_metadata(self) -> dict[str, Any]:
        """Data about the population for the checkpoint's metadata file, which is readable without loading the
        checkpoint.
        """
        return {
            "algorithm": type(self._template).__name__,
            "num_members": len(self),
            "training_iteration": self.iteration,
            "num_env_steps_sampled_lifetime": self.driver.num_env_steps,
            "driver": self.driver.kind,
            "num_commands": self._commands.count,
        }

    # --------------------------------------------------------------------------------------------------------- life

    def __repr__(self) -> str:
        return (
            f"Population({self._number_text} x {type(self._template).__name__} in {short(env_name(self.config.env))}, "
            f"iteration={self.iteration}, num_env_steps_sampled_lifetime={self.driver.num_env_steps:,} each)"
        )

    @property
    def _number_text(self) -> str:
        """Number of members that still train, as text for ``repr``: ``"64"``, or ``"16 of 64"`` after `keep`."""
        running = self.driver.num_running
        return str(running) if running == len(self) else f"{running} of {len(self)}"

    def _check_is_running(self) -> None:
        if self._is_stopped:
            raise RuntimeError("This Population was stopped. Build another one: config.build_population(...).")

    def stop(self) -> None:
        """Releases the devices. The population cannot train any more; its history remains readable."""
        if not self._is_stopped:
            self._is_stopped = True
            self.driver.stop()
            self._template.stop()
            self.stored_checkpoints.close()


_MIDDLE = {"episode_return_mean": "iqm", "episode_return_max": "best", "episode_return_min": "worst"}
"""Return in `Population.middle` -> statistic of the members' mean returns that is its value."""
