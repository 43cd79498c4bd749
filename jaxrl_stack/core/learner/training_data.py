"""Data of one update (batch, batches, episodes or Ray references), and its split over several learners."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl_stack.episodes.multi_agent_episode import episodes_of_agents

if TYPE_CHECKING:
    from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode


@dataclasses.dataclass
class TrainingData:
    """Data of `Learner.update`: a batch, batches, episodes, data iterators, or Ray references; exactly one attribute is
    set.

    Attributes:
        batch: ``{module_id: {column: [N, ...]}}``, or ``{column: [N, ...]}`` for a single module.
        batches: Several such batches.
        batch_refs: Ray references of such batches.
        episodes: Episodes, also of several agents.
        episodes_refs: Ray references of lists of episodes.
        data_iterators: Iterators over batches; one per learner.
    """

    batch: Any = None
    batches: Sequence[Any] | None = None
    batch_refs: Sequence[Any] | None = None
    episodes: Sequence[Any] | None = None
    episodes_refs: Sequence[Any] | None = None
    data_iterators: Sequence[Any] | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The data arguments of `Learner.update` that are set (not None), ``{name: value}``."""
        pairs = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {name: value for name, value in pairs if value is not None}

    @property
    def num_steps(self) -> int | None:
        """Number of steps in the episodes, or of rows in the batches; None for Ray references and data iterators.

        In each batch, only the rows of the module with the most rows are counted.
        """
        if self.episodes is not None:
            return sum(len(episode) for episode in self.episodes)
        batches = [self.batch] if self.batch is not None else self.batches
        if batches is None:
            return None
        batches = [getattr(batch, "policy_batches", batch) for batch in batches]
        return sum(max(len(leaf) for leaf in jax.tree.leaves(dict(batch))) for batch in batches)

    @classmethod
    def of(cls, training_data: Any, *data: Any) -> TrainingData:
        """Creates `TrainingData` from the data arguments of `Learner.update`.

        Args:
            training_data: An object with (some of) the attributes of this class, or None.
            *data: The attributes in their order, if `training_data` is None.

        Raises:
            TypeError: If `training_data` is a dict.
            ValueError: See `validate`.
        """
        if isinstance(training_data, Mapping):
            raise TypeError(
                "update(training_data=...) takes an object such as TrainingData(batch=...), got a dict. For a batch "
                "use update(batch=...)."
            )
        found = cls(*data)
        if training_data is not None:
            if found.given:
                raise ValueError(
                    f"An update takes one data argument; got training_data and {list(found.given)}. Pass only one."
                )
            names = (field.name for field in dataclasses.fields(cls))
            found = cls(**{name: getattr(training_data, name, None) for name in names})
        found.validate()
        found._split_agents()
        return found

    def _split_agents(self) -> None:
        """Sets `episodes` to a new list, in which single-agent episodes replace each multi-agent episode."""
        if self.episodes is not None:
            self.episodes = episodes_of_agents(self.episodes)

    def validate(self) -> None:
        """Raises a ValueError unless exactly one data argument of `Learner.update` is set.

        Raises:
            ValueError: If none or several are set, or `batches` is not a list of at least one batch.
        """
        if len(self.given) != 1:
            names = [field.name for field in dataclasses.fields(self)]
            raise ValueError(
                f"An update takes exactly one data argument out of {[*names, 'training_data']}; got "
                f"{list(self.given) or 'none'}."
            )
        if self.batches is not None and (not isinstance(self.batches, Sequence) or not self.batches):
            raise ValueError(
                f"update(batches=...) takes a list of at least one batch, got a {type(self.batches).__name__} of "
                f"{len(self.batches)}. For one batch use update(batch=...)."
            )

    def solve_refs(self) -> None:
        """Replaces the Ray references in this data by the referenced batches or episodes.

        If a reference refers to a list, each item of the list becomes one batch or episode.

        Raises:
            ImportError: If Ray is not installed.
        """
        if self.batch_refs is not None:
            self.batches, self.batch_refs = _fetched(self.batch_refs, "batch"), None
        if self.episodes_refs is not None:
            self.episodes, self.episodes_refs = _fetched(self.episodes_refs, "episodes"), None
            self._split_agents()

    def shard(self, num_shards: int, len_lookback_buffer: int | None = None, **kwargs: Any) -> list[TrainingData]:
        """Splits the data of an update over learners, as evenly as possible, and returns the data of each learner.

        Batches are split by rows, module by module; episodes into time slices with equal numbers of steps, so that at
        most ``num_shards - 1`` episodes are cut. References of batches are passed on if their number is a multiple of
        `num_shards`; other references are fetched. Each learner gets one iterator.

        Args:
            num_shards: Number of learners.
            len_lookback_buffer: Steps before the cut that the second part of a cut episode keeps as look-back; None:
                as many as the episode has.
            **kwargs: Other arguments of RLlib, which are ignored.

        Returns:
            One `TrainingData` per learner.

        Raises:
            ValueError: If there is less than one row, step or iterator per learner.
        """
        self.validate()
        if num_shards == 1:
            return [self]
        if self.data_iterators is not None:
            if len(self.data_iterators) != num_shards:
                raise ValueError(
                    f"{len(self.data_iterators)} data_iterators do not match {num_shards} learners. Pass one "
                    f"iterator for each learner."
                )
            return [TrainingData(data_iterators=[iterator]) for iterator in self.data_iterators]
        if self.batch_refs is not None and len(self.batch_refs) % num_shards == 0:
            own = len(self.batch_refs) // num_shards
            return [TrainingData(batch_refs=self.batch_refs[i * own : (i + 1) * own]) for i in range(num_shards)]
        fetched = dataclasses.replace(self)
        fetched.solve_refs()
        if fetched.episodes is not None:
            slices = slice_episodes(fetched.episodes, num_shards, len_lookback_buffer)
            return [TrainingData(episodes=own) for own in slices]
        batches = [fetched.batch] if fetched.batches is None else fetched.batches
        batches = [dict(getattr(batch, "policy_batches", batch)) for batch in batches]
        return [TrainingData(batches=own) for own in split_rows(batches, num_shards)]


