"""Steps of modules on their way from sampling to learning: one record, on every place."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.layouts import NOT_PLANNED, Layouts
from jaxrl_stack.utils.actor_backend import RAY

if TYPE_CHECKING:
    from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode


class LostExperienceError(RuntimeError):
    """Steps of an update are gone from Ray's object store, with the node that held them. Nothing was learned."""


class RecordingId(NamedTuple):
    """The EnvRunner that steps come from, and the number of the recording among all of its recordings.

    Attributes:
        worker_index: The runner; 0 is the one in the algorithm's process. A name for steps that no runner sampled.
        num_restarts: How often it had been restarted.
        serial: Number of the recording among all that it has made since its last restart: where one is missing, the
            steps in between were not sampled as a block.
    """

    worker_index: int | str = 0
    num_restarts: int = 0
    serial: int = 0


class Versions(NamedTuple):
    """Which weights acted: how many updates they had seen, at least and at most. On the device, uint32 arrays."""

    lowest: Any = 0
    highest: Any = 0

    def with_others(self, other: Versions) -> Versions:
        """Of both."""
        if isinstance(self.lowest, int) and isinstance(other.lowest, int):
            return Versions(min(self.lowest, other.lowest), max(self.highest, other.highest))
        return Versions(jnp.minimum(self.lowest, other.lowest), jnp.maximum(self.highest, other.highest))


class AgentTimes(NamedTuple):
    """Times of the steps of several agents in their environments, NumPy; a vector step is one of all environments.

    Row ``s * B + i`` is agent s of the module in environment i. If the part continues the one before (see
    `RecordingId.serial`), the running episode of environment i does, too, unless ``ends[-1, i]`` there or not
    ``counts[0, i]`` here.

    Attributes:
        begins: int32 ``[T, R]`` by module: the vector step of this part in which each complete step began, that is, its
            agent acted. Negative for a step that was not complete before this part: -1 is the last vector step before,
            and steps may be older than one part. Entries behind the complete steps of a row mean nothing.
        seen: int32 ``[T, R]`` by module: the number of vector steps, 1 to T, after which each complete step was
            complete: its next observation, or its end, came with vector step ``seen - 1``. Likewise.
        counts: bool ``[T, B]``: whether a vector step of an environment is an env step. Steps of an episode that was
            dropped because its environment failed are none.
        ends: bool ``[T, B]``: whether an episode of the environment ended with that vector step. Dropped episodes have
            no end.
        agents: The agents of each module, in the order of its slots.
    """

    begins: dict[str, np.ndarray]
    seen: dict[str, np.ndarray]
    counts: np.ndarray
    ends: np.ndarray
    agents: dict[str, tuple[Hashable, ...]]


