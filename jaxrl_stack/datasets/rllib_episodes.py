"""Conversion of RLlib's packed episodes: msgpack of a `SingleAgentEpisode`'s state, with arrays in msgpack-numpy form.

A state may contain only maps, lists, numbers, texts, and arrays of numbers. The bytes of an array must fit the array's
dtype and shape. Arrays of objects (which are pickles) and extension types are refused. Episodes that would be many
times as large in memory as in the file are refused, too.
"""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.foreign_rows import SEVERAL_AGENTS, narrowed
from jaxrl_stack.datasets.packed_columns import checked_array
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.utils.nested import batch, take, tree_map
from jaxrl_stack.utils.optional_packages import optional_import

if TYPE_CHECKING:
    import gymnasium as gym

_COLUMNS = {"observations": Columns.OBS, "actions": Columns.ACTIONS, "rewards": Columns.REWARDS}
_SPARE_BYTES = 1 << 20
_BYTES_OF_CONTAINER, _BYTES_OF_ENTRY = 72, 16


def unpacked_state(data: bytes) -> dict[str, Any]:
    """Decodes the state of an RLlib episode, a nested dict, from msgpack bytes (`data`).

    The arrays in the result are read-only, and do not share memory with `data`.

    Raises:
        ValueError: `data` is no packed episode.
        ImportError: msgpack is not installed.
    """
    msgpack = optional_import("msgpack", purpose="An RLlib episode", install="jaxrl-stack[offline]")
    left = [3 * len(data) + _SPARE_BYTES]

    def spend(container: Any) -> Any:
        left[0] -= _BYTES_OF_CONTAINER + _BYTES_OF_ENTRY * len(container)
        if left[0] < 0:
            raise ValueError("the decoded value would be many times as large in memory as in the file")
        return container

    def mapping(found: dict[Any, Any]) -> Any:
        return _array(found) if b"nd" in found else spend(found)

    try:
        found = msgpack.unpackb(
            data, object_hook=mapping, list_hook=spend, ext_hook=_refused, raw=False, strict_map_key=True
        )
    except (msgpack.UnpackException, ValueError, TypeError, OverflowError, MemoryError, RecursionError) as error:
        raise ValueError(f"the value is not a packed (serialized) episode: {error or type(error).__name__}") from error
    if not isinstance(found, dict):
        raise ValueError("the value is not a packed (serialized) episode: it must be a dict")
    return found


def steps_of_state(state: Mapping[str, Any]) -> Steps:
    """Converts the state of an RLlib episode to recorded steps.

    Raises:
        ValueError: The state is damaged, or that of several agents.
    """
    if "agent_episodes" in state or "_agent_episodes" in state:
        raise ValueError(SEVERAL_AGENTS)
    missing = [name for name in (*_COLUMNS, "id_", "is_terminated", "is_truncated") if name not in state]
    if missing:
        raise ValueError(f"the entries {missing} of the episode are missing")
    columns = {new: _column(state[name], name) for name, new in _COLUMNS.items()}
    extras = state.get("extra_model_outputs") or {}
    if not isinstance(extras, dict):
        raise ValueError("the entry extra_model_outputs is not a dict of columns")
    columns |= {name: _column(own, name) for name, own in extras.items() if own and name not in columns}
    num_steps = len(np.atleast_1d(columns[Columns.REWARDS]))
    if np.ndim(columns[Columns.REWARDS]) != 1 or not num_steps:
        raise ValueError("the episode must have one reward for each step")
    for name, own in columns.items():
        rows = num_steps + (name == Columns.OBS)
        lengths = {len(leaf) if np.ndim(leaf) else 0 for leaf in _leaves(own)}
        if lengths != {rows}:
            raise ValueError(
                f"the arrays in the column {name} have the lengths {sorted(lengths)}, but {num_steps:,} steps need "
                f"{rows:,} entries in each array"
            )
        if name != Columns.OBS:
            columns[name] = tree_map(lambda x: np.concatenate([x, np.zeros_like(x[:1])]), own)
    is_final = np.zeros(num_steps + 1, bool)
    is_final[-1] = True
    for name, flag in ((Columns.TERMINATEDS, "is_terminated"), (Columns.TRUNCATEDS, "is_truncated")):
        columns[name] = np.zeros(num_steps + 1, bool)
        columns[name][-2] = bool(state[flag])
    started = state.get("t_started", 0)
    t = np.arange(num_steps + 1, dtype=np.int32) + np.int32(started if type(started) is int else 0)
    columns = {name: tree_map(lambda x, n=name: narrowed(x, n), own) for name, own in columns.items()}
    return Steps(columns, is_final, np.zeros(num_steps + 1, np.int32), t, [str(state["id_"])])


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for own in tree.values() for leaf in _leaves(own)]
    if isinstance(tree, tuple | list):
        return [leaf for own in tree for leaf in _leaves(own)]
    return [tree]


