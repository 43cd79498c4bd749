"""Advice on code that JAX cannot trace. Error messages about environments, networks and losses contain this advice."""

from __future__ import annotations

import re

import jax

NO_VALUES = (
    "Python's if, while, int(), float() and .item(), and NumPy, cannot read the values of arrays that JAX traces: "
    "use jnp.where, jax.lax.cond and jnp instead."
)
_TORCH_METHODS = {
    "backward": "gradients are taken of the loss that is returned",
    "clone": "arrays never change, x itself will do",
    "cpu": "arrays are moved by JAX, leave it out",
    "cuda": "arrays are moved by JAX, leave it out",
    "detach": "jax.lax.stop_gradient(x)",
    "numpy": "x itself, with jnp",
    "permute": "x.transpose(axes)",
    "size": "x.shape",
    "to": "x.astype(dtype)",
    "unsqueeze": "jnp.expand_dims(x, axis)",
    "view": "x.reshape(shape)",
}
"""Method of a torch.Tensor -> what does the same with a JAX array."""


def remedy(error: BaseException) -> str:
    """Advice on how to rewrite code that JAX cannot trace; "" for other errors.

    Args:
        error: Raised by code of the user while JAX traced it.
    """
    text = str(error)
    if isinstance(error, jax.errors.JAXTypeError):
        return NO_VALUES
    method = re.search(r"(?:Tracer|Array\w*)'? (?:object )?has no attribute '?(\w+)", text)
    if "array.view()" in text:
        return f"Arrays are JAX's, not torch's: instead of .view() use {_TORCH_METHODS['view']}."
    if isinstance(error, AttributeError) and method and method[1] in _TORCH_METHODS:
        return f"Arrays are JAX's, not torch's: instead of .{method[1]}() use {_TORCH_METHODS[method[1]]}."
    if type(error).__module__.startswith("flax.errors"):
        return "Use layers of flax.nnx, such as nnx.Linear(4, 2, rngs=self.rngs), not of flax.linen."
    return ""