@struct.dataclass
class Part:
    """Steps that one runner sampled in one go, or rows.

    Attributes:
        modules: ``{module_id: {column: pytree}}``: steps ``[T, B, ...]``, or rows ``[N, ...]``; modules may have
            different B or N. Rows with ``LOSS_MASK`` False count nowhere. A Ray reference of this dict, where it stays
            in the object store; {} of episodes.
        num_agent_steps: Steps of agents: one of an environment is one of every agent in it.
        versions: Of the weights that acted.
        starts: ``{module_id: bool [B]}``, whether the first row of each column is the first of an episode; None where
            the columns say so themselves. Of several agents on the host: whether the first complete step of a row is
            the first one of its agent's episode, and does not continue the row's last complete step of parts before;
            without meaning for a row without complete steps.
        episodes: Whole episodes, of a runner that only gives these; else None.
        num_env_steps: Steps of environments, an int.
        source: Where they come from.
        layouts: How the columns of each module lie; empty where they were not planned.
        is_rows: Whether columns are rows, without order in time.
        times: When agents' steps began and were complete; None where the plan does not ask for it
            (`SamplePlan.has_agent_times`), in runs of columns (`run`), and after parts were joined.
    """

    modules: Any
    num_agent_steps: Any = 0
    versions: Versions = Versions()
    starts: dict[str, Any] | None = None
    episodes: list[SingleAgentEpisode] | None = None
    num_env_steps: int = struct.field(pytree_node=False, default=0)
    source: RecordingId = struct.field(pytree_node=False, default=RecordingId())
    layouts: Layouts = struct.field(pytree_node=False, default=NOT_PLANNED)
    is_rows: bool = struct.field(pytree_node=False, default=False)
    times: AgentTimes | None = None

    @property
    def is_remote(self) -> bool:
        """Whether the columns are in Ray's object store."""
        return RAY.is_reference(self.modules)

    def fetched(self) -> Part:
        """With the columns here.

        Raises:
            LostExperienceError: If they are not in Ray's object store any more.
        """
        if not self.is_remote:
            return self
        # Ray is imported only where it runs, and a checkout can be checked without it.
        from ray.exceptions import ObjectLostError  # pyright: ignore[reportMissingImports]

        try:
            return dataclasses.replace(self, modules=RAY.get(self.modules))
        except ObjectLostError as error:
            raise LostExperienceError(f"Steps that were sampled are lost: {error}") from error

    @property
    def axis(self) -> int:
        """The axis of columns, or of rows."""
        return 0 if self.is_rows else 1

    @property
    def shape(self) -> tuple[int, ...]:
        """``[T, B]`` of steps; of rows the first one is N."""
        return np.shape(jax.tree.leaves(self.modules)[0])[:2]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """`shape` of each module: they may have different B."""
        return {mid: np.shape(jax.tree.leaves(own)[0])[:2] for mid, own in self.modules.items()}

    def run(self, bounds: Mapping[str, tuple[int, int]]) -> Part:
        """The columns (or rows) from ``start`` to ``stop`` of every module; views. `times` is dropped."""
        before = (slice(None),) * self.axis
        modules = {
            mid: jax.tree.map(lambda x, at=(*before, slice(*bounds[mid])): x[at], columns)
            for mid, columns in self.modules.items()
        }
        (start, stop), size = next(iter(bounds.values())), self.shape[self.axis]
        env_steps, agent_steps = (
            count * (stop - start) // size for count in (self.num_env_steps, self.num_agent_steps)
        )
        return dataclasses.replace(
            self,
            modules=modules,
            num_env_steps=env_steps,
            num_agent_steps=agent_steps,
            starts=None if self.starts is None else {m: own[slice(*bounds[m])] for m, own in self.starts.items()},
            times=None,
        )


