"""Checks of recorded steps: all numbers are finite, and actions and observations fit their spaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.datasets.recorded_keys import key_problem, without_extra_keys
from jaxrl_stack.datasets.rows import any_in_row
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.utils.action_masks import ACTION_MASK
from jaxrl_stack.utils.integers import choices_of, limits_of, outside_of
from jaxrl_stack.utils.named_leaves import named_leaves
from jaxrl_stack.utils.nested import tree_leaves
from jaxrl_stack.utils.spaces import dtype_of, map_parts, validate_batch

RowOf = Callable[[int], tuple[str, int]]
"""File and row in it, of a row of `Steps`."""
MARGIN = 1e-3
"""Largest distance of an action from its bounds that counts as rounding."""


class ModuleInputs(Protocol):
    """Interface of objects that convert environment observations to module inputs.

    Attributes:
        space: Space of the module's observations.
        env_space: Space of the environment's.
    """

    @property
    def space(self) -> gym.Space: ...
    @property
    def env_space(self) -> gym.Space: ...
    def convert(self, observations: Any) -> Any:
        """Converts a batch of environment observations (leaves ``[N, ...]``) to module observations."""
        ...


class RecordedSpaces(NamedTuple):
    """Spaces of observations and actions that recorded steps must fit.

    Attributes:
        observation: Space of recorded observations; None if it is not known.
        inputs: How the environment's observations become a module's; recorded ones may be either. None: they stay as
            they are.
        action: Space of actions; None if it is not known.
        is_scaled: Whether actions of bounded Boxes are in [-1, 1], as modules put them out.
        has_bounds: Whether actions have to be inside of these. Samples of a Gaussian, which are clipped when they act,
            do not.
    """

    observation: gym.Space | None = None
    inputs: ModuleInputs | None = None
    action: gym.Space | None = None
    is_scaled: bool = True
    has_bounds: bool = False


def checked(steps: Steps, spaces: RecordedSpaces, row_of: RowOf, *, check: bool = True) -> Steps:
    """Checks that recorded steps fit the given spaces, and converts arrays to the dtypes of the spaces.

    If the steps contain environment observations and `spaces.inputs` is set, also converts these observations to module
    inputs.

    Args:
        steps: Steps as they were read.
        spaces: Spaces of the steps.
        row_of: File and row in it, of a row of the steps.
        check: False: they stay as they are.

    Raises:
        BadDataError: A number is not finite, an action is outside of its space or masked, or shapes and dtypes do not
            fit.
    """
    if not check:
        return steps
    columns = dict(steps.columns)
    file_rows = FileRows(row_of, ~steps.is_final)
    obs, is_env = _observations(columns[Columns.OBS], spaces, file_rows) if Columns.OBS in columns else (None, False)
    if obs is not None:
        columns[Columns.OBS] = obs
    if spaces.action is not None and Columns.ACTIONS in columns:
        columns[Columns.ACTIONS] = _of_space(columns[Columns.ACTIONS], spaces.action, Columns.ACTIONS, file_rows)
    for name in (Columns.OBS, Columns.ACTIONS, Columns.REWARDS):
        if name in columns:
            _check_finite(columns[name], name, file_rows)
    if is_env:
        assert spaces.inputs is not None
        columns[Columns.OBS] = spaces.inputs.convert(obs)
    if spaces.action is not None and Columns.ACTIONS in columns:
        _check_actions(columns[Columns.ACTIONS], spaces, file_rows)
        _check_mask(columns.get(Columns.OBS), columns[Columns.ACTIONS], spaces.action, file_rows)
    return Steps(columns, steps.is_final, steps.episode, steps.t, steps.episode_ids)


class FileRows:
    """Builds error messages about recorded values, with the file and the row number.

    Args:
        row_of: See `checked`.
        is_step: bool ``[N]``, rows that are steps.
    """

    def __init__(self, row_of: RowOf, is_step: np.ndarray):
        self.row_of, self.is_step = row_of, is_step

    @property
    def path(self) -> str:
        return self.row_of(0)[0]

    def error(self, what: str, odd: np.ndarray) -> BadDataError:
        """Creates a BadDataError with the message `what`, and the file and row number of the first invalid row.

        The mask `odd`, bool ``[N]``, is True for invalid rows.
        """
        path, row = self.row_of(int(np.argmax(odd)))
        return BadDataError(what, path=path, row=row)


def first_not_finite(array: np.ndarray) -> int | None:
    """Returns the index of the first row of ``[N, ...]`` with a NaN or infinity; None if all are finite."""
    if array.dtype.kind != "f" or not array.size:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(array.sum()):  # several times as fast as looking at each; a sum may overflow
            return None
    odd = any_in_row(~np.isfinite(array))
    return int(np.argmax(odd)) if odd.any() else None


def _check_finite(column: Any, name: str, file_rows: FileRows) -> None:
    for leaf, array in named_leaves(column).items():
        row = first_not_finite(array)
        if row is not None:
            path, number = file_rows.row_of(row)
            raise BadDataError(_not_finite(f"{name}/{leaf}".rstrip("/")), path=path, row=number)


def _not_finite(name: str) -> str:
    return f"The column {name} has numbers that are not finite. Remove the episode from the data, or record it again."


# ---------------------------------------------------------------------------------------------------------- spaces


def _observations(column: Any, spaces: RecordedSpaces, file_rows: FileRows) -> tuple[Any, bool]:
    """Converts recorded observations to the dtypes of their space. Also returns whether the caller must convert them to
    module inputs, because they are environment observations.
    """
    if spaces.inputs is None:
        if spaces.observation is None:
            return column, False
        return _of_env(column, spaces.observation, file_rows), False
    try:
        return in_form(column, spaces.inputs.space, Columns.OBS, file_rows), False
    except (BadDataError, ValueError):
        space = spaces.inputs.env_space if spaces.observation is None else spaces.observation
    try:
        return _of_env(column, space, file_rows), True
    except BadDataError as error:
        taken = without_extra_keys(column, spaces.inputs.space)
        if taken is not column:
            return in_form_or_refused(taken, spaces.inputs.space, Columns.OBS, file_rows), False
        problem = key_problem(column, spaces.inputs.space) if isinstance(column, Mapping) else None
        if problem is not None and isinstance(spaces.inputs.space, gym.spaces.Dict):
            raise BadDataError(problem, path=file_rows.path) from error
        raise


def _of_env(column: Any, space: gym.Space, file_rows: FileRows) -> Any:
    return _of_space(column, space, Columns.OBS, file_rows, counts_from_start=True)


def _of_space(column: Any, space: gym.Space, name: str, file_rows: FileRows, *, counts_from_start: bool = False) -> Any:
    found = in_form_or_refused(column, space, name, file_rows)
    if counts_from_start:
        _check_choices(found, space, name, file_rows, from_start=True)
    return found


def in_form_or_refused(column: Any, space: gym.Space, name: str, file_rows: FileRows) -> Any:
    """Converts a column to the shapes and dtypes of a space, or raises an error that names the setting to change.

    The column contains recorded observations or actions. The setting is `observation_space` or `action_space`.

    Raises:
        BadDataError: It has another form.
    """
    try:
        return in_form(column, space, name, file_rows, reshapes=True)
    except ValueError as error:
        if isinstance(error, BadDataError):
            raise
        raise BadDataError(
            f"{error} Set {'observation_space' if name == Columns.OBS else 'action_space'} in config.environment() to "
            "the space of the data, or use data of the configured space.",
            path=file_rows.path,
        ) from error


def in_form(column: Any, space: gym.Space, name: str, file_rows: FileRows, *, reshapes: bool = False) -> Any:
    """Converts a column of recorded observations or actions to the shapes and dtypes of a space.

    With `reshapes`, also accepts flat arrays and the raw bytes of arrays (uint8).

    Raises:
        ValueError: It has another form.
        BadDataError: A value does not fit the dtype.
    """
    named = _with_names(column, space)
    try:
        formed = map_parts(lambda part, array: _shaped(part, array, name, file_rows, reshapes=reshapes), space, named)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, BadDataError):
            raise
        formed = named
    validate_batch(space, formed, 1, name)
    return map_parts(lambda part, array: _converted(part, array, name, file_rows), space, formed)


def _with_names(column: Any, space: gym.Space) -> Any:
    """Converts recorded dicts with numbered keys (such as "0" and "1") to tuples where the space is a Tuple. Other
    recorded values do not change.
    """
    if isinstance(space, gym.spaces.Tuple) and isinstance(column, Mapping):
        keys = [key for key in column if key.isdigit()]
        if len(keys) == len(column) == len(space.spaces):
            first = min(map(int, keys))
            parts = [column.get(str(first + i)) for i in range(len(keys))]
            return tuple(_with_names(part, own) for part, own in zip(parts, space.spaces, strict=True))
    if isinstance(space, gym.spaces.Dict) and isinstance(column, Mapping) and column.keys() == space.spaces.keys():
        return {key: _with_names(column[key], own) for key, own in space.spaces.items()}
    return column


def _shaped(part: Any, array: Any, name: str, file_rows: FileRows, *, reshapes: bool) -> Any:
    """Converts recorded values to the shape of a space, and floats to integers if the space contains integers.

    One-element lists become scalars, or scalars become one-element lists. With `reshapes`, flat lists and raw bytes
    (uint8) also become arrays. Raises BadDataError for floats that are not whole numbers, if the space contains
    integers.
    """
    if not isinstance(array, np.ndarray) or not array.ndim or getattr(part, "shape", None) is None:
        return array
    size = int(np.prod(part.shape))
    of_rows = array.shape[1:]
    is_one = size == 1 and len(of_rows) <= 2 and set(of_rows) <= {1} and len(part.shape) <= 1
    is_flat = reshapes and (of_rows == (size,) or of_rows == (1, *part.shape)) and size > 0
    if of_rows != part.shape and (is_one or is_flat):
        array = array.reshape(len(array), *part.shape)
    width = np.dtype(part.dtype).itemsize
    if reshapes and array.dtype == np.uint8 and width > 1 and of_rows == (size * width,):
        array = np.ascontiguousarray(array).view(part.dtype).reshape(len(array), *part.shape)  # bytes of arrays
    if array.dtype.kind == "f" and np.dtype(part.dtype).kind in "iub" and array.shape[1:] == part.shape:
        odd = any_in_row((array != np.floor(array)) & np.isfinite(array))
        if odd.any():
            raise file_rows.error(
                f"The column {name} has the value {_shown(array, odd)}, but {part} contains whole numbers only. Set "
                "the space of the data in config.environment(), or write whole numbers.",
                odd,
            )
        if not np.isfinite(array).all():
            raise file_rows.error(_not_finite(name), any_in_row(~np.isfinite(array)))
        return array.astype(np.int64)
    return array


def _converted(part: Any, array: Any, name: str, file_rows: FileRows) -> np.ndarray:
    # int32 for int64, as everywhere in JAX.
    array, dtype = np.asarray(array), np.dtype(dtype_of(part))
    if array.dtype.kind in "iu" and dtype.kind in "iu" and outside_of(dtype, array) is not None:
        first, last = limits_of(dtype)
        odd = any_in_row((array < first) | (array > last))
        wide = np.dtype(part.dtype).itemsize > 4
        remedy = (
            "Correct the value, or set a float32 Box as the space in config.environment()"
            if wide
            else "Set the space of the data in config.environment()"
        )
        raise file_rows.error(
            f"The column {name} has the value {_shown(array, odd)}, but values of the space {part} are read as "
            f"{dtype}, which holds values from {first} to {last}. {remedy}.",
            odd,
        )
    return array.astype(dtype, copy=False)


def _shown(array: np.ndarray, odd: np.ndarray) -> str:
    """Returns an array's first row for which `odd` is True (invalid value), as text of at most 60 characters."""
    text = repr(array[int(np.argmax(odd))].tolist())
    return text if len(text) <= 60 else f"{text[:59]}…"


