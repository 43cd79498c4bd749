"""Small convolutional RLModule: convolutions reduce an image to one pixel, whose channels are the logits."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.apis import ValueFunctionAPI
from jaxrl_stack.core.rl_module.rl_module import RLModule

_FILTERS = ([16, 4, 2, "same"], [32, 4, 2, "same"], [256, 11, 1, "valid"])


class TinyAtariCNN(RLModule, ValueFunctionAPI):
    """Small network for images and Discrete actions: convolutions down to one pixel, then logits and values.

    Observations are a Box ``[height, width, channels]`` of floats. Model config: ``"conv_filters"``, a list of
    ``[channels, kernel, stride]`` or ``[channels, kernel, stride, "same" or "valid"]``; the last one leaves one pixel,
    as the default does of 42 x 42.

    Raises:
        ValueError: More than one pixel is left.
    """

    rows_are_independent = True

    def setup(self) -> None:
        height, width, depth = self.observation_space.shape  # type: ignore[union-attr,misc]
        layers: list[Any] = []
        for channels, kernel, stride, *padding in self.model_config.get("conv_filters") or _FILTERS:
            is_same = (padding or ["same"])[0] == "same"
            layers.append(
                nnx.Conv(
                    depth,
                    channels,
                    kernel_size=(kernel, kernel),
                    strides=(stride, stride),
                    padding="SAME" if is_same else "VALID",
                    kernel_init=nnx.initializers.xavier_uniform(),
                    rngs=self.rngs,
                )
            )
            layers.append(nnx.relu)
            shrink = 0 if is_same else kernel - 1
            height, width = (-(-(side - shrink) // stride) for side in (height, width))
            depth = channels
        if (height, width) != (1, 1):
            raise ValueError(
                f"{type(self).__name__}: conv_filters leave {height} x {width} pixels of observations of shape "
                f"{self.observation_space.shape}, but have to leave one pixel. "  # type: ignore[union-attr]
                f"Append a filter [channels, kernel, stride] that leaves one pixel, such as "
                f"[256, {max(height, width)}, {max(height, width)}]."
            )
        self.convolutions = nnx.Sequential(*layers)
        self.policy = nnx.Linear(depth, int(self.action_space.n), rngs=self.rngs)  # type: ignore[union-attr]
        self.value = nnx.Linear(depth, 1, rngs=self.rngs)

    def _forward(self, batch: Any, **kwargs: Any) -> dict[str, Any]:
        features = self.convolutions(batch[Columns.OBS])[..., 0, 0, :]
        # A convolution of one pixel with a kernel of 1 x 1 is a dense layer.
        return {Columns.ACTION_DIST_INPUTS: self.policy(features), Columns.EMBEDDINGS: features}

    def compute_values(self, batch: Any, embeddings: Any = None) -> jax.Array:
        """Computes one value for each image; returns float ``[...]`` for OBS ``[..., height, width, channels]``."""
        if embeddings is None:
            embeddings = self._forward(batch)[Columns.EMBEDDINGS]
        return self.value(embeddings)[..., 0]