def _fetched(refs: Sequence[Any], name: str) -> list[Any]:
    try:
        # Imported here, so that the package can be used and checked without Ray.
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(
            f"update({name}_refs=...) takes references to objects in Ray's object store, but Ray is not installed. "
            f"Install it (pip install 'ray[tune]'), or pass the objects themselves: "
            f"update({'batches' if name == 'batch' else name}=...)."
        ) from error
    return [item for found in ray.get(list(refs)) for item in (found if isinstance(found, list) else [found])]


def bounds(num_items: int, num_shards: int) -> list[tuple[int, int]]:
    """Splits a number of items into consecutive ranges ``(start, stop)``, one per shard; the first ranges may be longer
    by one.
    """
    size, more = divmod(num_items, num_shards)
    stops = [size * i + min(i, more) for i in range(num_shards + 1)]
    return list(itertools.pairwise(stops))


def slice_episodes(
    episodes: Sequence[SingleAgentEpisode], num_shards: int, len_lookback_buffer: int | None = None
) -> list[list[SingleAgentEpisode]]:
    """Splits episodes into one list per shard (the data for one learner), with nearly equal numbers of steps.

    The numbers of steps of the shards differ by at most one. If an episode does not fit into the rest of a shard, the
    episode is cut in time, and its later steps go to the next shards.

    Args:
        episodes: Episodes, which are concatenated in this order and cut where a shard is full.
        num_shards: Number of shards.
        len_lookback_buffer: See `TrainingData.shard`.

    Raises:
        ValueError: If there are fewer steps than shards.
    """
    num_steps = sum(len(episode) for episode in episodes)
    _check_enough(num_steps, num_shards, "steps in the episodes")
    shards: list[list[SingleAgentEpisode]] = [[] for _ in range(num_shards)]
    ends = [stop for _, stop in bounds(num_steps, num_shards)]
    at, shard = 0, 0
    for episode in episodes:
        start = 0
        while start < len(episode):
            stop = min(len(episode), start + ends[shard] - at)
            is_whole = start == 0 and stop == len(episode)
            part = episode if is_whole else episode.slice(slice(start, stop), len_lookback_buffer=len_lookback_buffer)
            shards[shard].append(part)
            at, start = at + stop - start, stop
            if at == ends[shard]:
                shard += 1
    return shards


def split_rows(batches: Sequence[Mapping[str, Any]], num_shards: int) -> list[list[dict[str, Any]]]:
    """Splits batches by rows into one list of smaller batches per shard (the data for one learner).

    The batches are split as if they were concatenated. The rows of each module are split separately, because modules
    may have different numbers of rows.

    Args:
        batches: ``{module_id: {column: [N, ...]}}`` or ``{column: [N, ...]}``.
        num_shards: Number of shards.

    Returns:
        For each shard the parts of batches with its rows, as views.

    Raises:
        ValueError: If there are fewer rows than shards.
    """
    shards: list[list[dict[str, Any]]] = [[{} for _ in batches] for _ in range(num_shards)]
    for key in dict.fromkeys(key for batch in batches for key in batch):
        # All leaves below a key, which is a module or a column, have the same number of rows.
        sizes = [len(jax.tree.leaves(batch[key])[0]) if key in batch else 0 for batch in batches]
        _check_enough(sum(sizes), num_shards, f"rows of {key!r}")
        firsts = np.cumsum([0, *sizes])
        for parts, (start, stop) in zip(shards, bounds(sum(sizes), num_shards), strict=True):
            for part, batch, first, size in zip(parts, batches, firsts, sizes, strict=False):
                low, high = max(start - first, 0), min(stop - first, size)
                if low < high:
                    part[key] = jax.tree.map(lambda x, low=low, high=high: x[low:high], batch[key])
    return [[part for part in parts if part] for parts in shards]


def _check_enough(num_items: int, num_shards: int, what: str) -> None:
    if num_items < num_shards:
        raise ValueError(
            f"{num_items} {what} cannot be split over {num_shards} learners, because each learner needs at least "
            f"one. Raise train_batch_size_per_learner, or lower num_learners."
        )
