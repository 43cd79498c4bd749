"""Checks observations for values outside of their space. The observations of many steps are checked together, which is
cheaper than a check in each step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from jaxrl_stack.env.env_contract import GIVE_CHOICES
from jaxrl_stack.utils.integers import choices_of, limits_of
from jaxrl_stack.utils.notices import notice_once

_MAX_BYTES, _MAX_STEPS = 1 << 22, 256
"""Observations that are kept until they are compared."""


class OutOfRange(NamedTuple):
    """Report of an invalid number in an observation.

    An invalid number is a choice outside of a discrete space, or an integer that the dtypes of compiled programs cannot
    hold. The report contains the rollout step, the row in the batch of observations, and advice for the user.

    Attributes:
        step: Step of the rollout.
        row: Row of the batch of observations.
        what: The number and its place, as text.
        remedy: Advice for the user, one sentence.
    """

    step: int
    row: int
    what: str
    remedy: str

    @property
    def is_of_first_step(self) -> bool:
        """Whether the invalid number is in the observation that the reset before the rollout returned, or in the
        observation after the rollout's first step.
        """
        return self.step < 2


@dataclasses.dataclass(eq=False)
class _Range:
    """Lower and upper bounds of one leaf of the observation space, and the advice to print if an observation contains a
    number outside of these bounds.

    Attributes:
        low, high: Numbers or arrays of the part's shape.
        remedy: Advice about numbers outside of the range.
        reason: Problem of such numbers; None: they are only unusual.
    """

    low: Any
    high: Any
    remedy: str
    reason: str | None


@dataclasses.dataclass
class _Part:
    """One leaf of the observation space, with the ranges to check and the observations that have not been checked yet.

    A leaf is a space that is neither a Dict nor a Tuple.

    Attributes:
        path: Keys that lead to it.
        space: Space of the part.
        ranges: Ranges of its numbers.
        kept: ``[steps, rows, *shape]``.
    """

    path: tuple[Any, ...]
    space: gym.Space
    ranges: list[_Range]
    kept: np.ndarray

    def read(self, obs: Any) -> Any:
        for key in self.path:
            obs = obs[key]
        return obs


class ObservationWatch:
    """Checks observations for values outside of their space: collects the observations of many steps, and checks them
    together, which is cheaper than a check in each step.

    Invalid choices, and integers that the dtypes of compiled programs cannot hold, are errors: `found` lists them.
    Numbers outside of the bounds of a `Box` only cause one notice.

    Args:
        space: Space of one observation.
        num_rows: Number of rows of a batch.
        name: Name of the environment in messages.
        who: ``row -> who returned it``, for messages.

    Attributes:
        takes_blocks: Whether recorded observations can be checked instead of the environments', because the dtypes of
            compiled programs do not change any number.
    """

    def __init__(self, space: gym.Space, num_rows: int, name: str, who: Callable[[int], str]):
        self._name, self._who = name, who
        ranges = [(path, part, own) for path, part in _parts_of(space, ()) if (own := _ranges_of(part))]
        size = sum(num_rows * np.dtype(part.dtype).itemsize * max(1, int(np.prod(part.shape))) for _, part, _ in ranges)
        self._most = max(1, min(_MAX_STEPS, _MAX_BYTES // max(size, 1)))
        self._parts = [
            _Part(path, part, own, np.zeros((self._most, num_rows, *(part.shape or ())), part.dtype))
            for path, part, own in ranges
        ]
        self.takes_blocks = all(jax.dtypes.canonicalize_dtype(part.dtype) == part.dtype for _, part, _ in ranges)
        self._steps = [0] * self._most
        self._counts = np.zeros((self._most, num_rows), bool)
        self._num_kept = 0
        self._found: list[OutOfRange] = []

    @property
    def is_idle(self) -> bool:
        """Whether the observation space has no bounds to check, so that observations need not be collected."""
        return not self._parts

    def begin(self) -> None:
        """Starts the check of a new rollout: discards the stored observations and the `OutOfRange` reports of the
        previous rollout.
        """
        self._num_kept, self._found = 0, []

    def add(self, step: int, obs: Any, rows: np.ndarray | None = None) -> None:
        """Stores a copy of one step's batch of observations. The stored batches of many steps are checked later, all
        together.

        Args:
            step: Step of the rollout.
            obs: Pytree ``[R, ...]`` that mirrors the space; it is copied.
            rows: bool ``[R]``, the rows that count; None: all.
        """
        if self._num_kept == self._most:
            self._compare()
        k = self._num_kept
        for part in self._parts:
            part.kept[k] = part.read(obs)
        self._steps[k] = step
        self._counts[k] = True if rows is None else rows
        self._num_kept = k + 1

    def add_block(self, obs: Any) -> None:
        """Checks the observations of all steps of a rollout in one call.

        Then `add` need not be called in each step. `found` returns the reports of invalid numbers.

        Args:
            obs: Pytree ``[T, R, ...]`` that mirrors the space, with the dtypes of programs.
        """
        for part in self._parts:
            values = part.read(obs)
            self._compare_part(part, values, range(len(values)), np.ones(values.shape[:2], bool))

    def found(self) -> list[OutOfRange]:
        """Checks the stored observations, and returns the reports of invalid numbers since the last `begin` call.

        The result is a list of `OutOfRange`, sorted by step and row. An invalid number is a choice outside of a
        discrete space, or an integer that the dtypes of compiled programs cannot hold.
        """
        self._compare()
        return sorted(self._found, key=lambda one: one[:2])

    def _compare(self) -> None:
        k, self._num_kept = self._num_kept, 0
        for part in self._parts:
            self._compare_part(part, part.kept[:k], self._steps, self._counts[:k])
        self._parts = [part for part in self._parts if part.ranges]

    def _compare_part(self, part: _Part, values: np.ndarray, steps: Sequence[int], counts: np.ndarray) -> None:
        for own in list(part.ranges):
            # NaN is neither below nor above.
            outside = (values < own.low) | (values > own.high)
            if not outside.any():
                continue
            rows = outside.reshape(*counts.shape, -1).any(axis=-1) & counts
            for t, row in np.argwhere(rows).tolist():
                index = tuple(np.argwhere(outside[t, row])[0].tolist())
                place = "".join(f"[{key!r}]" for key in (*part.path, *index))
                what = f"obs{place} = {values[(t, row, *index)]}"
                if own.reason is not None:
                    self._found.append(OutOfRange(steps[t], row, f"{what}, {own.reason}", own.remedy))
                    continue
                part.ranges.remove(own)
                notice_once(
                    f"environment({self._name!r}): an observation is outside of its space {part.space}: "
                    f"{self._who(row)} returned {what}. {own.remedy}",
                    key=f"outside of its space: {self._name!r}, {part.path}, {part.space}",
                )
                break


def _parts_of(space: gym.Space, path: tuple[Any, ...]) -> Sequence[tuple[tuple[Any, ...], Any]]:
    match space:
        case Dict():
            children: Any = space.spaces.items()
        case Tuple():
            children = enumerate(space.spaces)
        case _:
            return [(path, space)]
    return [one for key, child in children for one in _parts_of(child, (*path, key))]


def _ranges_of(space: Any) -> list[_Range]:
    """Returns the ranges to check for the numbers of one leaf of an observation space.

    These are the bounds of the space and, if compiled programs use a smaller integer dtype than the space, the limits
    of that dtype. A range that excludes no value is left out.
    """
    if isinstance(space, Discrete | MultiDiscrete | MultiBinary):
        return [_Range(*choices_of(space), GIVE_CHOICES, f"outside of {space}")]
    assert isinstance(space, Box)
    dtype: Any = space.dtype
    if dtype.kind == "b":
        return []
    ranges = []
    low, high = space.low, space.high
    if dtype.kind in "iu":
        own: Any = jax.dtypes.canonicalize_dtype(dtype)
        first, last = limits_of(own)
        if own != dtype:
            remedy = (
                f"Give observation_space the dtype np.float32, which is exact up to {2**24}, or return smaller numbers."
            )
            ranges.append(_Range(first, last, remedy, f"which {own}, the largest integers of programs, cannot hold"))
        bounded = (low > first) | (high < last)
    else:
        bounded = np.isfinite(low) | np.isfinite(high)
    if bounded.any():
        remedy = "Give observation_space the bounds that hold, -inf and inf if none do."
        ranges.append(_Range(low, high, remedy, None))
    return ranges