# --------------------------------------------------------------------------------------------------------- actions


def _check_actions(column: Any, spaces: RecordedSpaces, file_rows: FileRows) -> None:
    """Checks recorded actions against the action space: discrete actions must be valid choices, counted from 0. If
    `spaces.has_bounds`, Box actions must be within the bounds.
    """
    assert spaces.action is not None
    _check_choices(column, spaces.action, Columns.ACTIONS, file_rows, from_start=False)
    if spaces.has_bounds:
        map_parts(lambda part, array: _check_bounds(part, array, spaces.is_scaled, file_rows), spaces.action, column)


def _check_choices(column: Any, space: gym.Space, name: str, file_rows: FileRows, *, from_start: bool) -> None:
    """Raises BadDataError for discrete values that are not among the choices of the space.

    Args:
        column: In the form of the space.
        space: Space of the column.
        name: Name of the column.
        file_rows: For errors.
        from_start: Whether choices count from the space's start, as those of environments do; else from 0.
    """

    def check(part: Any, array: np.ndarray) -> None:
        if isinstance(part, gym.spaces.Discrete | gym.spaces.MultiDiscrete | gym.spaces.MultiBinary):
            low, high = map(np.asarray, choices_of(part))
        elif isinstance(part, gym.spaces.Box) and np.dtype(part.dtype).kind in "iu" and not from_start:
            low, high = part.low.astype(np.int64), part.high.astype(np.int64)
        else:
            return
        if not from_start:
            low, high = np.zeros_like(low), high - low
        if not array.size or (array.min() >= low.max(initial=0) and array.max() <= high.min(initial=1 << 62)):
            return
        odd = any_in_row((array < low) | (array > high))
        if name == Columns.ACTIONS:
            odd &= file_rows.is_step
        if not odd.any():
            return
        if name == Columns.OBS:
            raise file_rows.error(
                f"The observation {_shown(array, odd)} is not in {part}. Set observation_space in config.environment() "
                "to the data's space, or remove the episode.",
                odd,
            )
        first = int(np.min(getattr(part, "start", 0)))
        raise file_rows.error(
            f"The action {_shown(array, odd)} is not in {part}; recorded actions must count from 0. "
            f"{f'Subtract {first} from all actions, or set' if first else 'Set'} action_space in config.environment() "
            "to the data's space, or remove the episode.",
            odd,
        )

    map_parts(check, space, column)


