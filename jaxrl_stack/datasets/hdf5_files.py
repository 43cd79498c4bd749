"""Reads HDF5 files of D4RL (one array per column), Minari (one group per episode) and d3rlpy (arrays per episode)."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.array_tables import ArrayForm, ArrayReader
from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.datasets.checks import checked
from jaxrl_stack.datasets.dataset_info import DatasetInfo
from jaxrl_stack.datasets.env_actions import module_actions
from jaxrl_stack.datasets.foreign_rows import narrowed
from jaxrl_stack.datasets.parquet_files import damage_of
from jaxrl_stack.datasets.pieces import PieceRef, Reader
from jaxrl_stack.datasets.step_writer import ROW_GROUP_ROWS
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.utils.nested import tree_leaves, tree_map
from jaxrl_stack.utils.optional_packages import optional_import
from jaxrl_stack.utils.spaces import MAX_SPACE_ELEMENTS, num_described_entries

if TYPE_CHECKING:
    from jaxrl_stack.datasets.read_options import ReadOptions

_MAX_RATIO = 1100
"""How many times smaller than its numbers a compressed array may be; deflate reaches 1,032."""
_MAX_DEPTH = 8
_EPISODE = re.compile(r"episode_(\d+)")
_METADATA = "metadata.json"


def hdf5_reader(filesystem: Any, path: str, options: ReadOptions, info: DatasetInfo) -> Reader:
    """Creates the reader of an HDF5 file, in the layout of Minari, D4RL or d3rlpy.

    Raises:
        BadDataError: It has another layout.
        ImportError: h5py is not installed.
    """
    with damage_of(path), _opened(filesystem, path) as file:
        names = list(file)
        if {"columns", "num_episodes"} <= set(names):
            return _d3rlpy_reader(filesystem, path, file, options, info)
        episodes = sorted((name for name in names if _EPISODE.fullmatch(name)), key=lambda name: int(name[8:]))
        if episodes:
            lengths = [len(_dataset(file, f"{name}/rewards", path)) for name in episodes]
        else:
            there = _arrays_of(file, path)
    if episodes:
        return MinariReader(filesystem, path, dict(zip(episodes, lengths, strict=True)), options)

    def load(wanted: Sequence[str]) -> dict[str, np.ndarray]:
        with _opened(filesystem, path) as file:
            return {name: _content(_dataset(file, name, path), name, path) for name in wanted}

    return ArrayReader(path, there, load, options, info, of_env=True)


def _d3rlpy_reader(filesystem: Any, path: str, file: Any, options: ReadOptions, info: DatasetInfo) -> Reader:
    """Creates the reader of a d3rlpy file, which has arrays ``observations_<episode>``, ``actions_<episode>`` and so
    on.
    """
    number = int(np.asarray(_dataset(file, "num_episodes", path)[()]))
    lengths = [len(_dataset(file, f"rewards_{i}", path)) for i in range(number)]
    rows, there = sum(lengths), {}
    for column in ("observations", "actions", "rewards"):
        if f"{column}_0" not in file and f"{column}_0_0" in file:
            raise BadDataError(
                f"The {column} are tuples of arrays, but tuples in d3rlpy files are not supported. For each tuple "
                f"element, write one array with the steps of all episodes to an npz file: {column}_0, {column}_1 and "
                "so on.",
                path=path,
            )
        own = _dataset(file, f"{column}_0", path)
        there[column] = ArrayForm((rows, *own.shape[1:]), own.dtype)
    flag = ArrayForm((rows,), np.dtype(bool))
    there |= {"terminals": flag, "timeouts": flag, Columns.EPS_ID: ArrayForm((rows,), np.dtype(np.int64))}

    def load(wanted: Sequence[str]) -> dict[str, np.ndarray]:
        with _opened(filesystem, path) as file:
            return {name: array(file, name) for name in wanted}

    def array(file: Any, name: str) -> np.ndarray:
        ends = np.cumsum(lengths) - 1
        if name == Columns.EPS_ID:
            return np.repeat(np.arange(number), lengths)
        if name in ("terminals", "timeouts"):
            over = np.array([bool(np.asarray(_dataset(file, f"terminated_{i}", path)[()])) for i in range(number)])
            found = np.zeros(rows, bool)
            found[ends] = over if name == "terminals" else ~over
            return found
        parts = [_content(_dataset(file, f"{name}_{i}", path), name, path) for i in range(number)]
        return np.concatenate(parts)

    return ArrayReader(path, there, load, options, info, of_env=True)


class MinariReader:
    """Reads a Minari data set; consecutive episodes are read together, up to the size of a row group.

    Args:
        filesystem, path: The file, ``main_data.hdf5``.
        lengths: ``{group: steps}`` of its episodes, in order.
        options: Options for reading.

    Raises:
        BadDataError: If the metadata file next to it is damaged.
    """

    num_files = 1

    def __init__(self, filesystem: Any, path: str, lengths: Mapping[str, int], options: ReadOptions):
        self.path = path
        self._filesystem, self._options = filesystem, options
        self.info = _info(filesystem, path)
        self._groups: list[list[str]] = []
        self.pieces: list[PieceRef] = []
        rows = ROW_GROUP_ROWS
        for name, length in lengths.items():
            if rows + length + 1 > ROW_GROUP_ROWS:
                self._groups.append([])
                rows = 0
            self._groups[-1].append(name)
            rows += length + 1
        for i, group in enumerate(self._groups):
            steps = sum(lengths[name] for name in group)
            self.pieces.append(PieceRef(path, i, steps + len(group), steps))

    def read(self, piece: PieceRef) -> Steps:
        names = self._groups[piece.index]
        with damage_of(self.path), _opened(self._filesystem, self.path) as file:
            parts = [self._episode(file, name) for name in names]
        offsets = np.cumsum([0, *(part.num_rows for part in parts)])

        def row_of(row: int) -> tuple[str, int]:
            number = int(np.searchsorted(offsets, row, "right")) - 1
            return f"{self.path}/{names[number]}", row - int(offsets[number])

        spaces = self._options.spaces_of(self.info)
        return checked(Steps.concatenated(parts), spaces, row_of, check=self._options.check)

    def read_all(self) -> Iterator[Steps]:
        for piece in self.pieces:
            yield self.read(piece)

    def num_bytes(self, columns: Sequence[str]) -> int:
        """Estimates the bytes that the given columns of the whole data set will need in memory, from the
        first episode.
        """
        if not self.pieces:
            return 0
        with damage_of(self.path), _opened(self._filesystem, self.path) as file:
            first = self._episode(file, self._groups[0][0])
        return round(first.only(columns).num_bytes / first.num_rows * sum(piece.num_rows or 0 for piece in self.pieces))

    def _episode(self, file: Any, name: str) -> Steps:
        options, path = self._options, self.path

        def value(column: str) -> Any:
            return _tree(file, f"{name}/{column}", path)

        rewards = np.asarray(value("rewards"))
        n = len(rewards)
        actions = value("actions")
        action_space = self.info.action_space if options.action_space is None else options.action_space
        if action_space is not None and options.normalize_actions:
            actions = module_actions(actions, action_space, lambda row: (f"{path}/{name}", row))
        columns = {
            Columns.OBS: value("observations"),
            Columns.ACTIONS: actions,
            Columns.REWARDS: rewards,
            Columns.TERMINATEDS: np.asarray(value("terminations")).astype(bool),
            Columns.TRUNCATEDS: np.asarray(value("truncations")).astype(bool),
        }
        for column, own in columns.items():
            expected = n + (column == Columns.OBS)
            if rewards.ndim != 1 or any(np.ndim(leaf) < 1 or len(leaf) != expected for leaf in tree_leaves(own)):
                raise BadDataError(
                    f"The column {column} of the episode {name} must have {expected:,} entries, because the episode "
                    f"has {n:,} rewards. Write one entry per step to each array. The array observations needs one more "
                    "entry, the final observation.",
                    path=path,
                )
        _check_ends(columns, name, path)
        padded = {
            column: own if column == Columns.OBS else tree_map(_with_final_row, own) for column, own in columns.items()
        }
        is_final = np.zeros(n + 1, bool)
        is_final[-1] = True
        t = np.arange(n + 1, dtype=np.int32)
        steps = Steps(padded, is_final, np.zeros(n + 1, np.int32), t, [name])
        return steps.map_columns(lambda column, own: tree_map(lambda x: narrowed(x, column), own))


def _check_ends(columns: Mapping[str, Any], name: str, path: str) -> None:
    ends = columns[Columns.TERMINATEDS] | columns[Columns.TRUNCATEDS]
    if ends[:-1].any():
        row = int(np.argmax(ends))
        raise BadDataError(
            f"The episode {name} terminates or is truncated in step {row:,}, but has steps after it. Write the steps "
            "of each episode to a separate HDF5 group.",
            path=path,
        )


def _with_final_row(array: np.ndarray) -> np.ndarray:
    return np.concatenate([array, np.zeros((1, *array.shape[1:]), array.dtype)])


@contextlib.contextmanager
def _opened(filesystem: Any, path: str) -> Iterator[Any]:
    h5py = optional_import("h5py", purpose="An HDF5 file", install="jaxrl-stack[offline]")
    if filesystem.type_name == "local":
        with h5py.File(path, "r") as file:
            yield file
    else:
        with filesystem.open_input_file(path) as source, h5py.File(source, "r") as file:
            yield file


def _dataset(file: Any, name: str, path: str) -> Any:
    """Returns an HDF5 array or group by name. Raises BadDataError if it is missing, or if its data are stored in
    another file.
    """
    h5py = optional_import("h5py", purpose="An HDF5 file", install="jaxrl-stack[offline]")
    parts = name.split("/")
    for depth in range(1, len(parts) + 1):
        if not isinstance(file.get("/".join(parts[:depth]), getlink=True), h5py.HardLink | h5py.SoftLink):
            raise BadDataError(
                f"The array or group {name} is missing, or stored in another file. Write it into this file.", path=path
            )
    found = file[name]
    if isinstance(found, h5py.Group):
        return found
    if found.external or found.is_virtual:
        raise BadDataError(f"The array {name} is stored in another file. Write it into this file.", path=path)
    return found


def _content(dataset: Any, name: str, path: str) -> np.ndarray:
    kind = dataset.dtype
    if kind.kind not in "biuf":
        what = (
            "Write numbers, not texts or encoded images (for Minari images: DataCollector(env, jpeg_encoding=False))"
            if kind.hasobject
            else "Write numbers"
        )
        raise BadDataError(f"The array {name} has dtype {kind}, but only numbers can be read. {what}.", path=path)
    size, stored = dataset.size * kind.itemsize, dataset.id.get_storage_size()
    if size > stored * (_MAX_RATIO if dataset.chunks else 1):
        raise BadDataError(
            f"The array {name} needs {size:,} bytes, but {stored:,} are stored: the file is damaged. Write it again.",
            path=path,
        )
    return np.asarray(dataset[()])


def _tree(file: Any, name: str, path: str, depth: int = 0) -> Any:
    """Reads an HDF5 array, or a group as a dict of arrays. A group whose entries are named by index (``_index_0``, ...)
    becomes a tuple.
    """
    found = _dataset(file, name, path)
    if hasattr(found, "shape"):
        return _content(found, name, path)
    if depth > _MAX_DEPTH:
        raise BadDataError(
            f"The HDF5 group {name} is nested too deeply: write fewer levels of dicts and tuples.", path=path
        )
    own = {key: _tree(file, f"{name}/{key}", path, depth + 1) for key in found}
    if own and all(key.startswith("_index_") for key in own):
        return tuple(own[f"_index_{i}"] for i in range(len(own)))
    return own


def _arrays_of(file: Any, path: str, above: str = "", depth: int = 0) -> dict[str, ArrayForm]:
    """Returns shapes and dtypes of all arrays in a group and its subgroups, by name."""
    found: dict[str, ArrayForm] = {}
    for name in file[above] if above else file:
        whole = f"{above}/{name}" if above else name
        own = _dataset(file, whole, path)
        if hasattr(own, "shape"):
            if own.shape:
                found[whole] = ArrayForm(own.shape, own.dtype)
        elif depth < _MAX_DEPTH:
            found.update(_arrays_of(file, path, whole, depth + 1))
    return found


def _info(filesystem: Any, path: str) -> DatasetInfo:
    """Reads the Minari metadata file of a data set; returns an empty `DatasetInfo` (description of the data) if the
    file does not exist.
    """
    beside = path.rpartition("/")[0] + f"/{_METADATA}"
    try:
        with filesystem.open_input_file(beside) as source:
            content = source.read()
    except FileNotFoundError:
        return DatasetInfo(versions={})
    with damage_of(beside):
        found = json.loads(content)
        env = json.loads(found.get("env_spec") or "{}") or {}
        spaces: dict[str, Any] = {name: _space(found.get(name)) for name in ("observation_space", "action_space")}
        versions = {"minari": str(found.get("minari_version"))}
        return DatasetInfo(
            **spaces, env_id=env.get("id"), versions=versions, more={"dataset_id": found.get("dataset_id")}
        )


def _space(described: Any) -> gym.Space | None:
    """Converts Minari's JSON description of a space to a gymnasium space; None for unsupported kinds."""
    own = json.loads(described) if isinstance(described, str) else described
    if own is None:
        return None
    if num_described_entries(own) > MAX_SPACE_ELEMENTS:
        raise ValueError(
            f"the arrays of one of the data set's spaces have more than the allowed {MAX_SPACE_ELEMENTS:,} entries in "
            "total"
        )
    match own["type"]:
        case "Box":
            low, high = (np.array(own[name], own["dtype"]) for name in ("low", "high"))
            return gym.spaces.Box(low, high, tuple(own["shape"]), np.dtype(own["dtype"]).type)
        case "Discrete":
            return gym.spaces.Discrete(own["n"], start=own["start"])
        case "MultiDiscrete":
            return gym.spaces.MultiDiscrete(own["nvec"], np.dtype(own["dtype"]).type, start=own["start"])
        case "MultiBinary":
            return gym.spaces.MultiBinary(own["n"])
        case "Dict":
            spaces: Any = {name: _space(child) for name, child in own["subspaces"].items()}
            return None if None in spaces.values() else gym.spaces.Dict(spaces)
        case "Tuple":
            children = [_space(child) for child in own["subspaces"]]
            return None if None in children else gym.spaces.Tuple(children)  # pyright: ignore[reportArgumentType]
    return None
