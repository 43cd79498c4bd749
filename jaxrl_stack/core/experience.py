"""Containers that carry sampled steps from env runners, replay buffers and datasets to the Learner, in host or device
memory.
"""

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
    """Raised if sampled steps of an update were lost in Ray's object store; the message names the node that stored
    them. The learners made no update.
    """


class RecordingId(NamedTuple):
    """Identifier of one `sample` call of an EnvRunner: which EnvRunner, and the index of the call.

    Attributes:
        worker_index: Index of the runner; 0 is the runner in the algorithm's process. A name for steps that no runner
            sampled.
        num_restarts: Number of restarts of the runner.
        serial: Index of the recording among all recordings since the runner's last restart. If an index is missing, the
            steps in between were not sampled as a block.
    """

    worker_index: int | str = 0
    num_restarts: int = 0
    serial: int = 0


class Versions(NamedTuple):
    """Range of versions of the policy weights with which a set of steps was sampled, from lowest to highest.

    A version is the number of updates that led to the weights: an int, or a uint32 array for steps on the device.
    """

    lowest: Any = 0
    highest: Any = 0

    def with_others(self, other: Versions) -> Versions:
        """Returns the smallest range of weight versions that contains this range and the range `other`."""
        if isinstance(self.lowest, int) and isinstance(other.lowest, int):
            return Versions(min(self.lowest, other.lowest), max(self.highest, other.highest))
        return Versions(jnp.minimum(self.lowest, other.lowest), jnp.maximum(self.highest, other.highest))


class AgentTimes(NamedTuple):
    """Times at which agents' steps began and were complete, for environments with several agents.

    The times are NumPy arrays. They are counted in vector steps (one step in each environment) from the start of one
    `sample()` call. The `Part` that contains these times has the steps of this call.

    Row ``s * B + i`` is agent s of the module in environment i. If the part continues the part before (see
    `RecordingId.serial`), the unfinished episode of environment i continues, too, unless ``ends[-1, i]`` is True in the
    part before, or ``counts[0, i]`` is False in this one.

    Attributes:
        begins: int32 ``[T, R]`` by module: the vector step of this part in which each complete step began (its agent
            acted). Negative for a step that began before this part: -1 is the last vector step before it, and steps
            may be older than one part. Entries after the complete steps of a row are meaningless.
        seen: int32 ``[T, R]`` by module: the number of vector steps, 1 to T, after which each step was complete. The
            agent's next observation, or the end of the agent's episode, came with vector step ``seen - 1``. Entries
            after the complete steps of a row are meaningless.
        counts: bool ``[T, B]``: whether a vector step of an environment is a valid env step. It is False for steps of
            an episode that was dropped because its environment failed.
        ends: bool ``[T, B]``: whether an episode of the environment ended with the vector step. Dropped episodes have
            no end.
        agents: Agents of each module, in the order of its slots.
    """

    begins: dict[str, np.ndarray]
    seen: dict[str, np.ndarray]
    counts: np.ndarray
    ends: np.ndarray
    agents: dict[str, tuple[Hashable, ...]]


