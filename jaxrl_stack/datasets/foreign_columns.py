"""Column names that other programs use in their tables of steps, and the corresponding column names of this package."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.utils.nested import tree_leaves
from jaxrl_stack.utils.spaces import map_parts

if TYPE_CHECKING:
    from jaxrl_stack.datasets.read_options import ReadOptions

logger = logging.getLogger(__name__)

DONES = "dones"
ENV = "env_id"
"""Number of the environment that a row comes from; rows of one episode have the same."""
IS_FINAL = "is_final"
"""Rows with the observation behind an episode's last step, in tables that were made of this package's files."""
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
OUTPUTS = (
    Columns.ACTION_LOGP,
    Columns.ACTION_PROB,
    Columns.ACTION_DIST_INPUTS,
    Columns.STATE_IN,
    Columns.VF_PREDS,
    Columns.VALUE_TARGETS,
    Columns.ADVANTAGES,
)
"""Outputs of a module that may have another name in files."""
ALIASES: Mapping[str, Sequence[str]] = {
    Columns.OBS: ("observations", "observation", "states", "state"),
    Columns.NEXT_OBS: ("next_observations", "next_observation", "next_obs", "next_states", "next_state"),
    Columns.ACTIONS: ("action",),
    Columns.REWARDS: ("reward",),
    Columns.TERMINATEDS: ("terminals", "terminal", "terminations", "termination", "terminated"),
    Columns.TRUNCATEDS: ("timeouts", "timeout", "truncations", "truncation", "truncated"),
    DONES: ("done", "episode_terminals"),
    Columns.EPS_ID: ("episode_id", "episode_ids", "episode", "episode_index", "ep_id", "traj_id", "trajectory_id"),
    Columns.T: ("timestep", "time_step"),
    ENV: ("env_index", "env_idx", "env"),
}
"""Names that other libraries give columns; one of them is read where the column's own name is missing."""
_UNREAD = (Columns.INFOS, Columns.MODULE_ID, "unroll_id")
PROBABILITIES = (Columns.ACTION_LOGP, Columns.ACTION_PROB, Columns.ACTION_DIST_INPUTS)
"""Columns that say how likely actions were."""
_OF_PARTS = (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS)
"""Columns that may be spread over several columns of a file: ``obs_0``, ``obs_1``, or ``obs/position``."""


@dataclasses.dataclass(frozen=True)
class ForeignColumns:
    """Mapping from this package's columns to the column names of a file from another program.

    Attributes:
        names: ``{column: its name in the file}``; of a column that is spread over several a dict of names, or a list.
        extras: Outputs of a module, by their names in the file.
        needed: Columns that must be readable.
        packed: Names in the file whose texts are packed arrays.
        has_probabilities: Whether the file says how likely actions were: they are samples of a module then.
    """

    names: Mapping[str, Any]
    extras: Sequence[str]
    needed: frozenset[str]
    packed: frozenset[str]
    has_probabilities: bool

    @classmethod
    def of(cls, there: Sequence[str], options: ReadOptions, path: str) -> ForeignColumns:
        """Creates the mapping from this package's columns to the names of the columns in a file.

        Args:
            there: Names in the file.
            options: Options for reading.
            path: The file.

        Raises:
            BadDataError: A required column is missing.
            ValueError: `ReadOptions.schema` names a column that does not exist.
        """
        unknown = [name for name in options.schema if name not in (*SCHEMA, *OUTPUTS)]
        if unknown:
            known = [*SCHEMA, *OUTPUTS]
            raise ValueError(f"input_read_schema names the unknown columns {unknown}. Valid are {known}.")
        names = {column: name for column, name in options.schema.items() if column in OUTPUTS and name in there}
        for column in (*SCHEMA, ENV, IS_FINAL):
            if column == Columns.NEXT_OBS and options.ignore_final_observation:
                continue
            found = _name_of(column, there, options.schema, path)
            if found is not None:
                names[column] = found
        _check_needed(names, options.schema, there, path)
        used = {leaf for name in names.values() for leaf in tree_leaves(name)}
        known = {*used, *SCHEMA, *options.schema.values(), "type"}
        extras = [name for name in there if name not in known]
        if options.columns is not None:
            missing = [c for c in options.columns if c not in extras and c not in names]
            if missing:
                raise BadDataError(
                    f"The columns {missing} are missing; the file has the columns {list(there)}. Add the missing "
                    "columns, or set input_ to data that contains them.",
                    path=path,
                )
            extras = [name for name in extras if name in options.columns]
        packed = set(options.compress_columns)
        for column, name in names.items():
            own = set(tree_leaves(name))
            follows = column == Columns.NEXT_OBS and Columns.OBS in options.compress_columns
            if follows or column in options.compress_columns or own & packed:
                packed |= own
        read = [c for c in names if c not in (*_UNREAD, *AGENTS)]
        needed = frozenset([*read, *(options.columns or ())])
        likely = any(name in there or name in names for name in PROBABILITIES)
        return cls(names, extras, needed, frozenset(packed), likely)

    def called(self, column: str) -> str:
        """Returns a column's name in the file, for messages."""
        name = self.names.get(column, column)
        return name if isinstance(name, str) else tree_leaves(name)[0]

    @property
    def outputs(self) -> list[str]:
        """This package's names of the columns in the file that contain module outputs, such as log-probabilities.

        Module outputs for which this package has no name keep their names in the file.
        """
        return [*self.extras, *(column for column in OUTPUTS if column in self.names)]

    @property
    def labels(self) -> tuple[str, ...]:
        """This package's names of the columns in the file that identify episode, environment and agent of a step."""
        return tuple(column for column in (Columns.EPS_ID, ENV, *AGENTS) if column in self.names)

    @property
    def wanted(self) -> dict[str, Any]:
        """Columns to read from the file, including module outputs: ``{this package's name: name in the file}``.

        If the parts of a column are in several file columns, the value is a list or dict of their names. A module
        output for which this package has no name keeps its name in the file as key.
        """
        read = {column: name for column, name in self.names.items() if column not in _UNREAD}
        return read | {name: name for name in self.extras}

    @property
    def to_read(self) -> list[str]:
        """Names of all file columns to read."""
        return list(dict.fromkeys(leaf for name in self.wanted.values() for leaf in tree_leaves(name)))

    def column_of(self, name: str) -> str:
        """Returns this package's name of the column that is stored, completely or in part, in the file column `name`.

        An example of a part is one key of a Dict observation. If this package has no name for the column, returns
        `name`.
        """
        return next((column for column, own in self.names.items() if name in tree_leaves(own)), name)

    def assembled(self, values: Mapping[str, Any], path: str) -> dict[str, Any]:
        """Builds ``{column: pytree of [N, ...]}`` from `values`, the file's arrays by their names in the file.

        The keys of the result are this package's column names; module outputs for which this package has no name keep
        their names. Leaves out columns of which an array is missing (None).
        """
        out = {}
        for column, name in self.wanted.items():
            if any(values.get(leaf) is None for leaf in tree_leaves(name)):
                continue
            out[column] = _assembled(name, values, path)
        return out

    def max_bytes(self, name: str, options: ReadOptions) -> int | None:
        """Returns the maximum bytes of one packed value (an array encoded as text) in a column; None if the column's
        space is unknown.
        """
        column = self.column_of(name)
        is_obs = column in (Columns.OBS, Columns.NEXT_OBS)
        space = options.observation_space if is_obs else options.action_space if column == Columns.ACTIONS else None
        if space is None:
            return None
        numbers = sum(int(np.prod(leaf.shape or ())) for leaf in tree_leaves(map_parts(lambda part: part, space)))
        return 8 * numbers + 4096


