"""Dense layer of the default modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl_stack.ops.dense import dense


class LayerInput(NamedTuple):
    """One of several inputs that a dense layer concatenates: a float vector, or an integer index that represents a
    one-hot vector.

    Attributes:
        values: Float ``[..., width]``; or int ``[...]``, indices of the ones in one-hot vectors.
        num_values: Width of the one-hot vectors, for ints; None for floats.
    """

    values: jax.Array
    num_values: int | None = None

    @property
    def width(self) -> int:
        """Width of the input after one-hot encoding, equal to the number of kernel rows for this input."""
        return self.values.shape[-1] if self.num_values is None else self.num_values

    def as_floats(self) -> jax.Array:
        """Converts this input of a dense layer to float ``[..., width]``.

        Float inputs stay unchanged. Integers become one-hot vectors, or zeros if an integer is not in the range [0,
        width).
        """
        return self.values if self.num_values is None else jax.nn.one_hot(self.values, self.num_values)


class Dense(nnx.Linear):
    """`nnx.Linear` whose gradients use matrix products that are faster on CPUs; see `jaxrl_stack.ops.dense.dense`."""

    def __call__(self, inputs: jax.Array, out_sharding=None) -> jax.Array:
        """Applies the layer: float ``[..., in_features]`` -> ``[..., out_features]``."""
        if self.bias is None or out_sharding is not None:
            return super().__call__(inputs, out_sharding)
        kernel, bias = self.kernel[...], self.bias[...]
        inputs, kernel, bias = self.promote_dtype((inputs, kernel, bias), dtype=self.dtype)
        return dense(inputs, kernel, bias)

    def of_parts(self, parts: Sequence[LayerInput]) -> jax.Array:
        """Applies the layer to several concatenated inputs; looks up kernel rows for integers instead of building
        one-hot vectors.

        A looked-up row equals the product of the integer's one-hot vector and the kernel.
        """
        kernel, bias = self.promote_dtype(
            (self.kernel[...], None if self.bias is None else self.bias[...]), dtype=self.dtype
        )
        total, first = jnp.zeros((), kernel.dtype) if bias is None else bias, 0
        for part in parts:
            rows = kernel[first : first + part.width]
            total += _rows_at(rows, part.values) if part.num_values else part.values.astype(rows.dtype) @ rows
            first += part.width
        return total


def _rows_at(rows: jax.Array, numbers: jax.Array) -> jax.Array:
    """Returns ``rows[numbers]`` for indices `numbers`, with zeros for indices out of range, including negative ones."""
    within = jnp.where(numbers < 0, len(rows), numbers)
    return rows.at[within].get(mode="fill", fill_value=0)
