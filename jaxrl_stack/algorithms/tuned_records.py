"""Classes for the algorithms' ``tuned.py``: tuned settings, and evidence that an algorithm learns with them."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias


@dataclasses.dataclass(frozen=True)
class Held:
    """Evidence for tuned settings: results of tests that the mean return never falls below a value.

    Runs of ``python -m bench.learning --hold`` test that the mean return is never below `mean` between `first` and
    `until` env steps. Each run is one line of ``bench/learning.jsonl``.

    Args:
        mean: Mean return that must be held.
        first: Env steps after which it must be held.
        until: Env steps until which it must be held.
        seeds: Whether each seed, from 0 on, held it.
    """

    mean: float
    first: int
    until: int
    seeds: tuple[bool, ...]

    def __str__(self) -> str:
        held = f"{sum(self.seeds)} of {len(self.seeds)} seeds"
        return f"never below {self.mean:g} from {_thousands([self.first, self.until])}, {held}"


@dataclasses.dataclass(frozen=True)
class Measured:
    """Evidence for tuned settings: numbers of env steps after which the mean return reached a target.

    Runs of ``python -m bench.learning`` measure these numbers. Each run is one line of ``bench/learning.jsonl``.

    Args:
        target: Mean return to reach, in ``env_runners/episode_return_mean``.
        within: Env steps after which a seed has failed.
        steps: Env steps after which each seed, from 0 on, had reached the target; None if it had not.
        standard_error: Upper bound of the mean return's standard error, if it was evaluated because the last 100
            episodes are too few.
        held: Measurement after the target was reached, if there is one.
    """

    target: float
    within: int
    steps: tuple[int | None, ...]
    standard_error: float | None = None
    held: Held | None = None

    def __str__(self) -> str:
        after = "" if self.held is None else f"; {self.held}"
        return f"measured: {_reached(self)}{after}"


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """Evidence for tuned settings: numbers of env steps after which the mean return of greedy episodes reached a
    target.

    Runs of ``python -m bench.dreamer`` measure these numbers. Each run is one line of ``bench/dreamer.jsonl``.

    Args:
        target: Mean return of greedy episodes to reach.
        within: Env steps after which a seed has failed.
        steps: Env steps after which each seed, from 0 on, was at the target; None if it never was.
        episodes: Number of episodes in the mean.
    """

    target: float
    within: int
    steps: tuple[int | None, ...]
    episodes: int = 20

    def __str__(self) -> str:
        return f"measured: {_reached(self)}, {self.episodes} greedy episodes"


@dataclasses.dataclass(frozen=True)
class Scored:
    """Evidence for tuned settings: mean returns of the final policy in evaluation episodes.

    Runs of ``python -m bench.scores`` measure these returns. Each run is one line of ``bench/scores.jsonl``.

    Args:
        steps: Env steps of each run.
        scores: Mean return of 100 evaluation episodes of the final policy, of each seed from 0 on.
    """

    steps: int
    scores: tuple[float, ...]

    def __str__(self) -> str:
        low, high = (f"{score:,.4g}" for score in (min(self.scores), max(self.scores)))
        seeds = f"{len(self.scores)} seed{'s' * (len(self.scores) > 1)}"
        return f"measured: final scores of {low} to {high} after {_thousands([self.steps])} steps, {seeds}"


@dataclasses.dataclass(frozen=True)
class FromLiterature:
    """Evidence for tuned settings: a publication, whose settings were not run with this package.

    Args:
        source: Source, length of training there, and differences here.
    """

    source: str

    def __str__(self) -> str:
        return f"from the literature, not run: {self.source}"


Evidence: TypeAlias = Measured | Evaluated | Scored | FromLiterature


@dataclasses.dataclass(frozen=True)
class Tuned:
    """Tuned settings of an algorithm for one environment, with evidence that the algorithm learns with these settings.

    Args:
        evidence: Evidence that the settings learn.
        settings: Argument of ``config.update_from_dict``.
    """

    evidence: Evidence
    settings: dict[str, Any]


def _reached(runs: Measured | Evaluated) -> str:
    passed = [steps for steps in runs.steps if steps is not None]
    seeds = f"{len(passed)} of {len(runs.steps)} seeds"
    if not passed:
        return f"a mean return of {runs.target:g} within {runs.within:,} steps, {seeds}"
    return f"a mean return of {runs.target:g} after {_thousands(passed)} steps, {seeds}"


def _thousands(steps: list[int]) -> str:
    first, last = (f"{round(each / 1000):,}k" for each in (min(steps), max(steps)))
    return first if first == last else f"{first} to {last}"
