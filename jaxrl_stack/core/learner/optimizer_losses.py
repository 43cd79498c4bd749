"""Losses of a module with several optimizers, where each optimizer updates some of the module's parameters."""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp


@jax.tree_util.register_pytree_node_class
class LossesByOptimizer(dict[str, Any]):
    """Losses of a module with several optimizers, ``{optimizer name: scalar}``. Each loss is differentiated only for
    the parameters of its optimizer.

    A term that is added (``super().compute_loss_for_module(...) + penalty``) is differentiated for all parameters, and
    counts once in the sum of the losses, which is reported as ``total_loss``.
    """

    def __add__(self, term: Any) -> LossesByOptimizer:
        if isinstance(term, dict):
            return NotImplemented
        term = jnp.asarray(term, jnp.float32)
        # The first loss has the term's value; all losses have its gradient, each for its optimizer's parameters.
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
