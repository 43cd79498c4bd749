"""How the steps of a module lie: decided while an algorithm is built, and read wherever steps pass.

What a module's columns are follows from its layout: nothing asks whether a column happens to be there. Only here, for a
batch that was not planned, such as a user's, do its columns say how it lies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl_stack.core import frames
from jaxrl_stack.core.columns import Columns

if TYPE_CHECKING:
    from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModule
    from jaxrl_stack.core.rl_module.rl_module import RLModule


@dataclasses.dataclass(frozen=True)
class Layout:
    """How the columns of one module lie in what is sampled, kept and learned from.

    Attributes:
        length: ``L``, steps of a chunk. 1: every step is a row of its own.
        is_recurrent: Whether chunks start from a state: then ``STATE_IN`` has that of the first step of every chunk,
            of a block ``[T, B, ...]`` those are ``[ceil(T / L), B, ...]``.
        num_frames: How many frames an observation is of which a block has one per step (`core.frames`); 1: a block has
            whole observations.
        is_masked: Whether rows may be masked: then there is ``LOSS_MASK``. Without, no program looks for one.
        has_resets: Whether episodes may begin inside of the chunks of a module with a recurrent state: then ``RESETS``
            says where.
        needs_time: Whether the loss looks at steps in their order: then a module without a recurrent state has chunks,
            too.
        num_agents: ``A``, how many rows of a step of the environment are always in the same minibatch: those of the
            module's agents, of which agent ``a`` has the columns from ``a * B / A`` on. 1: each row is drawn by itself.
    """

    length: int = 1
    is_recurrent: bool = False
    num_frames: int = 1
    is_masked: bool = False
    has_resets: bool = False
    needs_time: bool = False
    num_agents: int = 1

    @property
    def has_chunks(self) -> bool:
        """Whether losses see chunks ``[N, L, ...]``, and not rows ``[N, ...]``."""
        return self.is_recurrent or self.needs_time

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that there are because of it."""
        own = {
            Columns.STATE_IN: self.is_recurrent,
            Columns.RESETS: self.has_resets,
            frames.FRAMES_BEFORE: self.num_frames > 1,
            frames.NUM_BEFORE: self.num_frames > 1,
            Columns.LOSS_MASK: self.is_masked,
        }
        return tuple(name for name, is_there in own.items() if is_there)

    def for_loss(self, num_steps: int, *, needs_time: bool) -> Layout:
        """As a loss sees blocks of so many steps that were sampled with this layout; see `layout_of`."""
        if not needs_time:
            return self
        length = self.length if self.is_recurrent else num_steps
        return dataclasses.replace(self, length=length, needs_time=True, num_agents=1)

    def num_chunks(self, num_steps: int) -> int:
        """Chunks of each column of a block of so many steps; its rows, without chunks."""
        return -(-num_steps // self.length)

    def num_rows(self, column: str, num_steps: int) -> int:
        """Rows that a column of a block of so many steps has: one per step, per chunk, or one in all."""
        if column == Columns.STATE_IN and self.is_recurrent:
            return self.num_chunks(num_steps)
        return 1 if column == frames.FRAMES_BEFORE and self.num_frames > 1 else num_steps

    def steps(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """The columns that have an entry for every step."""
        others = {Columns.STATE_IN: self.is_recurrent, frames.FRAMES_BEFORE: self.num_frames > 1}
        return {name: own for name, own in columns.items() if not others.get(name, False)}


ROWS = Layout()
"""That of rows without masks."""


class Layouts(Mapping[str, Layout]):
    """``{module_id: Layout}``, hashable: a static part of programs.

    Args:
        of: The layouts.
    """

    def __init__(self, of: Mapping[str, Layout]):
        self._of = dict(of)
        self._hash = hash(frozenset(self._of.items()))  # each call of a program looks it up

    def __getitem__(self, module_id: str) -> Layout:
        return self._of[module_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layouts) and self._of == other._of

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._of})"

    def check(self, batch: Mapping[str, Mapping[str, Any]]) -> None:
        """Compare what is planned with what there is.

        Raises:
            ValueError: If a module is not planned, lacks a column of its layout, or has a mask that is not planned.
        """
        for mid, columns in batch.items():
            if mid not in self:
                raise ValueError(
                    f"The plan of this update has no layout of module {mid!r}, but of {list(self)}: make it with "
                    f"Learner.plan(num_steps=T), for blocks of T steps."
                )
            missing = [name for name in self[mid].columns if name not in columns]
            if missing:
                raise ValueError(
                    f"Module {mid!r} is planned as {self[mid]}, and its columns {sorted(columns)} lack {missing}: pass "
                    f"what was sampled for this plan, or plan what there is, Learner.plan(num_steps=..., "
                    f"num_frames=..., is_masked=...)."
                )
            if Columns.LOSS_MASK in columns and not self[mid].is_masked:
                raise ValueError(
                    f"Module {mid!r} has the column {Columns.LOSS_MASK!r}, and is planned without masks: plan them, "
                    f"Learner.plan(..., is_masked=True), or leave the column out."
                )

    def masked_as(self, batch: Mapping[str, Mapping[str, Any]]) -> Layouts:
        """With masks where the columns have some: after connectors, which may add or drop ``LOSS_MASK``."""
        masked = {mid: Columns.LOSS_MASK in batch[mid] for mid in self if mid in batch}
        if all(self[mid].is_masked == own for mid, own in masked.items()):
            return self
        changed = {mid: dataclasses.replace(self[mid], is_masked=own) for mid, own in masked.items()}
        return Layouts({**self, **changed}).with_rows_apart(any(masked.values()))

    def with_rows_apart(self, is_needed: bool = True) -> Layouts:
        """With minibatches that draw each row by itself, if that is needed."""
        if not is_needed:
            return self
        return Layouts({mid: dataclasses.replace(own, num_agents=1) for mid, own in self.items()})


