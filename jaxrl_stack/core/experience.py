"""Steps of modules on their way from sampling to learning: one record, whatever carries it."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from typing import Any, Self

import jax
import numpy as np


class LostExperienceError(RuntimeError):
    """Steps of an update are gone from Ray's object store, with the node that held them. Nothing was learned."""


@dataclasses.dataclass(frozen=True)
class Experience:
    """Columns of every module, and how many steps they are.

    Attributes:
        modules: ``{module_id: {column: pytree}}``, NumPy: steps as they were sampled, ``[T, B, ...]``, or rows
            ``[N, ...]``; modules may have different B or N. Rows with ``LOSS_MASK`` False count nowhere. Of a module
            with a recurrent state, steps have ``STATE_IN`` ``[ceil(T / L), B, ...]``: what its chunks of L steps start
            from, see `core.layouts.at_chunk_starts`. A Ray reference of this dict, where it stays in the object store.
        num_env_steps: Steps of environments.
        num_agent_steps: Steps of agents: one of an environment is one of every agent in it.
        is_rows: Whether columns are rows, without order in time.
    """

    modules: Any
    num_env_steps: int
    num_agent_steps: int
    is_rows: bool = False

    @classmethod
    def of_steps(cls, modules: dict[str, dict[str, Any]]) -> Self:
        """Of columns ``[T, B, ...]``, every row of which is a step of one agent; they are not looked at."""
        num_steps = [math.prod(np.shape(jax.tree.leaves(columns)[0])[:2]) for columns in modules.values()]
        return cls(modules, max(num_steps), sum(num_steps))

    @classmethod
    def of_rows(cls, modules: dict[str, dict[str, Any]]) -> Self:
        """Of rows ``[N, ...]``, one for each step; they are not looked at."""
        num_rows = [num_rows_of(columns) for columns in modules.values()]
        return cls(modules, max(num_rows), sum(num_rows), is_rows=True)

    @classmethod
    def check(cls, given: Any, *, is_rows: bool) -> Experience:
        """`given`, if it is one of steps, or one of rows.

        Raises:
            TypeError: If it is not.
        """
        if not isinstance(given, cls) or given.is_rows != is_rows:
            needed = (
                "of_rows({module_id: {column: [N, ...]}})"
                if is_rows
                else "of_steps({module_id: {column: [T, B, ...]}})"
            )
            raise TypeError(f"Got {type(given).__name__} where an Experience belongs: pass Experience.{needed}.")
        return given

    @property
    def is_remote(self) -> bool:
        """Whether the columns are in Ray's object store."""
        # Does not import Ray, which is there where a reference is.
        ray = sys.modules.get("ray")
        return ray is not None and isinstance(self.modules, ray.ObjectRef)

    def fetched(self) -> Experience:
        """With the columns here.

        Raises:
            LostExperienceError: If they are not in Ray's object store any more.
        """
        if not self.is_remote:
            return self
        # Ray is imported only where it runs, and a checkout can be checked without it.
        import ray  # pyright: ignore[reportMissingImports]
        import ray.exceptions  # pyright: ignore[reportMissingImports]

        try:
            return dataclasses.replace(self, modules=ray.get(self.modules))
        except ray.exceptions.ObjectLostError as error:
            raise LostExperienceError(f"Steps that were sampled are lost: {error}") from error

    def split(self, num_parts: int) -> list[Experience]:
        """Equal runs of the columns B, or of the rows, of every module; views.

        Raises:
            ValueError: If they do not divide.
        """
        sizes = {mid: np.shape(jax.tree.leaves(own)[0])[self._axis] for mid, own in self.modules.items()}
        if any(size % num_parts for size in sizes.values()):
            what = "rows" if self.is_rows else "columns (one per environment)"
            raise ValueError(
                f"A batch of {sizes} {what} cannot be dealt out to {num_parts} learners evenly: make their number a "
                f"multiple of num_learners."
            )
        return [
            self._run({mid: (n * i // num_parts, n * (i + 1) // num_parts) for mid, n in sizes.items()})
            for i in range(num_parts)
        ]

    @property
    def _axis(self) -> int:
        """The axis of columns, or of rows."""
        return 0 if self.is_rows else 1

    def _run(self, bounds: Mapping[str, tuple[int, int]]) -> Experience:
        """The columns (or rows) from ``start`` to ``stop`` of every module."""
        before = (slice(None),) * self._axis
        modules = {
            mid: jax.tree.map(lambda x, at=(*before, slice(*bounds[mid])): x[at], columns)
            for mid, columns in self.modules.items()
        }
        (start, stop), size = next(iter(bounds.values())), _shape(self)[self._axis]
        counts = (count * (stop - start) // size for count in (self.num_env_steps, self.num_agent_steps))
        return Experience(modules, *counts, is_rows=self.is_rows)


@dataclasses.dataclass(frozen=True)
class Share:
    """One of several equal runs of the columns of experiences that lie side by side and need not be here.

    Attributes:
        parts: Those that it has columns of; all have the same B.
        start: Where its columns begin, in experiences after the start of the first one.
        length: How many columns it has, in experiences.
    """

    parts: Sequence[Experience]
    start: Fraction
    length: Fraction

    @property
    def num_env_steps(self) -> int:
        """Steps of environments, as many in each column."""
        return round(sum(part.num_env_steps for part in self.parts) * self.length / len(self.parts))

    def fetched(self) -> Experience:
        """The columns.

        Raises:
            LostExperienceError: If they are not in Ray's object store any more.
            ValueError: If experiences differ in columns or in ``[T, B]``, or the share would end within a column.
        """
        parts = [part.fetched() for part in self.parts]
        if self.length == len(parts):
            return joined(parts)
        shapes = {_shape(part) for part in parts}
        if len(shapes) > 1:
            raise ValueError(
                f"Steps of which learners take parts must have the same shape; these have {_listed(shapes)}. Make the "
                f"number of runners' samples a multiple of num_learners."
            )
        ((_, num_columns),) = shapes
        start, stop = self.start * num_columns, (self.start + self.length) * num_columns
        if start.denominator > 1 or stop.denominator > 1:
            raise ValueError(
                f"Samples of {num_columns} columns cannot be dealt out to learners that get {self.length} of them "
                f"each: make num_envs_per_env_runner a multiple of {self.length.denominator}, or the number of env "
                f"runners one of num_learners."
            )
        own = [
            (max(int(start) - i * num_columns, 0), min(int(stop) - i * num_columns, num_columns))
            for i in range(len(parts))
        ]
        return joined([part._run(dict.fromkeys(part.modules, at)) for part, at in zip(parts, own, strict=True)])


def num_rows_of(columns: Mapping[str, Any]) -> int:
    """N of the columns ``[N, ...]`` of a module: of the first one, which may be nested, as all have the same."""
    return np.shape(jax.tree.leaves(next(iter(columns.values())))[0])[0]


def joined(parts: Sequence[Experience]) -> Experience:
    """The columns of several experiences side by side.

    Raises:
        ValueError: If they differ in columns or number of steps.
    """
    if len(parts) == 1:
        return parts[0]
    for part in parts[1:]:
        if jax.tree.structure(part.modules) != jax.tree.structure(parts[0].modules):
            first, other = ({m: sorted(own) for m, own in each.modules.items()} for each in (parts[0], part))
            raise ValueError(f"The samples of one update differ in their columns: {first} and {other}.")
    shapes = {_shape(part) for part in parts}
    if len({num_steps for num_steps, _ in shapes}) > 1:
        raise ValueError(f"The samples of one update differ in their numbers of steps: {_listed(shapes)}.")
    modules = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *[part.modules for part in parts])
    return Experience(modules, sum(part.num_env_steps for part in parts), sum(part.num_agent_steps for part in parts))


def deal_out(parts: Sequence[Experience], num_learners: int) -> list[Experience | Share]:
    """Deal the columns of experiences, side by side, out to learners in equal runs.

    Where the columns stay in Ray's object store, all experiences must have the same number of them.

    Raises:
        ValueError: See `joined` and `Experience.split`.
    """
    if not any(part.is_remote for part in parts):
        return [*joined(parts).split(num_learners)]
    length = Fraction(len(parts), num_learners)
    out: list[Experience | Share] = []
    for i in range(num_learners):
        start = i * length
        first, last = start.__floor__(), (start + length).__ceil__()
        out.append(Share(parts[first:last], start - first, length))
    return out


def _shape(part: Experience) -> tuple[int, ...]:
    return np.shape(jax.tree.leaves(part.modules)[0])[:2]


def _listed(shapes: Collection[tuple[int, ...]]) -> str:
    return ", ".join(f"[T={t}, B={b}]" for t, b in sorted(shapes))
