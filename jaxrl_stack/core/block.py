"""Containers for the steps of one RLModule: `Block` has sampled steps in temporal order, `DrawnRows` has single steps
without order.

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
    """Interface of the containers for the steps of one RLModule: `Block` (in temporal order) and `DrawnRows` (without
    order).

    Attributes:
        columns: ``{column: pytree}``.
    """

    @property
    def columns(self) -> dict[str, Any]: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Leading axes of the columns that have one entry per step: ``(T, B)`` of a `Block`, ``(N, ...)`` of
        `DrawnRows`.
        """
        ...

    @property
    def size(self) -> int:
        """Size of axis B of a `Block`, or number of rows ``N`` of `DrawnRows`."""
        ...

    def with_columns(self, columns: dict[str, Any]) -> Self:
        """Returns a copy of this container with `columns`, ``{column: pytree}``, instead of the old columns. Other
        attributes, such as the layout of a `Block`, are unchanged.
        """
        ...

    def run(self, start: int, stop: int) -> Self:
        """Returns a slice of this container: the entries with the indices ``start`` to ``stop - 1``.

        The indices refer to axis B of a `Block`, or to axis N of `DrawnRows`. NumPy arrays of the slice are views.
        """
        ...

    @classmethod
    def concatenate(cls, several: Sequence[Self]) -> Self:
        """Concatenates several containers of this class along axis B of a `Block`, or axis N of `DrawnRows`.

        All must have the same columns, except for ``LOSS_MASK`` in blocks.
        """
        ...


