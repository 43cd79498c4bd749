"""Optimizer LaProp, and adaptive gradient clipping."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class LaPropState(NamedTuple):
    """Optimizer state of `scale_by_laprop`.

    Attributes:
        count: int32, number of steps.
        squares: Moving averages of squared gradients, like the parameters.
        momentum: Moving averages of normalised gradients, like the parameters.
    """

    count: jax.Array
    squares: Any
    momentum: Any


def scale_by_laprop(b1: float = 0.9, b2: float = 0.999, eps: float = 1e-20) -> optax.GradientTransformation:
    """LaProp (Ziyin et al., 2020, arXiv:2002.04839, algorithm 1): normalises gradients before averaging them.

    ``n = b2 n + (1 - b2) g^2``, ``m = b1 m + (1 - b1) g / (sqrt(n / (1 - b2^t)) + eps)``; the update is
    ``m / (1 - b1^t)``. Unlike Adam's, it is at most about as large as one normalised gradient, also when gradients
    shrink all at once, which lets eps be tiny.

    Args:
        b1: Decay of the momentum.
        b2: Decay of the squares.
        eps: Added to the root.
    """

    def init(params: Any) -> LaPropState:
        return LaPropState(
            jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params)
        )

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        count = state.count + 1
        squares = jax.tree.map(lambda n, g: b2 * n + (1.0 - b2) * jnp.square(g), state.squares, updates)
        known, moved = 1.0 - b2**count, 1.0 - b1**count

        def momentum_of(m: jax.Array, n: jax.Array, g: jax.Array) -> jax.Array:
            # If every gradient was 0, the root is 0, too, and eps may be too small for float32.
            root = jnp.sqrt(n / known) + eps
            return b1 * m + (1.0 - b1) * jnp.where(root > 0, g / jnp.where(root > 0, root, 1.0), 0.0)

        momentum = jax.tree.map(momentum_of, state.momentum, squares, updates)
        return jax.tree.map(lambda m: m / moved, momentum), LaPropState(count, squares, momentum)

    return optax.GradientTransformation(init, update)


def clip_adaptively(clip: float = 0.3, least_norm: float = 1e-3) -> optax.GradientTransformation:
    """Gradient transformation that limits the norm of each parameter array's gradient to `clip` times the norm of the
    parameter array (Brock et al., 2021, arXiv:2102.06171).

    ``g min(1, clip max(least_norm, |w|) / |g|)`` with one norm per array, as in DreamerV3;
    ``optax.adaptive_grad_clip`` has one norm per unit.

    Args:
        clip: The largest ratio of norms.
        least_norm: Lower bound for the norms of arrays, so that arrays of zeros can change.
    """

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        if params is None:
            raise ValueError(
                "clip_adaptively() needs the parameters, but got params=None. Call update(updates, state, params)."
            )

        def clipped(g: jax.Array, w: jax.Array) -> jax.Array:
            limit = clip * jnp.maximum(least_norm, optax.tree.norm(w))
            return g * (limit / jnp.maximum(optax.tree.norm(g), limit))

        return jax.tree.map(clipped, updates, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def laprop(
    learning_rate: Any, *, clip: float | None = 0.3, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-20
) -> optax.GradientTransformation:
    """Chain of `clip_adaptively`, `scale_by_laprop` and the learning rate: the optimizer of later DreamerV3 versions.

    Args:
        learning_rate: Step size, or a schedule of it.
        clip: See `clip_adaptively`; None does not clip.
        b1: Decay of the momentum; see `scale_by_laprop`.
        b2: Decay of the squares.
        eps: Added to the root.
    """
    before = () if clip is None else (clip_adaptively(clip),)
    return optax.chain(*before, scale_by_laprop(b1, b2, eps), optax.scale_by_learning_rate(learning_rate))
