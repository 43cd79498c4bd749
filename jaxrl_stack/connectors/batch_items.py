"""Functions that fill and change batches of host connectors (connectors that override RLlib's ``__call__``).

A batch has a list of items per episode: ``batch[column][(episode id,)] = [item, ...]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.utils.spaces.space_utils import BatchedNdArray


class EpisodeItems(list):
    """List of one episode's items in a column of a batch; `chunks` has the episode chunk to which each item belongs.

    Attributes:
        chunks: The episode objects, one for each item, in the order of `add_batch_item`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.chunks: list[SingleAgentEpisode] = []


def episode_key(episode: SingleAgentEpisode) -> tuple:
    """Returns the key under which a batch column stores the items of an episode.

    The key is ``(episode id,)``. For one agent's episode in a multi-agent episode, the key is
    ``(multi-agent episode id, agent id, module id)``.
    """
    if episode.agent_id is None:
        return (episode.id_,)
    return (episode.multi_agent_episode_id, episode.agent_id, episode.module_id)


def single_agent_episode_iterator(
    episodes: list[SingleAgentEpisode],
    agents_that_stepped_only: bool = True,
    zip_with_batch_column: list[Any] | dict[tuple, Any] | None = None,
) -> Iterator[Any]:
    """Iterates over single-agent episodes, optionally together with the items of each episode in a column of the batch.

    Args:
        episodes: SingleAgentEpisodes.
        agents_that_stepped_only: RLlib's argument for multi-agent episodes; has no effect.
        zip_with_batch_column: Column of the batch with one entry per episode, a list or ``{(episode id,): [items]}``.
            With a column, yields ``(episode, item)``: the episode's entry of the list, or its first item in the dict.

    Raises:
        TypeError: An episode is not a SingleAgentEpisode.
        ValueError: The column does not have one entry per episode.
    """
    for episode in episodes:
        if not isinstance(episode, SingleAgentEpisode):
            raise TypeError(
                f"single_agent_episode_iterator(): an episode is a {type(episode).__name__}. Multi-agent episodes are "
                "not supported in connectors: pass SingleAgentEpisodes."
            )
    if zip_with_batch_column is None:
        yield from episodes
        return
    if len(zip_with_batch_column) != len(episodes):
        raise ValueError(
            f"single_agent_episode_iterator(): zip_with_batch_column has {len(zip_with_batch_column)} entries for "
            f"{len(episodes)} episodes. Give a column with one entry per episode."
        )
    if not isinstance(zip_with_batch_column, Mapping):
        yield from zip(episodes, zip_with_batch_column, strict=True)
        return
    for episode in episodes:
        key = episode_key(episode)
        if key not in zip_with_batch_column:
            raise ValueError(
                f"single_agent_episode_iterator(): zip_with_batch_column has no items for the episode {key}, only for "
                f"the episodes {list(zip_with_batch_column)}. Give a column with items for every episode."
            )
        yield episode, zip_with_batch_column[key][0]


def add_batch_item(
    batch: dict[str, Any], column: str, item_to_add: Any, single_agent_episode: SingleAgentEpisode | None = None
) -> None:
    """Appends an item to a column of the batch: to the list ``batch[column][(episode id,)]`` if an episode is given
    (see `episode_key`), otherwise to the list ``batch[column]``.

    Args:
        batch: Changed in place.
        column: Name of the column; made if it is new.
        item_to_add: A pytree of one item, without batch axis.
        single_agent_episode: The episode that the item belongs to.

    Raises:
        ValueError: The column was filled in the other way before.
    """
    has_episode = single_agent_episode is not None
    items = batch.setdefault(column, {} if has_episode else [])
    if isinstance(items, dict) != has_episode:
        raise ValueError(
            f"Earlier calls of add_batch_item() for column {column!r} passed {'no' if has_episode else 'a'} "
            "single_agent_episode. Pass one in all calls for the column, or in none."
        )
    if single_agent_episode is None:
        items.append(item_to_add)
        return
    own = items.setdefault(episode_key(single_agent_episode), EpisodeItems())
    own.append(item_to_add)
    if isinstance(own, EpisodeItems):
        own.chunks.append(single_agent_episode)


