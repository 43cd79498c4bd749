"""Text description of the columns that a pipeline's connectors read and write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax

from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.connectors.pure_pipeline import applied, context_of, naming
from jaxrl_stack.connectors.states import check_state, described, strong_array


def describe_members(
    members: Iterable[tuple[str, ConnectorV2]],
    batch: Mapping[str, Any],
    ctx: ConnectorContext,
    *,
    label: str,
    num_envs: int,
    mask_keys: Sequence[str] = (),
) -> str:
    """Traces a pipeline's connectors on the shapes of a batch, and describes the columns after each connector.

    Args:
        members: ``(name, connector)`` in order.
        batch: ``{module_id: {column: arrays, or `jax.ShapeDtypeStruct`}}``.
        ctx: Context.
        label: Name of the pipeline.
        num_envs: ``B``.
        mask_keys: Mask keys of the pipeline; see `ConnectorV2`.
    """
    members = list(members)
    columns = _described_leaves(batch)
    lines = [f"{label}: {len(members)} connectors, {num_envs} environments"]
    lines += ["in", *(f"    {column:<40} {what}" for column, what in columns.items())]
    for index, (name, connector) in enumerate(members):
        lines.append(f"{index + 1} {name}")
        if connector.is_host_connector:
            lines.append("    host connector: its output is unknown before it runs")
            break

        def run(batch, ctx, connector=connector):
            state = jax.tree.map(strong_array, connector.init(num_envs))
            after, batch = applied(connector, state, batch, ctx, mask_keys)
            return check_state(state, after), batch

        with naming(name, [name for name, _ in members], label):
            state, batch = jax.eval_shape(run, batch, context_of(name, connector, ctx))
        before, columns = columns, _described_leaves(batch)
        lines += _changes(before, columns)
        leaves = jax.tree.leaves_with_path(state)
        lines += [f"    state{jax.tree_util.keystr(path)}: {described(leaf)}" for path, leaf in leaves]
    return "\n".join(lines)


def _changes(before: Mapping[str, str], columns: Mapping[str, str]) -> Iterator[str]:
    """Yields a line of text for each column, with a mark for the effect of a connector: ``+`` new, ``*`` changed, ``-``
    removed.
    """
    for column, what in columns.items():
        mark = " " if before.get(column) == what else "+" if column not in before else "*"
        yield f"  {mark} {column:<40} {what}"
    yield from (f"  - {column}" for column in before if column not in columns)


def _described_leaves(batch: Mapping[str, Any]) -> dict[str, str]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): described(leaf)
        for path, leaf in jax.tree.leaves_with_path(batch)
    }
