"""Connector that resizes images."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.utils.spaces import map_parts, with_parts


class ResizeImages(ConnectorV2):
    """Resizes all images in observations: ``[H, W]`` to ``[height, width]``, and ``[H, W, C]`` to
    ``[height, width, C]``.

    Images are Boxes of rank 2, or 3 with channels last, of any size; all other parts of a nested space stay as they
    are, and so do images that have the size. Dtypes stay, integers are rounded: uint8 stays uint8. Pixels are weighed
    linearly, over as many as one of the new ones covers.

    Args:
        input_observation_space: Any observation space.
        input_action_space: See ConnectorV2.
        height: Height of output images, in pixels, >= 1.
        width: Width of output images, in pixels, >= 1.
        **kwargs: See ConnectorV2.

    Raises:
        ValueError: ``height`` or ``width`` < 1; or no part of the space is an image.
    """

    sees_action_mask = False

    def __init__(self, *args: Any, height: int, width: int, **kwargs: Any):
        super().__init__(*args, **kwargs)
        for name, value in (("height", height), ("width", width)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"ResizeImages({name}={value!r}): give an int of 1 or more.")
        self.size = (height, width)

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """Returns the space after the connector, in which each image is a Box of the new size.

        The bounds of this Box are the smallest lower bound and the largest upper bound of all pixels of the original
        Box. An image that already has the new size keeps the original Box.
        """
        return self._map_spaces(self._resized_space, input_observation_space)

    def _resized_space(self, space: Any) -> Any:
        found = []

        def resized(part: Any) -> Any:
            if not _is_image(part):
                return part
            found.append(part)
            if part.shape[:2] == self.size:
                return part
            shape = (*self.size, *part.shape[2:])
            return gym.spaces.Box(part.low.min(), part.high.max(), shape, part.dtype.type)

        out = with_parts(resized, space)
        if not found:
            raise ValueError(
                f"ResizeImages finds no image in the observation space {space}: images have the shape [H, W] or [H, "
                "W, C]. Remove the connector."
            )
        return out

    def apply(self, state: Any, batch: dict[str, Any], ctx: ConnectorContext) -> tuple[Any, dict[str, Any]]:
        """Replaces images ``[B, H, W, ...]`` in OBS by ``[B, height, width, ...]``."""
        spaces = self._observation_spaces()

        def resized(part: Any, value: Any) -> Any:
            if not _is_image(part) or part.shape[:2] == self.size:
                return value
            image = jnp.asarray(value)
            out = jax.image.resize(
                image.astype(jnp.float32), (image.shape[0], *self.size, *image.shape[3:]), method="linear"
            )
            if not jnp.issubdtype(image.dtype, jnp.integer):
                return out.astype(image.dtype)
            # Weights add up to 1 but for rounding.
            return jnp.clip(jnp.round(out), part.low.min(), part.high.max()).astype(image.dtype)

        return state, self._with_columns(
            batch,
            lambda mid, columns: {Columns.OBS: map_parts(resized, self._space_of(spaces, mid), columns[Columns.OBS])},
        )


def _is_image(part: Any) -> bool:
    return isinstance(part, gym.spaces.Box) and len(part.shape) in (2, 3) and np.issubdtype(part.dtype, np.number)
