"""Conversion of environment actions, as recorded by D4RL and Minari, to module outputs."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.checks import MARGIN, FileRows, RowOf, in_form_or_refused
from jaxrl_stack.datasets.rows import any_in_row
from jaxrl_stack.utils.nested import tree_leaves
from jaxrl_stack.utils.spaces import map_parts
from jaxrl_stack.utils.spaces.space_utils import normalize_action


def module_actions(actions: Any, space: gym.Space, row_of: RowOf) -> Any:
    """Converts recorded environment actions to module outputs: scaled to [-1, 1] for bounded Boxes, counted from 0 for
    discrete spaces.

    Args:
        actions: Pytree that mirrors the space (leaves ``[N, ...]``).
        space: The environment's.
        row_of: File and row in it, of each of them.

    Raises:
        BadDataError: Actions do not fit the space, or are outside of a Box.
    """
    number = len(tree_leaves(actions)[0])
    file_rows = FileRows(row_of, np.ones(number, bool))
    formed = in_form_or_refused(actions, space, Columns.ACTIONS, file_rows)

    def converted(part: Any, array: np.ndarray) -> np.ndarray:
        if hasattr(part, "start"):
            return array - part.start
        if not isinstance(part, gym.spaces.Box) or part.dtype is None or part.dtype.kind != "f":
            return array
        odd = any_in_row((array < part.low - MARGIN) | (array > part.high + MARGIN))
        if odd.any():
            raise file_rows.error(
                f"The action {array[int(np.argmax(odd))].tolist()!r} is outside of {part}. Set action_space in "
                "config.environment() to the space of the data, or clip the actions.",
                odd,
            )
        return normalize_action(array, part).astype(np.result_type(array, np.float16))

    return map_parts(converted, space, formed)