def _name_of(column: str, there: Sequence[str], schema: Mapping[str, str], path: str) -> Any:
    """Finds the name that a column of this package has in the file, or returns None.

    If `schema` (setting `input_read_schema`) contains the column, looks only for the name in `schema`. Else looks for
    this package's own name, then for other libraries' names (`ALIASES`). Returns None if the file has none of these
    names, or several of the other libraries' names.
    """
    names = set(there)
    if column in schema:
        return _spread(schema[column], there, column, path)
    if (own := _spread(column, there, column, path)) is not None:
        return own
    found = [alias for alias in ALIASES.get(column, ()) if _spread(alias, there, column, path) is not None]
    taken = [alias for alias in found if alias in schema.values()]
    found = [alias for alias in found if alias not in taken]
    if len(found) != 1:
        return None
    if found[0] in names:
        logger.info("%s: the column %r is read as %r.", path, found[0], column)
    return _spread(found[0], there, column, path)


def _spread(name: str, there: Sequence[str], column: str, path: str) -> Any:
    """Returns `name` if the file has this column, else the names of the file columns that contain the column's parts.

    Only observations and actions can have parts. Their names are a list of ``name_0``, ``name_1``, ..., or a dict of
    ``name/key``. Returns None if the file has no such columns.
    """
    if name in there:
        return name
    if column not in _OF_PARTS or not name:
        return None
    numbered: dict[int, str] = {}
    for own in there:
        match = re.fullmatch(re.escape(name) + r"(?:[_.](\d+)|\[(\d+)\])", own)
        if match:
            numbered[int(match[1] or match[2])] = own
    if numbered:
        # Numbers begin at 0 or 1.
        missing = next((n for n in range(min(1, *numbered), max(numbered)) if n not in numbered), None)
        if missing is not None:
            raise BadDataError(
                f"The columns {sorted(numbered.values())} are the numbered elements of {name}, but element "
                f"number {missing} is missing. Write a column for each element, or one column {name} of lists.",
                path=path,
            )
        return [numbered[number] for number in sorted(numbered)]
    tree: dict[str, Any] = {}
    for own in there:
        if own.startswith(f"{name}/"):
            *above, last = own.removeprefix(f"{name}/").split("/")
            node = tree
            for key in above:
                node = node.setdefault(key, {})
            node[last] = own
    return tree or None


def _assembled(name: Any, values: Mapping[str, Any], path: str) -> Any:
    if isinstance(name, str):
        return values[name]
    if isinstance(name, Mapping):
        return {key: _assembled(own, values, path) for key, own in name.items()}
    parts = [values[own] for own in name]
    if all(isinstance(part, np.ndarray) and part.ndim == 1 for part in parts):
        return np.stack(parts, axis=-1)
    return tuple(parts)


def _check_needed(names: Mapping[str, Any], schema: Mapping[str, str], there: Sequence[str], path: str) -> None:
    missing = [column for column in (Columns.OBS, Columns.ACTIONS) if column not in names]
    if missing:
        raise BadDataError(
            f"The columns {[schema.get(column, column) for column in missing]} are missing; the file has the columns "
            f"{sorted(there)}. Set the file columns to read instead: offline_data(input_read_schema={{{missing[0]!r}: "
            f"...}}), or join columns of single numbers in pandas: table[{missing[0]!r}] = table[['x', "
            "'y']].values.tolist().",
            path=path,
        )
