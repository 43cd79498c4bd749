"""Tuned settings, and how it is known that they learn: what each algorithm's ``tuned.py`` is made of."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Measured:
    """Runs of ``python -m bench.learning``; each of them is a line of ``bench/learning.jsonl``.

    Args:
        target: The mean return to reach, in ``env_runners/episode_return_mean``.
        within: The env steps after which a seed has failed.
        steps: Env steps after which each seed, from 0 on, had reached the target; None where it had not.
    """

    target: float
    within: int
    steps: tuple[int | None, ...]

    def __str__(self) -> str:
        passed = [steps for steps in self.steps if steps is not None]
        seeds = f"{len(passed)} of {len(self.steps)} seeds"
        if not passed:
            return f"measured: a mean return of {self.target:g} within {self.within:,} steps, {seeds}"
        return f"measured: a mean return of {self.target:g} after {_thousands(passed)} steps, {seeds}"


@dataclasses.dataclass(frozen=True)
class FromLiterature:
    """Published settings that were not run.

    Args:
        source: Where they come from, how far that trains, and what of it is different here.
    """

    source: str

    def __str__(self) -> str:
        return f"from the literature, not run: {self.source}"


@dataclasses.dataclass(frozen=True)
class Tuned:
    """Settings for an environment.

    Args:
        evidence: How it is known that they learn.
        settings: For ``config.update_from_dict``.
    """

    evidence: Measured | FromLiterature
    settings: dict[str, Any]


def _thousands(steps: list[int]) -> str:
    first, last = (f"{round(each / 1000):,}k" for each in (min(steps), max(steps)))
    return first if first == last else f"{first} to {last}"
