"""Recorded steps of one module: sampled steps in order (`Block`), or rows without temporal order (`DrawnRows`).

All operations on the columns of a block, of any layout, are methods of the block. Recorders make blocks, an
`Experience` slices and joins them, and minibatches are drawn from `core.learner.items.Items`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_stack.core import frames
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.layouts import Layout, layout_of, layout_of_block
from jaxrl_stack.core.squeeze import squeezed

if TYPE_CHECKING:
    from jaxrl_stack.core.rl_module.rl_module import RLModule


class Recorded(Protocol):
    """Interface of a module's recorded steps that can be sliced and joined: `Block` and `DrawnRows`.

    Attributes:
        columns: ``{column: pytree}``.
    """

    @property
    def columns(self) -> dict[str, Any]: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Leading axes of the columns that have one entry per step."""
        ...

    @property
    def size(self) -> int:
        """Number of columns ``B``, or of rows ``N``."""
        ...

    def with_columns(self, columns: dict[str, Any]) -> Self:
        """Returns a copy with other columns."""
        ...

    def run(self, start: int, stop: int) -> Self:
        """Returns the columns, or rows, from ``start`` to ``stop``; views."""
        ...

    @classmethod
    def concatenate(cls, several: Sequence[Self]) -> Self:
        """Concatenates several objects with the same columns."""
        ...


