"""Connector for one-hot encoding of integer codes in Boxes, such as tile ids in a grid."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.utils.spaces import map_parts, with_parts


class OneHotIntegers(ConnectorV2):
    """Converts integer codes in a Box to one-hot vectors along the last axis.

    ``[..., C]`` becomes ``[..., n]``, where n is the number of possible values, summed over the C channels.

    Codes are integers of few values without an order, such as tiles and colours of a grid ``[H, W, 2]``. Channel c has
    ``n_c`` values, from its lowest bound to its highest one, and n is the sum of these. All other parts of a nested
    space stay as they are: floats, Discrete and the like, boxes of bits, and those with more than `max_values` values.

    Args:
        input_observation_space: Any observation space.
        input_action_space: See ConnectorV2.
        max_values: Largest number of values of a channel, 3 or more.
        **kwargs: See ConnectorV2.

    Raises:
        ValueError: ``max_values`` < 3; or no part of the space is a Box of codes.
    """

    sees_action_mask = False

    def __init__(self, *args: Any, max_values: int = 32, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if isinstance(max_values, bool) or not isinstance(max_values, int) or max_values < 3:
            raise ValueError(f"OneHotIntegers(max_values={max_values!r}): give an int of 3 or more.")
        self.max_values = max_values

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """Replaces Boxes of integer codes by uint8 Boxes of one-hot vectors."""
        return self._map_spaces(self._one_hot_space, input_observation_space)

    def _one_hot_space(self, space: Any) -> Any:
        found = []

        def one_hot(part: Any) -> Any:
            codes = self._codes(part)
            if codes is None:
                return part
            found.append(part)
            return gym.spaces.Box(0, 1, (*part.shape[:-1], len(codes[0])), np.uint8)

        out = with_parts(one_hot, space)
        if not found:
            raise ValueError(
                f"OneHotIntegers(max_values={self.max_values}) finds no bounded Box of integers with 3 to "
                f"{self.max_values} values in the observation space {space}. Raise max_values, or remove the "
                "connector."
            )
        return out

    def _codes(self, part: Any) -> tuple[np.ndarray, np.ndarray] | None:
        """Returns the channel and the integer value of each entry of a one-hot vector, as two int arrays ``[n]``.

        The one-hot vector has n entries. Returns None if the space `part` is not a Box of integers with rank 1 or more,
        or if the largest number of values of any channel is below 3 or above `max_values`.
        """
        if not isinstance(part, gym.spaces.Box) or part.dtype.kind not in "iu" or not part.shape:
            return None
        low, high = (bound.astype(np.int64).reshape(-1, part.shape[-1]) for bound in (part.low, part.high))
        low, num_values = low.min(axis=0), high.max(axis=0) - low.min(axis=0) + 1
        if not 3 <= num_values.max() <= self.max_values:
            return None
        channels = np.repeat(np.arange(len(low)), num_values)
        return channels, np.concatenate([first + np.arange(n) for first, n in zip(low, num_values, strict=True)])

    def apply(self, state: Any, batch: dict[str, Any], ctx: ConnectorContext) -> tuple[Any, dict[str, Any]]:
        """Replaces integer codes in OBS by one-hot vectors.

        Each leaf ``[B, ..., C]`` of codes becomes uint8 ``[B, ..., n]``, where n is the number of possible values,
        summed over the C channels.
        """
        spaces = self._observation_spaces()

        def one_hot(part: Any, value: Any) -> Any:
            codes = self._codes(part)
            if codes is None:
                return value
            channels, numbers = codes
            numbers = numbers.reshape(*(1 for _ in part.shape), -1)
            return (jnp.asarray(value)[..., channels] == jnp.asarray(numbers, part.dtype)).astype(jnp.uint8)

        return state, self._with_columns(
            batch,
            lambda mid, columns: {Columns.OBS: map_parts(one_hot, self._space_of(spaces, mid), columns[Columns.OBS])},
        )