NOT_PLANNED = Layouts({})
"""Of plans that are made before it is known what they are for."""


def at_chunk_starts(columns: dict[str, Any], layout: Layout) -> dict[str, Any]:
    """Recorded columns as those who learn from them get them: recurrent states only where chunks start.

    Chunks are cut at fixed steps, wherever episodes end: a chunk's states follow from its first one, its observations,
    and the steps that ended an episode.

    Args:
        columns: ``{column: pytree [T, B, ...]}``, one fragment per column B.
        layout: What they shall have.

    Returns:
        The columns with ``STATE_IN`` ``[ceil(T / L), B, ...]`` and without ``STATE_OUT``; those of a module without
        recurrent state as they are.
    """
    if not layout.is_recurrent:
        return columns
    starts = jax.tree.map(lambda x: x[:: layout.length], columns[Columns.STATE_IN])
    return {name: own for name, own in columns.items() if name != Columns.STATE_OUT} | {Columns.STATE_IN: starts}


def layout_of(
    module: RLModule,
    num_steps: int,
    *,
    needs_time: bool = False,
    num_frames: int = 1,
    is_masked: bool = False,
    num_agents: int = 1,
) -> Layout:
    """The layout of a module's blocks of so many steps, as a loss sees them.

    Args:
        module: With a recurrent state it has chunks of ``max_seq_len`` steps.
        num_steps: ``T`` of a block.
        needs_time: Whether the loss looks at steps in their order: then a block of a module without a recurrent state
            is one chunk per column.
        num_frames, is_masked: See `Layout`.
        num_agents: How many agents' rows are to be drawn together, where each of them is a whole row.

    Raises:
        ValueError: If ``max_seq_len`` is no int of 1 or more.
    """
    is_recurrent = bool(module.is_stateful())
    length = num_steps if needs_time else 1
    if is_recurrent:
        length = sequence_length(module, num_steps)
    if is_recurrent or needs_time or is_masked or num_frames > 1:
        num_agents = 1
    return Layout(length, is_recurrent, num_frames, is_masked, is_recurrent, needs_time, num_agents)


def layout_of_block(
    module: RLModule, columns: Mapping[str, Any], num_steps: int, *, needs_time: bool = False
) -> Layout:
    """The layout of a block ``[T, B, ...]`` that was not planned: its columns say whether it has frames, and masks.

    Args:
        module, num_steps, needs_time: See `layout_of`.
        columns: ``{column: pytree [T, B, ...]}``.
    """
    num_frames = columns[frames.FRAMES_BEFORE].shape[2] + 1 if frames.FRAMES_BEFORE in columns else 1
    is_masked = Columns.LOSS_MASK in columns
    return layout_of(module, num_steps, needs_time=needs_time, num_frames=num_frames, is_masked=is_masked)


