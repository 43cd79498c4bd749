"""Conversion of recorded steps to blocks ``[T, B, ...]``, the form of rollouts from B environments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.steps import Steps


def blocks_of(steps: Steps, num_columns: int, *, longest: int) -> Iterator[dict[str, Any]]:
    """Divides recorded steps into `num_columns` streams of equal length, as if the steps came from `num_columns`
    environments.

    Yields the streams as blocks ``[T, num_columns, ...]`` of equal shape; each block continues the previous one.

    Where a piece of an episode was cut, and at the end of each column, the step counts as truncated: what follows is
    bootstrapped. Steps that would not fill a row of all columns are left out at the end of the data.

    Args:
        steps: At least `num_columns` of them.
        num_columns: B.
        longest: T of a block is this at most.

    Returns:
        Blocks ``{column: pytree [T, B, ...]}``: the columns of the steps, and ``Columns.FINAL_OBS``, the observation
        after each step.
    """
    is_step = ~steps.is_final
    rows = np.flatnonzero(is_step)
    per_column = len(rows) // num_columns
    num_blocks = -(-per_column // longest)
    length = per_column // num_blocks
    is_last = np.append(steps.is_final[1:], True)
    for number in range(num_blocks):
        first = number * length
        own = rows.reshape(-1)[: per_column * num_columns].reshape(num_columns, per_column)[:, first : first + length].T
        block = {name: jax.tree.map(lambda x, at=own: x[at], column) for name, column in steps.columns.items()}
        block[Columns.FINAL_OBS] = jax.tree.map(lambda x, at=own: x[at + 1], steps.columns[Columns.OBS])
        ends = is_last[own]
        if number == num_blocks - 1:
            ends[-1] = True
        block[Columns.TRUNCATEDS] = np.asarray(block[Columns.TRUNCATEDS], bool) | (
            ends & ~np.asarray(block[Columns.TERMINATEDS], bool)
        )
        yield block