def add_n_batch_items(
    batch: dict[str, Any],
    column: str,
    items_to_add: Any,
    num_items: int,
    single_agent_episode: SingleAgentEpisode | None = None,
) -> None:
    """Appends several items to a column of the batch; see `add_batch_item`.

    Args:
        batch: Changed in place.
        column: Name of the column; made if it is new.
        items_to_add: A list of items, or a pytree of arrays ``[num_items, ...]``; the latter is appended as
            one BatchedNdArray (a pytree of them), which counts as ``num_items`` items.
        num_items: Number of items.
        single_agent_episode: The episode that they belong to.

    Raises:
        ValueError: There are not ``num_items``, or the column was filled in the other way before.
    """
    if isinstance(items_to_add, list):
        if len(items_to_add) != num_items:
            raise ValueError(
                f"add_n_batch_items(column={column!r}, num_items={num_items}): the list has {len(items_to_add)} "
                f"items. Pass num_items={len(items_to_add)}."
            )
        for item in items_to_add:
            add_batch_item(batch, column, item, single_agent_episode)
        return
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(items_to_add)]
    if {shape[:1] for shape in shapes} != {(num_items,)}:
        raise ValueError(
            f"add_n_batch_items(column={column!r}, num_items={num_items}): the arrays must have a leading axis of "
            f"length {num_items}, got the shapes {shapes}."
        )
    add_batch_item(batch, column, jax.tree.map(BatchedNdArray, items_to_add), single_agent_episode)


def foreach_batch_item_change_in_place(
    batch: dict[str, Any], column: str | list[str] | tuple[str, ...], func: Callable[[Any, Any, Any, Any], Any]
) -> None:
    """Applies ``func`` to every item of one column, or of several columns jointly, and stores the results in the batch.

    Args:
        batch: Changed in place.
        column: Name of a column, or several.
        func: Called as ``func(item, episode_id, agent_id, module_id)``, ids that the batch does not have as
            None; returns the new item. With several columns it gets and returns a tuple of items.

    Raises:
        ValueError: A column is not in the batch, the columns do not have equally many items, or ``func``
            returned another number of items.
    """
    is_single = isinstance(column, str)
    names: list[str] = [column] if isinstance(column, str) else list(column)
    missing = [name for name in names if name not in batch]
    if missing:
        raise ValueError(
            f"foreach_batch_item_change_in_place(column={column!r}): the batch has no column {missing}. Choose from "
            f"{list(batch)}."
        )
    first = batch[names[0]]
    for key in first if isinstance(first, dict) else [None]:
        lists = [batch[name] if key is None else batch[name][key] for name in names]
        if len({len(items) for items in lists}) > 1:
            raise ValueError(
                f"foreach_batch_item_change_in_place(column={column!r}): the columns have "
                f"{[len(items) for items in lists]} items{'' if key is None else f' for the episode {key}'}. Give "
                "all columns the same number of items."
            )
        ids = (*(key if isinstance(key, tuple) else (key,)), None, None)[:3]
        for index, items in enumerate(zip(*lists, strict=True)):
            given = items[0] if is_single else items
            changed = func(given, *ids)
            changed = [changed] if is_single else changed
            if not isinstance(changed, tuple | list) or len(changed) != len(names):
                raise ValueError(
                    f"foreach_batch_item_change_in_place(column={column!r}): `func` must return a tuple with "
                    f"one item for each of the {len(names)} columns, got {changed!r}."
                )
            for target, item in zip(lists, changed, strict=True):
                target[index] = item


def switch_batch_from_column_to_module_ids(batch: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Converts ``{column: {module_id: data}}`` to ``{module_id: {column: data}}``, without copying data.

    Raises:
        ValueError: A column is keyed by episode, as in a single-agent batch.
    """
    switched: dict[str, dict[str, Any]] = {}
    for column, data in batch.items():
        if not isinstance(data, dict) or is_by_episode(data):
            raise ValueError(
                "switch_batch_from_column_to_module_ids() takes {column: {module id: data}}, but column "
                f"{column!r} is {'keyed by episode' if isinstance(data, dict) else type(data).__name__}. A "
                "single-agent batch has no module ids: leave this call out."
            )
        for module_id, module_data in data.items():
            switched.setdefault(module_id, {})[column] = module_data
    return switched


def is_by_episode(column_data: Any) -> bool:
    """Whether a column has the form ``{(episode id, ...): [items]}``; other dicts are pytrees of arrays."""
    return isinstance(column_data, dict) and any(isinstance(key, tuple) for key in column_data)


def stack_items(items: Sequence[Any], name: str) -> Any:
    """Stacks items to one pytree of arrays ``[n, ...]``. A BatchedNdArray already holds several items: each of its rows
    counts as one item.

    Args:
        items: Equal pytrees, at least one.
        name: Name of the items in errors.

    Raises:
        ValueError: Their structures or shapes differ, or a leaf is no number.
    """

    def join(*leaves: Any) -> np.ndarray:
        rows = [np.asarray(leaf) if isinstance(leaf, BatchedNdArray) else np.asarray(leaf)[None] for leaf in leaves]
        joined = np.concatenate(rows)
        if joined.dtype.kind not in "biufc":
            raise ValueError(
                f"an item contains a {type(leaves[0]).__name__}, which is not a number or an array of numbers"
            )
        return joined

    try:
        return jax.tree.map(join, *items)
    except ValueError as error:
        raise ValueError(
            f"The items of {name} cannot be stacked into arrays: {error}. Give all of them the same structure and "
            "shape, with numbers or arrays of numbers as leaves."
        ) from error
