"""Conversion of tables from other programs to recorded steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.autoreset import without_resets
from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.datasets.checks import RowOf, checked
from jaxrl_stack.datasets.episode_order import JumbledRows, order_of
from jaxrl_stack.datasets.foreign_columns import AGENTS, DONES, ENV, IS_FINAL, ForeignColumns
from jaxrl_stack.datasets.rows import Rows, is_next, joined
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.utils.nested import take, tree_leaves, tree_map
from jaxrl_stack.utils.notices import notice_once

if TYPE_CHECKING:
    from jaxrl_stack.datasets.dataset_info import DatasetInfo
    from jaxrl_stack.datasets.read_options import ReadOptions

SEVERAL_AGENTS = (
    "The data contains steps of several agents, but only single-agent data is supported. Write the steps of only one "
    "agent, or of one policy's agents as separate episodes, to files."
)
_TIME_MAJOR = (
    "It must have one axis, with one number per step. For arrays [time, environment, ...], write "
    "x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), and a column env_id with the environment's number for each step."
)


class ForeignTable(NamedTuple):
    """N rows of a table that another program wrote, by column and as read from the file.

    Attributes:
        values: ``{column: pytree of [N, ...]}``; labels as arrays of Arrow.
        row_of: File and row in it, of a row.
        file: int ``[N]``, number of the row's file; None: one file.
        next_known: bool ``[N]``, rows whose next observation is known; None: all, if there is the column.
        first_t: Lowest step number of all tables of this input; None if only these rows are known.
    """

    values: Mapping[str, Any]
    row_of: RowOf
    file: np.ndarray | None = None
    next_known: np.ndarray | None = None
    first_t: int | None = None

    @property
    def path(self) -> str:
        """Path of the file that contains the first row of this table."""
        return self.row_of(0)[0]


def piece_of(
    table: ForeignTable, columns: ForeignColumns, options: ReadOptions, info: DatasetInfo, *, has_bounds: bool = True
) -> Steps:
    """Converts a table that another program wrote to recorded steps, grouped by episode.

    Rewards and flags that the table does not have are no columns of the steps, but for truncated flags, which are
    False. Without next observations, next rows have them, and the last row of a piece that did not terminate becomes
    its final row; with `ReadOptions.ignore_final_observation` final rows are zeros.

    Args:
        table: The table that was read.
        columns: Meaning of its columns.
        options: Options for reading.
        info: Origin of the steps.
        has_bounds: Whether actions have to be inside of their bounds, unless how likely they were was recorded.

    Raises:
        BadDataError: Values, shapes or the order of rows are invalid.
    """
    table = _without_final_rows(table)
    values, path = table.values, table.path
    _check_one_agent(values, path)
    plain = _plain_columns(values, columns, path)
    flags = _flags(values, columns, path, len(tree_leaves(plain[Columns.ACTIONS])[0]))
    next_obs = _next_observations(table, plain[Columns.OBS], flags, columns)
    if not _SEPARATING & values.keys():
        _say_one_episode(columns)
    rows, index = without_resets(*_in_order(table, {**plain, **flags}, next_obs, columns), table.row_of)
    _check_continuity(rows, index, table, columns)
    steps, source = joined(rows, zero_final=options.ignore_final_observation)
    if rows.num_rows > 1 and not steps.num_steps:
        raise BadDataError(
            f"None of the {rows.num_rows:,} rows has a next observation, and none is followed by the next step of its "
            "episode. Write next observations (column new_obs), or set offline_data(ignore_final_observation=True).",
            path=path,
        )
    # Without a flag it is not known how episodes ended: what learns from that says so.
    unknown = {Columns.TERMINATEDS} - ({c for c in (Columns.TERMINATEDS, DONES) if c in values} and flags.keys())
    kept = {name: own for name, own in steps.columns.items() if name not in unknown}
    steps = Steps(kept, steps.is_final, steps.episode, steps.t, steps.episode_ids)
    steps = steps.map_columns(lambda name, own: tree_map(lambda x: narrowed(x, name), own))
    index = index[source]
    spaces = options.spaces_of(info, has_bounds=has_bounds and not columns.has_probabilities)
    return checked(steps, spaces, lambda row: table.row_of(int(index[row]) if len(index) else 0), check=options.check)


def bytes_per_row(values: Mapping[str, Any], columns: Sequence[str]) -> float:
    """Estimates the total bytes that the given columns will need in memory for all rows in `values`, ``{column: pytree
    of arrays}``, including extra rows for final observations.

    Args:
        values: As in `ForeignTable`, of some rows.
        columns: Names of the columns.
    """
    num_bytes = sum(narrowed(x, name).nbytes for name in columns if name in values for x in tree_leaves(values[name]))
    flags = [np.mean(values[c]) for c in (Columns.TERMINATEDS, Columns.TRUNCATEDS, DONES) if c in values]
    return num_bytes * (1.0 + min(1.0, max(flags, default=0.0)))


def narrowed(array: np.ndarray, name: str) -> np.ndarray:
    """Converts an array to JAX's 32-bit dtypes: float64 to float32, int64 to int32 if the values fit; rewards to
    float32.
    """
    kind = array.dtype
    if name == Columns.REWARDS or kind == np.float64:
        with np.errstate(over="ignore"):  # what becomes infinite is found and named
            return array.astype(np.float32, copy=False)
    if kind in (np.int64, np.uint64, np.uint32):
        limits = np.iinfo(np.int32)
        fits = not array.size or (array.min() >= limits.min and array.max() <= limits.max)
        return array.astype(np.int32) if fits else array
    return array


# ---------------------------------------------------------------------------------------------------------- columns


def _without_final_rows(table: ForeignTable) -> ForeignTable:
    """Removes rows of a table that contain only the final observation of an episode; instead adds a column with the
    next observation of each step.

    Raises:
        BadDataError: Such a row is missing.
    """
    values = table.values
    if IS_FINAL not in values or not {Columns.EPS_ID, Columns.T} <= values.keys() or Columns.NEXT_OBS in values:
        return table
    is_final, t = np.asarray(values[IS_FINAL]).astype(bool), np.asarray(values[Columns.T])
    if not is_final.any():
        return table
    ids = np.asarray(as_texts(values[Columns.EPS_ID]).to_pylist(), object)
    follows = np.append((ids[1:] == ids[:-1]) & (t[1:] == t[:-1] + 1), False)
    odd = ~is_final & ~follows
    if odd.any():
        path, row = table.row_of(int(np.argmax(odd)))
        raise BadDataError(
            "The row after this step is missing. In a table with a column is_final, as this package writes it, each "
            "step must be followed by the next step of its episode, or by an extra row with is_final=True and the "
            "final observation. Write all rows of the table, including rows with is_final=True, in their order.",
            path=path,
            row=row,
        )
    steps = np.flatnonzero(~is_final)
    kept = {name: _rows(column, steps) for name, column in values.items() if name != IS_FINAL}
    kept[Columns.NEXT_OBS] = _rows(values[Columns.OBS], steps + 1)
    file = None if table.file is None else table.file[steps]
    return ForeignTable(kept, lambda row: table.row_of(int(steps[row]) if len(steps) else 0), file, None, table.first_t)


def _rows(column: Any, rows: np.ndarray) -> Any:
    return column.take(pa.array(rows)) if isinstance(column, pa.ChunkedArray) else take(column, rows)


def _check_one_agent(values: Mapping[str, Any], path: str) -> None:
    for column in AGENTS:
        labels = values.get(column)
        if labels is not None and len(labels.unique().drop_null()) > 1:
            raise BadDataError(SEVERAL_AGENTS, path=path)


def _plain_columns(values: Mapping[str, Any], columns: ForeignColumns, path: str) -> dict[str, Any]:
    """Checks that the columns with observations, actions, rewards and module outputs have one entry per step. Returns
    these columns, ``{column: pytree of [N, ...]}``.
    """
    plain = {name: values[name] for name in (Columns.OBS, Columns.ACTIONS)}
    rows = len(tree_leaves(plain[Columns.ACTIONS])[0])
    if Columns.REWARDS in values:
        plain[Columns.REWARDS] = _vector(values, Columns.REWARDS, columns, path)
    plain |= {name: values[name] for name in columns.outputs if name in values}
    for name, column in plain.items():
        odd = [np.shape(leaf)[:1] for leaf in tree_leaves(column) if np.shape(leaf)[:1] != (rows,)]
        if odd:
            called, number = columns.called(name), math.prod(odd[0])
            has_last = name == Columns.OBS and number == rows + 1
            remedy = (
                f"x[:-1] as {called}, and x[1:] as new_obs, where x is this column" if has_last else f"{rows:,} entries"
            )
            raise BadDataError(
                f"The column {called} has {number:,} entries, but the data has {rows:,} steps: write {remedy}.",
                path=path,
            )
    return plain


_SEPARATING = {Columns.EPS_ID, Columns.T, Columns.TERMINATEDS, Columns.TRUNCATEDS, DONES, ENV, Columns.NEXT_OBS}
"""Columns that say where an episode ends."""
_STARTS = ("episode_starts", "episode_start", "is_first")
"""Flags of first steps, as other libraries write them."""


def _say_one_episode(columns: ForeignColumns) -> None:
    starts = next((name for name in columns.extras if name in _STARTS), None)
    remedy = "Write eps_id" if starts is None else f"Write table['eps_id'] = table[{starts!r}].cumsum()"
    notice_once(
        "The data has no column that says where episodes end (eps_id, t, terminateds or new_obs), so each file is "
        f"read as one episode. {remedy}, if there are several."
    )


def _vector(values: Mapping[str, Any], column: str, columns: ForeignColumns, path: str) -> np.ndarray:
    """Converts a column with one number per step, such as rewards, to an array ``[N]``.

    Raises BadDataError if the column has another shape than ``[N]`` or ``[N, 1]``, or contains no numbers.
    """
    array = np.asarray(values[column])
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim == 2:
        raise BadDataError(f"The column {columns.called(column)} has the shape {array.shape}. {_TIME_MAJOR}", path=path)
    if array.ndim != 1 or array.dtype.kind not in "biuf":
        raise BadDataError(
            f"The column {columns.called(column)} has values of dtype {array.dtype} and shape {array.shape[1:]}: "
            "write one number for each step.",
            path=path,
        )
    return array


def _flags(values: Mapping[str, Any], columns: ForeignColumns, path: str, rows: int) -> dict[str, np.ndarray]:
    """Returns the columns TERMINATEDS and TRUNCATEDS. A column that the table lacks is computed from DONES if possible;
    otherwise, it is False in all rows.
    """
    found = {
        c: _flag(values, c, columns, path) for c in (Columns.TERMINATEDS, Columns.TRUNCATEDS, DONES) if c in values
    }
    for name, flag in found.items():
        if len(flag) != rows:
            raise BadDataError(
                f"The column {columns.called(name)} has {len(flag):,} entries for {rows:,} steps. Write one entry "
                "for each step.",
                path=path,
            )
    truncated = found.get(Columns.TRUNCATEDS, np.zeros(rows, bool))
    terminated = found.get(Columns.TERMINATEDS)
    if terminated is not None and DONES in found and Columns.TRUNCATEDS not in found:
        truncated = found[DONES] & ~terminated
    if terminated is None and DONES in found:
        done = columns.called(DONES)
        if Columns.TRUNCATEDS in found:
            # Libraries that write both count truncated episodes as done, too.
            terminated = found[DONES] & ~truncated
        else:
            terminated = found[DONES]
            notice_once(
                f"{path} and files like it have {done!r} and no {Columns.TERMINATEDS!r}: it is read as "
                f"{Columns.TERMINATEDS!r}. So nothing is bootstrapped after a time limit."
            )
    return {
        Columns.TERMINATEDS: np.zeros(rows, bool) if terminated is None else terminated,
        Columns.TRUNCATEDS: truncated,
    }


def _flag(values: Mapping[str, Any], name: str, columns: ForeignColumns, path: str) -> np.ndarray:
    array = _vector(values, name, columns, path)
    if not np.isin(array, (0, 1)).all():
        odd = array[~np.isin(array, (0, 1))][0]
        raise BadDataError(
            f"The column {columns.called(name)} has the value {odd}, which is no flag: write True or False, or 1 or 0, "
            "for each step.",
            path=path,
        )
    return array.astype(bool)


def _next_observations(table: ForeignTable, obs: Any, flags: Mapping[str, np.ndarray], columns: ForeignColumns) -> Any:
    """Returns the next observation of each step; None if the table has no next observations.

    A terminal step without a next observation gets the step's observation, because observations after terminal steps
    are never used in computations.
    """
    next_obs = table.values.get(Columns.NEXT_OBS)
    if next_obs is None:
        return None
    called = columns.called(Columns.NEXT_OBS)
    forms = [[(leaf.shape, leaf.dtype.kind) for leaf in tree_leaves(own)] for own in (obs, next_obs)]
    if forms[0] != forms[1]:
        shapes = [[f"{dtype}{list(shape[1:])}" for shape, dtype in form] for form in forms]
        raise BadDataError(
            f"{called} has the shapes {shapes[1]}, but {columns.called(Columns.OBS)} has {shapes[0]}. Write both with "
            f"equal shapes, or do not read {called}: offline_data(input_read_schema={{'new_obs': ''}}).",
            path=table.path,
        )
    if table.next_known is None:
        return next_obs
    odd = ~table.next_known & ~flags[Columns.TERMINATEDS]
    if odd.any():
        path, row = table.row_of(int(np.argmax(odd)))
        raise BadDataError(
            f"The step does not terminate, but has no {called}, which bootstrapping needs. Add it. Or, if rows are "
            "consecutive steps, set offline_data(input_read_schema={'new_obs': ''}) to read the next observation from "
            "the following row.",
            path=path,
            row=row,
        )
    unknown = ~table.next_known
    return tree_map(lambda after, own: _filled(after, own, unknown), next_obs, obs)


def _filled(array: np.ndarray, other: np.ndarray, where: np.ndarray) -> np.ndarray:
    found = array.copy()
    found[where] = other[where]
    return found


# ------------------------------------------------------------------------------------------------------------ order


def _in_order(
    table: ForeignTable, plain: Mapping[str, Any], next_obs: Any, columns: ForeignColumns
) -> tuple[Rows, np.ndarray]:
    """Sorts a table's steps by episode.

    Returns the sorted steps, and the index that each sorted step has in the table, int ``[N]``. Without episode ids,
    the steps keep their order.
    """
    number = len(plain[Columns.TERMINATEDS])
    t = _step_numbers(table, columns, number)
    ids, name_of = _episode_ids(table, columns)
    if ids is None:
        return Rows(plain, next_obs, None, name_of, _from_zero(t, None, table)), np.arange(number)
    ended = plain[Columns.TERMINATEDS] | plain[Columns.TRUNCATEDS]
    file = np.zeros(number, np.int64) if table.file is None else table.file
    obs = plain[Columns.OBS]
    continues = None if next_obs is None else lambda before, after: is_next(next_obs, obs, before, after)
    try:
        order, episode = order_of(ids, t, ended, file, continues)
    except JumbledRows as error:
        path, row = table.row_of(error.row)
        raise BadDataError(
            f"Several episodes have the {columns.called(Columns.EPS_ID)} {name_of(error.row)!r}, and their rows are "
            f"unsorted: this row (t={int(t[error.row])}) neither continues the previous row with this id nor begins an "  # pyright: ignore[reportOptionalSubscript]
            "episode. Give each episode a unique id.",
            path=path,
            row=row,
        ) from error
    if order is None:
        t = _from_zero(t, Rows(plain, None, episode, name_of).same_episode, table)
        return Rows(plain, next_obs, episode, name_of, t), np.arange(number)
    sorted_plain = {name: take(column, order) for name, column in plain.items()}
    sorted_next = None if next_obs is None else take(next_obs, order)
    same = Rows(sorted_plain, None, episode, name_of).same_episode
    t = None if t is None else _from_zero(t[order], same, table, in_file=t)
    return Rows(sorted_plain, sorted_next, episode, lambda row: name_of(int(order[row])), t), order


def _step_numbers(table: ForeignTable, columns: ForeignColumns, number: int) -> np.ndarray | None:
    if Columns.T not in table.values:
        return None
    t, path = _vector(table.values, Columns.T, columns, table.path), table.path
    called = columns.called(Columns.T)
    unread = "or, if rows are sorted by time, ignore the column: offline_data(input_read_schema={'t': ''})"
    if len(t) != number:
        raise BadDataError(
            f"The column {called} has {len(t):,} entries for {number:,} steps. Write one entry for each step.",
            path=path,
        )
    whole = t.astype(np.int64)
    if t.dtype.kind == "f" and (whole != t).any():
        row = int(np.argmax(whole != t))
        path, own = table.row_of(row)
        raise BadDataError(
            f"The column {called} counts steps, but has the value {t[row]}. Write whole numbers, {unread}.",
            path=path,
            row=own,
        )
    return whole


def _from_zero(
    t: np.ndarray | None, same: np.ndarray | None, table: ForeignTable, *, in_file: np.ndarray | None = None
) -> np.ndarray | None:
    """Shifts step numbers so that each episode counts from 0.

    Subtracts 1 if the lowest number in the data is 1. If the numbers continue from one episode to the next, subtracts
    the first number of each episode.

    Args:
        t: Values of t as they were read, in the order of episodes.
        same: Rows before a row of their episode; None if episodes are not known.
        table: Table of these values.
        in_file: The same in the order of the file.
    """
    if t is None or not len(t):
        return t
    lowest = int(t.min()) if table.first_t is None else table.first_t
    t = t - 1 if lowest == 1 else t
    if same is not None:
        first = np.flatnonzero(np.append([True], ~same))
        runs_on = (np.diff(t if in_file is None else in_file) >= 0).all()
        if runs_on and len(first) > 1 and 2 * np.count_nonzero(t[first] == t.min()) <= len(first):
            notice_once(
                f"{table.path}: t counts the steps of all episodes together; it is read as the steps of each episode."
            )
            t = t - np.repeat(t[first], np.diff(np.append(first, len(t))))
    if t.max() >= np.iinfo(np.int32).max or t.min() < 0:
        raise BadDataError(
            f"The column t has values from {t.min():,} to {t.max():,}, but must be in [0, 2**31 - 2]. Count the steps "
            "of each episode from 0, or, if rows are sorted by time, ignore the column: "
            "offline_data(input_read_schema={'t': ''}).",
            path=table.path,
        )
    return t


def _episode_ids(table: ForeignTable, columns: ForeignColumns) -> tuple[np.ndarray | None, Callable[[int], str]]:
    """Returns the episode index of each row, and a function ``row -> id``; equal ids in different environments are
    different episodes.
    """
    found = [column for column in (Columns.EPS_ID, ENV) if column in table.values]
    if not found:
        return None, lambda row: "{}:{}".format(*table.row_of(row))
    codes, names = [], pa.array([], pa.string())
    for column in reversed(found):
        code, names = _encoded(table.values[column], columns.called(column), table.row_of)
        codes.append(code)
    own = codes[-1]
    if len(codes) == 1 or not codes[0].any():
        return own, lambda row: names[int(own[row])].as_py()
    both = own.astype(np.int64) * (int(codes[0].max()) + 1) + codes[0]
    # Numbers in the order in which ids appear.
    _, first, inverse = np.unique(both, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse], lambda row: names[int(own[row])].as_py()


def _encoded(labels: pa.ChunkedArray, name: str, row_of: RowOf) -> tuple[np.ndarray, pa.Array]:
    """Encodes labels of steps, such as episode ids, as ``(index of each row's label, distinct labels)``, in order of
    appearance.
    """
    if labels.null_count:
        path, row = row_of(int(np.flatnonzero(np.asarray(labels.is_null()))[0]))
        raise BadDataError(
            f"The row has no value in the column {name}: write a value for each step.", path=path, row=row
        )
    whole = pa.chunked_array(as_texts(labels).chunks, pa.string()).combine_chunks()
    encoded: Any = whole.dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    return np.asarray(encoded.indices), encoded.dictionary


def as_texts(labels: pa.ChunkedArray) -> pa.ChunkedArray:
    """Converts labels of steps, such as episode ids, to text.

    Numbers get Arrow's text form (NaN becomes null), bytes the hexadecimal form, and categories the text of their
    values.
    """
    kind = labels.type
    if isinstance(kind, pa.BaseExtensionType):
        labels = pa.chunked_array([chunk.storage for chunk in labels.chunks], kind.storage_type)
        kind = labels.type
    if pa.types.is_dictionary(kind):
        return as_texts(labels.cast(kind.value_type))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        texts = [None if value is None else value.hex() for value in labels.to_pylist()]
        return pa.chunked_array([pa.array(texts, pa.string())])
    texts = labels.cast(pa.string())
    if not pa.types.is_floating(kind):
        return texts
    # Where numbers are missing, pandas has NaN.
    known = [chunk.to_numpy(zero_copy_only=False) for chunk in labels.chunks]
    return pa.chunked_array(
        [pa.array(own.to_pylist(), pa.string(), mask=np.isnan(x)) for own, x in zip(texts.chunks, known, strict=True)],
        pa.string(),
    )


# -------------------------------------------------------------------------------------------------------- continuity


def _check_continuity(rows: Rows, index: np.ndarray, table: ForeignTable, columns: ForeignColumns) -> None:
    """Raises a BadDataError if most rows do not fit the next row of their episode.

    A row does not fit if the next row's step number is not greater by exactly 1, or if the next row's observation
    differs from the recorded next observation. If the table has next observations but no episode ids, only logs a
    notice.
    """
    same = rows.same_episode
    number = int(np.count_nonzero(same))
    gaps = same & ~rows.counts_on
    if number > 1 and 2 * np.count_nonzero(gaps) > number and (rows.episode is not None or rows.next_obs is None):
        raise _gaps_in_t(rows, gaps, index, table, columns, number)
    other = same & rows.counts_on & ~rows.observed_next
    broken = int(np.count_nonzero(gaps | other))
    if number < 2 or 2 * broken <= number:
        return
    called, obs = columns.called(Columns.NEXT_OBS), columns.called(Columns.OBS)
    if rows.episode is None:
        notice_once(
            f"{table.path}: {called} of {broken:,} of {number:,} rows is not {obs} of the next row, so rows are read "
            "as single steps: sequences, returns and lengths of episodes are unknown. Add columns eps_id and t to "
            "define episodes."
        )
        return
    at = int(np.argmax(other))
    path, row = table.row_of(int(index[at]))
    next_row = table.row_of(int(index[at + 1]))[1]
    remedy = "sort the rows, and write a column t" if rows.t is None else f"write {called} again"
    raise BadDataError(
        f"{called} of this row differs from {obs} of row {next_row:,}, the next row of the episode. In {broken:,} "
        f"of {number:,} rows, the step number or {called} does not fit the next row. To read episodes, {remedy}. To "
        "train on single steps instead, ignore the episode ids: offline_data(input_read_schema={'eps_id': ''}).",
        path=path,
        row=row,
    )


def _gaps_in_t(
    rows: Rows, gaps: np.ndarray, index: np.ndarray, table: ForeignTable, columns: ForeignColumns, number: int
) -> BadDataError:
    at = int(np.argmax(gaps))
    path, row = table.row_of(int(index[at]))
    t = rows.t
    assert t is not None
    if rows.episode is None:
        remedy = (
            "If rows of several episodes alternate, add a column eps_id; if rows are sorted and t is no step number, "
            "ignore t: offline_data(input_read_schema={'t': ''})."
        )
    else:
        remedy = (
            "Sort the table by eps_id and t, and write every step; if t is no step number, ignore t: "
            "offline_data(input_read_schema={'t': ''})."
        )
    return BadDataError(
        f"After {columns.called(Columns.T)}={int(t[at])} comes {int(t[at + 1])}, with gaps like this in "
        f"{int(np.count_nonzero(gaps)):,} of {number:,} rows: most steps have no next step. {remedy}",
        path=path,
        row=row,
    )
