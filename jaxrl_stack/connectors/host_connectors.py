"""Execution of host connectors, which are written with RLlib's ``__call__``, before the compiled part of a pipeline.

A host connector takes episodes, and a batch with lists of items per episode: ``batch[column][(episode id,)] = [item,
...]``. It may rewrite the episodes, add columns, or both. Its results become arrays here, for the pure
part of the pipeline (``pipeline.pure_part()``).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl_stack.connectors.batch_items import (
    EpisodeItems,
    episode_key,
    is_by_episode,
    single_agent_episode_iterator,
    stack_items,
)
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.utils.signatures import call_problem
from jaxrl_stack.utils.spaces import map_parts, validate_batch

if TYPE_CHECKING:
    from jaxrl_stack.connectors.connector_pipeline_v2 import ConnectorPipelineV2
    from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode
    from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger

    Episodes = Sequence[SingleAgentEpisode]


def run_host_connectors(
    pipeline: ConnectorPipelineV2,
    *,
    episodes: Episodes,
    batch: dict[str, Any] | None = None,
    made: set[str] | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """Runs an env-to-module pipeline's host connectors (which override ``__call__``) on the newest observation of every
    episode.

    Call it once per new observation: a connector may rewrite the episode's last observation, and a second run would
    change it again. Ended episodes are fine, for their final observations.

    Args:
        pipeline: The whole env-to-module pipeline.
        episodes: One per environment; their last observations are as the environment gave them.
        batch: Columns to start from, ``{column: items per episode, or arrays}``.
        made: Gets the names of the columns that connectors added or were given.
        **arguments: Handed to the connectors: ``rl_module``, ``explore`` (whether actions will be sampled),
            ``shared_data`` (a dict for them to share; made where it is missing), and ``metrics``, a MetricsLogger that
            gets every connector's seconds under ``timers/connectors/<name in snake case>``, after
            ``metrics_prefix_key`` (tuple).

    Returns:
        ``{column: arrays [B, ...]}``, environment i at row i: OBS, and every other column that a connector added. OBS
        is the column of that name if there is one, else the last observation of each episode.

    Raises:
        ValueError: The observations do not fit the output space of the host connectors, or a column has not one item
            per episode; the message names the connector.
        TypeError: A connector returned no dict, or a host connector comes after a pure one.
    """
    columns, writers = _run(pipeline, dict(batch or {}), episodes, **arguments)
    if made is not None:
        made.update(columns)
    stacked = {
        name: _one_item_per_episode(name, data, episodes, _written_by(writers, name))
        for name, data in columns.items()
        if name != Columns.OBS
    }
    return {Columns.OBS: _observations(pipeline, columns, writers, episodes), **stacked}


def run_host_connectors_of_learner(
    pipeline: ConnectorPipelineV2, *, episodes: Episodes, **arguments: Any
) -> dict[str, dict[tuple, list[Any]]]:
    """Runs a learner pipeline's host connectors (which override ``__call__``) on the episodes of an update, before
    episodes are converted to arrays.

    Connectors may rewrite the episodes in place (observations, actions, rewards, extra model outputs) and add columns
    with one item per step.

    Args:
        pipeline: The whole learner pipeline.
        episodes: Episodes or chunks with their steps; several chunks of one episode keep their order.
        **arguments: As for `run_host_connectors`.

    Returns:
        ``{column: {(episode id,): [items]}}``: the columns that the connectors added; empty without host connectors.
        `columns_of_episodes` turns them into arrays.

    Raises:
        ValueError: A connector added a column that is not keyed by episode.
        TypeError: A connector returned no dict, or a host connector comes after a pure one.
    """
    columns, writers = _run(pipeline, {}, episodes, **arguments)
    for name, data in columns.items():
        if not is_by_episode(data):
            raise ValueError(
                f"{_written_by(writers, name)} added the column {name!r} without the episodes to which the "
                "items belong. Use `self.add_n_batch_items(batch, column, items, num_items, single_agent_episode)`."
            )
    return columns


def columns_of_episodes(columns: dict[str, dict[tuple, list[Any]]], episodes: Episodes) -> list[dict[str, Any]]:
    """Converts the result of `run_host_connectors_of_learner`, the columns that host connectors added, to arrays for
    each episode.

    Args:
        columns: ``{column: {(episode id,): [items]}}``, for each chunk as many items as it has steps, in order, or
            none.
        episodes: The same episodes.

    Returns:
        Per episode ``{column: arrays [len(episode), ...]}``, which replace or extend the episode's columns. A chunk
        without items keeps its own values. An OBS column needs one more item, the observation after the last step; OBS
        then contains the first ``len(episode)`` items, and FINAL_OBS the last ``len(episode)`` items.

    Raises:
        ValueError: The number of items differs from the number of steps (OBS: one more); or a chunk has neither items
            of a column nor own values.
    """
    by_episode: list[dict[str, Any]] = [{} for _ in episodes]
    for name, data in columns.items():
        is_observation = name == Columns.OBS
        for i, rows in _rows_by_chunk(name, data, episodes).items():
            if is_observation:
                by_episode[i][Columns.OBS] = jax.tree.map(lambda leaf: leaf[:-1], rows)
                by_episode[i][Columns.FINAL_OBS] = jax.tree.map(lambda leaf: leaf[1:], rows)
            else:
                by_episode[i][name] = rows
        has_rows = any(name in own for own in by_episode)
        for episode, own in zip(episodes, by_episode, strict=True):
            if has_rows and len(episode) and name not in own and not _has_values(episode, name):
                raise ValueError(
                    f"Host connectors (they override `__call__`) added column {name!r} to some episode chunks, but not "
                    f"to a chunk of {len(episode)} steps of episode {episode_key(episode)}. Add one item per step, "
                    "such as 0, to each chunk."
                )
    return by_episode


def _rows_by_chunk(name: str, data: dict[tuple, list[Any]], episodes: Episodes) -> dict[int, Any]:
    """Converts the items of a batch column to arrays, ``{index of the episode chunk: arrays}``.

    Host connectors have added these items: one per step, and for the column OBS one more per chunk. The result has no
    entry for chunks without items.
    """
    extra = 1 if name == Columns.OBS else 0
    rows_of: dict[int, Any] = {}
    for key, items in data.items():
        own = {i: chunk for i, chunk in enumerate(episodes) if episode_key(chunk) == key and len(chunk) + extra}
        for positions, part in _items_of_chunks(items, own):
            rows = stack_items(part, f"column {name!r}, episode {key}")
            lengths = [len(own[i]) + extra for i in positions]
            found, expected = len(jax.tree.leaves(rows)[0]), sum(lengths)
            if found != expected:
                hint = (
                    " Episodes contain outputs of the env-to-module pipeline: do not repeat its connectors here. A "
                    "new OBS column also needs an item for the observation after the last step, for bootstrapping; "
                    "or change the episode: `episode.set_observations(new_data=...)`."
                    if extra
                    else ""
                )
                raise ValueError(
                    f"Host connectors (they override `__call__`) gave column {name!r} {found} item(s) for the episode "
                    f"{key}, which needs {expected}: one per step, or no items at all.{hint}"
                )
            ends = np.cumsum(lengths)
            for i, start, end in zip(positions, ends - lengths, ends, strict=True):
                rows_of[i] = jax.tree.map(lambda leaf, a=start, b=end: leaf[a:b], rows)
    return rows_of


def _items_of_chunks(
    items: list[Any], chunks: Mapping[int, SingleAgentEpisode]
) -> Iterator[tuple[list[int], list[Any]]]:
    """Assigns the items of an episode in a batch column to the episode's chunks.

    Yields pairs ``(indices of chunks, items of these chunks)``: one pair per chunk if the chunk of every item is known,
    otherwise one pair with all chunks and all items.

    Args:
        items: Items of an episode.
        chunks: The episode's chunks with steps, by their position.
    """
    owners = items.chunks if isinstance(items, EpisodeItems) else []
    position_of = {id(chunk): i for i, chunk in chunks.items()}
    if not items or len(owners) != len(items) or any(id(owner) not in position_of for owner in owners):
        if items:
            yield list(chunks), items
        return
    by_chunk: dict[int, list[Any]] = {}
    for item, owner in zip(items, owners, strict=True):
        by_chunk.setdefault(position_of[id(owner)], []).append(item)
    for i, part in by_chunk.items():
        yield [i], part


_OF_STEPS = {
    *(Columns.OBS, Columns.FINAL_OBS, Columns.ACTIONS, Columns.REWARDS),
    *(Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.LOSS_MASK),
}


def _has_values(episode: SingleAgentEpisode, name: str) -> bool:
    """Whether an episode stores a value of the column `name` for each step, such as a reward or a model output."""
    return name in _OF_STEPS or name in episode.extra_model_outputs


def _run(
    pipeline: ConnectorPipelineV2,
    batch: dict[str, Any],
    episodes: Episodes,
    *,
    shared_data: dict | None = None,
    metrics: MetricsLogger | None = None,
    **arguments: Any,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Runs all host connectors of a pipeline (which override ``__call__``); returns ``(batch, {column: name of the
    connector that added it})``.
    """
    arguments = {"rl_module": None, "explore": None, **arguments, "metrics": metrics}
    arguments["shared_data"] = {} if shared_data is None else shared_data
    prefix = tuple(arguments.get("metrics_prefix_key") or ())
    list(single_agent_episode_iterator(list(episodes)))  # refuses other kinds of episodes
    writers: dict[str, str] = {}
    for name, connector in pipeline.checked_host_connectors():
        timer = contextlib.nullcontext()
        if metrics is not None:
            timer = metrics.log_time((*prefix, "timers", "connectors", snake_case(name.rpartition("/")[2])))
        try:
            with timer:
                batch = connector(batch=batch, episodes=episodes, **arguments)
        except Exception as error:
            error.add_note(f"In host connector {name!r} of {type(pipeline).__name__}.")
            problem = call_problem(connector, batch=batch, episodes=episodes, **arguments)
            if problem is not None:
                error.add_note(
                    "Write def __call__(self, *, rl_module, batch, episodes, **kwargs), which returns the batch."
                )
            raise
        if not isinstance(batch, dict):
            raise TypeError(
                f"Host connector {name!r} returned {type(batch).__name__} instead of a dict. `__call__` must end "
                "with `return batch`."
            )
        for column in batch:
            writers.setdefault(column, name)
    return batch, writers


