"""The last N finished episodes, kept on the device."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_stack.ops import masks, packing
from jaxrl_stack.utils import counters


@struct.dataclass
class EpisodeWindow:
    """Returns and lengths of the last W finished episodes of one device, oldest first.

    Attributes:
        returns: float32 ``[W]``.
        lengths: int32 ``[W]``.
        stamps: uint32 ``[W]``, the vector step in which each episode ended; orders episodes of several devices.
        count: int32, how many entries are valid (the last ones).
        num_steps: uint32, vector steps seen so far.
        num_episodes: uint32[2], episodes finished so far; see `counters`.
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
            num_episodes=jnp.zeros(2, jnp.uint32),
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
        row = masks.rows_of(running, rank)
        is_new = rank >= 1
        kept = jnp.clip(rank + size - 1, 0, size - 1)

        def pick(new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(is_new, new.reshape(-1).at[row].get(mode="clip"), old[kept])

        stamps = self.num_steps + (row // num_envs).astype(jnp.uint32)
        return dataclasses.replace(
            self,
            returns=pick(returns, self.returns),
            lengths=pick(lengths, self.lengths),
            stamps=jnp.where(is_new, stamps, self.stamps[kept]),
            count=jnp.minimum(self.count + total, size),
            num_steps=self.num_steps + jnp.uint32(num_steps),
            num_episodes=counters.add(self.num_episodes, total),
        )

    def packed(self, is_finite: Any = True, axis_name: str | None = None) -> jax.Array:
        """All fields as one uint32 vector ``[3 W + 5]``: a program hands out one array faster than seven.

        Args:
            is_finite: bool scalar, handed out with them; see `unpacked`.
            axis_name: The device axis, for the vectors of all its D devices, ``[D, 3 W + 5]``.
        """
        vector, _, _ = packing.pack([*jax.tree.leaves(self), jnp.asarray(is_finite, jnp.uint32)], lead=0)
        assert vector is not None
        return vector if axis_name is None else jax.lax.all_gather(vector, axis_name)

    @classmethod
    def unpacked(cls, vectors: np.ndarray) -> tuple[EpisodeWindow, bool]:
        """``(window, is_finite on all devices)`` from `packed` vectors ``[D, 3 W + 5]``.

        Fields are NumPy arrays ``[D, ...]``. From ``[..., D, 3 W + 5]``, which several devices have of all, the first
        ones.
        """
        vectors = vectors.reshape(-1, *vectors.shape[-2:])[0]
        size = (vectors.shape[1] - 5) // 3
        return cls(*(slot.read(vectors, ()) for slot in _slots(size))), bool(vectors[:, -1].all())


@functools.cache
def _slots(size: int) -> list[packing.Slot]:
    """Where the fields are in what `EpisodeWindow.packed` makes."""
    return packing.slots_of(jax.tree.leaves(jax.eval_shape(functools.partial(EpisodeWindow.empty, size))), lead=0)


def last_episodes(window: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The newest W episodes over all devices.

    Args:
        window: An `EpisodeWindow` of NumPy arrays with leading device axis ``[D, W]``.

    Returns:
        ``(returns, lengths, stamps)`` of at most W episodes, oldest first.
    """
    size = window.returns.shape[1]
    valid = np.arange(size)[None] >= size - window.count[:, None]
    # Distance to now, so that the order survives the wrap-around of the step counter.
    age = (window.num_steps[:, None] - window.stamps).astype(np.uint32)[valid]
    order = np.argsort(-age.astype(np.int64), kind="stable")[-size:]
    return tuple(field[valid][order] for field in (window.returns, window.lengths, window.stamps))


def redistributed(window: Any, num_devices: int, size: int) -> Any:
    """The window of another number of devices: the first one holds all that was seen.

    Args:
        window: An `EpisodeWindow` of NumPy arrays ``[D, ...]``.
        num_devices: The new ``D``.
        size: The new ``W``.
    """

    def filled(values: np.ndarray) -> Any:
        out = np.zeros((num_devices, size), values.dtype)
        kept = values[-size:]
        out[0, size - len(kept) :] = kept
        return out

    def on_first(number: Any) -> Any:
        out = np.zeros((num_devices, *number.shape), number.dtype)
        out[0] = number
        return out

    returns, lengths, stamps = last_episodes(window)
    return EpisodeWindow(
        returns=filled(returns),
        lengths=filled(lengths),
        stamps=filled(stamps),
        count=on_first(np.int32(min(len(returns), size))),
        num_steps=window.num_steps[[0] * num_devices],
        num_episodes=on_first(counters.from_int(num_episodes(window))),
    )


def num_episodes(window: Any) -> int:
    """Episodes finished so far, over all devices.

    Args:
        window: An `EpisodeWindow` of NumPy arrays ``[D, ...]``.
    """
    return sum(counters.to_int(counter) for counter in window.num_episodes)