def _check_bounds(part: Any, array: np.ndarray, is_scaled: bool, file_rows: FileRows) -> None:
    if not isinstance(part, gym.spaces.Box) or np.dtype(part.dtype).kind != "f" or not array.size:
        return
    low, high = np.asarray(part.low, np.float64), np.asarray(part.high, np.float64)
    is_bounded = np.isfinite(low) & np.isfinite(high) & (low < high)
    scaled = is_scaled & is_bounded
    lower, upper = np.where(scaled, -1.0, low) - MARGIN, np.where(scaled, 1.0, high) + MARGIN
    odd = any_in_row((array < lower) | (array > upper)) & file_rows.is_step
    if not odd.any():
        return
    shown, steps = _shown(array, odd), array[file_rows.is_step]
    if scaled.any() and ((steps >= low - MARGIN) & (steps <= high + MARGIN)).all():
        raise file_rows.error(
            f"The action {shown} is outside of [-1, 1], the range of module outputs for {part}. If the data has "
            "environment actions, convert them: 2 * (actions - low) / (high - low) - 1, or set "
            "environment(normalize_actions=False).",
            odd,
        )
    where = "[-1, 1], the range of module outputs for " if scaled.any() else ""
    raise file_rows.error(
        f"The action {shown} is outside of {where}{part}. Set action_space in config.environment() to the space of "
        "the data, or clip the actions to these bounds.",
        odd,
    )