def _observations(
    pipeline: ConnectorPipelineV2, columns: dict[str, Any], writers: dict[str, str], episodes: Episodes
) -> Any:
    """Returns the observations ``[B, ...]`` after the host connectors, one per episode.

    The dtypes are the dtypes of the last host connector's output space (as JAX converts them: float64 becomes float32).
    """
    on_host = pipeline.checked_host_connectors()
    space = on_host[-1][1].observation_space if on_host else pipeline.input_observation_space
    observations = None
    if Columns.OBS in columns:
        source = _written_by(writers, Columns.OBS)
        given = columns[Columns.OBS]
        if is_by_episode(given):
            # Episodes without an item keep their last observation.
            rest = [episode for episode in episodes if not given.get(episode_key(episode))]
            given = {**given, **{episode_key(episode): [episode.get_observations(-1)] for episode in rest}}
        observations = _one_item_per_episode(Columns.OBS, given, episodes, source)
    elif episodes:
        # They have gone through all connectors; the last one that declares a new space answers for it.
        declaring = [name for name, own in on_host if own.observation_space is not own.input_observation_space]
        names = declaring[-1:] or [name for name, _ in on_host]
        source = " and ".join(f"Host connector {name!r}" for name in names) or "The environments"
    else:
        raise ValueError(
            "Host connectors (they override `__call__`) need the unfinished episodes. Call the pipeline with "
            "episodes=[...], one episode per environment."
        )
    try:
        if observations is None:
            observations = stack_items([episode.get_observations(-1) for episode in episodes], "the observations")
        if space is None:
            return observations
        validate_batch(space, observations, batch_dims=1, name="the observation")
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{source} produced observations that do not fit the declared space {space}: {error} Override "
            "`recompute_output_observation_space(self, input_observation_space, input_action_space)` to return the "
            "space of the observations after the connector."
        ) from error
    return map_parts(
        lambda part, value: np.asarray(value, jax.dtypes.canonicalize_dtype(part.dtype)), space, observations
    )


