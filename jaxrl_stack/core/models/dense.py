"""The dense layer of the default modules."""

from __future__ import annotations

import jax
from flax import nnx

from jaxrl_stack.ops.dense import dense


class Dense(nnx.Linear):
    """`nnx.Linear` whose gradients are multiplied the fast way; see `jaxrl_stack.ops.dense.dense`."""

    def __call__(self, inputs: jax.Array, out_sharding=None) -> jax.Array:
        """Float ``[..., in_features]`` -> ``[..., out_features]``."""
        if self.bias is None or out_sharding is not None:
            return super().__call__(inputs, out_sharding)
        kernel, bias = self.kernel[...], self.bias[...]
        inputs, kernel, bias = self.promote_dtype((inputs, kernel, bias), dtype=self.dtype)
        return dense(inputs, kernel, bias)
