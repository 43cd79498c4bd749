"""Runs of a population's members, for figures, tables and files."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxrl_stack.runs.origin import how_it_ended
from jaxrl_stack.runs.output import free_directory
from jaxrl_stack.runs.run import DIVERGED, Run, distinct_names, folder_of
from jaxrl_stack.runs.statistics import RunStatistics, counted, duration
from jaxrl_stack.runs.stop import StopCriteria, StopReason
from jaxrl_stack.runs.stored_checkpoints import WITHOUT_FOLDER
from jaxrl_stack.runs.sweep import Sweep
from jaxrl_stack.runs.writers import as_json

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.algorithms.members import Member
    from jaxrl_stack.runs.member_history import MemberHistory
    from jaxrl_stack.runs.member_results import MemberResults


logger = logging.getLogger(__name__)


class Ended(NamedTuple):
    """Iteration in which a population member (a run) ended, and the reason.

    Attributes:
        iteration: The last iteration.
        reason: The reason in words.
        is_goal: Whether it has reached its goal, such as a return.
    """

    iteration: int
    reason: str
    is_goal: bool


def note_diverged(
    ill: Sequence[int], members: Sequence[Member], diverged: dict[int, Ended], iteration: int, *, raises: bool
) -> None:
    """Records the population members that diverged in an iteration. A member has diverged if one of its losses,
    gradients, parameters, rewards or observations is not finite.

    Args:
        ill: Indices of the diverged members.
        members: All members.
        diverged: Earlier diverged members; the new ones are added.
        iteration: The iteration.
        raises: Whether to raise an error.

    Raises:
        FloatingPointError: With `raises`, for the first diverged member.
    """
    why = "a loss, gradient, parameter, reward or observation is not finite"
    for i in ill:
        diverged[i] = Ended(iteration, f"{DIVERGED}: {why}", is_goal=False)
        told = f"Member {i} ({members[i]}) diverged in iteration {iteration}: {why}."
        if raises:
            raise FloatingPointError(
                f"{told} Lower lr, set grad_clip, or let the other members continue: "
                'build_population(on_divergence="freeze").'
            )
        logger.warning("%s Its last finite state is kept, and the other members continue to train.", told)


def copy_ends(diverged: dict[int, Ended], sources: Sequence[int], targets: Sequence[int]) -> None:
    """Updates the records of diverged members, after source members have replaced target members of a population.

    Each target gets its source's record in `diverged`, or no record if the source has not diverged.

    Args:
        diverged: Records of the diverged members, by index; changed in place.
        sources: Members that are copied.
        targets: Members that they replace.
    """
    before = dict(diverged)
    for source, target in zip(sources, targets, strict=True):
        diverged.pop(target, None)
        if source in before:
            diverged[target] = before[source]


def reason_to_stop(
    results: MemberResults,
    live: Sequence[int],
    criteria: Sequence[StopCriteria],
    reached: dict[int, Ended],
    *,
    until_any: bool,
) -> StopReason | None:
    """Reason in words why the population stops training; None to continue.

    Args:
        results: Results of an iteration.
        live: Members that have not diverged.
        criteria: Stop criteria of each member.
        reached: Members that have reached their goal; new ones are added.
        until_any: Whether the first member that reaches its goal ends training.
    """
    if not live:
        return StopReason("every member has diverged", is_goal=False)
    paths, iteration = criteria[0].paths, results.numbers["training_iteration"]
    if paths is not None:
        results = results.only(paths)
    for i in live:
        if i not in reached:
            why = criteria[i].reached(results[i])
            if why is not None:
                reached[i] = Ended(iteration, str(why), why.is_goal)
    done = [reached[i] for i in live if i in reached]
    if len(done) == len(live) or (until_any and done):
        which = "every live member" if len(done) == len(live) else f"member {next(iter(reached))}"
        return StopReason(f"{which}: {done[-1].reason}", is_goal=all(one.is_goal for one in done))
    return None


def closing_lines(
    reason: StopReason | None, statistics: RunStatistics, num_members: int, num_reached: int, num_diverged: int
) -> list[str]:
    """Lines of text that `Population.learn` prints at its end.

    The lines say why training stopped, env steps and speed, how many members reached their goals, and how many
    diverged. `statistics` counts the env steps of a single member.
    """
    speed, members = statistics.steps_per_second_overall, counted(num_members, "member")
    return [
        f"Stopped:    {reason or 'Ctrl-C'}",
        f"Trained:    {statistics.steps:,} steps of each of {members} in {counted(statistics.iteration, 'iteration')}; "
        f"{duration(statistics.steady_seconds)} at {speed:,.0f} steps/s each, {speed * num_members:,.0f} together, and "
        f"{duration(statistics.compile_seconds)} of compiling",
        f"Reached by: {num_reached} of {members}, {num_diverged} diverged",
    ]


def runs_of(
    members: Sequence[Member],
    history: MemberHistory,
    configs: Sequence[Mapping[str, Any]],
    origin: Mapping[str, Any],
    ends: Sequence[Ended | None],
    folders: Sequence[Path] | None = None,
) -> list[Run]:
    """Creates a `Run` (results and settings for figures and reports) for each population member.

    Args:
        members: The members.
        history: Histories of the members.
        configs: ``config`` in the results of each member.
        origin: Origin of all runs; see `run_origin`.
        ends: End of each member; None for running members.
        folders: Folder of each member's files; None without files.
    """
    made = []
    histories = history.of_members()
    for i, (member, config, end) in enumerate(zip(members, configs, ends, strict=True)):
        reason = None if end is None else StopReason(end.reason, is_goal=end.is_goal)
        own = {**origin, **how_it_ended(reason)}
        folder = None if folders is None else folders[i]
        made.append(Run(f"{origin['algorithm']} {member}", histories[i], as_json(config), own, folder))
    return made


def folders_of(members: Sequence[Member], directory: Path) -> list[Path]:
    """Finds a folder for each population member, named after the member, inside the population's folder `directory`.

    Does not create the folders. If a folder contains another run, the member's folder gets a number: ``<name>_2`` and
    so on.
    """
    return [free_directory(folder_of(name, directory)) for name in distinct_names([str(member) for member in members])]


def alone(config: AlgorithmConfig, results_dir: Path | None = None) -> AlgorithmConfig:
    """Unfrozen copy of a population member's config for a single algorithm. The algorithm writes its results and
    checkpoints to `results_dir`; if `results_dir` is None, it writes neither.
    """
    own = config.copy(copy_frozen=False)
    return own.reporting(**WITHOUT_FOLDER) if results_dir is None else own.reporting(results_dir=results_dir)


def told_apart_by(hue: str, runs: Sequence[Run], members: Sequence[Member]) -> list[Run]:
    """Returns copies of the runs. Each copy contains only two settings, `env` and the setting `hue`, so that labels in
    figures distinguish runs by `hue`.

    Raises:
        ValueError: If members do not differ in `hue`.
    """
    known = members[0].settings
    if hue not in known:
        raise ValueError(
            f"plot(hue={hue!r}): must be a setting that differs between the members of the population, one of: "
            f"{', '.join(known) or 'none, because only the seeds differ'}."
        )
    pairs = zip(runs, members, strict=True)
    return [dataclasses.replace(run, settings={"env": run.settings["env"], hue: m.settings[hue]}) for run, m in pairs]


def sweep_of(
    runs: Sequence[Run], members: Sequence[Member], config: AlgorithmConfig, defaults: Mapping[str, Any]
) -> Sweep:
    """Converts the members of a population to a `Sweep`, as returned by `run_sweep`."""
    combinations = [dict(member.settings) for member in members]
    tried = [one for place, one in enumerate(combinations) if one not in combinations[:place]]
    return Sweep(
        runs=tuple(runs),
        defaults=defaults,
        places=tuple(range(len(members))),
        is_one_program=True,
        config=config,
        combinations=tuple(tried),
        members=tuple((tried.index(own), member.seed) for own, member in zip(combinations, members, strict=True)),
    )
