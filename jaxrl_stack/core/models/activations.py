"""Activation functions by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def linear(x: jax.Array) -> jax.Array:
    """Identity function."""
    return x


def tanhshrink(x: jax.Array) -> jax.Array:
    """Computes x - tanh(x)."""
    return x - jnp.tanh(x)


def gelu(x: jax.Array) -> jax.Array:
    """Computes x times the normal CDF of x: exact, as torch's default; JAX's default is an approximation with tanh."""
    return jax.nn.gelu(x, approximate=False)


# Lower-case names, without underscores: torch.nn class names match once lower-cased.
_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "linear": linear,
    "identity": linear,
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "tanh": jnp.tanh,
    "elu": jax.nn.elu,
    "selu": jax.nn.selu,
    "celu": jax.nn.celu,
    "gelu": gelu,
    "swish": jax.nn.silu,
    "silu": jax.nn.silu,
    "mish": jax.nn.mish,
    "sigmoid": jax.nn.sigmoid,
    "logsigmoid": jax.nn.log_sigmoid,
    "softmax": jax.nn.softmax,
    "softplus": jax.nn.softplus,
    "softsign": jax.nn.soft_sign,
    "leakyrelu": jax.nn.leaky_relu,
    "hardtanh": jax.nn.hard_tanh,
    "hardsigmoid": jax.nn.hard_sigmoid,
    "hardswish": jax.nn.hard_swish,
    "tanhshrink": tanhshrink,
}


def get_activation(activation: str | Callable[..., Any] | None) -> Callable[[jax.Array], jax.Array]:
    """Returns the activation function for a setting such as ``fcnet_activation``: a name, a callable, or None for
    linear.

    Args:
        activation: A name ("relu", "leaky_relu", torch.nn's "LeakyReLU", …), a callable array -> array, or
            None for linear.

    Raises:
        ValueError: If the name is unknown; the message lists the closest known names.
    """
    if activation is None:
        return linear
    if callable(activation):
        return activation
    key = str(activation).lower().replace("_", "")
    if key not in _ACTIVATIONS:
        close = difflib.get_close_matches(key, _ACTIVATIONS, n=3) or sorted(_ACTIVATIONS)
        raise ValueError(
            f"Unknown activation {activation!r}: use one of {close}, or pass a callable such as jax.nn.relu."
        )
    return _ACTIVATIONS[key]