def _column(buffer: Any, name: str) -> Any:
    """Converts the state of a lookback buffer in an RLlib episode to a pytree of ``[N, ...]``, without the lookback
    items.
    """
    if not isinstance(buffer, dict) or "data" not in buffer:
        raise ValueError(f"the entry {name!r} of the episode is not a column (a dict with the key 'data')")
    data, lookback = buffer["data"], buffer.get("lookback", 0)
    if type(lookback) is not int or lookback < 0:
        raise ValueError(
            f"the entry {name!r} of the episode has the invalid lookback {lookback!r}, not an int of at least 0"
        )
    try:
        values = batch(data) if isinstance(data, list) else data
        values = tree_map(np.asarray, values)
        if any(leaf.dtype.kind not in "biuf" for leaf in _leaves(values)):
            raise ValueError("the column must contain numbers")
        return take(values, slice(lookback, None))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the entry {name!r} of the episode is invalid: {error}") from error


def _array(found: dict[Any, Any]) -> Any:
    """Decodes an array or a NumPy number from its msgpack-numpy form."""
    if found.get(b"nd") not in (True, False) or b"complex" in found:
        raise ValueError("an array of the episode is damaged")
    if found[b"nd"]:
        if found.get(b"kind") not in (b"", ""):
            raise ValueError("an array contains Python objects or structured values instead of numbers")
        return checked_array(found.get(b"data"), found.get(b"type"), found.get(b"shape"))
    return checked_array(found.get(b"data"), found.get(b"type"), ())[()]


def _refused(code: int, data: bytes) -> Any:
    raise ValueError(f"the episode has a value of the unknown msgpack type {code}")


def state_of_piece(steps: Steps, spaces: tuple[gym.Space | None, gym.Space | None] = (None, None)) -> dict[str, Any]:
    """Converts the recorded steps of one chunk of an episode to the state of RLlib's `SingleAgentEpisode`.

    Args:
        steps: One piece.
        spaces: Spaces of observations and actions.
    """
    described = [None if space is None else space_of_rllib(space) for space in spaces]
    names = {new: name for name, new in _COLUMNS.items()}
    infos = list(steps.columns.get(Columns.INFOS, [{}] * steps.num_rows))
    n = steps.num_rows - 1

    def column(name: str) -> list[Any]:
        rows = n + (name == Columns.OBS)
        return [tree_map(lambda x, i=i: np.asarray(x)[i], steps.columns[name]) for i in range(rows)]

    def buffer(data: list[Any], space: Any = None) -> dict[str, Any]:
        return {"data": data, "lookback": 0, "finalized": False, "space": space}

    flags = (Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.INFOS)
    extras = [name for name in steps.columns if name not in (*names, *flags)]
    return {
        "id_": steps.episode_ids[0],
        "agent_id": None,
        "module_id": None,
        "multi_agent_episode_id": None,
        "observations": buffer(column(Columns.OBS), described[0]),
        "actions": buffer(column(Columns.ACTIONS), described[1]),
        "rewards": buffer([float(own) for own in column(Columns.REWARDS)]),
        "infos": buffer(infos),
        "extra_model_outputs": {name: buffer(column(name)) for name in extras} or None,
        "is_terminated": bool(steps.columns[Columns.TERMINATEDS][n - 1]),
        "is_truncated": bool(steps.columns[Columns.TRUNCATEDS][n - 1]),
        "t_started": int(steps.t[0]),
        "t": int(steps.t[0]) + n,
        "_observation_space": described[0],
        "_action_space": described[1],
        "_start_time": None,
        "_last_step_time": None,
        "custom_data": {},
    }


def packed_state(state: Mapping[str, Any]) -> bytes:
    """Encodes the state of an episode as msgpack bytes, the format of RLlib's packed (serialized) episodes."""
    msgpack = optional_import("msgpack", purpose="An RLlib episode", install="jaxrl-stack[offline]")
    return msgpack.packb(dict(state), default=_described)


def _described(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        data = np.ascontiguousarray(value).tobytes()
        return {b"nd": True, b"type": value.dtype.str, b"kind": b"", b"shape": value.shape, b"data": data}
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return {b"nd": False, b"type": value.dtype.str, b"data": value.tobytes()}
    raise TypeError(
        f"{value!r} cannot be written: RLlib's files hold numbers, texts, arrays of numbers, and lists and dicts of "
        "these. Convert it to one of these."
    )


def space_of_rllib(space: Any) -> dict[str, Any]:
    """Converts a space to the description that RLlib's episode files contain.

    Raises:
        TypeError: RLlib's form has no such space.
    """

    def array(value: Any) -> str:
        file = io.BytesIO()
        np.save(file, np.asarray(value), allow_pickle=False)
        return base64.b64encode(zlib.compress(file.getvalue())).decode("ascii")

    def own(name: str, **fields: Any) -> dict[str, Any]:
        return {"space": name, **fields}

    match type(space).__name__:
        case "Box":
            return own("box", low=array(space.low), high=array(space.high), shape=space.shape, dtype=space.dtype.str)
        case "Discrete":
            return own("discrete", n=int(space.n), start=int(space.start))
        case "MultiDiscrete":
            return own("multi-discrete", nvec=array(space.nvec), dtype=space.dtype.str)
        case "MultiBinary":
            return own("multi-binary", n=space.n)
        case "Tuple":
            return own("tuple", spaces=[space_of_rllib(child) for child in space.spaces])
        case "Dict":
            return own("dict", spaces={name: space_of_rllib(child) for name, child in space.spaces.items()})
    raise TypeError(f"RLlib's files cannot describe the space {space}. Set offline_data(output_format='parquet').")