@struct.dataclass
class Experience:
    """What was sampled, or drawn from what is kept: parts, which are put together when columns are read.

    A pytree: inside of a compiled program it has one part of arrays; on the host as many as shares were sampled, which
    need not be in this process. It may be empty.

    Attributes:
        parts: Each from one source.
    """

    parts: tuple[Part, ...] = ()

    @classmethod
    def of_steps(cls, modules: dict[str, dict[str, Any]]) -> Self:
        """Of columns ``[T, B, ...]``, every row of which is a step of one agent; they are not looked at."""
        num_steps = [math.prod(np.shape(jax.tree.leaves(columns)[0])[:2]) for columns in modules.values()]
        return cls((Part(modules, sum(num_steps), num_env_steps=max(num_steps)),))

    @classmethod
    def of_rows(cls, modules: dict[str, dict[str, Any]]) -> Self:
        """Of rows ``[N, ...]``, one for each step; they are not looked at."""
        num_rows = [num_rows_of(columns) for columns in modules.values()]
        return cls((Part(modules, sum(num_rows), num_env_steps=max(num_rows), is_rows=True),))

    @classmethod
    def merged(cls, experiences: Iterable[Experience]) -> Self:
        """The parts of several, side by side."""
        return cls(tuple(part for experience in experiences for part in experience.parts))

    @classmethod
    def check(cls, given: Any, *, is_rows: bool) -> Experience:
        """`given`, if it is one of steps, or one of rows.

        Raises:
            TypeError: If it is not.
        """
        if not isinstance(given, cls) or any(part.is_rows != is_rows for part in given.parts):
            needed = (
                "of_rows({module_id: {column: [N, ...]}})"
                if is_rows
                else "of_steps({module_id: {column: [T, B, ...]}})"
            )
            raise TypeError(f"Got {type(given).__name__} where an Experience belongs: pass Experience.{needed}.")
        return given

    @property
    def modules(self) -> dict[str, dict[str, Any]]:
        """The columns of all parts side by side, ``{module_id: {column: pytree}}``; {} of none.

        They are fetched and put together when they are asked for first; those of a single part that is here are its
        own.

        Raises:
            LostExperienceError: If they are not in Ray's object store any more.
            ValueError: If parts differ in columns or number of steps, or are episodes.
        """
        if len(self.parts) == 1 and not self.parts[0].is_remote and self.parts[0].episodes is None:
            return self.parts[0].modules
        return self._joined_modules

    @functools.cached_property
    def _joined_modules(self) -> dict[str, dict[str, Any]]:
        if self.has_episodes:
            raise ValueError(
                "This experience is whole episodes (batch_mode='complete_episodes', or an EnvRunner with a sample() of "
                "its own), which have no columns yet: read them from Experience.episodes."
            )
        return side_by_side([part.fetched() for part in self.parts])

    @property
    def has_episodes(self) -> bool:
        """Whether it is whole episodes."""
        return any(part.episodes is not None for part in self.parts)

    @property
    def episodes(self) -> list[SingleAgentEpisode]:
        """The episodes of all parts."""
        return [episode for part in self.parts for episode in part.episodes or ()]

    @property
    def num_env_steps(self) -> int:
        """Steps of environments, as counted by those who sampled."""
        return sum(part.num_env_steps for part in self.parts)

    @property
    def num_agent_steps(self) -> Any:
        """Steps of agents, likewise; on the device an array."""
        return sum(part.num_agent_steps for part in self.parts)

    @property
    def versions(self) -> Versions:
        """Of the weights that acted; (0, 0) of nothing."""
        versions = [part.versions for part in self.parts]
        return functools.reduce(Versions.with_others, versions) if versions else Versions()

    @property
    def layouts(self) -> Layouts:
        """How the columns of all parts side by side lie; empty if some part was not planned."""
        parts = [part.layouts for part in self.parts]
        if len(parts) == 1 or not parts or any(own.keys() != parts[0].keys() for own in parts):
            return parts[0] if len(parts) == 1 else NOT_PLANNED
        # Where one has masks, rows of the others all count.
        masked = {mid: any(own[mid].is_masked for own in parts) for mid in parts[0]}
        return Layouts({mid: dataclasses.replace(parts[0][mid], is_masked=own) for mid, own in masked.items()})

    @property
    def is_rows(self) -> bool:
        """Whether columns are rows, without order in time."""
        return any(part.is_rows for part in self.parts)

    @property
    def is_remote(self) -> bool:
        """Whether columns of some part are in Ray's object store."""
        return any(part.is_remote for part in self.parts)

    def fetched(self) -> Experience:
        """With the columns here.

        Raises:
            LostExperienceError: If they are not in Ray's object store any more.
        """
        return Experience(tuple(part.fetched() for part in self.parts)) if self.is_remote else self

    def split(self, num_parts: int) -> list[Experience]:
        """Equal runs of the columns B, or of the rows, of every module; views, as far as it has one part.

        Raises:
            ValueError: If they do not divide, or see `joined`.
        """
        part = joined(self.parts)
        sizes = {mid: np.shape(jax.tree.leaves(own)[0])[part.axis] for mid, own in part.modules.items()}
        if any(size % num_parts for size in sizes.values()):
            what = "rows" if part.is_rows else "columns (one per environment)"
            raise ValueError(
                f"A batch of {sizes} {what} cannot be dealt out to {num_parts} learners evenly: make their number a "
                f"multiple of num_learners."
            )
        return [
            Experience((part.run({mid: (n * i // num_parts, n * (i + 1) // num_parts) for mid, n in sizes.items()}),))
            for i in range(num_parts)
        ]

    def deal_out(self, num_learners: int) -> list[Experience | Share]:
        """Deal the columns, side by side, out to learners in equal runs.

        Where columns stay in Ray's object store, all parts must have the same number of them.

        Raises:
            ValueError: See `joined` and `split`.
        """
        parts = self.parts
        if not self.is_remote:
            return [*self.split(num_learners)]
        length = Fraction(len(parts), num_learners)
        out: list[Experience | Share] = []
        for i in range(num_learners):
            start = i * length
            first, last = start.__floor__(), (start + length).__ceil__()
            out.append(Share(parts[first:last], start - first, length))
        return out


@dataclasses.dataclass(frozen=True)
class Share:
    """One of several equal runs of the columns of parts that lie side by side and need not be here.

    Attributes:
        parts: Those that it has columns of; all have the same B.
        start: Where its columns begin, in parts after the start of the first one.
        length: How many columns it has, in parts.
    """

    parts: Sequence[Part]
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
            ValueError: If parts differ in columns or in ``[T, B]``, or the share would end within a column.
        """
        parts = [part.fetched() for part in self.parts]
        if self.length == len(parts):
            return Experience((joined(parts),))
        if any(part.shapes != parts[0].shapes for part in parts):
            raise ValueError(
                f"Steps of which learners take parts must have the same shape; these have "
                f"{_listed({part.shape for part in parts})}. Make the number of runners' samples a multiple of "
                f"num_learners."
            )
        of_modules = {mid: self._bounds(num_columns) for mid, (_, num_columns) in parts[0].shapes.items()}
        runs = [part.run({mid: own[i] for mid, own in of_modules.items()}) for i, part in enumerate(parts)]
        return Experience((joined(runs),))

    def _bounds(self, num_columns: int) -> list[tuple[int, int]]:
        """Where its columns begin and end in each part, of a module with so many columns in a part."""
        start, stop = self.start * num_columns, (self.start + self.length) * num_columns
        if start.denominator > 1 or stop.denominator > 1:
            raise ValueError(
                f"Samples of {num_columns} columns cannot be dealt out to learners that get {self.length} of them "
                f"each: make num_envs_per_env_runner a multiple of {self.length.denominator}, or the number of env "
                f"runners one of num_learners."
            )
        return [
            (max(int(start) - i * num_columns, 0), min(int(stop) - i * num_columns, num_columns))
            for i in range(len(self.parts))
        ]


def num_rows_of(columns: Mapping[str, Any]) -> int:
    """N of the columns ``[N, ...]`` of a module: of the first one, which may be nested, as all have the same."""
    return np.shape(jax.tree.leaves(next(iter(columns.values())))[0])[0]


def side_by_side(parts: Sequence[Part]) -> dict[str, dict[str, Any]]:
    """The columns of several parts, which are here; {} of none. Where one has masks, rows of the others all count.

    Raises:
        ValueError: If they differ in other columns, or in their number of steps.
    """
    if len(parts) <= 1:
        return parts[0].modules if parts else {}
    masked = {mid for part in parts for mid, own in part.modules.items() if Columns.LOSS_MASK in own}
    if masked:
        parts = [_with_masks(part, masked) for part in parts]
    for part in parts[1:]:
        if jax.tree.structure(part.modules) != jax.tree.structure(parts[0].modules):
            first, other = ({m: sorted(own) for m, own in each.modules.items()} for each in (parts[0], part))
            raise ValueError(f"The samples of one update differ in their columns: {first} and {other}.")
    shapes = {part.shape for part in parts}
    if len({num_steps for num_steps, _ in shapes}) > 1:
        raise ValueError(f"The samples of one update differ in their numbers of steps: {_listed(shapes)}.")
    return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *[part.modules for part in parts])


def _with_masks(part: Part, masked: Collection[str]) -> Part:
    """With ``LOSS_MASK`` of these modules."""
    modules = {
        mid: {Columns.LOSS_MASK: np.ones(part.shapes[mid], bool), **own} if mid in masked else own
        for mid, own in part.modules.items()
    }
    return dataclasses.replace(part, modules=modules)


def joined(parts: Sequence[Part]) -> Part:
    """Several parts as one: their columns side by side, or all of their episodes, and the counts of all.

    `Part.starts` and `Part.times` of several are dropped.

    Raises:
        ValueError: See `side_by_side`.
    """
    if len(parts) == 1:
        return parts[0]
    whole = Experience(tuple(parts))
    return Part(
        {} if whole.has_episodes else side_by_side(parts),
        whole.num_agent_steps,
        whole.versions,
        episodes=whole.episodes if whole.has_episodes else None,
        num_env_steps=whole.num_env_steps,
        layouts=whole.layouts,
    )


def _listed(shapes: Collection[tuple[int, ...]]) -> str:
    return ", ".join(f"[T={t}, B={b}]" for t, b in sorted(shapes))
