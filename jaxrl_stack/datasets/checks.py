"""Whether steps can be learned from: numbers are finite, actions and observations are of their spaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.utils.integers import outside_of
from jaxrl_stack.utils.named_leaves import named_leaves
from jaxrl_stack.utils.spaces import dtype_of, map_parts, validate_batch

if TYPE_CHECKING:
    import gymnasium as gym

RowOf = Callable[[int], tuple[str, int]]
"""File and row in it, of a row of `Steps`."""


def checked(steps: Steps, observation_space: gym.Space | None, action_space: gym.Space | None, row_of: RowOf) -> Steps:
    """The steps, observations and actions in the dtypes of their spaces.

    Raises:
        BadDataError: A number is not finite, an action is outside of its space, or shapes and dtypes do not fit.
    """
    columns = dict(steps.columns)
    spaces = {Columns.OBS: observation_space, Columns.ACTIONS: action_space}
    for name, space in spaces.items():
        if space is not None and name in columns:
            columns[name] = _of_space(columns[name], space, name, row_of)
    for name in (Columns.OBS, Columns.ACTIONS, Columns.REWARDS):
        if name in columns:
            _check_finite(columns[name], name, row_of)
    if action_space is not None and Columns.ACTIONS in columns:
        _check_choices(columns[Columns.ACTIONS], action_space, ~steps.is_final, row_of)
    return Steps(columns, steps.is_final, steps.episode, steps.t, steps.episode_ids)


def first_not_finite(array: np.ndarray) -> int | None:
    """The first row of ``[N, ...]`` with a number that is not finite; None if there is none."""
    if array.dtype.kind != "f" or not array.size:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(array.sum()):  # several times as fast as looking at each; a sum may overflow
            return None
    odd = ~np.isfinite(array).reshape(len(array), -1).all(axis=1)
    return int(np.argmax(odd)) if odd.any() else None


def _check_finite(column: Any, name: str, row_of: RowOf) -> None:
    for leaf, array in named_leaves(column).items():
        row = first_not_finite(array)
        if row is not None:
            path, number = row_of(row)
            raise BadDataError(
                f"The column {f'{name}/{leaf}'.rstrip('/')} has numbers that are not finite. Take the episode out of "
                "the data, or record it again.",
                path=path,
                row=number,
            )


def _of_space(column: Any, space: gym.Space, name: str, row_of: RowOf) -> Any:
    path, _ = row_of(0)
    try:
        validate_batch(space, _with_axes(space, column), 1, name)
    except ValueError as error:
        raise BadDataError(
            f"{error} Set {'observation_space' if name == Columns.OBS else 'action_space'} in config.environment() to "
            "that of the data, or name data of this space.",
            path=path,
        ) from error
    return map_parts(lambda part, array: _converted(part, array, name, row_of), space, _with_axes(space, column))


def _with_axes(space: gym.Space, column: Any) -> Any:
    """A column of numbers for a Box of one number in an axis of its own gets that axis."""
    if isinstance(column, np.ndarray) and column.ndim == 1 and space.shape == (1,):
        return column[:, None]
    return column


def _converted(part: gym.Space, array: Any, name: str, row_of: RowOf) -> np.ndarray:
    # int32 for int64, as everywhere in JAX.
    array, dtype = np.asarray(array), dtype_of(part)
    bad = outside_of(dtype, array) if dtype.kind in "iu" and array.dtype.kind in "iu" else None
    if bad is not None:
        row = int(np.argmax((array == bad).reshape(len(array), -1).any(axis=1)))
        path, number = row_of(row)
        raise BadDataError(
            f"The column {name} has the value {bad}, which {dtype} of {part} cannot hold. Give a Box of float32 in "
            "config.environment(observation_space=...), or store smaller numbers.",
            path=path,
            row=number,
        )
    return array.astype(dtype, copy=False)


def _check_choices(column: Any, space: gym.Space, is_step: np.ndarray, row_of: RowOf) -> None:
    """Actions of modules count from 0 and are below the number of choices; Boxes are not looked at: a Gaussian leaves
    its Box, and is clipped to it when it acts."""

    def check(part: gym.Space, array: np.ndarray) -> None:
        choices = np.asarray(getattr(part, "nvec", getattr(part, "n", None)))
        if type(part).__name__ not in ("Discrete", "MultiDiscrete") or not array.size:
            return
        if array.min() >= 0 and array.max() < choices.min():
            return
        odd = ((array < 0) | (array >= choices)).reshape(len(array), -1).any(axis=1) & is_step
        if odd.any():
            row = int(np.argmax(odd))
            path, number = row_of(row)
            raise BadDataError(
                f"The action {array[row].tolist()!r} is not in {part}, whose choices count from 0 here. Set "
                "action_space in config.environment() to that of the data, or take the episode out of it.",
                path=path,
                row=number,
            )

    map_parts(check, space, column)
