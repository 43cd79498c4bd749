"""Static layout of a module's columns, fixed when the algorithm is built.

The layout determines the columns of a block: no code asks whether a column exists. Only for a user's block the layout
follows from the columns (`layout_of_block`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from jaxrl_stack.core import frames
from jaxrl_stack.core.columns import Columns

if TYPE_CHECKING:
    from jaxrl_stack.core.rl_module.rl_module import RLModule


@dataclasses.dataclass(frozen=True)
class Layout:
    """The static part of a `Block`.

    Attributes:
        chunk_length: ``L``, steps of a chunk: then ``STATE_IN`` ``[ceil(T / L), B, ...]`` has the recurrent state
            before the first step of every chunk, and ``RESETS`` says where episodes begin. None: the module has no
            recurrent state.
        num_frames: How many frames an observation is of which the block has one per step (`core.frames`). 1: the block
            has whole observations.
        is_masked: Whether rows may be masked: then there is ``LOSS_MASK``. Without, no program looks for one.
        num_agents: ``A``, how many rows of a step of the environment are always in the same minibatch: those of the
            module's agents, of which agent ``a`` has the columns from ``a * B / A`` on. 1: each row is drawn by itself.
    """

    chunk_length: int | None = None
    num_frames: int = 1
    is_masked: bool = False
    num_agents: int = 1

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that the layout requires."""
        own = {
            Columns.STATE_IN: self.chunk_length is not None,
            Columns.RESETS: self.chunk_length is not None,
            frames.FRAMES_BEFORE: self.num_frames > 1,
            frames.NUM_BEFORE: self.num_frames > 1,
            Columns.LOSS_MASK: self.is_masked,
        }
        return tuple(name for name, is_there in own.items() if is_there)

    def num_rows(self, column: str, num_steps: int) -> int:
        """Rows that a column of a block of so many steps has: one per step, per chunk, or one in all."""
        if column == Columns.STATE_IN and self.chunk_length is not None:
            return -(-num_steps // self.chunk_length)
        return 1 if column == frames.FRAMES_BEFORE and self.num_frames > 1 else num_steps

    def steps(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """The columns that have an entry for every step."""
        others = {Columns.STATE_IN: self.chunk_length is not None, frames.FRAMES_BEFORE: self.num_frames > 1}
        return {name: own for name, own in columns.items() if not others.get(name, False)}

    def with_states_of_all_steps(self) -> Layout:
        """The layout with chunks of one step, which have the state before every step."""
        return self if self.chunk_length is None else dataclasses.replace(self, chunk_length=1)

    def without_states(self) -> Layout:
        """The layout of a module without a recurrent state."""
        return dataclasses.replace(self, chunk_length=None)

    def with_whole_observations(self) -> Layout:
        """The layout with whole observations in place of frames."""
        return dataclasses.replace(self, num_frames=1)

    def with_rows_apart(self) -> Layout:
        """The layout with minibatches that draw each row by itself."""
        return dataclasses.replace(self, num_agents=1)

    def masked_as(self, columns: Mapping[str, Any]) -> Layout:
        """The layout with masks if there is ``LOSS_MASK``, which connectors may add or drop."""
        is_masked = Columns.LOSS_MASK in columns
        return self if is_masked == self.is_masked else dataclasses.replace(self, is_masked=is_masked, num_agents=1)


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

    @property
    def in_frames(self) -> frozenset[str]:
        """Ids of modules whose blocks have single frames."""
        return frozenset(mid for mid, own in self.items() if own.num_frames > 1)

    def masked_as(self, batch: Mapping[str, Mapping[str, Any]]) -> Self:
        """`Layout.masked_as` of each module in a batch."""
        return type(self)({mid: own.masked_as(batch[mid]) if mid in batch else own for mid, own in self.items()})


def layout_of(
    module: RLModule, num_steps: int, *, num_frames: int = 1, is_masked: bool = False, num_agents: int = 1
) -> Layout:
    """The layout of a module's blocks of so many steps.

    Args:
        module: With a recurrent state it has chunks of ``max_seq_len`` steps.
        num_steps: ``T`` of a block.
        num_frames, is_masked: See `Layout`.
        num_agents: How many agents' rows are to be drawn together, where each of them is a whole row.

    Raises:
        ValueError: If ``max_seq_len`` is no int of 1 or more.
    """
    chunk_length = sequence_length(module, num_steps) if module.is_stateful() else None
    if chunk_length is not None or is_masked or num_frames > 1:
        num_agents = 1
    return Layout(chunk_length, num_frames, is_masked, num_agents)


def layout_of_block(module: RLModule, columns: Mapping[str, Any], num_steps: int) -> Layout:
    """The layout of a user's block ``[T, B, ...]``, whose columns show whether it has frames, and masks.

    Args:
        module, num_steps: See `layout_of`.
        columns: ``{column: pytree [T, B, ...]}``.
    """
    num_frames = columns[frames.FRAMES_BEFORE].shape[2] + 1 if frames.FRAMES_BEFORE in columns else 1
    return layout_of(module, num_steps, num_frames=num_frames, is_masked=Columns.LOSS_MASK in columns)


def layout_for_replay(module: RLModule, *, num_frames: int = 1) -> Layout:
    """The layout of a module's blocks for replay, which have the recurrent state before every step.

    Args:
        module: Module of the blocks.
        num_frames: See `Layout`.
    """
    return Layout(1 if module.is_stateful() else None, num_frames)


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
