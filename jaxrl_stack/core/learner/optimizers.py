"""The optimizers of a Learner, and how gradients are clipped."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax

from jaxrl_stack.ops import reductions

ParamDict = dict[str, jax.Array]
"""``{ref: array}``; ``ref`` is what `Learner.get_param_ref` returns."""

DEFAULT_OPTIMIZER = "default_optimizer"
ELEMENTWISE_OPTIMIZERS = (optax.adam, optax.sgd, optax.rmsprop, optax.adagrad, optax.adamax, optax.nadam, optax.radam)
"""Factories whose steps treat every entry by itself, whatever the shapes of the parameters: one step on a vector of
all of them is the same, and a dozen times fewer operations for a network of a dozen leaves."""


def is_elementwise(factory: Any) -> bool:
    """Whether a factory is one of `ELEMENTWISE_OPTIMIZERS`, or one of them with some of its arguments bound."""
    return (factory.func if isinstance(factory, functools.partial) else factory) in ELEMENTWISE_OPTIMIZERS


@dataclasses.dataclass(frozen=True, eq=False)
class RegisteredOptimizer:
    """One optimizer of one module: how to make it, and which parameters it owns.

    Attributes:
        module_id: The module it belongs to.
        name: Its name within the module.
        factory: ``lr -> optax.GradientTransformation``; applied to the current learning rate inside the update.
        refs: Refs of the parameters that it updates.
        lr: A number or ``[[timestep, value], ...]``; None if `factory` ignores it.
        is_flat: Whether it works on all its parameters laid end to end in one vector. Its state is then of that
            shape, too.
    """

    module_id: str
    name: str
    factory: Callable[[Any], optax.GradientTransformation]
    refs: tuple[str, ...]
    lr: Any
    is_flat: bool

    def init(self, params: ParamDict) -> Any:
        """Its initial state."""
        own: Any = {ref: params[ref] for ref in self.refs}
        return self.factory(jnp.float32(0.0)).init(reductions.ravel(own)[0] if self.is_flat else own)

    def step(self, lr: Any, gradients: ParamDict, state: Any, params: ParamDict) -> tuple[ParamDict, Any]:
        """One step: ``(new parameters, new state)``. Non-finite gradient entries count as finite numbers."""
        transformation = self.factory(lr)
        if not self.is_flat:
            updates, state = transformation.update(jax.tree.map(jnp.nan_to_num, gradients), state, params)
            return cast(ParamDict, optax.apply_updates(params, updates)), state
        gradient, _ = reductions.ravel(gradients)
        vector, unravel = reductions.ravel(params)
        updates, state = transformation.update(jnp.nan_to_num(gradient), state, vector)
        return unravel(vector + cast(jax.Array, updates)), state


def as_vector(params: ParamDict) -> tuple[Any, Callable[[Any], ParamDict]]:
    """Parameters or gradients as one vector if all are float32 and few (`reductions.LARGEST_VECTOR`), else as they are.

    Returns:
        ``(vector or the dict, way back)``.
    """
    is_large = reductions.num_elements(params) > reductions.LARGEST_VECTOR
    if not params or is_large or any(leaf.dtype != jnp.float32 for leaf in params.values()):
        return params, lambda params: params
    return reductions.ravel(params)


def clip_gradients(gradients: ParamDict, grad_clip: Any, grad_clip_by: str) -> tuple[ParamDict, jax.Array]:
    """Clip gradients as RLlib does.

    Args:
        gradients: ``{ref: gradient}`` of one optimizer.
        grad_clip: Threshold; None or the Python number 0 switch clipping off.
        grad_clip_by: ``"value"`` clips every entry to ``[-c, c]``; ``"norm"`` scales each tensor to an L2 norm of at
            most ``c``; ``"global_norm"`` scales all of them together.

    Returns:
        ``(clipped gradients, global L2 norm before clipping)``.
    """
    flat, unpack = as_vector(gradients)
    norm = optax.tree.norm(flat)
    if grad_clip is None or (isinstance(grad_clip, int | float) and grad_clip == 0):
        return gradients, norm
    if grad_clip_by == "value":
        return unpack(jax.tree.map(lambda g: jnp.clip(g, -grad_clip, grad_clip), flat)), norm
    if grad_clip_by == "norm":
        scales = jax.tree.map(lambda g: grad_clip / jnp.maximum(optax.tree.norm(g), grad_clip), gradients)
        return jax.tree.map(jnp.multiply, gradients, scales), norm
    scale = grad_clip / jnp.maximum(norm + 1e-6, grad_clip)
    return unpack(jax.tree.map(lambda g: g * scale, flat)), norm