def _check_mask(obs: Any, actions: Any, space: gym.Space, file_rows: FileRows) -> None:
    """Raises BadDataError for recorded actions that the action mask in their observation forbids; their probability
    would be 0.
    """
    if not isinstance(obs, Mapping) or ACTION_MASK not in obs or not isinstance(actions, np.ndarray):
        return
    mask = np.asarray(tree_leaves(obs[ACTION_MASK])[0]) > 0
    if isinstance(space, gym.spaces.Discrete):
        chosen = actions[:, None]
    elif isinstance(space, gym.spaces.MultiDiscrete) and space.nvec.ndim == 1:
        chosen = actions + np.cumsum(space.nvec) - space.nvec
    else:
        return
    if mask.ndim != 2 or chosen.shape[0] != len(mask) or chosen.max(initial=0) >= mask.shape[1]:
        return
    # Where a mask allows nothing, all actions are equally likely.
    odd = ~np.take_along_axis(mask, chosen.astype(np.int64), axis=1).all(axis=1) & mask.any(axis=1) & file_rows.is_step
    if odd.any():
        number = int(np.count_nonzero(odd))
        raise file_rows.error(
            f"The action {_shown(actions, odd)} is forbidden by the {ACTION_MASK!r} of its observation. This occurs in "
            f"{number:,} of {int(np.count_nonzero(file_rows.is_step)):,} steps. Correct the mask, or remove these "
            "steps.",
            odd,
        )
