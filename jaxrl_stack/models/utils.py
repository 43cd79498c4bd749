"""Activation functions and initializers by name, and default convolutions by image size, for modules written
for RLlib.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxrl_stack.core.models.activations import get_activation, linear
from jaxrl_stack.core.models.filters import default_filters
from jaxrl_stack.core.models.initializers import get_initializer
from jaxrl_stack.utils.framework import check_framework


def get_activation_fn(
    name: str | Callable[..., Any] | None = None, framework: str = "jax"
) -> Callable[[jax.Array], jax.Array] | None:
    """Returns the activation function with the given name.

    Args:
        name: A name of JAX ("relu", "leaky_relu", ...) or PyTorch ("LeakyReLU", ...), or a callable.
        framework: "jax"; "torch" stands for it.

    Returns:
        A function of an array, not a class; None for None and "linear".

    Raises:
        ValueError: There is no activation of that name, or another framework is asked for.
    """
    check_framework("get_activation_fn", framework)
    found = get_activation(name)
    return None if found is linear else found


def get_initializer_fn(name: str | Callable[..., Any] | None, framework: str = "jax") -> Any:
    """Returns the initializer ``(key, shape, dtype) -> array`` with the given name, for layers of flax.nnx.

    Args:
        name: A name from `jax.nn.initializers` ("orthogonal", ...) or `torch.nn.init` ("orthogonal_", ...), a callable,
            or None.
        framework: "jax"; "torch" stands for it.

    Returns:
        The initializer; None for None.

    Raises:
        ValueError: There is no initializer of that name, or another framework is asked for.
    """
    check_framework("get_initializer_fn", framework)
    return get_initializer(name, None, "name")


def get_filter_config(shape: Sequence[int]) -> list[list[Any]]:
    """Returns the default convolutions for images of a given size, as listed in `docs/networks.md`.

    If RLlib has default convolutions for this size, returns these; otherwise, the longer side determines the
    convolutions.

    Args:
        shape: ``[height, width]``, with an axis of channels after or before them.

    Returns:
        Value of the setting `conv_filters` in a model config.

    Raises:
        ValueError: The shape is not the shape of an image.
    """
    height, width, *channels = shape
    if channels and height != width and width == channels[0]:
        height, width, *channels = width, channels[0], height
    return default_filters([height, width, *(channels or [1])])
