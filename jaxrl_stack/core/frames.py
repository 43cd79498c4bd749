"""Storage of frame-stacked observations (n frames per observation) as one frame per step, which saves memory between
sampling and the loss.

A block has the newest frame of each step in ``OBS`` and ``FINAL_OBS``, the frames before its first row in
``FRAMES_BEFORE``, and in ``NUM_BEFORE`` the number of earlier frames that belong to a row's episode; the other frames
are zeros. Whole observations are made where they are read, for example for the rows of a minibatch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.ops.masks import expand

FRAMES_BEFORE = "frames_before"
"""Column of a block of frames: ``[1, B, n - 1, ..., C]``, oldest first."""
NUM_BEFORE = "num_before"
"""Column of a block of frames: int32 ``[T, B]``, from 0 to n - 1."""
OF_ROWS = (Columns.OBS, FRAMES_BEFORE, NUM_BEFORE)
"""Columns from which `FrameRows` are built."""
_OF_STEPS = (Columns.OBS, Columns.FINAL_OBS)


def newest(columns: dict[str, Any], num_frames: int) -> dict[str, Any]:
    """Returns a module's columns with only the newest frame of each frame-stacked observation: ``[..., n * C]`` becomes
    ``[..., C]`` (``n = num_frames`` frames of C channels).
    """
    return columns | {name: columns[name][..., -(columns[name].shape[-1] // num_frames) :] for name in _OF_STEPS}


def as_frames(columns: dict[str, Any], resets: np.ndarray, num_frames: int) -> dict[str, Any]:
    """Converts columns with frame-stacked observations to columns with one frame per step; inverse of `stacked`.

    Args:
        columns: ``{column: pytree [T, B, ...]}``, NumPy, with ``OBS`` and ``FINAL_OBS`` ``[T, B, ..., n * C]``.
        resets: bool ``[T, B]``, whether an episode begins.
        num_frames: ``n``.

    Returns:
        Columns in which ``OBS`` and ``FINAL_OBS`` are copies ``[T, B, ..., C]``. ``FINAL_OBS`` is the frame after the
        frames of the row's observation.
    """
    before = _apart(columns[Columns.OBS][0], num_frames)[:, :-1]
    kept = newest(columns, num_frames)
    kept |= {name: kept[name].copy() for name in _OF_STEPS}
    return kept | {FRAMES_BEFORE: before[None].copy(), NUM_BEFORE: _counts(resets, num_frames)}


def of_rollout(
    columns: dict[str, Any], earlier: jax.Array, num_fragments: int, *, keeps_resets: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Computes two columns from which frame-stacked observations can be restored after a rollout is cut into fragments.

    The rollout has one frame per step. ``NUM_BEFORE`` is the number of earlier frames of the same episode in each
    step's observation. ``FRAMES_BEFORE`` has the frames before each fragment.

    Args:
        columns: ``{column: pytree [R * T, B, ...]}``, results of `newest`, and ``RESETS``.
        earlier: Concatenated frames before the first row, ``[B, ..., (n - 1) * C]``.
        num_fragments: ``R``.
        keeps_resets: Whether to keep ``RESETS``, which modules with a recurrent state read.

    Returns:
        ``(columns [R * T, B, ...], {FRAMES_BEFORE: [1, R * B, n - 1, ..., C]})``; the latter has the frames before each
        fragment.
    """
    obs = columns[Columns.OBS]
    num_before = earlier.shape[-1] // obs.shape[-1]
    counts = {NUM_BEFORE: _counts(columns[Columns.RESETS], num_before + 1)}
    if not keeps_resets:
        columns = {name: own for name, own in columns.items() if name != Columns.RESETS}
    frames = jnp.concatenate([jnp.swapaxes(_apart(earlier, num_before), 0, 1), obs])
    at = np.arange(num_fragments)[:, None] * (len(obs) // num_fragments) + np.arange(num_before)
    before = jnp.moveaxis(frames[at], 1, 2)
    return columns | counts, {FRAMES_BEFORE: before.reshape(1, -1, *before.shape[2:])}


def stacked(columns: dict[str, Any]) -> dict[str, Any]:
    """Converts columns with one frame per step to columns with frame-stacked observations; inverse of `as_frames`.

    Args:
        columns: ``{column: pytree [T, B, ...]}``, NumPy or JAX; ``FINAL_OBS`` may be missing.
    """
    columns = dict(columns)
    before, counts, obs = (columns.pop(name) for name in (FRAMES_BEFORE, NUM_BEFORE, Columns.OBS))
    xp: Any = np if isinstance(obs, np.ndarray) else jnp
    frames = xp.concatenate([xp.swapaxes(before[0], 0, 1), obs])
    whole = _side_by_side([frames[k : k + len(obs)] for k in range(before.shape[2] + 1)], counts)
    if Columns.FINAL_OBS in columns:
        columns[Columns.FINAL_OBS] = _followed_by(whole, columns[Columns.FINAL_OBS])
    return {**columns, Columns.OBS: whole}


@struct.dataclass
class FrameRows:
    """Single frames of a block ``[T, B, ...]`` in flat order; `take` restores frame-stacked observations.

    Step t at index b of axis B is row ``t * B + b``.

    Attributes:
        frames: Frames before the block and of its rows, ``[(n - 1 + T) * B, ..., C]``.
        counts: int32 ``[T * B]``, ``NUM_BEFORE``.
        num_frames: ``n``.
        num_columns: ``B``.
    """

    frames: jax.Array
    counts: jax.Array
    num_frames: int = struct.field(pytree_node=False)
    num_columns: int = struct.field(pytree_node=False)

    @classmethod
    def of(cls, columns: dict[str, Any]) -> FrameRows:
        """Creates `FrameRows` from flattened columns of a block.

        ``OBS`` (one frame per step) and ``NUM_BEFORE`` must be ``[T * B, ...]``. ``FRAMES_BEFORE`` must be
        ``[B, n - 1, ..., C]``, the frames before the block (n frames of C channels per observation).
        """
        before, obs = jnp.swapaxes(columns[FRAMES_BEFORE], 0, 1), columns[Columns.OBS]
        frames = jnp.concatenate([before.reshape(-1, *obs.shape[1:]), obs])
        return cls(frames, columns[NUM_BEFORE], len(before) + 1, before.shape[1])

    def take(self, rows: jax.Array) -> jax.Array:
        """Returns the frame-stacked observations ``[m, ..., n * C]`` (n frames of C channels) at the row indices
        `rows`, ``[m]``.
        """
        rows = rows.astype(jnp.int32)
        places = [rows + k * self.num_columns for k in range(self.num_frames)]
        frames = [self.frames.at[place].get(mode="promise_in_bounds") for place in places]
        return _side_by_side(frames, self.counts.at[rows].get(mode="promise_in_bounds"))

    def take_after(self, rows: jax.Array, final: jax.Array) -> jax.Array:
        """Returns the frame-stacked observations after the steps at the row indices `rows`.

        `rows` is ``[m]``, and the result is ``[m, ..., n * C]``: n frames of C channels per observation. `final`,
        ``[m, ..., C]``, contains the newest frame of each of these observations.
        """
        return _followed_by(self.take(rows), final)


def rows_of_block(
    columns: dict[str, Any], num_frames: int, function: Callable[[Any], Any]
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Prepares the evaluation of `function` on the observations of selected steps of a block.

    Returns two pairs ``(inputs, f)``. `inputs` has one entry per step. To evaluate `function` at some steps, call `f`
    with the entries of `inputs` for these steps.

    If the block stores whole observations, the returned inputs are the observations. If it stores single frames, inputs
    are row indices, and the returned functions restore the stacked observations before they call `function`.

    Args:
        columns: ``{column: pytree [T, B, ...]}`` with ``OBS`` and ``FINAL_OBS``.
        num_frames: ``n``; 1: the block has whole observations.
        function: Function of observations ``[m, ...]``.

    Returns:
        Two pairs ``(inputs [T * B, ...], f)``: the first for the observations before the steps, the second for the
        observations after the steps. With single frames, the inputs of the second pair also contain the newest frame of
        each observation.
    """
    names = (Columns.OBS, Columns.FINAL_OBS, *([NUM_BEFORE] if num_frames > 1 else []))
    flat = {name: jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), columns[name]) for name in names}
    obs, final = flat[Columns.OBS], flat[Columns.FINAL_OBS]
    if num_frames == 1:
        return (obs, function), (final, function)
    own, numbers = FrameRows.of({**flat, FRAMES_BEFORE: columns[FRAMES_BEFORE][0]}), jnp.arange(len(obs))
    return (numbers, lambda rows: function(own.take(rows))), (
        (numbers, final),
        lambda rows: function(own.take_after(*rows)),
    )


def _apart(obs: Any, num_frames: int) -> Any:
    """Splits frame-stacked observations ``[B, ..., n * C]`` into n frames of C channels, ``[B, n, ..., C]``."""
    xp: Any = np if isinstance(obs, np.ndarray) else jnp
    return xp.moveaxis(obs.reshape(*obs.shape[:-1], num_frames, -1), -2, 1)


def _side_by_side(frames: Sequence[Any], counts: Any) -> Any:
    """Concatenates n frames of C channels, ``[..., C]``, oldest first, to observations ``[..., n * C]``.

    Frames of other episodes become zeros: of the frames before the newest one, the last `counts` are kept.
    """
    xp: Any = np if isinstance(counts, np.ndarray) else jnp
    known = [expand(counts >= len(frames) - 1 - k, frame) for k, frame in enumerate(frames)]
    return xp.concatenate([xp.where(k, x, xp.zeros_like(x)) for k, x in zip(known, frames, strict=True)], axis=-1)


def _followed_by(obs: Any, frame: Any) -> Any:
    """Appends a frame to stacked observations and drops the oldest one."""
    xp: Any = np if isinstance(obs, np.ndarray) else jnp
    return xp.concatenate([obs[..., frame.shape[-1] :], frame], axis=-1)


def _counts(resets: Any, num_frames: int) -> Any:
    """Returns the column ``NUM_BEFORE``, int32 ``[T, B]``: the number of steps since the start of each step's episode,
    at most n - 1 (n frames per stack).

    For each index of axis B, it is n - 1 until the first reset: the frames in ``FRAMES_BEFORE`` are used unchanged.
    """
    xp, latest = (np, np.maximum.accumulate) if isinstance(resets, np.ndarray) else (jnp, jax.lax.cummax)
    times = np.arange(len(resets), dtype=np.int32)[:, None]
    begins: Any = xp.where(resets, times, np.int32(1 - num_frames))
    return xp.minimum(times - latest(begins), np.int32(num_frames - 1))