def _one_item_per_episode(name: str, data: Any, episodes: Episodes, source: str) -> Any:
    """Stacks the items of a column, one per unfinished episode, to arrays ``[B, ...]``. If the column already contains
    arrays, returns them unchanged.
    """
    if is_by_episode(data):
        keys = [episode_key(episode) for episode in episodes]
        wrong = {key: len(data.get(key, ())) for key in [*keys, *data] if len(data.get(key, ())) != 1}
        wrong |= {key: len(items) for key, items in data.items() if key not in keys}
        if wrong:
            raise ValueError(
                f"{source} gave column {name!r} a wrong number of items for these episodes (episode: number): {wrong}. "
                "Give exactly one item per unfinished episode, and none for other episodes."
            )
        rows = stack_items([data[key][0] for key in keys], f"column {name!r} ({source})")
    elif isinstance(data, list):
        rows = stack_items(data, f"column {name!r} ({source})") if data else np.zeros(0)
    else:
        rows = data
    sizes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(rows)}
    if episodes and sizes != {(len(episodes),)}:
        raise ValueError(
            f"{source} gave column {name!r} arrays of shapes {[np.shape(leaf) for leaf in jax.tree.leaves(rows)]}. "
            f"The first axis must have length {len(episodes)}: one row per unfinished episode."
        )
    return rows


def _written_by(writers: dict[str, str], column: str) -> str:
    return f"Host connector {writers[column]!r}" if column in writers else "The batch that was passed in"


def snake_case(name: str) -> str:
    """Converts a class name to snake case: ``"MeanStdFilter"`` becomes ``"mean_std_filter"``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
