"""Running mean and variance of observations or other rows, merged exactly over batches, devices and runners.

Counts are 64-bit integers as ``uint32[2]`` (high word, low word), because a float32 count stops at 2^24. The statistics
contain the variance instead of the textbook's sum of squared deviations: in float32 this sum stops growing once a batch
adds less than its last bit, while the count still grows, so that the variance would sink to zero. If a mean and a
variance change by ``weight * difference``, they merely stop changing.

Source: Chan, Golub and LeVeque 1983, "Algorithms for computing the sample variance", equations 2.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_stack.ops import packing, two_words


class RunningStatistics(NamedTuple):
    """Running count, mean and variance of arrays of equal shape, such as observations; each array is called a row.

    Attributes:
        count: Rows seen, ``uint32[2]`` (high word, low word).
        mean: float32, shape of a row.
        variance: float32, shape of a row; mean squared distance from the mean (divisor ``count``).
    """

    count: jax.Array
    mean: jax.Array
    variance: jax.Array


def init(shape: tuple[int, ...]) -> RunningStatistics:
    """Creates running statistics without data.

    Args:
        shape: Shape of one row.
    """
    return RunningStatistics(jnp.zeros(2, jnp.uint32), jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.float32))


def of_batch(batch: jax.Array, mask: jax.Array | None = None) -> RunningStatistics:
    """Computes count, mean and variance of the rows of one batch, in two passes.

    Args:
        batch: Number array ``[N, ...]``.
        mask: bool ``[N]``; rows that count. None: all. Rows that do not count may hold anything, NaN
            included.
    """
    batch = batch.astype(jnp.float32)
    # Distances from a row that counts: a column that never changes gets exactly its value as mean, and
    # variance 0. A mean that is off by one bit would come out of a division by a standard deviation of 0 as a
    # large number.
    if mask is None:
        pivot, count = batch[0], jnp.uint32(batch.shape[0])
        rows = batch - pivot[None]
        divisor = jnp.float32(batch.shape[0])
    else:
        wide = jnp.reshape(mask, (-1, *(1 for _ in batch.shape[1:])))
        count = jnp.sum(mask, dtype=jnp.uint32)
        pivot = jnp.where(count > 0, batch[jnp.argmax(mask)], 0.0)
        rows = jnp.where(wide, batch - pivot[None], 0.0)
        divisor = jnp.maximum(count.astype(jnp.float32), 1.0)
    shift = jnp.sum(rows, axis=0) / divisor
    squares = jnp.square(rows - shift[None])
    if mask is not None:
        squares = jnp.where(wide, squares, 0.0)
    return RunningStatistics(
        count=jnp.stack([jnp.zeros_like(count), count]), mean=pivot + shift, variance=jnp.sum(squares, axis=0) / divisor
    )


def merge(a: RunningStatistics, b: RunningStatistics) -> RunningStatistics:
    """Merges the running statistics of two sets of rows to statistics of all rows. Merging empty statistics changes no
    bit.

    ``mean = mean_a + w * d``, ``variance = variance_a + w * (variance_b - variance_a) + w * (1 - w) * d^2``
    with ``d = mean_b - mean_a`` and ``w = count_b / (count_a + count_b)``.
    """
    count = two_words.add(a.count, b.count)
    total = jnp.maximum(two_words.as_float(count), 1.0)
    weight_a, weight_b = two_words.as_float(a.count) / total, two_words.as_float(b.count) / total
    difference = b.mean - a.mean
    return RunningStatistics(
        count=count,
        mean=a.mean + weight_b * difference,
        variance=a.variance + weight_b * (b.variance - a.variance) + (weight_a * weight_b) * jnp.square(difference),
    )


def update(statistics: RunningStatistics, batch: jax.Array, mask: jax.Array | None = None) -> RunningStatistics:
    """Updates running statistics with the rows of a batch.

    Args:
        statistics: Statistics so far.
        batch: Number array ``[N, ...]``.
        mask: bool ``[N]``; rows that count. None: all.
    """
    return merge(statistics, of_batch(batch, mask))


def on_finite_rows(
    function: Callable[[jax.Array, jax.Array | None], RunningStatistics],
    batch: jax.Array,
    mask: jax.Array | None = None,
) -> RunningStatistics:
    """Computes running statistics without rows that contain NaN or infinity: calls ``function(batch, mask)`` with a
    mask that excludes these rows.

    One of them would make every later mean NaN. Where all rows are finite, `function` gets `mask` itself.

    Args:
        function: `of_batch`, or `update` of some statistics.
        batch: Number array ``[N, ...]``.
        mask: bool ``[N]``; rows that count. None: all.
    """
    if not jnp.issubdtype(batch.dtype, jnp.inexact):
        return function(batch, mask)
    finite = jnp.isfinite(batch).reshape(batch.shape[0], -1).all(axis=1)
    is_usual = jnp.all(finite if mask is None else finite | ~mask)

    def all_rows(batch: jax.Array) -> RunningStatistics:
        return function(batch, mask)

    def finite_rows(batch: jax.Array) -> RunningStatistics:
        return function(batch, finite if mask is None else finite & mask)

    def one_of_both(batch: jax.Array) -> RunningStatistics:
        return jax.lax.cond(is_usual, all_rows, finite_rows, batch)

    def selected(batch: jax.Array) -> RunningStatistics:  # branching on an array stalls an accelerator
        return jax.tree.map(lambda a, b: jnp.where(is_usual, a, b), all_rows(batch), finite_rows(batch))

    return jax.lax.platform_dependent(batch, cpu=one_of_both, default=selected)


def merge_over_axis(base: RunningStatistics, delta: RunningStatistics, axis_name: str | None) -> RunningStatistics:
    """Merges the new statistics `delta` of every device into the statistics `base` that all devices share.

    The deltas are gathered and folded in the order of the devices, so the result is the same on all of them,
    bit for bit, if ``base`` was.

    Args:
        base: Statistics that all devices share.
        delta: Statistics of this device since then.
        axis_name: Device axis; None adds this device's ``delta`` only.
    """
    if axis_name is None:
        return merge(base, delta)
    # As one vector: devices that wait for each other cost more than what they exchange.
    leaves, treedef = jax.tree.flatten(delta)
    vector, _, slots = packing.pack(leaves, lead=0)
    gathered = jax.lax.all_gather(vector, axis_name)
    return merge_all(base, jax.tree.unflatten(treedef, [slot.read(gathered, ()) for slot in slots]))


def merge_all(base: RunningStatistics, deltas: RunningStatistics) -> RunningStatistics:
    """Merges D running statistics, stacked along the leading axis ``[D]`` of `deltas`, into `base`, one after the
    other.
    """
    return jax.lax.scan(lambda merged, one: (merge(merged, one), None), base, deltas)[0]


def standard_deviation(statistics: RunningStatistics) -> jax.Array:
    """Sample standard deviation of running statistics (divisor ``count - 1``), float32; 1 if they contain fewer than
    two rows.
    """
    count = two_words.as_float(statistics.count)
    std = jnp.sqrt(statistics.variance * (count / jnp.maximum(count - 1.0, 1.0)))
    return jnp.where(count < 2.0, 1.0, std)


def normalize(
    statistics: RunningStatistics,
    batch: jax.Array,
    *,
    subtract_mean: bool = True,
    divide_by_std: bool = True,
    clip: float | None = None,
    epsilon: float = 1e-8,
) -> jax.Array:
    """Normalizes values: ``(x - mean) / (std + epsilon)``, clipped to ``[-clip, clip]``.

    Args:
        statistics: Statistics of rows with the shape of those in ``batch``.
        batch: Number array ``[N, ...]``.
        subtract_mean: Whether to subtract the mean.
        divide_by_std: Whether to divide by the standard deviation.
        clip: Bound of the absolute value, or None.
        epsilon: Added to the standard deviation.

    Returns:
        float32 ``[N, ...]``.
    """
    out = batch.astype(jnp.float32)
    if subtract_mean:
        out = out - statistics.mean[None]
    if divide_by_std:
        out = out / (standard_deviation(statistics) + epsilon)[None]
    return out if clip is None else jnp.clip(out, -clip, clip)
