"""Losses of a module whose parts have optimizers of their own."""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp


@jax.tree_util.register_pytree_node_class
class LossesByOptimizer(dict[str, Any]):
    """``{optimizer name: scalar}``, each differentiated for the parameters of that optimizer alone.

    What is added to it (``super().compute_loss_for_module(...) + penalty``) has its gradient in all parameters, and
    counts once in their sum, which is reported as ``total_loss``.
    """

    def __add__(self, term: Any) -> LossesByOptimizer:
        if isinstance(term, dict):
            return NotImplemented
        term = jnp.asarray(term, jnp.float32)
        # The value is that of one loss only; the gradient is that of each optimizer's own parameters.
        without_value = term - jax.lax.stop_gradient(term)
        first, *others = self
        return LossesByOptimizer({first: self[first] + term} | {name: self[name] + without_value for name in others})

    __radd__ = __add__

    def __sub__(self, term: Any) -> LossesByOptimizer:
        return NotImplemented if isinstance(term, dict) else self + -jnp.asarray(term, jnp.float32)

    def tree_flatten(self) -> tuple[list[Any], tuple[str, ...]]:
        names = tuple(sorted(self))
        return [self[name] for name in names], names

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], values: Any) -> Self:
        return cls(zip(names, values, strict=True))
