"""The members of a population as runs: for figures, tables and files."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxrl_stack.runs.origin import how_it_ended
from jaxrl_stack.runs.output import write_run
from jaxrl_stack.runs.run import Run
from jaxrl_stack.runs.stop import StopReason
from jaxrl_stack.runs.sweep import Sweep
from jaxrl_stack.runs.writers import as_json

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.algorithms.members import Member
    from jaxrl_stack.runs.member_history import MemberHistory


class Ended(NamedTuple):
    """When and why a member was done.

    Attributes:
        iteration: After which it was.
        reason: Why, in words.
        is_goal: Whether it has reached what it was trained for, such as a return.
    """

    iteration: int
    reason: str
    is_goal: bool


def runs_of(
    members: Sequence[Member],
    history: MemberHistory,
    configs: Sequence[Mapping[str, Any]],
    origin: Mapping[str, Any],
    ends: Sequence[Ended | None],
) -> list[Run]:
    """The run of each member.

    Args:
        members: The members.
        history: Their tables.
        configs: Of each, what its results have as ``config``.
        origin: Where all of them come from; see `run_origin`.
        ends: How each was done; None of one that is not.
    """
    made = []
    for i, (member, config, end) in enumerate(zip(members, configs, ends, strict=True)):
        reason = None if end is None else StopReason(end.reason, is_goal=end.is_goal)
        own = {**origin, **how_it_ended(reason)}
        made.append(Run(f"{origin['algorithm']} {member}", history.of_member(i), as_json(config), own))
    return made


def write_runs(runs: Sequence[Run], members: Sequence[Member], directory: Path) -> None:
    """Write each run into a folder of its own, which is called by its member."""
    for member, run in zip(members, runs, strict=True):
        write_run(run, directory / re.sub(r"[^\w.=+-]+", "_", str(member)))


def told_apart_by(hue: str, runs: Sequence[Run], members: Sequence[Member]) -> list[Run]:
    """The runs with no other setting than this one, which figures then tell them apart by.

    Raises:
        ValueError: If members do not differ in it.
    """
    known = members[0].settings
    if hue not in known:
        raise ValueError(f"plot(hue={hue!r}): members differ in {', '.join(known) or 'their seeds alone'}.")
    pairs = zip(runs, members, strict=True)
    return [dataclasses.replace(run, settings={"env": run.settings["env"], hue: m.settings[hue]}) for run, m in pairs]


def sweep_of(
    runs: Sequence[Run], members: Sequence[Member], config: AlgorithmConfig, defaults: Mapping[str, Any]
) -> Sweep:
    """The members as what `run_sweep` returns; see `Sweep`."""
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