def layout_of_batch(module: RLModule, columns: Mapping[str, Any], *, needs_time: bool = False) -> Layout:
    """The layout of a batch that is ready for the loss, as users and replay memories give it.

    Args:
        module: With a recurrent state, or if `needs_time`, its columns are chunks ``[N, L, ...]``, else rows
            ``[N, ...]``.
        columns: ``{column: pytree}``; they say whether there are masks, and resets.
        needs_time: See `layout_of`.

    Raises:
        ValueError: If the module has a recurrent state, and there is no ``STATE_IN``; or if chunks have no axis of
            steps.
    """
    is_recurrent = bool(module.is_stateful())
    has_resets = is_recurrent and Columns.RESETS in columns
    layout = Layout(1, is_recurrent, 1, Columns.LOSS_MASK in columns, has_resets, needs_time)
    if is_recurrent and Columns.STATE_IN not in columns:
        raise ValueError(
            f"A batch for a {type(module).__name__}, which has a recurrent state, is sequences [N, L, ...] with the "
            f"state before each of them in the column {Columns.STATE_IN!r}; this one has {sorted(columns)}."
        )
    if not layout.has_chunks:
        return layout
    leading = np.shape(jax.tree.leaves(layout.steps(columns))[0])[:2]
    if (not is_recurrent and {np.shape(leaf)[:2] for leaf in jax.tree.leaves(columns)} != {leading}) or len(
        leading
    ) < 2:
        shapes = {name: np.shape(jax.tree.leaves(own)[0]) for name, own in columns.items()}
        raise ValueError(
            f"A batch for a loss that takes steps in their order (loss_needs_time) is sequences [N, L, ...]; this one "
            f"has columns of the shapes {shapes}."
        )
    return dataclasses.replace(layout, length=leading[1])


def layouts_of_block(
    modules: MultiRLModule,
    block: Mapping[str, Mapping[str, Any]],
    num_steps: Mapping[str, int],
    *,
    planned: Layouts = NOT_PLANNED,
    needs_time: bool = False,
) -> Layouts:
    """Those of all modules for a block: as it was sampled; of one that was not planned as its columns say.

    Args:
        modules: By id.
        block: ``{module_id: {column: pytree [T, B, ...]}}``.
        num_steps: ``T`` of its modules. Connectors give the others the rows of the first one.
        planned: What it was sampled with, `Experience.layouts`.
        needs_time: See `layout_of`.
    """
    of_others = next(iter(num_steps.values()))
    layouts = {}
    for mid, module in modules.items():
        length = num_steps.get(mid, of_others)
        if mid in planned:
            layouts[mid] = planned[mid].for_loss(length, needs_time=needs_time)
        else:
            layouts[mid] = layout_of_block(module, block.get(mid, {}), length, needs_time=needs_time)
    return Layouts(layouts)


def layouts_of_batch(
    modules: MultiRLModule, batch: Mapping[str, Mapping[str, Any]], *, needs_time: bool = False
) -> Layouts:
    """Those of a batch that is ready for the loss, ``{module_id: {column: [N, ...]}}``; see `layout_of_batch`."""
    return Layouts(
        {mid: layout_of_batch(modules[mid], columns, needs_time=needs_time) for mid, columns in batch.items()}
    )


def sequence_length(module: RLModule, num_steps: int) -> int:
    """Steps of a chunk, ``L``, of a block of so many steps: 1 for a module without recurrent state.

    Raises:
        ValueError: If ``max_seq_len`` is no int of 1 or more.
    """
    return min(full_sequence_length(module) or num_steps, num_steps)


def full_sequence_length(module: RLModule) -> int | None:
    """As `sequence_length`, of a block of any number of steps; None: a chunk is as long as that."""
    if not module.is_stateful():
        return 1
    settings = module.model_config if module.catalog is None else module.catalog.model_config_dict
    length = settings.get("max_seq_len")
    if length is not None and (not isinstance(length, int) or length < 1):
        raise ValueError(f"rl_module(model_config={{'max_seq_len': {length!r}}}): give an int of 1 or more.")
    return length
