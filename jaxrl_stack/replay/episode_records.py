"""Metadata of a replay buffer: records of its episodes, lifetime counts, and the unfinished episodes of each runner
that adds blocks (T steps of B environments).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(slots=True)
class Record:
    """Metadata of one episode in the replay buffer.

    The metadata contain ids, first and last stored row, and whether the episode may continue. If the episode's first
    steps were evicted, the record describes the remaining part.

    Attributes:
        number: Number of the episode in the buffer, from 1.
        id_: The episode's id.
        first: Row of its first frame.
        last: Row of its last frame if it was added by `add`, else -1.
        is_running: Whether the episode may continue.
        stream: ``(stream, environment)`` if `add_block` added the episode and it is unfinished, else None.
        agent_id: As in `SingleAgentEpisode`.
        module_id: As in `SingleAgentEpisode`.
        multi_agent_episode_id: As in `SingleAgentEpisode`.
        custom_data: As in `SingleAgentEpisode`.
    """

    number: int
    id_: str
    first: int
    last: int
    is_running: bool
    stream: tuple[Hashable, int] | None = None
    agent_id: Hashable | None = None
    module_id: str | None = None
    multi_agent_episode_id: str | None = None
    custom_data: dict[Any, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True)
class BlockStream:
    """Unfinished episodes of the environments of one runner, in a replay buffer. Each block (T steps of these
    environments) continues them.

    Attributes:
        last: int32 ``[B]``, row of the last frame of the unfinished episode; -1: none.
        number: int64 ``[B]``, number of the unfinished episode.
        t: int64 ``[B]``, number of its steps so far.
        serial: Number of the last block; None if blocks have no numbers.
    """

    last: np.ndarray
    number: np.ndarray
    t: np.ndarray
    serial: int | None


STREAM_FIELDS = tuple(field.name for field in dataclasses.fields(BlockStream))


@dataclasses.dataclass(slots=True)
class Counts:
    """Lifetime counts of a buffer: added and evicted episodes; added, evicted and sampled steps.

    Attributes:
        first_number: Number of the oldest episode in the buffer.
        next_number: Number of the next episode.
        added_timesteps: Number of added steps.
        added_episodes: Number of added episodes; an episode that continues counts once.
        evicted_episodes: Number of evicted episodes.
        evicted_timesteps: Number of evicted steps.
        sampled_timesteps: Number of sampled steps.
    """

    first_number: int = 1
    next_number: int = 1
    added_timesteps: int = 0
    added_episodes: int = 0
    evicted_episodes: int = 0
    evicted_timesteps: int = 0
    sampled_timesteps: int = 0


def packed_records(records: Sequence[Record], streams: Sequence[Hashable]) -> dict[str, Any]:
    """Converts episode records to columns for the buffer's state.

    Most columns are arrays, because a buffer can have millions of records. Agent and module ids are saved as distinct
    values and an index per record; custom data, which is rare, only for the records that have it.
    """
    places = {key: place for place, key in enumerate(streams)}
    own = [(-1, -1) if record.stream is None else (places[record.stream[0]], record.stream[1]) for record in records]
    customised = [place for place, record in enumerate(records) if record.custom_data]
    return {
        **{name: np.array([getattr(r, name) for r in records], np.int64) for name in ("number", "first", "last")},
        "is_running": np.array([record.is_running for record in records], bool),
        "stream": np.array(own, np.int64).reshape(-1, 2),
        "id_": _packed_texts([record.id_ for record in records]),
        "multi_agent_episode_id": _packed_texts([record.multi_agent_episode_id for record in records]),
        "agent_id": _packed_values([record.agent_id for record in records]),
        "module_id": _packed_values([record.module_id for record in records]),
        "custom_data": {
            "place": np.array(customised, np.int64),
            "value": [dict(records[place].custom_data) for place in customised],
        },
    }


def unpacked_records(packed: Mapping[str, Any], streams: Sequence[Hashable]) -> list[Record]:
    """Converts a result of `packed_records` back to episode records.

    Raises:
        ValueError: If the columns have different lengths, or a text is damaged.
    """
    columns = {name: packed[name].tolist() for name in ("number", "first", "last", "is_running")}
    columns["stream"] = [None if key < 0 else (streams[key], env) for key, env in packed["stream"].tolist()]
    for name in ("id_", "multi_agent_episode_id"):
        columns[name] = _unpacked_texts(packed[name])
    for name in ("agent_id", "module_id"):
        columns[name] = [packed[name]["values"][place] for place in packed[name]["place"].tolist()]
    records = [Record(**dict(zip(columns, values, strict=True))) for values in zip(*columns.values(), strict=True)]
    custom_data = packed["custom_data"]
    for place, value in zip(custom_data["place"].tolist(), custom_data["value"], strict=True):
        records[place].custom_data = dict(value)
    return records


def _packed_texts(texts: Sequence[str | None]) -> dict[str, np.ndarray]:
    """Encodes texts as one array of UTF-8 bytes and an array of their lengths; length -1 for None."""
    encoded = [None if text is None else text.encode(errors="surrogatepass") for text in texts]
    return {
        "utf8": np.frombuffer(b"".join(text for text in encoded if text is not None), np.uint8),
        "length": np.array([-1 if text is None else len(text) for text in encoded], np.int64),
    }


def _unpacked_texts(packed: Mapping[str, np.ndarray]) -> list[str | None]:
    joined, lengths = packed["utf8"].tobytes(), packed["length"]
    stops = np.cumsum(np.maximum(lengths, 0))
    if len(stops) and stops[-1] != len(joined):
        raise ValueError(
            "The saved replay buffer is damaged: the saved text and the saved lengths of the episode ids do not match. "
            "Restore another checkpoint."
        )
    return [
        None if length < 0 else joined[stop - length : stop].decode(errors="surrogatepass")
        for length, stop in zip(lengths.tolist(), stops.tolist(), strict=True)
    ]


def _packed_values(values: Sequence[Hashable]) -> dict[str, Any]:
    """Encodes n values, which often repeat, as ``{"values": list of the distinct values, "place": int64 [n], index of
    each value in this list}``.
    """
    places = {value: place for place, value in enumerate(dict.fromkeys(values))}
    return {"values": list(places), "place": np.array([places[value] for value in values], np.int64)}
