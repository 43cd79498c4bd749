"""Arrays of a replay buffer on the device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_stack.ops import packing
from jaxrl_stack.replay import device_priorities


@struct.dataclass
class ReplayState:
    """State of a replay buffer on the device: a ring buffer of L rows. Each row contains one step of each of B
    environments.

    If rollouts have a ``loss_mask``, each of the B columns is one agent in one environment, with a separate ring
    buffer: `head`, `num_rows` and `size` are then ``[B]``, otherwise scalars.

    Attributes:
        ring: Steps packed with `StepLayout.pack` (leaves ``[B, L, ...]``).
        head: int32, ring position of the row that is written next.
        finals: Next observations that are not the `obs` of another row; None if every step stores its next observation.
        num_rows: uint32, number of rows ever added, modulo 2^32; it numbers the rows.
        size: int32, number of rows, counted from the newest, that can be drawn.
        priorities: Scaled priorities, with item index ``env * L + ring position of the row``; None for uniform draws.
        frames: Observations of all rows, if one frame is stored per row; None if `ring` has whole observations.
        is_masked: Whether rollouts have a ``loss_mask``; fixed.
    """

    ring: Any
    head: jax.Array
    finals: FinalObservations | None
    num_rows: jax.Array
    size: jax.Array
    priorities: device_priorities.PriorityLevels | None
    frames: FrameRing | None
    layout: StepLayout = struct.field(pytree_node=False)
    is_masked: bool = struct.field(pytree_node=False, default=False)

    @property
    def shared_by_members(self) -> tuple[str, ...]:
        """Names of the fields of `ReplayState` whose values are equal in all members of a population. The members are
        training runs in one JAX program; see `utils.members.member_axes`.

        If final observations share slots, a row whose slot was overwritten cannot be drawn any more, so `size` depends
        on the episodes of each member. With masks, the number of added steps depends on them, too.
        """
        if self.is_masked:
            return ()
        return ("head", "num_rows", "size") if self.finals is None else ("head", "num_rows")


@struct.dataclass
class FinalObservations:
    """Next observations that the ring buffer does not contain: next observations of truncated steps and of the newest
    row. With `DeviceReplay.keep_terminal_obs`, also next observations of terminated steps.

    Attributes:
        next_obs: ``[S + B, ...]``: a ring of S slots, then the next observations of the newest row of B environments.
        rows: uint32 ``[S]``, row numbers of the steps in the slots.
        next: int32, the slot that is written next.
        count: int32, number of used slots.
        envs: int32 ``[S]``, environments of the steps in the slots, if rows are numbered per environment; None without
            masks.
    """

    next_obs: Any
    rows: jax.Array
    next: jax.Array
    count: jax.Array
    envs: jax.Array | None = None


@struct.dataclass
class FrameRing:
    """Ring buffer of frames for stacked observations (n frames along the last axis). To save memory, each row stores
    only the newest frame of its observation.

    The n - 1 earlier frames of a row are the frames of the rows before it. For the first row, and for the first row
    after a cut, they are stored in front of the row. `head` and `since_cut` are ``[B]`` if rollouts have a
    ``loss_mask``, otherwise scalars.

    Attributes:
        pixels: ``[B, L + 2 (n - 1), ...]``: frames of L rows, and the earlier frames of the oldest row and of the row
            after a cut.
        head: int32, ring position of the frame that is written next.
        num_before: int32 ``[B]``, number of earlier frames in the episode of the next frame, at most n - 1.
        since_cut: int32, rows since the last cut, at most L.
        is_masked: Whether rollouts have a ``loss_mask``; fixed.
    """

    pixels: Any
    head: jax.Array
    num_before: jax.Array
    since_cut: jax.Array
    is_masked: bool = struct.field(pytree_node=False, default=False)

    @property
    def shared_by_members(self) -> tuple[str, ...]:
        """Names of the ring buffer's fields whose values are equal in all members of a population. The members are
        training runs in one JAX program; see `utils.members.member_axes`.
        """
        return () if self.is_masked else ("head", "since_cut")


@dataclasses.dataclass(frozen=True)
class StepLayout:
    """Memory layout of a stored step (a pytree). All 32-bit leaves are packed into one row of 32-bit words; every other
    leaf has a separate array.

    One operation writes or reads the row of words. Flags (bool leaves) also have separate arrays.

    Attributes:
        treedef: Structure of a step.
        slots: Position of each of its leaves.
    """

    treedef: Any
    slots: tuple[packing.Slot, ...]

    @classmethod
    def of(cls, step: Any) -> StepLayout:
        """Creates the layout of steps that have the same shapes and dtypes as the example `step`."""
        leaves, treedef = jax.tree.flatten(step)
        # Of a leaf that is in it twice there are two: they hold different numbers later.
        leaves = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
        return cls(treedef, tuple(packing.slots_of(leaves, lead=0, flags=False)))

    def pack(self, steps: Any) -> dict[str, Any]:
        """Packs steps, a pytree with leaves ``[..., *leaf shape]``, for the ring buffer.

        Packs all 32-bit leaves into one array with W 32-bit words per step, and every other leaf separately. Returns
        ``{"words": uint32 [..., W], "loose": [leaf, ...]}``.
        """
        words, loose = [], []
        for leaf, slot in zip(self.treedef.flatten_up_to(steps), self.slots, strict=True):
            leaf = leaf.astype(slot.dtype)
            if slot.is_packed:
                words.append(packing.bits(leaf, leaf.ndim - len(slot.shape)))
            else:
                loose.append(leaf)
        return {"words": jnp.concatenate(words, axis=-1), "loose": loose}

    def put(self, ring: Mapping[str, Any], rows: jax.Array, path: tuple[str, ...], values: Mapping[str, Any]) -> Any:
        """Overwrites arrays of N steps in the ring buffer with `values`, for example the arrays of one column.

        Other arrays of these steps do not change. Returns all steps of the ring buffer, packed as by `pack`.

        Args:
            ring: Packed steps ``[B, L, ...]``.
            rows: int32 ``[N]``, ``env * L + row``, no row twice; those from ``B L`` on are passed over.
            path: Keys in a step that lead to the dict.
            values: ``{key: [N, ...]}``.
        """
        slots: Any = jax.tree.unflatten(self.treedef, self.slots)
        for key in path:
            slots = slots[key]

        def written(stored: jax.Array, new: jax.Array, *columns: slice) -> jax.Array:
            flat = stored.reshape(-1, *stored.shape[2:])
            return flat.at[(rows, *columns)].set(new, mode="drop").reshape(stored.shape)

        words, loose = ring["words"], list(ring["loose"])
        for key, value in values.items():
            slot, value = slots[key], value.astype(slots[key].dtype)
            if slot.is_packed:
                columns = packing.bits(value, 1)
                words = written(words, columns, slice(slot.start, slot.start + columns.shape[1]))
            else:
                loose[slot.start] = written(loose[slot.start], value)
        return {"words": words, "loose": loose}

    def unpack(self, packed: Mapping[str, Any]) -> Any:
        """Converts packed steps back to a pytree with leaves ``[..., *leaf shape]``; inverse of `pack`."""
        leaves = [slot.read(packed["words"], packed["loose"]) for slot in self.slots]
        return jax.tree.unflatten(self.treedef, leaves)
