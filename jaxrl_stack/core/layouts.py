"""How the steps of a module lie: decided while an algorithm is built, and read wherever steps pass.

What a module's columns are follows from its layout: nothing asks whether a column happens to be there.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax

from jaxrl_stack.core.columns import Columns

if TYPE_CHECKING:
    from jaxrl_stack.core.rl_module.rl_module import RLModule


@dataclasses.dataclass(frozen=True)
class Layout:
    """How the columns of one module lie in what is sampled, kept and learned from.

    Attributes:
        length: ``L``, steps of a chunk. 1: every step is a row of its own.
        is_recurrent: Whether chunks start from a state: then ``STATE_IN`` has that of the first step of every chunk,
            of a block ``[T, B, ...]`` those are ``[ceil(T / L), B, ...]``, and ``RESETS`` says where it starts anew.
        num_frames: How many frames an observation is of which a block has one per step (`core.frames`); 1: a block has
            whole observations.
        is_masked: Whether rows may be masked: then there is ``LOSS_MASK``. Without, no program looks for one.
    """

    length: int = 1
    is_recurrent: bool = False
    num_frames: int = 1
    is_masked: bool = False

    @property
    def has_chunks(self) -> bool:
        """Whether losses see chunks ``[N, L, ...]``, and not rows ``[N, ...]``."""
        return self.is_recurrent or self.length > 1

    def num_chunks(self, num_steps: int) -> int:
        """Chunks of each column of a block of so many steps; its rows, without chunks."""
        return -(-num_steps // self.length)


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
    module: RLModule, num_steps: int, *, needs_time: bool = False, num_frames: int = 1, is_masked: bool = False
) -> Layout:
    """The layout of a module's blocks of so many steps, as a loss sees them.

    Args:
        module: With a recurrent state it has chunks of ``max_seq_len`` steps.
        num_steps: ``T`` of a block.
        needs_time: Whether the loss looks at steps in their order: then a block of a module without a recurrent state
            is one chunk per column.
        num_frames, is_masked: See `Layout`.

    Raises:
        ValueError: If ``max_seq_len`` is no int of 1 or more.
    """
    is_recurrent = bool(module.is_stateful())
    length = num_steps if needs_time and not is_recurrent else sequence_length(module, num_steps)
    return Layout(length, is_recurrent, num_frames, is_masked)


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
