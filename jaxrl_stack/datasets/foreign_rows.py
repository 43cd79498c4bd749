"""Columns of steps that others wrote: what they are called, which are needed, and what becomes of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pyarrow as pa

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.datasets.checks import RowOf, checked
from jaxrl_stack.datasets.rows import Rows, joined
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.utils.nested import tree_leaves, tree_map
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.spaces import map_parts, validate_batch
from jaxrl_stack.utils.spaces.space_utils import normalize_action

if TYPE_CHECKING:
    from jaxrl_stack.datasets.dataset_info import DatasetInfo
    from jaxrl_stack.datasets.read_options import ReadOptions

DONES = "dones"
AGENTS = (Columns.AGENT_ID, "agent_index")
"""Columns that say whose step a row is."""
SCHEMA = (
    Columns.EPS_ID,
    Columns.AGENT_ID,
    Columns.MODULE_ID,
    Columns.OBS,
    Columns.ACTIONS,
    Columns.REWARDS,
    Columns.INFOS,
    Columns.NEXT_OBS,
    Columns.TERMINATEDS,
    Columns.TRUNCATEDS,
    Columns.T,
    "agent_index",
    DONES,
    "unroll_id",
)
"""Columns with a meaning; all others are outputs of a module."""
SEVERAL_AGENTS = (
    "It has steps of several agents, which cannot be learned from. Write the steps of one agent, or of one policy's "
    "agents as episodes of their own, to files."
)


@dataclasses.dataclass(frozen=True)
class ForeignColumns:
    """Columns of a file, by what they mean here.

    Attributes:
        names: ``{column: its name in the file}`` of those in `SCHEMA` that are there.
        extras: Outputs of a module, by their names in the file.
        needed: Names in the file without which nothing can be learned.
        packed: Names in the file whose texts are packed arrays.
    """

    names: Mapping[str, str]
    extras: Sequence[str]
    needed: frozenset[str]
    packed: frozenset[str]

    @classmethod
    def of(cls, there: Sequence[str], options: ReadOptions, path: str, *, needs_next: bool = True) -> ForeignColumns:
        """Those of a file.

        Args:
            there: Names in the file.
            options: How to read it.
            path: The file.
            needs_next: Next observations must be there.

        Raises:
            BadDataError: One is missing.
        """
        unknown = [name for name in options.schema if name not in SCHEMA]
        if unknown:
            raise ValueError(f"input_read_schema names {unknown}, which are no columns: these are {list(SCHEMA)}.")
        wanted = {column: options.schema.get(column, column) for column in SCHEMA}
        if options.ignore_final_observation:
            del wanted[Columns.NEXT_OBS]
        names = {column: name for column, name in wanted.items() if name in there}
        _check_needed(names, wanted, there, path, needs_next)
        needed = [Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS, DONES]
        extras = [name for name in there if name not in {*wanted.values(), *SCHEMA, "type"}]
        if options.columns is not None:
            missing = [c for c in options.columns if c not in extras and c not in names]
            if missing:
                raise BadDataError(f"The columns {missing} are missing; there are {list(there)}.", path=path)
            extras = [name for name in extras if name in options.columns]
        packed = {wanted[c] for c in wanted if c in options.compress_columns or wanted[c] in options.compress_columns}
        if Columns.OBS in options.compress_columns and Columns.NEXT_OBS in names:
            packed.add(names[Columns.NEXT_OBS])
        asked = {*(names[c] for c in [*needed, Columns.NEXT_OBS, Columns.T] if c in names), *(options.columns or ())}
        return cls(names, extras, frozenset(asked), frozenset({*packed, *options.compress_columns}))

    @property
    def labels(self) -> frozenset[str]:
        """Names in the file of columns that say whose and of which episode a step is."""
        columns = (Columns.EPS_ID, *AGENTS)
        return frozenset(self.names[column] for column in columns if column in self.names)

    @property
    def to_read(self) -> list[str]:
        """Names in the file of all columns to read."""
        unread = (Columns.INFOS, Columns.MODULE_ID, "unroll_id")
        return [*(name for column, name in self.names.items() if column not in unread), *self.extras]

    def max_bytes(self, name: str, options: ReadOptions) -> int | None:
        """Bytes that one packed value of a column may have; None if its space is not known."""
        column = next((column for column, own in self.names.items() if own == name), name)
        is_obs = column in (Columns.OBS, Columns.NEXT_OBS)
        space = options.observation_space if is_obs else options.action_space if column == Columns.ACTIONS else None
        if space is None:
            return None
        numbers = sum(int(np.prod(leaf.shape or ())) for leaf in tree_leaves(map_parts(lambda part: part, space)))
        return 8 * numbers + 4096


def _check_needed(
    names: Mapping[str, str], wanted: Mapping[str, str], there: Sequence[str], path: str, needs_next: bool
) -> None:
    missing = [wanted[c] for c in (Columns.OBS, Columns.ACTIONS, Columns.REWARDS) if c not in names]
    if Columns.TERMINATEDS not in names and DONES not in names:
        missing.append(wanted[Columns.TERMINATEDS])
    if needs_next and Columns.NEXT_OBS in wanted and Columns.NEXT_OBS not in names:
        missing.append(wanted[Columns.NEXT_OBS])
    if missing:
        hint = ", or ignore_final_observation=True if there are no next observations" * (missing[-1:] == ["new_obs"])
        raise BadDataError(
            f"The columns {missing} are missing; there are {sorted(there)}. Say what they are called in "
            f"offline_data(input_read_schema={{{missing[0]!r}: ...}}){hint}.",
            path=path,
        )


def piece_of(
    values: Mapping[str, Any],
    columns: ForeignColumns,
    options: ReadOptions,
    row_of: RowOf,
    info: DatasetInfo,
    *,
    gives_up_last: bool = False,
) -> Steps:
    """Steps of the columns of a table.

    Args:
        values: ``{name in the file: pytree of [N, ...]}``; labels as texts of Arrow.
        columns: What they mean.
        options: How to read them.
        row_of: File and row in it, of a row of the table.
        info: What the steps are of.
        gives_up_last: Without next observations, the last row of a piece that did not terminate becomes its final row.

    Raises:
        BadDataError: They are not what they should be.
    """
    path, _ = row_of(0)
    _check_one_agent(values, columns, path)
    flags = _flags(values, columns, path)
    rows = len(flags[Columns.TERMINATEDS])
    plain = {c: values[columns.names[c]] for c in (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)}
    table = {**plain, **flags, **{name: values[name] for name in columns.extras if name in values}}
    _check_lengths(table, rows, path)
    next_obs = values.get(columns.names.get(Columns.NEXT_OBS, ""))
    if next_obs is not None:
        _check_next(plain[Columns.OBS], next_obs, columns, path)
    episode, name_of = _episodes(values, columns, row_of)
    t = values.get(columns.names.get(Columns.T, ""))
    if np.ndim(table[Columns.REWARDS]) != 1 or np.asarray(table[Columns.REWARDS]).dtype.kind not in "biuf":
        raise BadDataError("The rewards are no numbers, one for each step.", path=path)
    steps, index = joined(Rows(table, next_obs, episode, name_of, t), zero_final=not gives_up_last)
    steps = steps.map_columns(lambda name, own: tree_map(lambda x: narrowed(x, name), own))
    if not options.check:
        return steps
    observation_space = options.observation_space if info.observation_space is None else info.observation_space
    action_space = options.action_space if info.action_space is None else info.action_space
    return checked(steps, observation_space, action_space, lambda row: row_of(int(index[row]) if len(index) else 0))


def narrowed(array: np.ndarray, name: str) -> np.ndarray:
    """Numbers as JAX has them: float32 for float64, int32 for int64 where they fit; rewards are float32."""
    kind = array.dtype
    if name == Columns.REWARDS or kind == np.float64:
        with np.errstate(over="ignore"):  # what becomes infinite is found and named
            return array.astype(np.float32, copy=False)
    if kind in (np.int64, np.uint64, np.uint32):
        limits = np.iinfo(np.int32)
        fits = not array.size or (array.min() >= limits.min and array.max() <= limits.max)
        return array.astype(np.int32) if fits else array
    return array


def module_actions(actions: Any, space: gym.Space, path: str) -> Any:
    """Actions of an environment as those of a module: from -1 to 1 in bounded Boxes, counting from 0 elsewhere.

    Raises:
        BadDataError: They do not fit the space, or are outside of a Box.
    """
    try:
        validate_batch(space, actions, 1, "actions")
    except ValueError as error:
        raise BadDataError(
            f"{error} Set action_space in config.environment() to that of the data.", path=path
        ) from error

    def converted(part: Any, array: np.ndarray) -> np.ndarray:
        if hasattr(part, "start"):
            return array - part.start
        if not isinstance(part, gym.spaces.Box) or part.dtype is None or part.dtype.kind != "f":
            return array
        low, high = part.low - 1e-3, part.high + 1e-3
        odd = ((array < low) | (array > high)).reshape(len(array), -1).any(axis=1)
        if odd.any():
            row = int(np.argmax(odd))
            raise BadDataError(
                f"The action {array[row].tolist()!r} is outside of {part}. Set action_space in config.environment() to "
                "that of the data, or clip the actions.",
                path=path,
                row=row,
            )
        return normalize_action(array, part).astype(np.result_type(array, np.float16))

    return map_parts(converted, space, actions)


def _check_one_agent(values: Mapping[str, Any], columns: ForeignColumns, path: str) -> None:
    for column in AGENTS:
        labels = values.get(columns.names.get(column, ""))
        if labels is not None and len(labels.unique().drop_null()) > 1:
            raise BadDataError(SEVERAL_AGENTS, path=path)


def _flags(values: Mapping[str, Any], columns: ForeignColumns, path: str) -> dict[str, np.ndarray]:
    """TERMINATEDS and TRUNCATEDS."""
    names = columns.names
    if Columns.TERMINATEDS not in names:
        notice_once(
            f"{path} and files like it have {names[DONES]!r} and no {Columns.TERMINATEDS!r}: it is taken for that. "
            "Episodes that a time limit cut count as terminated, so nothing is bootstrapped there."
        )
    terminated = _flag(values, names.get(Columns.TERMINATEDS, names.get(DONES, "")), path)
    if Columns.TRUNCATEDS in names:
        return {Columns.TERMINATEDS: terminated, Columns.TRUNCATEDS: _flag(values, names[Columns.TRUNCATEDS], path)}
    return {Columns.TERMINATEDS: terminated, Columns.TRUNCATEDS: np.zeros_like(terminated)}


def _flag(values: Mapping[str, Any], name: str, path: str) -> np.ndarray:
    array = np.asarray(values[name])
    if array.ndim != 1 or array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
        raise BadDataError(f"The column {name} is no flag, True or False for each step.", path=path)
    return array.astype(bool)


def _check_lengths(table: Mapping[str, Any], rows: int, path: str) -> None:
    for name, column in table.items():
        if any(np.ndim(leaf) < 1 or len(leaf) != rows for leaf in tree_leaves(column)):
            raise BadDataError(f"The column {name} has not one entry for each of the {rows:,} steps.", path=path)


def _check_next(obs: Any, next_obs: Any, columns: ForeignColumns, path: str) -> None:
    forms = [[(leaf.shape, leaf.dtype.kind) for leaf in tree_leaves(own)] for own in (obs, next_obs)]
    if forms[0] != forms[1]:
        raise BadDataError(
            f"{columns.names[Columns.NEXT_OBS]} has the shapes {forms[1]}, and {columns.names[Columns.OBS]} has "
            f"{forms[0]}.",
            path=path,
        )


def _episodes(
    values: Mapping[str, Any], columns: ForeignColumns, row_of: RowOf
) -> tuple[np.ndarray | None, Callable[[int], str]]:
    """Numbers of the rows' episodes, and the id of a row's."""
    labels = values.get(columns.names.get(Columns.EPS_ID, ""))
    if labels is None:
        return None, lambda row: "{}:{}".format(*row_of(row))
    if labels.null_count:
        row = int(np.flatnonzero(np.asarray(labels.is_null()))[0])
        path, number = row_of(row)
        raise BadDataError(f"The row has no {columns.names[Columns.EPS_ID]}.", path=path, row=number)
    encoded = pa.chunked_array(labels.chunks, pa.string()).combine_chunks().dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    index, names = np.asarray(encoded.indices), encoded.dictionary
    return index, lambda row: names[int(index[row])].as_py()
