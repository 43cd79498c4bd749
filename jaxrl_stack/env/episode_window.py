"""The last N finished episodes, kept on the device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct


@struct.dataclass
class EpisodeWindow:
    """Returns and lengths of the last W finished episodes of one device, oldest first.

    Attributes:
        returns: float32 ``[W]``.
        lengths: int32 ``[W]``.
        stamps: uint32 ``[W]``, the vector step in which each episode ended; orders episodes of several devices.
        count: int32, how many entries are valid (the last ones).
        num_steps: uint32, vector steps seen so far.
        num_episodes: uint32, episodes finished so far, modulo 2**32.
    """

    returns: jax.Array
    lengths: jax.Array
    stamps: jax.Array
    count: jax.Array
    num_steps: jax.Array
    num_episodes: jax.Array

    @classmethod
    def empty(cls, size: int) -> EpisodeWindow:
        """A window without episodes.

        Args:
            size: ``W``, at least 1.
        """
        return cls(
            returns=jnp.zeros((size,), jnp.float32),
            lengths=jnp.zeros((size,), jnp.int32),
            stamps=jnp.zeros((size,), jnp.uint32),
            count=jnp.int32(0),
            num_steps=jnp.uint32(0),
            num_episodes=jnp.uint32(0),
        )

    def extend(self, ended: jax.Array, returns: jax.Array, lengths: jax.Array) -> EpisodeWindow:
        """Take in the episodes that ended during a rollout.

        Args:
            ended: bool ``[T, B]``.
            returns: float32 ``[T, B]``, valid where `ended`.
            lengths: int32 ``[T, B]``, valid where `ended`.
        """
        size, (num_steps, num_envs) = self.returns.shape[0], ended.shape
        running = jnp.cumsum(ended.reshape(-1).astype(jnp.int32))
        total = running[-1]
        # Entry j of the new window is the (total - W + 1 + j)-th new episode; below 1 an old entry moves down.
        rank = total - size + 1 + jnp.arange(size, dtype=jnp.int32)
        row = jnp.searchsorted(running, rank, side="left")
        is_new = rank >= 1
        kept = jnp.clip(rank + size - 1, 0, size - 1)

        def pick(new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(is_new, new.reshape(-1).at[row].get(mode="clip"), old[kept])

        stamps = self.num_steps + (row // num_envs).astype(jnp.uint32)
        return self.replace(
            returns=pick(returns, self.returns),
            lengths=pick(lengths, self.lengths),
            stamps=jnp.where(is_new, stamps, self.stamps[kept]),
            count=jnp.minimum(self.count + total, size),
            num_steps=self.num_steps + jnp.uint32(num_steps),
            num_episodes=self.num_episodes + total.astype(jnp.uint32),
        )


def last_episodes(window: Any) -> tuple[np.ndarray, np.ndarray]:
    """The newest W episodes over all devices.

    Args:
        window: An `EpisodeWindow` of NumPy arrays with leading device axis ``[D, W]``.

    Returns:
        ``(returns, lengths)`` of at most W episodes, oldest first.
    """
    num_devices, size = window.returns.shape
    valid = np.arange(size)[None] >= size - window.count[:, None]
    # Distance to now, so that the order survives the wrap-around of the step counter.
    age = (window.num_steps[:, None] - window.stamps).astype(np.uint32)[valid]
    order = np.argsort(-age.astype(np.int64), kind="stable")[-size:]
    return window.returns[valid][order], window.lengths[valid][order]
