"""Selection of minibatches from recorded steps: single steps, or sequences for modules with a recurrent state."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.core.columns import Columns

if TYPE_CHECKING:
    from jaxrl_stack.datasets.steps import Steps


@dataclasses.dataclass(frozen=True)
class ItemForm:
    """Shape of a minibatch's elements (items): single steps, or sequences of steps for recurrent modules.

    Attributes:
        columns: Columns of a minibatch, beside those that follow from them; ``Columns.NEXT_OBS`` may be one.
        length: ``L``, steps of a sequence, burn-in included; None for single steps.
        burn_in: Steps of a sequence, at most, that a module runs over before those that it learns from. Fewer come
            before those from the first steps of a piece, which start as episodes do.
        initial_state: That of the module, from which sequences start; None where ``Columns.STATE_IN`` was recorded,
            and is used, or without a recurrent state.
    """

    columns: tuple[str, ...]
    length: int | None = None
    burn_in: int = 0
    initial_state: Any = None

    @property
    def steps_per_item(self) -> int:
        """Maximum number of steps with a loss in each element of a minibatch; excludes burn-in."""
        return 1 if self.length is None else self.length - self.burn_in

    @property
    def rows_per_item(self) -> int:
        """Number of steps in each element of a minibatch: 1, or the length of a sequence with its burn-in steps."""
        return self.length or 1

    @property
    def read(self) -> tuple[str, ...]:
        """Names of the recorded columns that must be read to build minibatches."""
        names = [Columns.OBS if name == Columns.NEXT_OBS else name for name in self.columns]
        if self.length is not None and self.initial_state is None:
            names.append(Columns.STATE_IN)
        return tuple(dict.fromkeys(names))

    def of(self, steps: Steps) -> np.ndarray:
        """Divides recorded steps into minibatch elements (items) so that the loss of every step is computed exactly
        once.

        Returns row indices int32 ``[N]``, or for sequences ``[N, 3]``: first row, number of burn-in steps, number of
        steps with a loss.
        """
        if self.length is None:
            return np.flatnonzero(~steps.is_final).astype(np.int32)
        starts = steps.piece_starts()
        sizes, each = np.diff(starts) - 1, self.steps_per_item
        counts = -(-sizes // each)
        piece = np.repeat(np.arange(len(sizes)), counts)
        number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        at = starts[piece] + number * each
        first = np.maximum(starts[piece], at - self.burn_in)
        learned = np.minimum(each, starts[piece] + sizes[piece] - at)
        return np.stack([first, at - first, learned], axis=-1).astype(np.int32)

    def take(
        self, columns: Mapping[str, Any], prepared: Mapping[str, Any], items: Any, xp: Any = jnp
    ) -> dict[str, Any]:
        """Builds a minibatch from the selected items (steps or sequences).

        Args:
            columns: ``{column: pytree [R, ...]}``, at least those of `read`.
            prepared: Further values of every row; all are taken.
            items: Rows of what `of` returned.
            xp: ``jax.numpy``, or ``numpy``.

        Returns:
            ``{column: [N, ...]}``; of sequences ``[N, L, ...]`` with ``LOSS_MASK``, and ``STATE_IN`` ``[N, ...]``.
        """
        if self.length is None:
            return self._rows(columns, prepared, items, xp)
        first, burn_in, learned = (items[:, i, None] for i in range(3))
        number = xp.arange(self.length, dtype=np.int32)
        # What is behind the last step is masked, and has the columns of that step.
        rows = first + xp.minimum(number, burn_in + learned - 1)
        if self.initial_state is None:
            state = jax.tree.map(lambda x: taken(x, items[:, 0], xp), columns[Columns.STATE_IN])
        else:
            state = jax.tree.map(lambda x: xp.broadcast_to(x, (len(items), *np.shape(x))), self.initial_state)
        mask = (number >= burn_in) & (number < burn_in + learned)
        return {**self._rows(columns, prepared, rows, xp), Columns.LOSS_MASK: mask, Columns.STATE_IN: state}

    def _rows(self, columns: Mapping[str, Any], prepared: Mapping[str, Any], rows: Any, xp: Any) -> dict[str, Any]:
        wanted = {name: (columns[name], rows) for name in self.columns if name != Columns.NEXT_OBS}
        if Columns.NEXT_OBS in self.columns:
            wanted[Columns.NEXT_OBS] = (columns[Columns.OBS], rows + 1)
        wanted |= {name: (column, rows) for name, column in prepared.items()}
        return {name: jax.tree.map(lambda x: taken(x, at, xp), own) for name, (own, at) in wanted.items()}  # noqa: B023


def taken(x: Any, rows: Any, xp: Any) -> Any:
    """Returns ``x[rows]`` for NumPy or JAX; all indices must be valid, because JAX does not check them."""
    return x[rows] if xp is np else x.at[rows].get(mode="promise_in_bounds")
