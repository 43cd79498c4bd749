"""Dense layer with a weight gradient that XLA's CPU backend computes at full speed."""

from __future__ import annotations

import jax
import jax.numpy as jnp

NARROW = 16
"""Up to this width a side of the weight matrix counts as narrow."""


@jax.custom_vjp
def dense(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """Computes ``x @ kernel + bias``; the gradients equal autodiff's, but use matrix products that are faster on CPU.

    On CPU, XLA reads the transposed activations of a weight gradient ``x.T @ g`` in place, with strides, which costs
    up to four times what the product of contiguous operands does; and it folds an explicit transpose back into the
    product. After a barrier it does not. Measured on the gradient of a 64x64 actor and critic: 15 to 23 % less time.

    Args:
        x: Float ``[..., n]``.
        kernel: Float ``[n, m]``.
        bias: Float ``[m]``.

    Returns:
        Float ``[..., m]``.
    """
    return x @ kernel + bias


def _forward(x: jax.Array, kernel: jax.Array, bias: jax.Array):
    return x @ kernel + bias, (x, kernel)


def _backward(residuals, g: jax.Array):
    x, kernel = residuals
    n, m = kernel.shape
    flat_x, flat_g = x.reshape(-1, n), g.reshape(-1, m)
    kernel_gradient, bias_gradient = jax.lax.platform_dependent(
        flat_x, flat_g, cpu=_parameter_gradients_on_cpu, default=_parameter_gradients
    )
    return (g @ kernel.T).astype(x.dtype), kernel_gradient, bias_gradient


def _parameter_gradients(x: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x.T @ g, jnp.sum(g, axis=0)


FOLDED_ROWS = 2048
"""Up to so many rows it costs less to leave the folding of a transpose to XLA: PPO with minibatches of 2,048 rows
makes 0.96 times the steps per second without it, and with 16,384 rows 1.1 times."""


def _parameter_gradients_on_cpu(x: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    if g.shape[1] <= NARROW:
        transposed = jax.lax.optimization_barrier(g.T)
        product = transposed @ x
        if x.shape[0] > FOLDED_ROWS:
            # A transpose of the product is folded into it as well, with strides on both sides: 20 times the time.
            product = jax.lax.optimization_barrier(product)
        return product.T, jnp.sum(transposed, axis=1)
    if x.shape[1] <= NARROW:
        return _parameter_gradients(x, g)
    return jax.lax.optimization_barrier(x.T) @ g, jnp.sum(g, axis=0)


dense.defvjp(_forward, _backward)
