"""Stacks of dense layers, and the base class for stacks of dense layers or convolutions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx

from jaxrl_stack.core.models.activations import get_activation
from jaxrl_stack.core.models.dense import Dense
from jaxrl_stack.core.models.filters import Filter
from jaxrl_stack.core.models.initializers import torch_default_bias, torch_default_kernel

LAYERNORM_EPSILON = 1e-3


@dataclasses.dataclass(frozen=True)
class Layer:
    """Settings of one dense or convolution layer, with its activation and normalisation.

    Attributes:
        width: Number of outputs; for a convolution, number of output channels.
        activation: Name or callable.
        use_bias: Whether the layer has a bias.
        use_layernorm: Whether a layer normalisation over the outputs precedes the activation.
        kernel_init, bias_init: Initializers; None = torch's default.
        dtype: Data type of the computation. None: float32 for a convolution; a dense layer infers it from its inputs
            and parameters.
        filter: Kernel, stride and padding of a convolution; None for a dense layer.
    """

    width: int
    activation: Any
    use_bias: bool
    use_layernorm: bool
    kernel_init: Callable[..., Any] | None
    bias_init: Callable[..., Any] | None
    dtype: Any
    filter: Filter | None = None

    def dense(self, input_dim: int, rngs: nnx.Rngs, layer_class: Callable[..., nnx.Linear] = Dense) -> nnx.Linear:
        """Builds a dense layer with the settings of this `Layer`."""
        return layer_class(
            input_dim,
            self.width,
            use_bias=self.use_bias,
            dtype=self.dtype,
            kernel_init=self.kernel_init or torch_default_kernel(),
            bias_init=self.bias_init or torch_default_bias(input_dim),
            rngs=rngs,
        )


class Stack(nnx.Module):
    """Base class of networks with layers `{kind}_0`, `{kind}_1`, …, each followed by an activation, with optional
    `layernorm_0`, … before the activation.

    Args:
        kind: Prefix of the layers' names.
        width: Width of the input's last axis.
        layers: Settings of the layers; an empty list gives the identity function.
        make: Function ``(input width, layer settings) -> module``.
        rngs: Source of random numbers for the initial weights.
    """

    def __init__(
        self, kind: str, width: int, layers: Sequence[Layer], make: Callable[[int, Layer], nnx.Module], rngs: nnx.Rngs
    ):
        self.kind = kind
        # Kept as they are: a jitted function such as jnp.tanh cannot be pickled, its name can.
        self.activations = tuple(layer.activation for layer in layers)
        self.use_layernorm = tuple(layer.use_layernorm for layer in layers)
        for i, layer in enumerate(layers):
            get_activation(layer.activation)
            setattr(self, f"{kind}_{i}", make(width, layer))
            width = layer.width
            if layer.use_layernorm:
                layernorm = nnx.LayerNorm(width, epsilon=LAYERNORM_EPSILON, dtype=layer.dtype, rngs=rngs)
                setattr(self, f"layernorm_{i}", layernorm)
        self.output_dim = width

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps float `[..., width]` to `[..., output_dim]`.

        Convolutions map images `[..., H, W, width]` (width: number of channels) to `[..., h, w, output_dim]`, with a
        new height h and width w.
        """
        return self._from(0, x)

    def _from(self, first: int, x: jax.Array) -> jax.Array:
        """Applies the network's layers from index `first` to the end."""
        for i in range(first, len(self.activations)):
            x = self._after(i, getattr(self, f"{self.kind}_{i}")(x))
        return x

    def _after(self, i: int, x: jax.Array) -> jax.Array:
        """Applies the normalisation (if any) and the activation that follow the network's layer `i`."""
        if self.use_layernorm[i]:
            x = getattr(self, f"layernorm_{i}")(x)
        return get_activation(self.activations[i])(x)


class MLP(Stack):
    """MLP with dense layers `dense_0`, `dense_1`, …, each followed by an activation.

    Args:
        input_dim: Width of the input's last axis.
        layers: Settings of the layers; an empty list gives the identity function.
        rngs: Source of random numbers for the initial weights.
        layer_class: Class of the layers, with the constructor arguments of `nnx.Linear`.
    """

    def __init__(
        self, input_dim: int, layers: Sequence[Layer], *, rngs: nnx.Rngs, layer_class: Callable[..., nnx.Linear] = Dense
    ):
        super().__init__("dense", input_dim, layers, lambda width, layer: layer.dense(width, rngs, layer_class), rngs)
