"""Stacks of convolutions and transposed convolutions over channels-last images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl_stack.core.models.initializers import torch_default_bias
from jaxrl_stack.core.models.mlp import Layer, Stack
from jaxrl_stack.ops.convolution import LAYOUT, convolve


class Conv(nnx.Module):
    """Convolution of images with C channels, `[..., H, W, C]` -> `[..., h, w, channels]`.

    Kernel size, stride and padding determine the new height h and width w. `kernel` is `[height, width, C, channels]`.

    Args:
        in_channels: ``C``.
        layer: Settings of the convolution.
        rngs: Source of random numbers for the initial weights.
    """

    def __init__(self, in_channels: int, layer: Layer, *, rngs: nnx.Rngs):
        spec = layer.filter
        assert spec is not None
        shape = (*spec.kernel, in_channels, spec.channels)
        # What torch takes for the number of inputs of a transposed convolution is that of its outputs.
        fan_in = math.prod(spec.kernel) * self._fan_in_channels(in_channels, spec.channels)
        kernel_init, bias_init = (init or torch_default_bias(fan_in) for init in (layer.kernel_init, layer.bias_init))
        self.kernel = nnx.Param(kernel_init(rngs.params(), shape, jnp.float32))
        self.bias = nnx.Param(bias_init(rngs.params(), (spec.channels,), jnp.float32)) if layer.use_bias else None
        self.filter = spec
        self.dtype = layer.dtype

    def __call__(self, x: jax.Array) -> jax.Array:
        dtype = self.dtype or jnp.float32
        images = x.reshape(-1, *x.shape[-3:]).astype(dtype)
        out = self._convolve(images, self.kernel[...].astype(dtype))
        if self.bias is not None:
            out = out + self.bias[...].astype(dtype)
        return out.reshape(*x.shape[:-3], *out.shape[1:])

    @staticmethod
    def _fan_in_channels(in_channels: int, channels: int) -> int:
        del channels
        return in_channels

    def _convolve(self, images: jax.Array, kernel: jax.Array) -> jax.Array:
        margins = self.filter.margins((images.shape[1], images.shape[2]))
        return convolve(images, kernel, self.filter.stride, margins)


class ConvTranspose(Conv):
    """A transposed convolution: inserts zeros between and around the pixels, then applies a convolution of stride 1
    with `kernel`.
    """

    @staticmethod
    def _fan_in_channels(in_channels: int, channels: int) -> int:
        del in_channels
        return channels

    def _convolve(self, images: jax.Array, kernel: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            images,
            kernel,
            (1, 1),
            self.filter.transposed_margins(),
            lhs_dilation=self.filter.stride,
            dimension_numbers=LAYOUT,
        )


class CNN(Stack):
    """Network of convolutions `conv_0`, `conv_1`, …, each followed by an activation, with optional `layernorm_0`, …
    before the activation.

    Args:
        in_channels: Channels of the images.
        layers: Settings of the convolutions.
        rngs: Source of random numbers for the initial weights.
        conv_class: `Conv` or `ConvTranspose`.
    """

    def __init__(self, in_channels: int, layers: Sequence[Layer], *, rngs: nnx.Rngs, conv_class: type[Conv] = Conv):
        super().__init__(
            "conv", in_channels, layers, lambda channels, layer: conv_class(channels, layer, rngs=rngs), rngs
        )
