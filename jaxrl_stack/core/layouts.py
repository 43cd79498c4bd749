"""Static description of a module's columns in sampled blocks, fixed when the algorithm is built.

The layout contains the length of recurrent chunks, the number of stacked frames, whether rows may be masked, and the
number of agents. The layout determines the columns of a block, so that no code checks whether a column exists. Only for
a user's block the layout follows from the columns (`layout_of_block`).
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
    """Static description of the columns of a module's steps, for example in a `Block`.

    The layout contains the length of recurrent chunks, the number of stacked frames, whether rows may be masked, and
    the number of agents. If `num_agents` > 1, a minibatch contains the rows of all `num_agents` agents for an env step,
    or none of these rows.

    Attributes:
        chunk_length: ``L``, number of steps of a chunk. If it is set, ``STATE_IN`` ``[ceil(T / L), B, ...]`` has the
            recurrent state before the first step of every chunk, and ``RESETS`` marks the beginnings of episodes. None:
            the module has no recurrent state.
        num_frames: Number of stacked frames of an observation, of which the block stores one per step (`core.frames`).
            1: the block has whole observations.
        is_masked: Whether rows may be masked by ``LOSS_MASK``. If False, programs do not look for the column.
        num_agents: ``A``, number of rows of an environment step that are always in the same minibatch, one for each of
            the module's agents. On axis B, agent ``a`` has the indices ``a * B / A`` to ``(a + 1) * B / A - 1``. 1:
            rows are drawn one by one.
    """

    chunk_length: int | None = None
    num_frames: int = 1
    is_masked: bool = False
    num_agents: int = 1

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the additional columns that the layout requires in a block, such as ``STATE_IN`` for a recurrent
        module.
        """
        own = {
            Columns.STATE_IN: self.chunk_length is not None,
            Columns.RESETS: self.chunk_length is not None,
            frames.FRAMES_BEFORE: self.num_frames > 1,
            frames.NUM_BEFORE: self.num_frames > 1,
            Columns.LOSS_MASK: self.is_masked,
        }
        return tuple(name for name, is_there in own.items() if is_there)

    def num_rows(self, column: str, num_steps: int) -> int:
        """Returns the size of the first axis of `column` in a block of `num_steps` steps.

        This is the number of chunks for recurrent states (``STATE_IN``), 1 for the frames before the first step
        (``FRAMES_BEFORE``), and `num_steps` for all other columns.
        """
        if column == Columns.STATE_IN and self.chunk_length is not None:
            return -(-num_steps // self.chunk_length)
        return 1 if column == frames.FRAMES_BEFORE and self.num_frames > 1 else num_steps

    def steps(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Selects the columns that have one entry per step: leaves out the recurrent states of chunks, and the frames
        before the first step.
        """
        others = {Columns.STATE_IN: self.chunk_length is not None, frames.FRAMES_BEFORE: self.num_frames > 1}
        return {name: own for name, own in columns.items() if not others.get(name, False)}

    def with_states_of_all_steps(self) -> Layout:
        """Returns a copy of this layout for blocks that store the recurrent state before each step, not only before
        each chunk.

        The copy has ``chunk_length=1``. If the module has no recurrent state, returns this layout unchanged.
        """
        return self if self.chunk_length is None else dataclasses.replace(self, chunk_length=1)

    def without_states(self) -> Layout:
        """Returns a copy of this layout for blocks without recurrent states."""
        return dataclasses.replace(self, chunk_length=None)

    def with_whole_observations(self) -> Layout:
        """Returns a copy of this layout for blocks with frame-stacked observations instead of one frame per step."""
        return dataclasses.replace(self, num_frames=1)

    def with_rows_apart(self) -> Layout:
        """Returns a copy of this layout with ``num_agents=1``: minibatches then draw each agent's row of an env step
        independently, not all agents' rows together.
        """
        return dataclasses.replace(self, num_agents=1)

    def masked_as(self, columns: Mapping[str, Any]) -> Layout:
        """Returns this layout with `is_masked` True if `columns` contain ``LOSS_MASK``, else False.

        Connectors may have added or removed this column. If `is_masked` changes, the result has ``num_agents=1``:
        minibatches then draw each agent's row of an env step independently, not all agents' rows together.
        """
        is_masked = Columns.LOSS_MASK in columns
        return self if is_masked == self.is_masked else dataclasses.replace(self, is_masked=is_masked, num_agents=1)


class Layouts(Mapping[str, Layout]):
    """Hashable mapping ``{module_id: Layout}``, used as a static argument of compiled programs.

    Args:
        of: Layouts by module.
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
        """Ids of the modules whose blocks store one frame per step instead of frame-stacked observations."""
        return frozenset(mid for mid, own in self.items() if own.num_frames > 1)

    def masked_as(self, batch: Mapping[str, Mapping[str, Any]]) -> Self:
        """Returns a copy of these layouts in which `is_masked` is True for modules with the column ``LOSS_MASK`` in
        `batch`.

        `is_masked` is False for modules without this column in `batch`: connectors may have added or removed this
        column. Layouts of modules that are not in `batch` stay unchanged. See `Layout.masked_as`.
        """
        return type(self)({mid: own.masked_as(batch[mid]) if mid in batch else own for mid, own in self.items()})


def layout_of(
    module: RLModule, num_steps: int, *, num_frames: int = 1, is_masked: bool = False, num_agents: int = 1
) -> Layout:
    """Returns the `Layout` (static description of the columns) of a module's sampled steps ``[T, B, ...]`` with ``T =
    num_steps``.

    Args:
        module: The module. If it has a recurrent state, chunks have ``max_seq_len`` steps.
        num_steps: ``T`` of a block.
        num_frames, is_masked: See `Layout`.
        num_agents: Number of agents whose rows are drawn together; ignored for modules with a recurrent state, masks or
            frames.

    Raises:
        ValueError: If ``max_seq_len`` is not an int of at least 1.
    """
    chunk_length = sequence_length(module, num_steps) if module.is_stateful() else None
    if chunk_length is not None or is_masked or num_frames > 1:
        num_agents = 1
    return Layout(chunk_length, num_frames, is_masked, num_agents)


def layout_of_block(module: RLModule, columns: Mapping[str, Any], num_steps: int) -> Layout:
    """Derives the `Layout` (static description of the columns) of a block ``[T, B, ...]`` that a user built, from the
    module and the columns.

    Args:
        module, num_steps: See `layout_of`.
        columns: ``{column: pytree [T, B, ...]}``.
    """
    num_frames = columns[frames.FRAMES_BEFORE].shape[2] + 1 if frames.FRAMES_BEFORE in columns else 1
    return layout_of(module, num_steps, num_frames=num_frames, is_masked=Columns.LOSS_MASK in columns)


def layout_for_replay(module: RLModule, *, num_frames: int = 1) -> Layout:
    """Returns the `Layout` (static description of the columns) of a module's steps in a replay buffer.

    If the module is recurrent, the layout has ``chunk_length=1``: the buffer stores the recurrent state before every
    step.

    Args:
        module: Module of the blocks.
        num_frames: See `Layout`.
    """
    return Layout(1 if module.is_stateful() else None, num_frames)


def sequence_length(module: RLModule, num_steps: int) -> int:
    """Returns the length ``L`` of a module's training sequences, which are cut from blocks of `num_steps` steps; 1
    without a recurrent state.

    Raises:
        ValueError: If ``max_seq_len`` is not an int of at least 1.
    """
    return min(full_sequence_length(module) or num_steps, num_steps)


def full_sequence_length(module: RLModule) -> int | None:
    """Returns the setting ``max_seq_len``, the maximum length of a module's training sequences. None if it is not set:
    each sequence then contains all steps of a block.

    Returns 1 for a module without a recurrent state.

    Raises:
        ValueError: If ``max_seq_len`` is not an int of at least 1.
    """
    if not module.is_stateful():
        return 1
    settings = module.model_config if module.catalog is None else module.catalog.model_config_dict
    length = settings.get("max_seq_len")
    if length is not None and (not isinstance(length, int) or length < 1):
        raise ValueError(f"rl_module(model_config={{'max_seq_len': {length!r}}}): set an int of 1 or more.")
    return length
