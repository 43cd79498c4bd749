"""Parts of DreamerV3's networks: dense stacks, the recurrent unit, image encoder and decoder.

Source: Hafner et al., 2023, arXiv:2301.04104, appendix B; initial weights and layer normalisation as in RLlib.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl_stack.ops.convolution import double, halve

EPSILON = 1e-3
"""Of layer normalisation."""
IMAGE_SIZE = 64
"""Height and width of images."""
_LANES, _NEVER = 8, -1e9


def normal(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    """Draws normal weights ``[..., inputs, outputs]``, scaled by fan in and fan out, and clips the weights to [-2, 2].

    The variance is ``2 / (fan in + fan out) / 0.8796^2``. 0.8796 is the standard deviation of a standard normal
    distribution truncated to [-2, 2].
    """
    space = math.prod(shape[:-2])
    std = math.sqrt(2.0 / (space * (shape[-2] + shape[-1]))) / 0.87962566103423978
    return jnp.clip(std * jax.random.normal(key, shape, dtype), -2.0, 2.0)


class MLP(nnx.Module):
    """Layers of Linear without bias, LayerNorm and SiLU; with `num_outputs` also a Linear output layer.

    Args:
        num_inputs: Width of the inputs.
        units: Width of the hidden layers.
        num_layers: Number of hidden layers.
        num_outputs: Width of the output layer; None for none.
        zeros: Whether the output layer is initialised with zeros.
        dtype: Dtype of the layers' computations; None is float32. Outputs are float32.
        rngs: Random streams for initial weights.
    """

    def __init__(
        self,
        num_inputs: int,
        units: int,
        num_layers: int,
        num_outputs: int | None = None,
        *,
        zeros: bool = False,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        widths = [num_inputs, *[units] * num_layers]
        self.linears = nnx.List(
            nnx.Linear(before, after, use_bias=False, kernel_init=normal, dtype=dtype, rngs=rngs)
            for before, after in itertools.pairwise(widths)
        )
        norm = functools.partial(nnx.LayerNorm, units, epsilon=EPSILON, dtype=dtype, rngs=rngs)
        self.norms = nnx.List(norm() for _ in range(num_layers))
        self.num_outputs = num_outputs or widths[-1]
        init = nnx.initializers.zeros_init() if zeros else normal
        make = functools.partial(nnx.Linear, widths[-1], kernel_init=init, dtype=dtype, rngs=rngs)
        self.out = None if num_outputs is None else make(num_outputs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Applies the layers: ``[..., num_inputs]`` to ``[..., num_outputs]``."""
        x = self._hidden(x)
        return (x if self.out is None else self.out(x)).astype(jnp.float32)

    def padded_logits(self, x: jax.Array) -> jax.Array:
        """Logits ``[..., K]`` of `num_outputs` classes, followed by padding classes of probability 0; K is a multiple
        of 8.

        The padding saves time on CPUs, which process the remainder of a vector element by element: 255 logits take 1.1
        times as long as 256.
        """
        assert self.out is not None and self.out.bias is not None
        missing = -self.num_outputs % _LANES
        kernel = jnp.pad(self.out.kernel[...], ((0, 0), (0, missing)))
        bias = jnp.pad(self.out.bias[...], (0, missing), constant_values=_NEVER)
        x, kernel, bias = self.out.promote_dtype((self._hidden(x), kernel, bias), dtype=self.out.dtype)
        return (x @ kernel + bias).astype(jnp.float32)

    def _hidden(self, x: jax.Array) -> jax.Array:
        for linear, norm in zip(self.linears, self.norms, strict=True):
            x = jax.nn.silu(norm(linear(x)))
        return x


class GRU(nnx.Module):
    """Gated recurrent unit with layer normalisation over its three gates, without biases.

    ``[r, c, u] = norm(W [h, x])``; ``h' = s(u - 1) tanh(s(r) c) + (1 - s(u - 1)) h``, `s` the logistic function. With
    several blocks W is block-diagonal in h: gates of a block see that block and all of x.

    Args:
        num_inputs: Width of x.
        units: Width of h.
        num_blocks: Divides `units`.
        dtype: Dtype of the layer's computations; None is float32. h stays float32.
        rngs: Random streams for initial weights.
    """

    def __init__(self, num_inputs: int, units: int, *, num_blocks: int = 1, dtype: Any = None, rngs: nnx.Rngs):
        self.num_blocks, self.dtype, of_block = num_blocks, dtype, units // num_blocks
        shape = (num_inputs + of_block, 3 * of_block)
        self.linear = nnx.Linear(*shape, use_bias=False, kernel_init=normal, dtype=dtype, rngs=rngs)
        if num_blocks > 1:
            keys = jax.random.split(rngs.params(), num_blocks)
            self.linear.kernel = nnx.Param(jax.vmap(lambda key: normal(key, shape))(keys))
        self.norm = nnx.LayerNorm(3 * units, epsilon=EPSILON, dtype=dtype, rngs=rngs)

    def __call__(self, h: jax.Array, x: jax.Array) -> jax.Array:
        """Computes the next state, float32 ``[..., units]``, from the state `h` and the input `x`."""
        gates = self.norm(self._gates(h, x)).astype(jnp.float32)
        reset, candidate, update = jnp.split(gates, 3, axis=-1)
        update = jax.nn.sigmoid(update - 1.0)
        return update * jnp.tanh(jax.nn.sigmoid(reset) * candidate) + (1.0 - update) * h

    def _gates(self, h: jax.Array, x: jax.Array) -> jax.Array:
        """Computes the product of the weights W with the concatenated state `h` and input `x`, ``[..., 3 * units]``.

        The product ``W [h, x]`` is not yet normalised by LayerNorm. It contains the inputs of all reset gates, then of
        all candidates, then of all update gates.
        """
        if self.num_blocks == 1:
            return self.linear(jnp.concatenate([h, x], axis=-1))
        own = h.reshape(*h.shape[:-1], self.num_blocks, -1)
        seen = jnp.broadcast_to(x[..., None, :], (*own.shape[:-1], x.shape[-1]))
        inputs, kernel = jnp.concatenate([own, seen], axis=-1), self.linear.kernel[...]
        inputs, kernel = (a if self.dtype is None else a.astype(self.dtype) for a in (inputs, kernel))
        gates = jnp.einsum("...bi,bio->...bo", inputs, kernel)
        gates = gates.reshape(*gates.shape[:-1], 3, -1)
        return jnp.moveaxis(gates, -2, -3).reshape(*h.shape[:-1], -1)


