"""Stacks of dense layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx

from jaxrl_stack.core.models.activations import get_activation
from jaxrl_stack.core.models.dense import Dense
from jaxrl_stack.core.models.initializers import torch_default_bias, torch_default_kernel

LAYERNORM_EPSILON = 1e-3


class MLP(nnx.Module):
    """Dense layers `dense_0`, `dense_1`, …, each with an activation after it.

    Args:
        input_dim: Width of the input's last axis.
        layer_dims: Widths of the layers; none = identity.
        activations: One activation a layer: names or callables.
        use_bias, use_layernorm: One flag a layer.
        kernel_inits, bias_inits: One initializer a layer; None = torch's default.
        rngs: Where the initial weights come from.
        dtypes: What each layer computes in; None = what its input and its parameters, float32, make together.
        layer_class: Class of the layers, made as `nnx.Linear` is.
    """

    def __init__(
        self,
        input_dim: int,
        layer_dims: Sequence[int],
        *,
        activations: Sequence[Any],
        use_bias: Sequence[bool],
        use_layernorm: Sequence[bool],
        kernel_inits: Sequence[Callable[..., Any] | None],
        bias_inits: Sequence[Callable[..., Any] | None],
        rngs: nnx.Rngs,
        dtypes: Sequence[Any] | None = None,
        layer_class: Callable[..., nnx.Linear] = Dense,
    ):
        self.output_dim = int(layer_dims[-1]) if layer_dims else int(input_dim)
        for activation in activations:
            get_activation(activation)
        # Kept as they are: a jitted function such as jnp.tanh cannot be pickled, its name can.
        self.activations = tuple(activations)
        self.use_layernorm = tuple(bool(flag) for flag in use_layernorm)
        width = int(input_dim)
        for i, dim in enumerate(layer_dims):
            dtype = None if dtypes is None else dtypes[i]
            layer = layer_class(
                width,
                int(dim),
                use_bias=use_bias[i],
                dtype=dtype,
                kernel_init=kernel_inits[i] or torch_default_kernel(),
                bias_init=bias_inits[i] or torch_default_bias(width),
                rngs=rngs,
            )
            setattr(self, f"dense_{i}", layer)
            if self.use_layernorm[i]:
                layernorm = nnx.LayerNorm(int(dim), epsilon=LAYERNORM_EPSILON, dtype=dtype, rngs=rngs)
                setattr(self, f"layernorm_{i}", layernorm)
            width = int(dim)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Float `[..., input_dim]` -> `[..., output_dim]`."""
        for i in range(len(self.activations)):
            x = self._after(i, getattr(self, f"dense_{i}")(x))
        return x

    def _after(self, i: int, x: jax.Array) -> jax.Array:
        """What follows the i-th dense layer."""
        if self.use_layernorm[i]:
            x = getattr(self, f"layernorm_{i}")(x)
        return get_activation(self.activations[i])(x)
