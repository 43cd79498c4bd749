"""Networks (heads) that map latent features to the outputs of a policy or a value function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl_stack.core.models.cnn import CNN
from jaxrl_stack.core.models.mlp import MLP


class MLPHead(MLP):
    """An MLP `[..., latent]` -> `[..., output_dim]`.

    Args:
        log_std_bound: If set, the outputs are `[mean, log std]`, and the log std is clipped to ± `log_std_bound`.
        *args, **kwargs: As in `MLP`.
    """

    def __init__(self, *args: Any, log_std_bound: float | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.log_std_bound = log_std_bound

    def __call__(self, x: jax.Array) -> jax.Array:
        outputs = super().__call__(x)
        if self.log_std_bound is None:
            return outputs
        is_log_std = jnp.arange(outputs.shape[-1]) >= outputs.shape[-1] // 2
        return jnp.where(is_log_std, jnp.clip(outputs, -self.log_std_bound, self.log_std_bound), outputs)


class FreeLogStdMLPHead(nnx.Module):
    """Head that returns d means, computed by an MLP, and d log standard deviations.

    The log standard deviations are a parameter, `log_std`, which does not depend on the state and is initially 0.

    Args:
        mean: MLP `[..., latent]` -> `[..., d]`.
        log_std_bound: The log std is clipped to ± `log_std_bound`; None: not clipped.
    """

    def __init__(self, mean: MLP, *, log_std_bound: float | None = None):
        self.mean = mean
        self.output_dim = 2 * mean.output_dim
        self.log_std = nnx.Param(jnp.zeros(mean.output_dim, jnp.float32))
        self.log_std_bound = log_std_bound

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps latents, float `[..., latent]`, to d means and d log standard deviations, joined to `[..., 2 * d]`."""
        mean = self.mean(x)
        log_std = self.log_std[...]
        if self.log_std_bound is not None:
            log_std = jnp.clip(log_std, -self.log_std_bound, self.log_std_bound)
        return jnp.concatenate([mean, jnp.broadcast_to(log_std, mean.shape)], axis=-1)


class CNNTransposeHead(nnx.Module):
    """A decoder `[..., latent]` -> images `[..., H, W, C]`: a dense layer, then transposed convolutions.

    0.5 is added to the outputs, so that values of an untrained network are near 0.5, the middle of [0, 1].

    Args:
        initial_dense: Layer `[..., latent]` -> `[..., h * w * c]`, without activation.
        initial_image_dims: ``[h, w, c]``, shape of the image that the convolutions receive.
        cnn_transpose_net: Network of transposed convolutions.
    """

    def __init__(self, initial_dense: nnx.Linear, initial_image_dims: Sequence[int], cnn_transpose_net: CNN):
        self.initial_dense = initial_dense
        self.initial_image_dims = tuple(initial_image_dims)
        self.cnn_transpose_net = cnn_transpose_net

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps float `[..., latent]` to images `[..., H, W, C]`."""
        images = self.initial_dense(x).reshape(*x.shape[:-1], *self.initial_image_dims)
        return self.cnn_transpose_net(images) + 0.5
