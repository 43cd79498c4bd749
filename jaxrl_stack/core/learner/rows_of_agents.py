"""Minibatches with the rows of all agents of a step of the environment, and what these share only once.

A critic that sees what all agents see says the same for each of them. Where minibatches are drawn of whole steps of the
environment, it looks at each once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.layouts import ROWS, Layout
from jaxrl_stack.core.learner.minibatches import PackedRows


def by_env_step(columns: Mapping[str, Any], num_agents: int, shared: Collection[str]) -> dict[str, Any]:
    """A block with the rows of all agents of a step of the environment as one item.

    Args:
        columns: ``{column: pytree [T, B, ...]}``; agent ``a`` of ``A`` has the columns from ``a * B / A`` on.
        num_agents: ``A``.
        shared: Keys of the observations that are the same for all agents: of the first one there.

    Returns:
        Leaves ``[T, B / A, A, ...]``, those of `shared` ``[T, B / A, ...]``.
    """

    def own(x: jax.Array) -> jax.Array:
        t, b = x.shape[:2]
        return x.reshape(t, num_agents, b // num_agents, *x.shape[2:]).swapaxes(1, 2)

    return _by_kind(columns, shared, own, lambda x: x[:, : x.shape[1] // num_agents])


def _by_kind(
    columns: Mapping[str, Any], shared: Collection[str], own: Callable[[Any], Any], of_all: Callable[[Any], Any]
) -> dict[str, Any]:
    """Leaves as `own` makes them of those that agents have for themselves, and `of_all` of those that they share."""
    out = {}
    for name, column in columns.items():
        if name == Columns.OBS and isinstance(column, Mapping):
            out[name] = {key: jax.tree.map(of_all if key in shared else own, part) for key, part in column.items()}
        else:
            out[name] = jax.tree.map(own, column)
    return out


def _apart(items: Mapping[str, Any], shared: Collection[str]) -> dict[str, Any]:
    """Items ``[m, A, ...]`` as rows ``[m * A, ...]``; what agents share stays ``[m, ...]``."""
    return _by_kind(items, shared, lambda x: x.reshape(-1, *x.shape[2:]), lambda x: x)


class RowsOfAgents(PackedRows):
    """`PackedRows` that are drawn by step of the environment, the rows of its agents side by side.

    Args:
        columns: What `by_env_step` made, ``[S, N, A, ...]``, and ``[S, N, ...]`` where agents share it.
        carried, layout: See `PackedRows`.
        shared: See `by_env_step`.
    """

    def __init__(
        self,
        columns: dict[str, Any],
        carried: Collection[str] | None = None,
        layout: Layout = ROWS,
        *,
        shared: Collection[str],
    ):
        super().__init__(columns, carried, layout)
        self._shared = shared

    def take(self, index: jax.Array) -> Any:
        """The rows of the items at `index` ``[S, m]``: ``[S * m * A, ...]``, ``[S * m, ...]`` of what agents share."""
        return _apart(super().take(index), self._shared)


def shapes_apart(shapes: Mapping[str, Any], shared: Collection[str]) -> dict[str, Any]:
    """`jax.ShapeDtypeStruct`s of items as those of the rows that `RowsOfAgents.take` gives."""
    return jax.eval_shape(lambda items: _apart(items, shared), dict(shapes))