@struct.dataclass
class Part:
    """Part of an `Experience`: the steps of one `sample()` call of an EnvRunner, or rows from a replay buffer or a
    dataset.

    Attributes:
        blocks: ``{module_id: Block}``, or ``{module_id: DrawnRows}``; modules may have different B or N. Rows with
            ``LOSS_MASK`` False are ignored everywhere. Blocks have no columns if these are in Ray's object store. {}
            for episodes.
        num_agent_steps: Number of agents' steps: an environment step is one step of every agent in it.
        versions: Versions of the acting weights.
        starts: ``{module_id: bool [B]}``, whether the first step at each index of axis B is the first of an episode;
            None if this follows from the columns. For several agents on the host: whether the first complete step at an
            index is the first one of its agent's episode, and does not continue the last complete step of earlier parts
            at this index; meaningless for an index without complete steps.
        episodes: Whole episodes, from a runner that only returns episodes; else None.
        num_env_steps: Number of environment steps, an int.
        source: Identifier of the recording.
        times: Times at which agents' steps began and were complete. None if the plan does not need them
            (`SamplePlan.has_agent_times`), in slices of axis B (`run`), and after parts were joined.
        reference: Ray reference of the columns, ``{module_id: {column: pytree}}``, if they are in the object store.
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
        """Columns of all modules in this part of an `Experience`, ``{module_id: {column: pytree}}``."""
        return {mid: own.columns for mid, own in self.blocks.items()}

    @property
    def is_remote(self) -> bool:
        """Whether the columns of this part of an `Experience` are in Ray's object store."""
        return self.reference is not None

    def kept_at(self, reference: Any) -> Part:
        """Returns a copy of this part of an `Experience` with a Ray reference in place of the columns.

        `reference` is a Ray reference to the columns in Ray's object store. Layouts and all other attributes are
        unchanged.
        """
        blocks = {mid: own.with_columns({}) for mid, own in self.blocks.items()}
        return dataclasses.replace(self, blocks=blocks, reference=reference)

    def fetched(self) -> Part:
        """Fetches the columns of this part of an `Experience` from Ray's object store, and returns a copy of the part
        with the fetched columns.

        Raises:
            LostExperienceError: If the columns are not in Ray's object store any more.
        """
        if not self.is_remote:
            return self
        # Imported here, so that the package can be used and checked without Ray.
        from ray.exceptions import ObjectLostError  # pyright: ignore[reportMissingImports]

        try:
            modules = RAY.get(self.reference)
        except ObjectLostError as error:
            raise LostExperienceError(
                f"Sampled steps were lost in Ray's object store. Sample again; the cause is: {error}"
            ) from error
        blocks = {mid: own.with_columns(modules[mid]) for mid, own in self.blocks.items()}
        return dataclasses.replace(self, blocks=blocks, reference=None)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes ``(T, B)`` of the sampled steps, ``{module_id: shape}``; B may differ between modules."""
        return {mid: own.shape for mid, own in self.blocks.items()}

    def run(self, bounds: Mapping[str, tuple[int, int]]) -> Part:
        """Returns a slice of this part of an `Experience`: a range of the columns of each module.

        Selects the indices ``start`` to ``stop - 1`` on axis B of steps ``[T, B, ...]``, or on axis N of rows
        ``[N, ...]``. NumPy arrays of the result are views. The attribute `times` (begins and ends of agents' steps) of
        the result is None.

        Args:
            bounds: ``{module_id: (start, stop)}``.
        """
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
    """Sampled steps for a Learner, as a tuple of `Part`s, one per `sample()` call.

    Rows drawn from a replay buffer or dataset are a single part. The columns of several parts are concatenated when
    they are read.

    An experience is a pytree. Inside a compiled program it has one part of arrays. On the host it has one part per
    sample, whose columns may be in Ray's object store. An experience may be empty.

    Attributes:
        parts: Parts, each from one source.
    """

    parts: tuple[Part, ...] = ()

    @classmethod
    def of_steps(cls, modules: dict[str, dict[str, Any]]) -> Self:
        """Creates an experience from columns ``[T, B, ...]``: each index of axis B has T steps of one agent, in
        temporal order.

        Args:
            modules: ``{module_id: {column: pytree}}``; the columns are not checked.
        """
        num_steps = [math.prod(np.shape(jax.tree.leaves(columns)[0])[:2]) for columns in modules.values()]
        blocks = {mid: Block(columns) for mid, columns in modules.items()}
        return cls((Part(blocks, sum(num_steps), num_env_steps=max(num_steps)),))

    @classmethod
    def of_rows(cls, modules: dict[str, dict[str, Any]]) -> Self:
        """Creates an experience from rows ``[N, ...]``: single steps without temporal order, as drawn from a replay
        buffer.

        Args:
            modules: ``{module_id: {column: pytree}}``; the columns are not checked.
        """
        num_rows = [num_rows_of(columns) for columns in modules.values()]
        rows = {mid: DrawnRows(columns) for mid, columns in modules.items()}
        return cls((Part(rows, sum(num_rows), num_env_steps=max(num_rows)),))

    @classmethod
    def merged(cls, experiences: Iterable[Experience]) -> Self:
        """Builds one experience that contains the parts (one `Part` per `sample()` call) of several experiences."""
        return cls(tuple(part for experience in experiences for part in experience.parts))

    @classmethod
    def check(cls, given: Any, *, is_rows: bool) -> Experience:
        """Checks that `given` is an `Experience` of the needed form, and returns `given`.

        The needed form is rows ``[N, ...]`` without temporal order if `is_rows`, else steps ``[T, B, ...]`` in temporal
        order.

        Raises:
            TypeError: If `given` has a different class or form.
        """
        if not isinstance(given, cls) or (given.parts and given.is_rows != is_rows):
            needed = (
                "of_rows({module_id: {column: [N, ...]}})"
                if is_rows
                else "of_steps({module_id: {column: [T, B, ...]}})"
            )
            raise TypeError(
                f"Expected an Experience of {'rows (columns [N, ...])' if is_rows else 'steps (columns [T, B, ...])'}, "
                f"got {type(given).__name__}{(' of rows', ' of steps')[is_rows] if isinstance(given, cls) else ''}. "
                f"Create it with Experience.{needed}."
            )
        return given

    @property
    def modules(self) -> dict[str, dict[str, Any]]:
        """Columns of all modules, ``{module_id: {column: pytree}}``, concatenated over the parts of this experience
        (one `Part` per `sample()` call); {} without parts.

        They are fetched and joined at the first access; the columns of a single part in this process are not copied.

        Raises:
            LostExperienceError: If the columns are not in Ray's object store any more.
            ValueError: If parts differ in columns or number of steps, or are episodes.
        """
        return {mid: own.columns for mid, own in self.blocks.items()}

    @property
    def blocks(self) -> Mapping[str, Any]:
        """Steps of all modules, ``{module_id: Block or DrawnRows}``, concatenated over the parts of this experience
        (one `Part` per `sample()` call); {} without parts. See `modules`.
        """
        if len(self.parts) == 1 and not self.parts[0].is_remote and self.parts[0].episodes is None:
            return self.parts[0].blocks
        return self._joined_blocks

    @functools.cached_property
    def _joined_blocks(self) -> Mapping[str, Any]:
        if self.has_episodes:
            raise ValueError(
                "This experience has episodes instead of columns. Read Experience.episodes. EnvRunners return episodes "
                "if batch_mode='complete_episodes', if count_steps_by='agent_steps', if learner connectors run on the "
                "host, or if the EnvRunner class overrides sample()."
            )
        return _concatenated_blocks([part.fetched() for part in self.parts])

    @property
    def has_episodes(self) -> bool:
        """Whether the experience consists of whole episode objects instead of columns."""
        return any(part.episodes is not None for part in self.parts)

    @property
    def episodes(self) -> list[SingleAgentEpisode]:
        """List of the `SingleAgentEpisode` objects in all parts of this experience (one `Part` per `sample()` call);
        empty if the parts have columns instead of episodes.
        """
        return [episode for part in self.parts for episode in part.episodes or ()]

    @property
    def num_env_steps(self) -> int:
        """Number of environment steps in this experience, as counted by the EnvRunners."""
        return sum(part.num_env_steps for part in self.parts)

    @property
    def num_agent_steps(self) -> Any:
        """Number of agents' steps in this experience, as counted by the EnvRunners: an int, or an array if the data is
        on the device.
        """
        return sum(part.num_agent_steps for part in self.parts)

    @property
    def versions(self) -> Versions:
        """Lowest and highest version of the policy weights with which steps were sampled; (0, 0) without samples."""
        versions = [part.versions for part in self.parts]
        return functools.reduce(Versions.with_others, versions) if versions else Versions()

    @property
    def is_rows(self) -> bool:
        """Whether the steps have no temporal order: columns are ``[N, ...]`` instead of ``[T, B, ...]``."""
        return any(isinstance(own, DrawnRows) for part in self.parts for own in part.blocks.values())

    @property
    def is_remote(self) -> bool:
        """Whether any part of this experience (one `Part` per `sample()` call) has columns in Ray's object store."""
        return any(part.is_remote for part in self.parts)

    def fetched(self) -> Experience:
        """Fetches the columns of this experience from Ray's object store, and returns an experience that contains them.

        Raises:
            LostExperienceError: If the columns are not in Ray's object store any more.
        """
        return Experience(tuple(part.fetched() for part in self.parts)) if self.is_remote else self

    def split(self, num_parts: int) -> list[Experience]:
        """Splits this experience into `num_parts` new experiences of equal size.

        Each new experience has a consecutive range of axis B (or N) of every module. NumPy arrays are views if this
        experience has only one `Part`.

        Raises:
            ValueError: If the size of axis B (or N) is not a multiple of `num_parts`; see also `joined`.
        """
        part = joined(self.parts)
        sizes = {mid: own.size for mid, own in part.blocks.items()}
        if any(size % num_parts for size in sizes.values()):
            what = "rows" if self.is_rows else "environments"
            raise ValueError(
                f"Axis {'N' if self.is_rows else 'B'} of a batch (size by module: {sizes}) cannot be split evenly over "
                f"{num_parts} learners. Make the number of {what} a multiple of num_learners."
            )
        return [
            Experience((part.run({mid: (n * i // num_parts, n * (i + 1) // num_parts) for mid, n in sizes.items()}),))
            for i in range(num_parts)
        ]

    def deal_out(self, num_learners: int) -> list[Experience | Share]:
        """Splits the steps of this experience evenly over learners.

        The axes B (or N) of all parts (one `Part` per `sample()` call) are joined in order, and each learner gets an
        equal consecutive range. If columns are in Ray's object store, and the number of parts is not a multiple of
        `num_learners`, all parts must have the same size of axis B.

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
    """Data of an update for one learner: a range of axis B of the sampled columns, whose arrays may still be in Ray's
    object store.

    Attributes:
        parts: Parts with steps of this share; all have the same B, except if the share consists of whole parts.
        start: Start of the share's range in the first part, divided by B.
        length: Size of the share's range, divided by B: 3/2 is one and a half parts.
    """

    parts: Sequence[Part]
    start: Fraction
    length: Fraction

    @property
    def num_env_steps(self) -> int:
        """Number of environment steps in this learner's data, rounded to an int.

        If the learner gets a fraction of the axes B of `parts` (one `Part` per `sample()` call), the same fraction of
        the parts' environment steps counts.
        """
        return round(sum(part.num_env_steps for part in self.parts) * self.length / len(self.parts))

    def fetched(self) -> Experience:
        """Fetches the steps of this learner from Ray's object store, and returns them as an `Experience`.

        The steps are a range of axis B of the columns of `parts` (one `Part` per `sample()` call).

        Raises:
            LostExperienceError: If the columns are not in Ray's object store any more.
            ValueError: If parts differ in columns or in ``[T, B]``, or the range would begin or end between two indices
                of axis B.
        """
        parts = [part.fetched() for part in self.parts]
        if self.length == len(parts):
            return Experience((joined(parts),))
        if any(part.shapes != parts[0].shapes for part in parts):
            shapes = listed({next(iter(part.shapes.values())) for part in parts})
            raise ValueError(
                f"EnvRunner samples [T, B, ...] that are split over learners must have the same T and B, but have "
                f"{shapes}. Make the number of samples per update a multiple of num_learners: then no sample is split."
            )
        of_modules = {mid: self._bounds(num_columns) for mid, (_, num_columns) in parts[0].shapes.items()}
        runs = [part.run({mid: own[i] for mid, own in of_modules.items()}) for i, part in enumerate(parts)]
        return Experience((joined(runs),))

    def _bounds(self, num_columns: int) -> list[tuple[int, int]]:
        """Returns the ranges ``(start, stop)`` of axis B that this learner gets, one range for each entry of `parts`.

        Each `Part` has the steps of one `sample()` call. The learner gets the steps with the indices ``start`` to
        ``stop - 1`` on axis B of the part. Axis B has the size `num_columns` in every part.
        """
        start, stop = self.start * num_columns, (self.start + self.length) * num_columns
        if start.denominator > 1 or stop.denominator > 1:
            raise ValueError(
                f"Each learner gets {self.length} samples (blocks of steps [T, B]), but a sample of B={num_columns} "
                f"(environments times agents) cannot be split into {self.length.denominator} equal parts. Make "
                f"num_envs_per_env_runner a multiple of {self.length.denominator}, or num_env_runners a multiple of "
                f"num_learners."
            )
        return [
            (max(int(start) - i * num_columns, 0), min(int(stop) - i * num_columns, num_columns))
            for i in range(len(self.parts))
        ]


def num_rows_of(columns: Mapping[str, Any]) -> int:
    """Returns the number of rows N of a module's columns ``[N, ...]``."""
    return np.shape(jax.tree.leaves(next(iter(columns.values())))[0])[0]


def _concatenated_blocks(parts: Sequence[Part]) -> Mapping[str, Recorded]:
    """Returns the concatenated steps of `parts`, ``{module_id: Block or DrawnRows}``; {} if `parts` is empty.

    Each `Part` has the steps of one `sample()` call. The columns must be in this process, not in Ray's object store.

    Raises:
        ValueError: If the samples differ in columns other than masks; see also `Block.concatenate`.
    """
    if len(parts) <= 1:
        return parts[0].blocks if parts else {}
    columns = [{mid: _names_of(own) for mid, own in part.modules.items()} for part in parts]
    for other in columns[1:]:
        if other != columns[0]:
            raise ValueError(
                f"The samples of one update differ in their columns: {columns[0]} and {other}. Sample with the same "
                f"modules and connectors."
            )
    return {mid: type(own).concatenate([part.blocks[mid] for part in parts]) for mid, own in parts[0].blocks.items()}


def _names_of(columns: Mapping[str, Any]) -> list[str]:
    """Returns the names of a module's columns except ``LOSS_MASK``; nested columns have one name per leaf, such as
    ``obs['image']``.
    """
    leaves = jax.tree_util.tree_leaves_with_path({name: columns[name] for name in columns if name != Columns.LOSS_MASK})
    return [f"{path[0].key}{jax.tree_util.keystr(path[1:])}" for path, _ in leaves]


def joined(parts: Sequence[Part]) -> Part:
    """Joins several parts (one `Part` per `sample()` call) into one: concatenates their columns or episodes, and adds
    their numbers of steps.

    `Part.starts` and `Part.times` of several parts are dropped.

    Raises:
        ValueError: If parts differ in columns; see also `Block.concatenate`.
    """
    if len(parts) == 1:
        return parts[0]
    whole = Experience(tuple(parts))
    return Part(
        {} if whole.has_episodes else _concatenated_blocks(parts),
        whole.num_agent_steps,
        whole.versions,
        episodes=whole.episodes if whole.has_episodes else None,
        num_env_steps=whole.num_env_steps,
    )
