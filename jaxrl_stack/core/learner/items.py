"""Items of which minibatches consist (single steps, chunks of steps, or env steps with the rows of all agents), and
their array shapes.

An item is a row, a chunk of ``L`` steps, or a step of the environment with the rows of its ``A`` agents. An update
converts each `Block` to `Items` once, after its learner connectors; later parts do not need the block's layout. A form
is the static part of items: it defines one item, and the shapes in which losses receive several.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_stack.core import frames
from jaxrl_stack.core.block import Block
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.frames import FrameRows
from jaxrl_stack.core.layouts import Layout
from jaxrl_stack.core.learner.valid_rows import ValidItems
from jaxrl_stack.core.rl_module.row_independence import handles_resets, shared_observations
from jaxrl_stack.core.rl_module.sequences import step_by_step
from jaxrl_stack.ops import packing

if TYPE_CHECKING:
    from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModule

# -------------------------------------------------------------------------------------------------------------- forms


@dataclasses.dataclass(frozen=True)
class RowForm:
    """Array shapes of minibatches that are drawn as m single steps; losses receive columns ``[m, ...]``.

    Attributes:
        is_masked: Whether the column ``LOSS_MASK`` exists.
    """

    is_masked: bool = False

    @property
    def rows_per_item(self) -> int:
        """Number of steps in one minibatch item, here a single step: 1."""
        return 1

    @property
    def step_axes(self) -> tuple[int, ...]:
        """Shape of the loss mask of one minibatch item: ``()``, a single bool.

        Minibatches consist of items. Here, an item is a single step, or an env step with the rows of all agents.
        """
        return ()

    def num_items(self, num_steps: int, num_columns: int) -> int:
        """Returns the number of minibatch items in sampled steps ``[T, B, ...]``.

        Minibatches consist of items. Here, an item is a single step, or an env step with the rows of all agents.
        """
        return num_steps * num_columns // self.rows_per_item

    def shown(self, items: dict[str, Any]) -> dict[str, Any]:
        """Returns the columns of a minibatch unchanged: m single steps, ``[m, ...]``, need no reshaping for losses."""
        return items

    def rows_of(self, items: dict[str, Any], step: jax.Array) -> dict[str, Any]:
        """Returns the columns `items` of drawn items unchanged, because each item is a single row.

        The columns have m items. `step`, ``[m]``, the index of a row within its item, is ignored.
        """
        return items

    def all_valid(self, columns: Mapping[str, Any]) -> jax.Array:
        """Returns an all-True ``LOSS_MASK``, ``[m]``, for the columns of a minibatch of m steps."""
        return jnp.ones(len(jax.tree.leaves(columns)[0]), bool)

    def forward(self, module: Any, columns: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """Calls `module.forward_train` on a minibatch; returns the minibatch's columns and the module's outputs."""
        return columns, module.forward_train(columns)

    def steps_at_once(self, num_rows: int) -> int:
        """Returns the largest number of steps that a microbatch may have. Backpropagation through these steps needs
        about as much memory as through `num_rows` single steps.
        """
        return num_rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvStepForm(RowForm):
    """Array shapes of minibatches that are drawn as m env steps, each with the rows of all A agents; observations
    shared by the agents are stored once.

    A centralized critic has the same value for all agents of a step, so that it evaluates each step once.

    Attributes:
        num_agents: ``A``.
        shared: Keys of the observations that are the same for all agents. Losses receive these as ``[m, ...]``, and
            all other columns as ``[m * A, ...]``.
    """

    num_agents: int
    shared: tuple[str, ...]

    @property
    def rows_per_item(self) -> int:
        """Number of rows in one minibatch item, here an env step of A agents: A.

        The env step has one row for each of the module's A agents.
        """
        return self.num_agents

    def cut(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Groups the rows of a sampled block by env step, with an additional axis of A agents.

        Columns ``[T, B, ...]`` become ``[T, B / A, A, ...]``. Observations that all agents share have no axis of
        agents, and become ``[T, B / A, ...]``.

        Args:
            columns: ``{column: pytree [T, B, ...]}``; the B / A entries of agent ``a`` on axis B begin at index
                ``a * B / A``.

        Returns:
            Leaves ``[T, B / A, A, ...]``; shared observations, taken from the first agent, are ``[T, B / A, ...]``.
        """

        def own(x: jax.Array) -> jax.Array:
            t, b = x.shape[:2]
            return x.reshape(t, self.num_agents, b // self.num_agents, *x.shape[2:]).swapaxes(1, 2)

        return self._by_kind(columns, own, lambda x: x[:, : x.shape[1] // self.num_agents])

    def shown(self, items: dict[str, Any]) -> dict[str, Any]:
        """Returns the columns of m drawn env steps of A agents in the shapes that losses receive.

        Env steps ``[m, A, ...]`` become rows ``[m * A, ...]``, with the agents of an env step adjacent. Observations
        that all agents share stay ``[m, ...]``.
        """
        return self._by_kind(items, lambda x: x.reshape(-1, *x.shape[2:]), lambda x: x)

    def rows_of(self, items: dict[str, Any], step: jax.Array) -> dict[str, Any]:
        """Returns one row of each of m drawn env steps ``[m, A, ...]``, the row of one of the A agents.

        For env step i, this is the row of the agent with the index ``step[i]``. Observations that all agents share have
        no axis of agents and stay unchanged.
        """
        return self._by_kind(items, lambda x: x[jnp.arange(len(step)), step], lambda x: x)

    def all_valid(self, columns: Mapping[str, Any]) -> jax.Array:
        """Returns an all-True ``LOSS_MASK``, ``[m * A]``, for a minibatch of m env steps of A agents.

        `columns` have the shapes that losses receive: most have m * A entries, observations that all agents share have
        m. The length of the mask is the length of the longest column.
        """
        return jnp.ones(max(map(len, jax.tree.leaves(columns))), bool)

    def _by_kind(
        self, columns: Mapping[str, Any], own: Callable[[Any], Any], of_all: Callable[[Any], Any]
    ) -> dict[str, Any]:
        """Applies one function to observations that all agents share, and another function to all other arrays.

        `columns` are the arrays of a minibatch or block. `of_all` is applied to the shared observations, `own` to all
        other arrays, which have one entry per agent.
        """
        out = {}
        for name, column in columns.items():
            if name == Columns.OBS and isinstance(column, Mapping):
                out[name] = {k: jax.tree.map(of_all if k in self.shared else own, part) for k, part in column.items()}
            else:
                out[name] = jax.tree.map(own, column)
        return out


@dataclasses.dataclass(frozen=True)
class ChunkForm:
    """Array shapes of minibatches that are drawn as m chunks of L successive steps, for modules without a recurrent
    state; losses receive columns ``[m, L, ...]``.

    Attributes:
        length: ``L``.
        is_masked: Whether the column ``LOSS_MASK`` exists.
    """

    length: int
    is_masked: bool = False

    @property
    def rows_per_item(self) -> int:
        """Number of steps in one minibatch item, here a chunk of L steps: L."""
        return self.length

    @property
    def step_axes(self) -> tuple[int, ...]:
        """Shape of the loss mask of one minibatch item, here a chunk of L steps: ``(L,)``, one bool per step."""
        return (self.length,)

    def num_items(self, num_steps: int, num_columns: int) -> int:
        """Returns the number of chunks (training sequences of L steps) in sampled steps ``[T, B, ...]``.

        The number is ``ceil(T / L) * B``. If T is not a multiple of L, the last chunk at each index on axis B is
        padded. Padded chunks count, too.
        """
        return -(-num_steps // self.length) * num_columns

    def shown(self, items: dict[str, Any]) -> dict[str, Any]:
        """Returns the columns of a minibatch unchanged: m chunks of L steps, ``[m, L, ...]``, need no reshaping for
        losses.
        """
        return items

    def rows_of(self, items: dict[str, Any], step: jax.Array) -> dict[str, Any]:
        """Returns one row of each of m drawn chunks ``[m, L, ...]``, the row of one of the L steps.

        For chunk i, this is the row of the step with the index ``step[i]``. Leaves out ``STATE_IN`` and other columns
        without an axis of steps.
        """
        leading = (len(step), self.length)
        return {
            name: jax.tree.map(lambda x: x[jnp.arange(len(step)), step], own)
            for name, own in items.items()
            if name != Columns.STATE_IN and all(leaf.shape[:2] == leading for leaf in jax.tree.leaves(own))
        }

    def all_valid(self, columns: Mapping[str, Any]) -> jax.Array:
        """Returns an all-True ``LOSS_MASK``, ``[m, L]``, for the columns of a minibatch of m chunks of L steps."""
        return jnp.ones(self._leading_axes(columns), bool)

    def forward(self, module: Any, columns: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """Calls `module.forward_train` on m chunks of L steps, and returns the minibatch's columns and the
        module's outputs.

        Both are ``[m, L, ...]``. The module gets the chunks as flat rows ``[m * L, ...]``.
        """
        rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), columns)
        return columns, self._in_chunks(dict(module.forward_train(rows)), columns, num_axes=1)

    def steps_at_once(self, num_rows: int) -> int:
        """Returns the largest number of steps that a microbatch may have. Backpropagation through these steps needs
        about as much memory as through `num_rows` single steps.
        """
        return num_rows

    def _leading_axes(self, columns: Mapping[str, Any]) -> tuple[int, ...]:
        """Returns the leading axes ``(m, L)`` of a minibatch of chunks. Columns without an axis of steps, which
        connectors may have added, are ignored.
        """
        steps = {name: own for name, own in columns.items() if name != Columns.STATE_IN}
        leading = [np.shape(leaf)[:2] for leaf in jax.tree.leaves(steps)]
        return next((own for own in leading if own[1:] == (self.length,)), leading[0])

    def _in_chunks(self, outputs: Any, columns: Mapping[str, Any], *, num_axes: int) -> Any:
        """Reshapes a module's outputs to m chunks of L steps, ``[m, L, ...]``.

        `num_axes` is the number of leading axes that m and L replace: 1 for outputs ``[m * L, ...]``, 2 for
        ``[m * L, 1, ...]``. Outputs whose first axis is not ``m * L`` do not change.
        """
        leading = self._leading_axes(columns)
        num_rows = math.prod(leading)
        return jax.tree.map(
            lambda x: x.reshape(*leading, *x.shape[num_axes:]) if jnp.shape(x)[:1] == (num_rows,) else x, outputs
        )


@dataclasses.dataclass(frozen=True)
class SequenceForm(ChunkForm):
    """Array shapes of minibatches that are drawn as m chunks of L successive steps, each with an initial recurrent
    state; ``STATE_IN`` is ``[m, ...]``.

    Attributes:
        is_stepped: Whether the module processes the steps one by one, because episodes may begin inside of chunks and
            the module does not read ``RESETS``.
        keeps_order: Whether losses receive chunks ``[m, L, ...]`` from such a module, instead of ``[m * L, 1, ...]``.
    """

    is_stepped: bool = False
    keeps_order: bool = False

    def forward(self, module: Any, columns: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """Calls `module.forward_train` on m chunks of L steps, and returns the columns for the loss and the
        module's outputs.

        Both are ``[m, L, ...]``. If `is_stepped` is True (the module processes the steps one by one) and `keeps_order`
        is False (the loss needs no time axis), both are ``[m * L, 1, ...]``.
        """
        if not self.is_stepped:
            return columns, module.forward_train(columns)
        stepped, outputs = step_by_step(module, columns)
        return (columns, self._in_chunks(outputs, columns, num_axes=2)) if self.keeps_order else (stepped, outputs)

    def steps_at_once(self, num_rows: int) -> int:
        """Returns the largest number of steps that a microbatch may have. Backpropagation through these steps needs
        about as much memory as through `num_rows` single steps.

        A recurrent layer stores several times as much per step, and is slow with few chunks in parallel. Measured with
        chunks of 32 steps: a quarter of the rows takes 0.9 times as long as half of them.
        """
        return num_rows if self.length == 1 else max(num_rows // 4, min(16 * self.length, num_rows // 2))


Form = RowForm | ChunkForm


def form_of_block(module: Any, layout: Layout, num_steps: int, *, needs_time: bool) -> Form:
    """Returns the form (item and array shapes) of minibatches drawn from a module's sampled steps.

    The form is `RowForm` for single steps, `EnvStepForm` for env steps of all agents, `ChunkForm` for chunks, or
    `SequenceForm` for chunks with an initial recurrent state.

    Args:
        module: The module.
        layout: Layout of the blocks.
        num_steps: ``T``.
        needs_time: Whether the loss needs steps in order (`Learner.loss_needs_time`). If so, and the module has no
            recurrent state, all T steps at one index on axis B are one chunk.
    """
    if layout.chunk_length is not None:
        is_masked = layout.is_masked or num_steps % layout.chunk_length > 0
        return SequenceForm(layout.chunk_length, is_masked, not handles_resets(module), keeps_order=needs_time)
    if needs_time:
        return ChunkForm(num_steps, layout.is_masked)
    if layout.num_agents > 1:
        return EnvStepForm(num_agents=layout.num_agents, shared=shared_observations(module))
    return RowForm(layout.is_masked)


def form_of_batch(module: Any, columns: Mapping[str, Any], *, needs_time: bool) -> Form:
    """Returns the form (item and array shapes) of a module's batch from a user or a replay buffer.

    The batch contains single steps ``[N, ...]``, or chunks ``[N, L, ...]`` with or without a recurrent state.

    Args:
        module: The module. If it has a recurrent state, or if `needs_time`, columns are chunks ``[N, L, ...]``; else
            they are rows ``[N, ...]``.
        columns: ``{column: pytree}``; the form follows from the presence of masks and resets.
        needs_time: Whether the loss needs steps in order (`Learner.loss_needs_time`).

    Raises:
        ValueError: If the module has a recurrent state and ``STATE_IN`` is missing, or if chunks have no axis of steps.
    """
    is_masked, is_recurrent = Columns.LOSS_MASK in columns, bool(module.is_stateful())
    if is_recurrent and Columns.STATE_IN not in columns:
        raise ValueError(
            f"A batch for a {type(module).__name__}, which has a recurrent state, needs sequences (columns [N, L, "
            f"...]: N sequences of L steps) and the column {Columns.STATE_IN!r} with the state before each sequence; "
            f"this batch has only the columns {sorted(columns)}. Add {Columns.STATE_IN!r}, or pass episodes: "
            "update(episodes=...)."
        )
    if not (is_recurrent or needs_time):
        return RowForm(is_masked)
    steps = {name: own for name, own in columns.items() if not (is_recurrent and name == Columns.STATE_IN)}
    leading = np.shape(jax.tree.leaves(steps)[0])[:2]
    if (not is_recurrent and {np.shape(leaf)[:2] for leaf in jax.tree.leaves(columns)} != {leading}) or len(
        leading
    ) < 2:
        shapes = {name: np.shape(jax.tree.leaves(own)[0]) for name, own in columns.items()}
        raise ValueError(
            "A batch for a loss that needs steps in order (loss_needs_time=True) must have sequences (columns [N, L, "
            f"...]: N sequences of L steps), but the columns have the shapes {shapes}. Reshape the columns, or pass "
            "episodes: update(episodes=...)."
        )
    if not is_recurrent:
        return ChunkForm(leading[1], is_masked)
    is_stepped = Columns.RESETS in columns and not handles_resets(module)
    return SequenceForm(leading[1], is_masked, is_stepped, keeps_order=needs_time)


def forms_of_batch(
    modules: MultiRLModule, batch: Mapping[str, Mapping[str, Any]], *, needs_time: bool
) -> dict[str, Form]:
    """Returns ``{module_id: form}``, the form (item and array shapes) of each module's columns in `batch`: single steps
    ``[N, ...]`` or chunks ``[N, L, ...]``. See `form_of_batch`.
    """
    return {mid: form_of_batch(modules[mid], columns, needs_time=needs_time) for mid, columns in batch.items()}


# -------------------------------------------------------------------------------------------------------------- items


@struct.dataclass
class Items:
    """Data of one module on one device, divided into items. Items are the units of which minibatches consist.

    The items are single steps, chunks of steps, or env steps. Columns are ``[S, N, ...]``: S shuffle shards, which are
    shuffled separately, with N items each.

    Attributes:
        columns: ``{column: pytree [S, N, ...]}``; a batch that was laid out on the host has the device axis before
            these. Observations that a block stores as frames are `frames.FrameRows`, one per shard.
        valid: The valid items of a block; None if the block has no masked rows, and for a batch, which is padded.
        form: Form of the items.
        num_items: ``N``.
    """

    columns: dict[str, Any]
    valid: ValidItems | None
    form: Form = struct.field(pytree_node=False)
    num_items: int = struct.field(pytree_node=False)

    @classmethod
    def of_block(cls, module: Any, block: Block, num_shards: int, *, needs_time: bool) -> Self:
        """Converts a module's sampled steps (a `Block`) to `Items`, from which minibatches are drawn.

        Args:
            module: The module.
            block: The module's block; shard ``s`` has the indices ``s * B/S ... (s+1) * B/S - 1`` on axis B. If the
                items are env steps of A agents, it has this part of each agent's B / A indices.
            num_shards: ``S``.
            needs_time: See `form_of_block`.
        """
        layout, (num_steps, num_columns), columns = block.known_layout, block.shape, block.columns
        form = form_of_block(module, layout, num_steps, needs_time=needs_time)
        if isinstance(form, ChunkForm):
            columns = block.chunks(form.length)
        elif isinstance(form, EnvStepForm):
            columns = form.cut(columns)
        sharded = shard_rows(columns, num_shards)
        valid = ValidItems.of(sharded[Columns.LOSS_MASK]) if layout.is_masked else None
        if layout.num_frames > 1:
            of_rows = {name: sharded.pop(name) for name in frames.OF_ROWS}
            sharded[Columns.OBS] = jax.vmap(FrameRows.of)(of_rows)
        return cls(sharded, valid, form, form.num_items(num_steps, num_columns) // num_shards)

    @property
    def batch(self) -> dict[str, Any]:
        """Columns of this module in the shape that Learner hooks such as `pre_update` receive, ``[T, B, ...]``.

        The axes have the sizes ``T = 1`` and ``B = S * N``. Axis B has the N items of each of the S shuffle shards, one
        shard after another.
        """
        return jax.tree.map(lambda x: x.reshape(1, -1, *x.shape[2:]), self.columns)

    @property
    def batch_of_devices(self) -> dict[str, Any]:
        """Columns of this module on all D devices, in the shape that Learner hooks such as `pre_update` receive.

        The shape is ``[D, T, B, ...]`` with ``T = 1`` and ``B = S * N``. Axis B has the N items of each of the device's
        S shuffle shards. Requires items that were built on the host: only their columns begin with the axis of devices.
        """
        return jax.tree.map(lambda x: x.reshape(len(x), 1, -1, *x.shape[3:]), self.columns)

    def shapes(self, number: int) -> dict[str, Any]:
        """Returns the shapes and dtypes (`jax.ShapeDtypeStruct`) of the columns that losses receive for a minibatch of
        `number` items (steps, chunks or env steps).
        """
        items = {name: _shapes_of(column, number) for name, column in self.columns.items()}
        return jax.eval_shape(self.form.shown, items)

    def counted(self) -> ValidItems:
        """Returns the indices of the items (steps, chunks or env steps) that have at least one valid step.

        Every step is valid, except masked steps and the padding of chunks. If the block of any module has masks, the
        update calls this method for every module, to count the trained rows.
        """
        if self.valid is not None:
            return self.valid
        if self.form.is_masked:
            return ValidItems.of(self.columns[Columns.LOSS_MASK])
        num_shards = len(jax.tree.leaves(self.columns)[0])
        return ValidItems.of(jnp.ones((num_shards, self.num_items, *self.form.step_axes), bool))


class PackedItems:
    """Steps, chunks or env steps of one module, packed in memory, so that one gather of contiguous rows reads most
    columns of a minibatch.

    32-bit columns and flags are bit-cast into one uint32 matrix ``[S, N, width]``; all other columns (uint8 frames,
    64-bit numbers) stay separate and are gathered one by one.

    Args:
        items: The items.
        carried: Names of the columns that the losses read; the others are zeros in every minibatch.
    """

    def __init__(self, items: Items, carried: Collection[str]):
        self._form = items.form
        self._left_out = {name: own for name, own in items.columns.items() if name not in carried}
        kept = {name: own for name, own in items.columns.items() if name in carried}
        self._frames = {name: own for name, own in kept.items() if isinstance(own, FrameRows)}
        self._columns = {name: own for name, own in kept.items() if name not in self._frames}
        leaves, self._treedef = jax.tree.flatten(self._columns)
        self._matrix, self._loose, self._slots = packing.pack(leaves, lead=2)

    def take(self, index: jax.Array) -> dict[str, Any]:
        """Gathers a minibatch: the items (steps, chunks or env steps) ``index[s]`` of every shuffle shard ``s``,
        concatenated, in the shapes that losses receive.

        Args:
            index: uint32 ``[S, m]``.
        """

        def of_shards(take: Callable[[Any, jax.Array], jax.Array], x: Any) -> jax.Array:
            if len(index) == 1:
                return take(jax.tree.map(lambda x: x[0], x), index[0])
            taken = jax.vmap(take)(x, index)
            return taken.reshape(-1, *taken.shape[2:])

        observations = {name: of_shards(FrameRows.take, own) for name, own in self._frames.items()}
        matrix = None if self._matrix is None else of_shards(_taken, self._matrix)
        loose = [of_shards(_taken, leaf) for leaf in self._loose]
        columns = jax.tree.unflatten(self._treedef, [slot.read(matrix, loose) for slot in self._slots])
        unread = {name: _shapes_of(own, index.size) for name, own in self._left_out.items()}
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), unread)
        return self._form.shown(observations | columns | zeros)

    def num_valid(self, index: jax.Array) -> jax.Array | int:
        """Returns the number of valid steps (not masked) in the minibatch that `index` selects.

        It is float32, or an int if no item is masked or the loss does not read the mask: then all steps count.

        Args:
            index: uint32 ``[parts, S, m / parts]``.
        """
        if not self._form.is_masked or Columns.LOSS_MASK not in self._columns:
            return index.size * self._form.rows_per_item
        flat = jnp.moveaxis(index, 0, 1).reshape(index.shape[1], -1)
        mask = jax.vmap(_taken)(self._columns[Columns.LOSS_MASK], flat)
        return jnp.sum(mask.reshape(-1, *mask.shape[2:])).astype(jnp.float32)


class WholeItems:
    """Batch of one module for a gradient step on all rows of the batch. `take` returns all rows without a gather,
    whereas `PackedItems` gathers minibatches.

    Args:
        form: Form of the items.
        columns: ``{column: pytree [N, ...]}``, or chunks ``[N, L, ...]``.
    """

    def __init__(self, form: Form, columns: dict[str, Any]):
        self.form, self.columns = form, columns

    @property
    def mask(self) -> jax.Array | None:
        """Column ``LOSS_MASK`` of the batch; None if the batch has no mask."""
        return self.columns[Columns.LOSS_MASK] if self.form.is_masked else None

    def take(self, index: Any) -> dict[str, Any]:
        """Returns the columns of the whole batch; `index` is ignored."""
        return dict(self.columns)

    def num_valid(self, index: Any) -> jax.Array | int:
        """Returns the number of valid steps (not masked) in the batch: float32 scalar if it has a mask, else int."""
        if self.mask is None:
            return len(jax.tree.leaves(self.columns)[0]) * self.form.rows_per_item
        return jnp.sum(self.mask).astype(jnp.float32)


def shard_rows(block: Any, num_shards: int) -> Any:
    """Reshapes the columns of a block to S shuffle shards, groups of rows that are shuffled separately.

    ``[T, B, ...]`` becomes ``[S, T * B/S, ...]``: each shard has T * B/S rows.

    Args:
        block: Pytree of arrays ``[T, B, ...]``; shard ``s`` has the indices ``s * B/S ... (s+1) * B/S - 1`` on axis B.
        num_shards: ``S``, a divisor of ``B``.

    Returns:
        The same pytree with leaves ``[S, T * B/S, ...]``.
    """

    def one(x: jax.Array) -> jax.Array:
        t, b = x.shape[:2]
        if num_shards == 1:
            return x.reshape(1, t * b, *x.shape[2:])
        x = x.reshape(t, num_shards, b // num_shards, *x.shape[2:])
        return jnp.moveaxis(x, 1, 0).reshape(num_shards, t * (b // num_shards), *x.shape[3:])

    return jax.tree.map(one, block)


def _taken(shard: jax.Array, index: jax.Array) -> jax.Array:
    """Returns the rows of the array `shard` at the indices `index`, without bounds checks: all indices must be in
    bounds.
    """
    return shard.at[index].get(mode="promise_in_bounds")


def _shapes_of(column: Any, number: int) -> Any:
    """Returns the shapes and dtypes (`jax.ShapeDtypeStruct`) of `number` entries drawn from a column.

    The column is ``[S, N, ...]`` (S shuffle shards of N entries). If the column is a `FrameRows`, the entries are
    frame-stacked observations.
    """
    if isinstance(column, FrameRows):
        one_of_each_shard = jax.ShapeDtypeStruct((len(column.counts), 1), jnp.uint32)
        taken = jax.eval_shape(jax.vmap(FrameRows.take), column, one_of_each_shard)
        return jax.ShapeDtypeStruct((number, *taken.shape[2:]), taken.dtype)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((number, *x.shape[2:]), x.dtype), column)