class Convolution(nnx.Module):
    """Convolution with a 4 x 4 kernel and stride 2, which halves height and width, or doubles them if transposed.

    Args:
        function: `halve` or `double`.
        num_inputs: Number of input channels.
        num_outputs: Number of output channels.
        use_bias: Whether it has a bias.
        dtype: Dtype of its computations; None uses the inputs' dtype.
        rngs: Random streams for initial weights.
    """

    def __init__(
        self,
        function: Callable[[jax.Array, jax.Array], jax.Array],
        num_inputs: int,
        num_outputs: int,
        *,
        use_bias: bool = False,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        self.function, self.num_inputs, self.dtype = function, num_inputs, dtype
        self.kernel = nnx.Param(normal(rngs.params(), (4, 4, num_inputs, num_outputs)))
        self.bias = nnx.Param(jnp.zeros((num_outputs,))) if use_bias else None

    def __call__(self, images: jax.Array) -> jax.Array:
        """Applies the convolution: ``[N, H, W, num_inputs]`` to ``[N, h, w, num_outputs]``. Height and width are
        halved, or doubled if the convolution is transposed.
        """
        dtype = self.dtype or images.dtype
        out = self.function(images.astype(dtype), self.kernel[...].astype(dtype))
        return out if self.bias is None else out + self.bias[...].astype(dtype)


class ImageEncoder(nnx.Module):
    """Four convolutions of stride 2, from 64 x 64 to 4 x 4, each with LayerNorm over channels and SiLU.

    Args:
        num_channels: Number of image channels.
        multiplier: Channels after the first convolution.
        dtype: Dtype of the layers' computations; None is float32. Outputs are float32.
        rngs: Random streams for initial weights.
    """

    def __init__(self, num_channels: int, multiplier: int, *, dtype: Any = None, rngs: nnx.Rngs):
        widths = [num_channels, *[multiplier * 2**i for i in range(4)]]
        self.convs = nnx.List(
            Convolution(halve, before, after, dtype=dtype, rngs=rngs) for before, after in itertools.pairwise(widths)
        )
        norm = functools.partial(nnx.LayerNorm, epsilon=EPSILON, dtype=dtype, rngs=rngs)
        self.norms = nnx.List(norm(width) for width in widths[1:])
        self.num_outputs = 4 * 4 * widths[-1]

    def __call__(self, x: jax.Array) -> jax.Array:
        """Encodes images: ``[..., 64, 64, C]`` to ``[..., num_outputs]``."""
        lead = x.shape[:-3]
        x = x.reshape(-1, *x.shape[-3:])
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = jax.nn.silu(norm(conv(x)))
        return x.reshape(*lead, self.num_outputs).astype(jnp.float32)


class ImageDecoder(nnx.Module):
    """A Linear layer to 4 x 4, then four transposed convolutions of stride 2, to 64 x 64. As in RLlib, 0.5 is added to
    the outputs.

    Args:
        num_inputs: Width of the inputs.
        num_channels: Number of image channels.
        multiplier: Channels before the last convolution.
        dtype: See `ImageEncoder`.
        rngs: Random streams for initial weights.
    """

    def __init__(self, num_inputs: int, num_channels: int, multiplier: int, *, dtype: Any = None, rngs: nnx.Rngs):
        widths = [*[multiplier * 2**i for i in (3, 2, 1, 0)], num_channels]
        self.linear = nnx.Linear(num_inputs, 4 * 4 * widths[0], kernel_init=normal, dtype=dtype, rngs=rngs)
        self.convs = nnx.List(
            Convolution(double, before, after, use_bias=i == 3, dtype=dtype, rngs=rngs)
            for i, (before, after) in enumerate(itertools.pairwise(widths))
        )
        norm = functools.partial(nnx.LayerNorm, epsilon=EPSILON, dtype=dtype, rngs=rngs)
        self.norms = nnx.List(norm(width) for width in widths[1:-1])

    def __call__(self, x: jax.Array) -> jax.Array:
        """Decodes images: ``[..., num_inputs]`` to ``[..., 64, 64, C]``."""
        lead = x.shape[:-1]
        x = self.linear(x).reshape(-1, 4, 4, self.convs[0].num_inputs)
        for conv, norm in zip(self.convs, self.norms, strict=False):
            x = jax.nn.silu(norm(conv(x)))
        x = self.convs[-1](x).astype(jnp.float32) + 0.5
        return x.reshape(*lead, *x.shape[1:])
