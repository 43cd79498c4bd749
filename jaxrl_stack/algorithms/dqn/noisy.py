"""Layers with noisy weights for exploration (Fortunato et al., 2018, arXiv:1706.10295)."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl_stack.core.models.configs import MLPHeadConfig
from jaxrl_stack.core.models.dense import Dense
from jaxrl_stack.core.models.heads import MLPHead


class NoisyDense(Dense):
    """A dense layer with factorised Gaussian noise on weights and biases (Fortunato et al., 2018, equations 9 to 11).

    ``w = mu + sigma * f(e_in) f(e_out)^T``, ``b = mu_b + sigma_b * f(e_out)``, ``f(x) = sgn(x) sqrt(|x|)``. The means
    are `kernel` and `bias`; `kernel_sigma` and `bias_sigma` begin at ``std_init / sqrt(inputs)`` and are trained, too.

    Args:
        in_features: Width of the input.
        out_features: Width of the output.
        std_init: The paper's ``sigma_0``.
        **kwargs: As in `nnx.Linear`.
    """

    def __init__(self, in_features: int, out_features: int, *, std_init: float, **kwargs: Any):
        super().__init__(in_features, out_features, **kwargs)
        sigma = std_init / math.sqrt(in_features)
        self.kernel_sigma = nnx.Param(jnp.full((in_features, out_features), sigma, jnp.float32))
        self.bias_sigma = nnx.Param(jnp.full((out_features,), sigma, jnp.float32))

    @property
    def noise_dim(self) -> int:
        """Number of noise values in one sample of the layer's weights."""
        return self.in_features + self.out_features

    def __call__(self, inputs: jax.Array, out_sharding: Any = None, *, noise: jax.Array | None = None) -> jax.Array:
        """Applies the layer to float ``[..., in]``; returns ``[..., out]``.

        Args:
            inputs: ``[..., in]``.
            out_sharding: See `nnx.Linear`.
            noise: float32 ``[noise_dim]`` from `draw_noise` for all rows, or ``[..., noise_dim]`` for each row. None
                uses the means only.
        """
        outputs = super().__call__(inputs, out_sharding)
        if noise is None:
            return outputs
        inputs, noise, kernel, bias = self.promote_dtype(
            (inputs, noise, self.kernel_sigma[...], self.bias_sigma[...]), dtype=self.dtype
        )
        into, out = noise[..., : self.in_features], noise[..., self.in_features :]
        # The noisy part without its matrix: rows can have weights of their own.
        return outputs + ((inputs * into) @ kernel + bias) * out


def draw_noise(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draws float32 factorised noise of the given shape: ``f(e) = sign(e) sqrt(|e|)``, where ``e`` has a standard
    normal distribution.
    """
    normal = jax.random.normal(key, shape, jnp.float32)
    return jnp.sign(normal) * jnp.sqrt(jnp.abs(normal))


class NoisyMLPHead(MLPHead):
    """`MLPHead` of `NoisyDense` layers.

    Args:
        std_init: As in `NoisyDense`.
        *args, **kwargs: As in `MLPHead`.
    """

    def __init__(self, *args: Any, std_init: float, **kwargs: Any):
        super().__init__(*args, layer_class=functools.partial(NoisyDense, std_init=std_init), **kwargs)

    @property
    def noise_dim(self) -> int:
        """Number of noise values in one sample of the weights of all layers."""
        return sum(layer.noise_dim for layer in self._layers())

    def _layers(self) -> list[NoisyDense]:
        return [getattr(self, f"dense_{i}") for i in range(len(self.activations))]

    def __call__(self, x: jax.Array, noise: jax.Array | None = None) -> jax.Array:
        """Applies all layers: float ``[..., latent]`` to ``[..., output_dim]``.

        Args:
            x: ``[..., latent]``.
            noise: float32 ``[noise_dim]`` from `draw_noise` for all rows, or ``[..., noise_dim]`` for each row. The
                last axis contains the noise of the layers in their order. None uses the means of the weights only.
        """
        if noise is None:
            return super().__call__(x)
        start = 0
        for i, layer in enumerate(self._layers()):
            x = self._after(i, layer(x, noise=noise[..., start : start + layer.noise_dim]))
            start += layer.noise_dim
        return x


@dataclasses.dataclass
class NoisyMLPHeadConfig(MLPHeadConfig):
    """Config of a `NoisyMLPHead`.

    Args:
        std_init: As in `NoisyDense`.
    """

    std_init: float = 0.5

    def _head_class(self) -> Callable[..., MLPHead]:
        return functools.partial(NoisyMLPHead, std_init=self.std_init)
