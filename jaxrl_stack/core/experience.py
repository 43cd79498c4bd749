"""Steps of modules on their way from sampling to learning: one record, on every place."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_stack.core.block import Block, DrawnRows, Recorded, listed
from jaxrl_stack.core.columns import Columns
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
        blocks: ``{module_id: Block}``, or ``{module_id: DrawnRows}``; modules may have different B or N. Rows with
            ``LOSS_MASK`` False count nowhere. Without columns, where these stay in Ray's object store; {} of episodes.
        num_agent_steps: Steps of agents: one of an environment is one of every agent in it.
        versions: Of the weights that acted.
        starts: ``{module_id: bool [B]}``, whether the first row of each column is the first of an episode; None where
            the columns say so themselves. Of several agents on the host: whether the first complete step of a row is
            the first one of its agent's episode, and does not continue the row's last complete step of parts before;
            without meaning for a row without complete steps.
        episodes: Whole episodes, of a runner that only gives these; else None.
        num_env_steps: Steps of environments, an int.
        source: Where they come from.
        times: When agents' steps began and were complete; None where the plan does not ask for it
            (`SamplePlan.has_agent_times`), in runs of columns (`run`), and after parts were joined.
        reference: Ray reference of the columns, ``{module_id: {column: pytree}}``, if they stay in the object store.
    """

    blocks: Mapping[str, Recorded]
    num_agent_steps: Any = 0
    versions: Versions = Versions()
    starts: dict[str, Any] | None = None
    episodes: list[SingleAgentEpisode] | None = None
    num_env_steps: int = struct.field(pytree_node=False, default=0)
    source: RecordingId = struct.field(pytree_node=False, default=RecordingId())
    times: AgentTimes | None = None
    reference: Any = None

    @property
    def modules(self) -> dict[str, dict[str, Any]]:
        """The columns, ``{module_id: {column: pytree}}``."""
        return {mid: own.columns for mid, own in self.blocks.items()}

    @property
    def is_remote(self) -> bool:
        """Whether the columns are in Ray's object store."""
        return self.reference is not None

    def kept_at(self, reference: Any) -> Part:
        """Without the columns, which stay in Ray's object store; how they lie is known."""
        blocks = {mid: own.with_columns({}) for mid, own in self.blocks.items()}
        return dataclasses.replace(self, blocks=blocks, reference=reference)

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
            modules = RAY.get(self.reference)
        except ObjectLostError as error:
            raise LostExperienceError(f"Steps that were sampled are lost: {error}") from error
        blocks = {mid: own.with_columns(modules[mid]) for mid, own in self.blocks.items()}
        return dataclasses.replace(self, blocks=blocks, reference=None)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """``(T, B)`` of the block of each module, which may have different B."""
        return {mid: own.shape for mid, own in self.blocks.items()}

    def run(self, bounds: Mapping[str, tuple[int, int]]) -> Part:
        """The columns (or rows) from ``start`` to ``stop`` of every module; views. `times` is dropped."""
        blocks = {mid: own.run(*bounds[mid]) for mid, own in self.blocks.items()}
        mid, (start, stop) = next(iter(bounds.items()))
        size = self.blocks[mid].size
        env_steps, agent_steps = (
            count * (stop - start) // size for count in (self.num_env_steps, self.num_agent_steps)
        )
        return dataclasses.replace(
            self,
            blocks=blocks,
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
        blocks = {mid: Block(columns) for mid, columns in modules.items()}
        return cls((Part(blocks, sum(num_steps), num_env_steps=max(num_steps)),))

    @classmethod
    def of_rows(cls, modules: dict[str, dict[str, Any]]) -> Self:
        """Of rows ``[N, ...]``, one for each step; they are not looked at."""
        num_rows = [num_rows_of(columns) for columns in modules.values()]
        rows = {mid: DrawnRows(columns) for mid, columns in modules.items()}
        return cls((Part(rows, sum(num_rows), num_env_steps=max(num_rows)),))

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
        if not isinstance(given, cls) or (given.parts and given.is_rows != is_rows):
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
        return {mid: own.columns for mid, own in self.blocks.items()}

    @property
    def blocks(self) -> Mapping[str, Any]:
        """The blocks of all parts side by side, or rows, ``{module_id: Block}``; see `modules`."""
        if len(self.parts) == 1 and not self.parts[0].is_remote and self.parts[0].episodes is None:
            return self.parts[0].blocks
        return self._joined_blocks

    @functools.cached_property
    def _joined_blocks(self) -> Mapping[str, Any]:
        if self.has_episodes:
            raise ValueError(
                "This experience is whole episodes (batch_mode='complete_episodes', or an EnvRunner with a sample() of "
                "its own), which have no columns yet: read them from Experience.episodes."
            )
        return _blocks_beside([part.fetched() for part in self.parts])

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
    def is_rows(self) -> bool:
        """Whether columns are rows, without order in time."""
        return any(isinstance(own, DrawnRows) for part in self.parts for own in part.blocks.values())

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
        sizes = {mid: own.size for mid, own in part.blocks.items()}
        if any(size % num_parts for size in sizes.values()):
            what = "rows" if self.is_rows else "columns (one per environment)"
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
            shapes = listed({next(iter(part.shapes.values())) for part in parts})
            raise ValueError(
                f"Steps of which learners take parts must have the same shape; these have {shapes}. Make the number of "
                f"runners' samples a multiple of num_learners."
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


def _blocks_beside(parts: Sequence[Part]) -> Mapping[str, Recorded]:
    """The blocks of several parts, which are here, as one of each module; {} of none.

    Raises:
        ValueError: If they differ in columns other than masks, or see `Block.beside`.
    """
    if len(parts) <= 1:
        return parts[0].blocks if parts else {}
    columns = [{mid: _names_of(own) for mid, own in part.modules.items()} for part in parts]
    for other in columns[1:]:
        if other != columns[0]:
            raise ValueError(f"The samples of one update differ in their columns: {columns[0]} and {other}.")
    return {mid: type(own).beside([part.blocks[mid] for part in parts]) for mid, own in parts[0].blocks.items()}


def _names_of(columns: Mapping[str, Any]) -> list[str]:
    """Names of columns other than the mask, with the keys of nested ones, such as ``obs['image']``."""
    leaves = jax.tree_util.tree_leaves_with_path({name: columns[name] for name in columns if name != Columns.LOSS_MASK})
    return [f"{path[0].key}{jax.tree_util.keystr(path[1:])}" for path, _ in leaves]


def joined(parts: Sequence[Part]) -> Part:
    """Several parts as one: their columns side by side, or all of their episodes, and the counts of all.

    `Part.starts` and `Part.times` of several are dropped.

    Raises:
        ValueError: If they differ in columns, or see `Block.beside`.
    """
    if len(parts) == 1:
        return parts[0]
    whole = Experience(tuple(parts))
    return Part(
        {} if whole.has_episodes else _blocks_beside(parts),
        whole.num_agent_steps,
        whole.versions,
        episodes=whole.episodes if whole.has_episodes else None,
        num_env_steps=whole.num_env_steps,
    )
