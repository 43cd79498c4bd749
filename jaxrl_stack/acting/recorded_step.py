"""Shapes of a recorded step, from which the memory of a rollout is estimated before sampling."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import gymnasium as gym
import jax
import numpy as np

from jaxrl_stack.core.block import Block
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.layouts import Layout
from jaxrl_stack.utils.spaces import shape_dtype_struct


@dataclasses.dataclass(frozen=True)
class RecordedStep:
    """Shapes and dtypes of the columns of one recorded step of one environment.

    Attributes:
        columns: ``{column: pytree of jax.ShapeDtypeStruct [1, 1, ...]}``, a block ``[T, B, ...]`` of one step.
        is_complete: False if a runner may record more columns, which are known only when it does.
    """

    columns: Mapping[str, Any]
    is_complete: bool = True

    @classmethod
    def of_block(cls, columns: Mapping[str, Any]) -> Self:
        """Reads the shapes and dtypes of a step from a recorded block ``{column: pytree [T, B, ...]}``."""
        return cls({name: _resized(column, 1, 1) for name, column in columns.items()})

    @classmethod
    def of_policy(cls, columns: Mapping[str, Any]) -> Self:
        """Computes the shapes of a step that a host EnvRunner records, from the columns ``[B, ...]`` of one policy step
        (observations, actions, module outputs).
        """
        obs = columns[Columns.OBS]
        shapes = {
            name: jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), own)
            for name, own in {**columns, Columns.FINAL_OBS: obs}.items()
        }
        return cls.of_block(shapes | _answers())

    @classmethod
    def of_spaces(cls, observation_space: gym.Space, action_space: gym.Space) -> Self:
        """Computes the shapes of the columns that every EnvRunner class records, from a module's observation space and
        action space.

        Raises:
            TypeError: If a space has no fixed shape.
        """
        obs, actions = (shape_dtype_struct(space, (1, 1)) for space in (observation_space, action_space))
        columns = {Columns.OBS: obs, Columns.FINAL_OBS: obs, Columns.ACTIONS: actions}
        return cls(columns | _answers(), is_complete=False)

    def block(self, num_steps: int, num_columns: int, layout: Layout | None = None) -> dict[str, Any]:
        """Returns the shapes and dtypes of the columns of a block that records this step ``T`` times in ``B``
        environments, ``[T, B, ...]``.

        Args:
            num_steps: ``T``.
            num_columns: ``B``.
            layout: Layout of its columns; None: the layout of recorded columns.
        """
        layout = layout or Layout()
        if not self.is_complete:
            layout = layout.without_states()
        if layout.chunk_length is None and layout.num_frames == 1:
            return {name: _resized(column, num_steps, num_columns) for name, column in self.columns.items()}

        def lay_out(columns: dict[str, Any], resets: Any) -> dict[str, Any]:
            return Block.of_recording(columns, layout, resets).columns

        columns = jax.eval_shape(lay_out, dict(self.columns), jax.ShapeDtypeStruct((1, 1), np.bool_))
        return {
            name: _resized(column, layout.num_rows(name, num_steps), num_columns) for name, column in columns.items()
        }


def _answers() -> dict[str, Any]:
    """Returns shapes and dtypes of rewards, terminateds and truncateds for one step of one environment. Each shape is
    ``[T, B] = [1, 1]``.
    """
    dtypes = {Columns.REWARDS: np.float32, Columns.TERMINATEDS: np.bool_, Columns.TRUNCATEDS: np.bool_}
    return {name: jax.ShapeDtypeStruct((1, 1), dtype) for name, dtype in dtypes.items()}


def _resized(column: Any, num_steps: int, num_columns: int) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((num_steps, num_columns, *x.shape[2:]), x.dtype), column)