@struct.dataclass
class DrawnRows:
    """Rows of one module, one per step, without temporal order: drawn from replay or from a data set.

    Attributes:
        columns: ``{column: pytree [N, ...]}``.
    """

    columns: dict[str, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """First two axes of the first column, ``(N, ...)``."""
        return _leading_axes(self.columns)

    @property
    def size(self) -> int:
        """Number of rows, ``N``."""
        return self.shape[0]

    def with_columns(self, columns: dict[str, Any]) -> DrawnRows:
        """Returns rows with other columns."""
        return DrawnRows(columns)

    def run(self, start: int, stop: int) -> DrawnRows:
        """Returns the rows from ``start`` to ``stop``; views."""
        return DrawnRows(jax.tree.map(lambda x: x[start:stop], self.columns))

    @classmethod
    def concatenate(cls, several: Sequence[DrawnRows]) -> DrawnRows:
        """Concatenates the rows of several objects."""
        return cls(_concatenated(several, axis=0))


@struct.dataclass
class Block:
    """Sampled steps of one module: each of the B columns contains the steps of one agent, in order.

    Attributes:
        columns: ``{column: pytree [T, B, ...]}``. Recurrent states and the frames before the first step have different
            numbers of rows: see `Layout`.
        layout: Static layout of the columns. None for a user's block, until `of_module` derives it.
    """

    columns: dict[str, Any]
    layout: Layout | None = struct.field(pytree_node=False, default=None)

    # -------------------------------------------------------------------------------------------------------- recorded

    @classmethod
    def of_recording(cls, columns: dict[str, Any], layout: Layout, resets: Any = None) -> Self:
        """Builds a block from recorded columns, with whole observations and the recurrent states of all steps.

        Args:
            columns: ``{column: pytree [T, B, ...]}``.
            layout: Layout of the block; it becomes masked if ``LOSS_MASK`` is a column.
            resets: bool ``[T, B]``, whether an episode begins; required to make frames.
        """
        columns = _at_chunk_starts(columns, layout)
        if layout.num_frames > 1:
            columns = frames.as_frames(columns, resets, layout.num_frames)
        return cls(columns, layout.masked_as(columns))

    @classmethod
    def of_rollout(cls, columns: dict[str, Any], layout: Layout, num_fragments: int, earlier: Any = None) -> Self:
        """Builds a block from one rollout on the device, split into fragments that are cut at their ends.

        Args:
            columns: ``{column: pytree [R * T, B, ...]}``, with the recurrent states of all steps.
            layout: Layout of the block.
            num_fragments: ``R``.
            earlier: Concatenated frames before the first step, ``[B, ..., (n - 1) * C]``, if observations are single
                frames; else None.

        Returns:
            Columns ``[T, R * B, ...]``.
        """
        before = {}
        if earlier is not None:
            keeps_resets = layout.chunk_length is not None
            columns, before = frames.of_rollout(columns, earlier, num_fragments, keeps_resets=keeps_resets)
        if num_fragments > 1:
            columns = jax.tree.map(lambda x: _fragments_side_by_side(x, num_fragments, layout.num_agents), columns)
        if layout.is_masked:
            columns = squeezed(columns)
        return cls(_at_chunk_starts({**columns, **before}, layout), layout)

    @classmethod
    def of_chunks(cls, module: RLModule, batch: Mapping[str, Any], names: Sequence[str], *, is_masked: bool) -> Self:
        """Builds a block from chunks of a batch with whole observations; each chunk becomes a column.

        Args:
            module: Module of the chunks.
            batch: ``{column: pytree [N, L, ...]}``, and ``STATE_IN`` ``[N, ...]`` if the module has a recurrent state.
            names: Names of the columns to take, in addition to those that the layout requires.
            is_masked: Whether ``LOSS_MASK`` is a column.
        """
        num_steps = jax.tree.leaves(batch[names[0]])[0].shape[1]
        layout = Layout(num_steps if module.is_stateful() else None, is_masked=is_masked)
        taken = {name: batch[name] for name in (*names, *layout.columns)}
        columns = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), layout.steps(taken))
        if Columns.STATE_IN in layout.columns:
            columns[Columns.STATE_IN] = jax.tree.map(lambda x: x[None], batch[Columns.STATE_IN])
        return cls(columns, layout)

    def as_planned(self, layout: Layout | None) -> Self:
        """Returns the block with the planned layout, if it has no layout yet."""
        return self if self.layout is not None else dataclasses.replace(self, layout=layout)

    def of_module(self, module: RLModule) -> Self:
        """Returns the block with a layout, derived from the module and the columns if it has none."""
        if self.layout is not None:
            return self
        return dataclasses.replace(self, layout=layout_of_block(module, self.columns, self.shape[0]))

    # ---------------------------------------------------------------------------------------------------------- checks

    def check(self, module_id: str) -> None:
        """Checks the columns against the layout.

        Raises:
            ValueError: If a column of the layout is missing, or a mask exists that the layout does not have.
        """
        layout = self.known_layout
        missing = [name for name in layout.columns if name not in self.columns]
        if missing:
            raise ValueError(
                f"Module {module_id!r} has the layout {layout}, but its columns {sorted(self.columns)} lack {missing}. "
                f"Pass an experience that was sampled with this layout."
            )
        if Columns.LOSS_MASK in self.columns and not layout.is_masked:
            raise ValueError(
                f"Module {module_id!r} has the column {Columns.LOSS_MASK!r}, but its layout has no masks. Use "
                f"Layout(is_masked=True), or leave the column out."
            )

    def check_shapes(self, module_id: str, module: RLModule) -> None:
        """Checks that columns have the same leading axes, and that recurrent states match the module.

        Raises:
            ValueError: If shapes do not match.
        """
        shapes = {np.shape(leaf)[:2] for leaf in jax.tree.leaves(self._steps)}
        if len(shapes) != 1 or len(next(iter(shapes))) != 2 or 0 in next(iter(shapes)):
            found = {name: [np.shape(leaf) for leaf in jax.tree.leaves(own)] for name, own in self.columns.items()}
            raise ValueError(
                f"All columns of a block must be [T, B, ...] with the same T and B above 0; module {module_id!r} has "
                f"{found}."
            )
        num_steps, num_columns = next(iter(shapes))
        expected = layout_of(module, num_steps)
        has_states, states = Columns.STATE_IN in expected.columns, []
        if has_states or self.layout is None:
            states = jax.tree.leaves(self.columns.get(Columns.STATE_IN, {}))
        leading = (expected.num_rows(Columns.STATE_IN, num_steps), num_columns)
        if bool(states) != has_states or any(np.shape(leaf)[:2] != leading for leaf in states):
            needed = f"state_in {[*leading, '...']}" if has_states else "no state_in"
            raise ValueError(
                f"A block of [T={num_steps}, B={num_columns}] needs {needed} for module {module_id!r}, a "
                f"{type(module).__name__}, but has {[np.shape(leaf) for leaf in states] or 'none'}. Use the experience "
                f"of sample_block()."
            )

    # ------------------------------------------------------------------------------------------------------ properties

    @property
    def known_layout(self) -> Layout:
        """Layout of the block. A user's block has no layout before `of_module`."""
        assert self.layout is not None, "the layout of a block that was not planned is known with its module"
        return self.layout

    @property
    def _steps(self) -> dict[str, Any]:
        """Columns that have one entry per step."""
        if self.layout is None:
            return {name: own for name, own in self.columns.items() if name not in _NOT_STEPS}
        return self.layout.steps(self.columns)

    @property
    def shape(self) -> tuple[int, ...]:
        """``(T, B)``: number of steps and number of columns."""
        return _leading_axes(self._steps)

    @property
    def size(self) -> int:
        """Number of columns, ``B``."""
        return self.shape[1]

    @property
    def chunk_length(self) -> int | None:
        """Number of steps from one recurrent state to the next; None for a module without a recurrent state."""
        return self.known_layout.chunk_length

    @property
    def mask(self) -> Any:
        """Column ``LOSS_MASK``, bool ``[T, B]``; None without masked rows."""
        return self.columns[Columns.LOSS_MASK] if self.known_layout.is_masked else None

    @property
    def batch(self) -> dict[str, Any]:
        """The columns, in the form in which hooks receive a batch."""
        return self.columns

    def fits_minibatches(self, num_rows: int) -> bool:
        """Whether a minibatch of `num_rows` rows consists of whole env steps (all agents' rows of an env step are drawn
        together).
        """
        return num_rows % self.known_layout.num_agents == 0

    def rows_of_observations(self, function: Callable[[Any], Any]) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """Converts a function of whole observations to a function of rows of the block; see `frames.rows_of_block`."""
        return frames.rows_of_block(self.columns, self.known_layout.num_frames, function)

    # ----------------------------------------------------------------------------------------------------- conversions

    def with_columns(self, columns: dict[str, Any]) -> Self:
        """Returns a block of the same layout with other columns."""
        return dataclasses.replace(self, columns=columns)

    def whole_observations(self) -> Self:
        """Returns the block with whole observations instead of frames; a block without a layout is unchanged."""
        layout = self.layout
        if layout is None or layout.num_frames == 1:
            return self
        return dataclasses.replace(self, columns=frames.stacked(self.columns), layout=layout.with_whole_observations())

    def with_rows_apart(self) -> Self:
        """Returns the block with a layout in which minibatches draw single rows, not whole env steps."""
        return dataclasses.replace(self, layout=self.known_layout.with_rows_apart())

    def chunks(self, length: int) -> dict[str, Any]:
        """Cuts a block of whole observations into chunks at fixed steps.

        Args:
            length: ``L``; for a block with recurrent states its chunk length.

        Returns:
            ``{column: pytree [G, B, L, ...]}`` with ``G = ceil(T / L)``; recurrent states ``STATE_IN`` are
            ``[G, B, ...]``. If T is not a multiple of L, the last chunks are padded with zeros, and ``LOSS_MASK`` is
            False for the padding.
        """
        layout, columns = self.known_layout, self.columns
        num_steps, num_columns = self.shape
        num_chunks = -(-num_steps // length)
        missing = num_chunks * length - num_steps
        if missing and not layout.is_masked:
            columns = {**columns, Columns.LOSS_MASK: jnp.ones((num_steps, num_columns), bool)}

        def cut(x: Any) -> Any:
            xp: Any = np if isinstance(x, np.ndarray) else jnp
            if missing:
                x = xp.concatenate([x, xp.zeros((missing, *x.shape[1:]), x.dtype)])
            return xp.moveaxis(x.reshape(num_chunks, length, *x.shape[1:]), 1, 2)

        steps = layout.steps(columns)
        return {name: jax.tree.map(cut, own) if name in steps else own for name, own in columns.items()}

    # --------------------------------------------------------------------------------------------------- runs and joins

    def run(self, start: int, stop: int) -> Self:
        """Returns the columns from ``start`` to ``stop``; views."""
        return self.with_columns(jax.tree.map(lambda x: x[:, start:stop], self.columns))

    def deal_out(self, num_devices: int) -> Self:
        """Returns the block as ``[D, T, B / D, ...]``: device ``d`` has the columns ``d * B/D ... (d+1) * B/D - 1``.

        The arrays are views where NumPy can make one.
        """

        def one(x: Any) -> np.ndarray:
            x = np.asarray(x)
            return np.moveaxis(x.reshape(x.shape[0], num_devices, -1, *x.shape[2:]), 1, 0)

        return self.with_columns(jax.tree.map(one, self.columns))

    def of_devices(self) -> list[Self]:
        """Returns the block ``[T, B / D, ...]`` of each device, from a result of `deal_out`."""
        num_devices = len(jax.tree.leaves(self.columns)[0])
        return [self.with_columns(jax.tree.map(lambda x, d=d: x[d], self.columns)) for d in range(num_devices)]

    def with_mask(self) -> Self:
        """Returns the block with a column ``LOSS_MASK``; if it is new, all rows are valid."""
        columns = self.columns
        if Columns.LOSS_MASK not in columns:
            columns = {Columns.LOSS_MASK: np.ones(self.shape, bool), **columns}
        layout = None if self.layout is None else self.layout.masked_as(columns)
        return dataclasses.replace(self, columns=columns, layout=layout)

    @classmethod
    def concatenate(cls, several: Sequence[Self]) -> Self:
        """Concatenates the columns of several blocks of NumPy arrays.

        If one of them has masks, all rows of blocks without masks are valid.

        Raises:
            ValueError: If they differ in their number of steps.
        """
        if any(Columns.LOSS_MASK in own.columns for own in several):
            several = [own.with_mask() for own in several]
        shapes = {own.shape for own in several}
        if len({num_steps for num_steps, _ in shapes}) > 1:
            raise ValueError(f"The samples of one update differ in their numbers of steps: {listed(shapes)}.")
        layouts = [own.layout for own in several]
        layout = None if any(own is None for own in layouts) else layouts[0]
        return cls(_concatenated(several, axis=1), layout)


_NOT_STEPS = (Columns.STATE_IN, frames.FRAMES_BEFORE)
"""Columns without an entry for each step, in a block without a layout."""


def listed(shapes: Any) -> str:
    """Formats shapes ``(T, B)`` for messages."""
    return ", ".join(f"[T={t}, B={b}]" for t, b in sorted(shapes))


def _leading_axes(columns: Mapping[str, Any]) -> tuple[int, ...]:
    return np.shape(jax.tree.leaves(columns)[0])[:2]


def _concatenated(several: Sequence[Recorded], axis: int) -> Any:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=axis), *[own.columns for own in several])


def _at_chunk_starts(columns: dict[str, Any], layout: Layout) -> dict[str, Any]:
    """Returns recorded columns with recurrent states only at the starts of chunks, and without ``STATE_OUT``.

    Chunks are cut at fixed steps, independent of episodes: all states of a chunk follow from its first state, its
    observations, and the ends of episodes.
    """
    if layout.chunk_length is None:
        return columns
    starts = jax.tree.map(lambda x: x[:: layout.chunk_length], columns[Columns.STATE_IN])
    return {name: own for name, own in columns.items() if name != Columns.STATE_OUT} | {Columns.STATE_IN: starts}


def _fragments_side_by_side(x: jax.Array, num_fragments: int, num_agents: int) -> jax.Array:
    """Returns ``[R * T, B, ...]`` as ``[T, R * B, ...]``; columns of an agent are adjacent (`Layout.num_agents`)."""
    x = jnp.moveaxis(x.reshape(num_fragments, -1, *x.shape[1:]), 0, 1)
    num_steps, rest = x.shape[0], x.shape[3:]
    if num_agents > 1:
        x = x.reshape(num_steps, num_fragments, num_agents, -1, *rest).swapaxes(1, 2)
    return x.reshape(num_steps, -1, *rest)