@struct.dataclass
class DrawnRows:
    """Single steps of one module, one per row, without temporal order: drawn from a replay buffer or a dataset.

    Attributes:
        columns: ``{column: pytree [N, ...]}``.
    """

    columns: dict[str, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """``(N, d)``: sizes of the first two axes of the first column. ``(N,)`` if this column has only one axis."""
        return _leading_axes(self.columns)

    @property
    def size(self) -> int:
        """Number of rows (single steps), ``N``."""
        return self.shape[0]

    def with_columns(self, columns: dict[str, Any]) -> DrawnRows:
        """Returns a copy of these rows with `columns`, ``{column: pytree [N, ...]}``, instead of the old columns."""
        return DrawnRows(columns)

    def run(self, start: int, stop: int) -> DrawnRows:
        """Returns the rows with the indices ``start`` to ``stop - 1``. NumPy arrays of the result are views."""
        return DrawnRows(jax.tree.map(lambda x: x[start:stop], self.columns))

    @classmethod
    def concatenate(cls, several: Sequence[DrawnRows]) -> DrawnRows:
        """Concatenates the rows of several `DrawnRows`."""
        return cls(_concatenated(several, axis=0))


@struct.dataclass
class Block:
    """Sampled steps of one module, ``[T, B, ...]``: each index of axis B has T steps of one agent, in temporal order.

    Attributes:
        columns: ``{column: pytree [T, B, ...]}``. For recurrent states and for the frames before the first step, axis 0
            has a different size: see `Layout`.
        layout: Static layout of the columns. None for a user's block, until `of_module` derives it.
    """

    columns: dict[str, Any]
    layout: Layout | None = struct.field(pytree_node=False, default=None)

    # -------------------------------------------------------------------------------------------------------- recorded

    @classmethod
    def of_recording(cls, columns: dict[str, Any], layout: Layout, resets: Any = None) -> Self:
        """Builds a block from the columns ``[T, B, ...]`` of sampled steps.

        In `columns`, observations contain all stacked frames, and every step has a recurrent state (if the module has
        states). The block stores only the frames and states that `layout` requires.

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
        """Builds a block from one on-device rollout, which is cut into R fragments of T successive steps.

        Places the fragments side by side on axis 1: ``[R * T, B, ...]`` becomes ``[T, R * B, ...]``.

        Args:
            columns: ``{column: pytree [R * T, B, ...]}``, with the recurrent states of all steps.
            layout: Layout of the block.
            num_fragments: ``R``.
            earlier: Concatenated frames before the first step, ``[B, ..., (n - 1) * C]``, if observations are single
                frames; else None.

        Returns:
            Block with columns ``[T, R * B, ...]``.
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
        """Builds a block from N chunks (training sequences) of L steps.

        The N chunks ``[N, L, ...]`` become axis B of the block, ``[L, N, ...]``. Their observations contain all stacked
        frames.

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
        """Returns a copy of the block with the given `layout`, if the block has no layout.

        If the block already has a layout, returns the block unchanged. `layout` is the static description of the
        block's columns, or None.
        """
        return self if self.layout is not None else dataclasses.replace(self, layout=layout)

    def of_module(self, module: RLModule) -> Self:
        """Returns the block with a `Layout` (static description of its columns); a missing layout is derived from the
        module and the columns.
        """
        if self.layout is not None:
            return self
        return dataclasses.replace(self, layout=layout_of_block(module, self.columns, self.shape[0]))

    # ---------------------------------------------------------------------------------------------------------- checks

    def check(self, module_id: str) -> None:
        """Raises a ValueError if the block lacks columns that its `Layout` requires, or has the column ``LOSS_MASK``
        although its layout has no mask.

        Raises:
            ValueError: If a column of the layout is missing, or a mask exists that the layout does not have.
        """
        layout = self.known_layout
        missing = [name for name in layout.columns if name not in self.columns]
        if missing:
            raise ValueError(
                f"The steps of module {module_id!r} lack the columns {missing}, which their {layout} requires; the "
                f"steps have only the columns {sorted(self.columns)}. Pass the sampled steps with all of their "
                "columns, and keep these columns in learner connectors."
            )
        if Columns.LOSS_MASK in self.columns and not layout.is_masked:
            raise ValueError(
                f"The steps of module {module_id!r} have the column {Columns.LOSS_MASK!r}, but their layout has "
                f"is_masked=False. Use Layout(is_masked=True), or leave the column out."
            )

    def check_shapes(self, module_id: str, module: RLModule) -> None:
        """Checks the shapes of the block's columns and recurrent states.

        The columns with one entry per step must all have the same leading axes ``(T, B)``. A recurrent module needs one
        state per chunk (training sequence); for other modules, the block must have no states.

        Raises:
            ValueError: If shapes do not match.
        """
        shapes = {np.shape(leaf)[:2] for leaf in jax.tree.leaves(self._steps)}
        if len(shapes) != 1 or len(next(iter(shapes))) != 2 or 0 in next(iter(shapes)):
            found = {name: [np.shape(leaf) for leaf in jax.tree.leaves(own)] for name, own in self.columns.items()}
            raise ValueError(
                f"All columns of module {module_id!r} must have the shape [T, B, ...] with the same T and B, both at "
                f"least 1, but have the shapes {found}. Pass Experience.of_steps({{module_id: {{column: array [T, B, "
                f"...]}}}})."
            )
        num_steps, num_columns = next(iter(shapes))
        expected = layout_of(module, num_steps)
        has_states, states = Columns.STATE_IN in expected.columns, []
        if has_states or self.layout is None:
            states = jax.tree.leaves(self.columns.get(Columns.STATE_IN, {}))
        leading = (expected.num_rows(Columns.STATE_IN, num_steps), num_columns)
        if bool(states) != has_states or any(np.shape(leaf)[:2] != leading for leaf in states):
            needed = (
                f"recurrent states of shape [{leading[0]}, {leading[1]}, ...]" if has_states else "no recurrent states"
            )
            raise ValueError(
                f"For steps [T={num_steps}, B={num_columns}] of module {module_id!r}, a {type(module).__name__}, the "
                f"column state_in must contain {needed}, but contains "
                f"{f'states of the shapes {[np.shape(leaf) for leaf in states]}' if states else 'no states'}. Pass the "
                "steps of EnvRunner.sample_block() unchanged."
            )

    # ------------------------------------------------------------------------------------------------------ properties

    @property
    def known_layout(self) -> Layout:
        """`Layout` of the block: the static description of the block's columns. The block must have a layout.

        A block that a user built has no layout: for such a block, `of_module` returns a copy with a layout.
        """
        assert self.layout is not None, "the layout of a block that was not planned is known with its module"
        return self.layout

    @property
    def _steps(self) -> dict[str, Any]:
        """Columns of the block with one entry per step.

        These are all columns except recurrent states (one per chunk) and the frames before the first step (needed for
        the first frame stacks).
        """
        if self.layout is None:
            return {name: own for name, own in self.columns.items() if name not in _NOT_STEPS}
        return self.layout.steps(self.columns)

    @property
    def shape(self) -> tuple[int, ...]:
        """``(T, B)``: number of time steps, and size of axis B, where each index has the steps of one agent."""
        return _leading_axes(self._steps)

    @property
    def size(self) -> int:
        """Size of axis B (axis 1), where each index has the steps of one agent."""
        return self.shape[1]

    @property
    def chunk_length(self) -> int | None:
        """Number of steps per chunk (training sequence) of a recurrent module; the block stores one recurrent state per
        chunk. None if the module has no recurrent state.
        """
        return self.known_layout.chunk_length

    @property
    def mask(self) -> Any:
        """Column ``LOSS_MASK``, bool ``[T, B]``, False for steps that losses ignore; None if the layout has no mask."""
        return self.columns[Columns.LOSS_MASK] if self.known_layout.is_masked else None

    @property
    def batch(self) -> dict[str, Any]:
        """Columns of the block, ``{column: pytree [T, B, ...]}``, as Learner hooks such as `pre_update` receive
        them.
        """
        return self.columns

    def fits_minibatches(self, num_rows: int) -> bool:
        """Returns True if minibatches of `num_rows` rows can consist of whole env steps.

        A row is the step of a single agent, and a whole env step has one row per agent. `num_rows` must be a multiple
        of the layout's `num_agents`. If minibatches draw rows one by one, ``num_agents`` is 1, and the result is True.
        """
        return num_rows % self.known_layout.num_agents == 0

    def rows_of_observations(self, function: Callable[[Any], Any]) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """Prepares the evaluation of `function` on the observations of selected steps of the block.

        Returns two pairs ``(inputs, f)``: one for the observations before the steps, one for the observations after the
        steps. `inputs` has one entry per step, ``[T * B, ...]``. To evaluate `function` at some steps, call `f` with
        the entries of `inputs` for these steps. See `frames.rows_of_block`.
        """
        return frames.rows_of_block(self.columns, self.known_layout.num_frames, function)

    # ----------------------------------------------------------------------------------------------------- conversions

    def with_columns(self, columns: dict[str, Any]) -> Self:
        """Returns a copy of this block with `columns`, ``{column: pytree}``, instead of the old columns. The layout is
        unchanged.
        """
        return dataclasses.replace(self, columns=columns)

    def whole_observations(self) -> Self:
        """Returns a copy of the block with whole (frame-stacked) observations instead of one frame per step.

        A block that already stores whole observations, or has no `Layout` (static description of its columns), is
        returned unchanged.
        """
        layout = self.layout
        if layout is None or layout.num_frames == 1:
            return self
        return dataclasses.replace(self, columns=frames.stacked(self.columns), layout=layout.with_whole_observations())

    def with_rows_apart(self) -> Self:
        """Returns a copy of the block from which minibatches draw each agent's row of an env step independently.

        Minibatches then do not draw all agents' rows together. The copy's `Layout` (static description of its columns)
        has ``num_agents=1``.
        """
        return dataclasses.replace(self, layout=self.known_layout.with_rows_apart())

    def chunks(self, length: int) -> dict[str, Any]:
        """Cuts the steps of the block into chunks (training sequences) of L steps, and returns the columns.

        Columns with one entry per step are cut into G chunks for each index on axis B. Observations in the block must
        contain all stacked frames.

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
        """Returns a slice of the block: the indices ``start`` to ``stop - 1`` on axis B. NumPy arrays are views."""
        return self.with_columns(jax.tree.map(lambda x: x[:, start:stop], self.columns))

    def deal_out(self, num_devices: int) -> Self:
        """Splits axis B of the block over D devices: ``[D, T, B / D, ...]``.

        Device ``d`` has the indices ``d * B/D`` to ``(d+1) * B/D - 1``. The arrays are views where NumPy can make one.
        """

        def one(x: Any) -> np.ndarray:
            x = np.asarray(x)
            return np.moveaxis(x.reshape(x.shape[0], num_devices, -1, *x.shape[2:]), 1, 0)

        return self.with_columns(jax.tree.map(one, self.columns))

    def of_devices(self) -> list[Self]:
        """Splits a result of `deal_out`, ``[D, T, B / D, ...]``, into the block ``[T, B / D, ...]`` of each device."""
        num_devices = len(jax.tree.leaves(self.columns)[0])
        return [self.with_columns(jax.tree.map(lambda x, d=d: x[d], self.columns)) for d in range(num_devices)]

    def with_mask(self) -> Self:
        """Returns the block with a column ``LOSS_MASK`` (True: losses use the step). If the block has no mask, the
        column is True everywhere.
        """
        columns = self.columns
        if Columns.LOSS_MASK not in columns:
            columns = {Columns.LOSS_MASK: np.ones(self.shape, bool), **columns}
        layout = None if self.layout is None else self.layout.masked_as(columns)
        return dataclasses.replace(self, columns=columns, layout=layout)

    @classmethod
    def concatenate(cls, several: Sequence[Self]) -> Self:
        """Concatenates several blocks of sampled steps ``[T, B, ...]`` along axis B. The columns of the result are
        NumPy arrays.

        If some blocks have a mask, each block without one gets a mask that is True everywhere.

        Raises:
            ValueError: If the blocks differ in their number of steps.
        """
        if any(Columns.LOSS_MASK in own.columns for own in several):
            several = [own.with_mask() for own in several]
        shapes = {own.shape for own in several}
        if len({num_steps for num_steps, _ in shapes}) > 1:
            raise ValueError(
                f"The samples of one update have different numbers of steps: {listed(shapes)}. Pass samples with the "
                "same T, for example from EnvRunners with the same rollout_fragment_length."
            )
        layouts = [own.layout for own in several]
        layout = None if any(own is None for own in layouts) else layouts[0]
        return cls(_concatenated(several, axis=1), layout)


_NOT_STEPS = (Columns.STATE_IN, frames.FRAMES_BEFORE)
"""Columns without an entry for each step, in a block without a layout."""


def listed(shapes: Any) -> str:
    """Formats block shapes ``(T, B)`` as text for error messages."""
    return ", ".join(f"[T={t}, B={b}]" for t, b in sorted(shapes))


def _leading_axes(columns: Mapping[str, Any]) -> tuple[int, ...]:
    return np.shape(jax.tree.leaves(columns)[0])[:2]


def _concatenated(several: Sequence[Recorded], axis: int) -> Any:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=axis), *[own.columns for own in several])


def _at_chunk_starts(columns: dict[str, Any], layout: Layout) -> dict[str, Any]:
    """Keeps only the recurrent states at the starts of chunks (training sequences of fixed length).

    Selects these entries of ``STATE_IN``, and removes ``STATE_OUT``. If the module has no recurrent state, returns the
    columns unchanged.

    Chunks are cut at fixed steps, independent of episodes: all states of a chunk follow from its first state, its
    observations, and the ends of episodes.
    """
    if layout.chunk_length is None:
        return columns
    starts = jax.tree.map(lambda x: x[:: layout.chunk_length], columns[Columns.STATE_IN])
    return {name: own for name, own in columns.items() if name != Columns.STATE_OUT} | {Columns.STATE_IN: starts}


def _fragments_side_by_side(x: jax.Array, num_fragments: int, num_agents: int) -> jax.Array:
    """Cuts an array of a rollout into R fragments of T steps, and joins the fragments on axis 1.

    ``[R * T, B, ...]`` becomes ``[T, R * B, ...]``.

    If `num_agents` > 1 (minibatches draw the rows of several agents together, see `Layout`), axis B is the
    concatenation of these agents, and so is axis 1 of the result: the entries of one agent, from all fragments, are
    adjacent.
    """
    x = jnp.moveaxis(x.reshape(num_fragments, -1, *x.shape[1:]), 0, 1)
    num_steps, rest = x.shape[0], x.shape[3:]
    if num_agents > 1:
        x = x.reshape(num_steps, num_fragments, num_agents, -1, *rest).swapaxes(1, 2)
    return x.reshape(num_steps, -1, *rest)
