"""Compiled part of a connector pipeline: the pure connectors (which override ``apply``), with their states as arguments
and results.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxrl_stack.connectors.connector_v2 import PURE_SIGNATURE, ConnectorV2, PureConnector
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.connectors.states import check_state, per_env_leaves, strong_array
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.ops.masks import expand
from jaxrl_stack.utils import streams
from jaxrl_stack.utils.action_masks import OBSERVATIONS, mask_key_in
from jaxrl_stack.utils.retracing import impurity


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class PurePipeline:
    """Fixed sequence of a pipeline's pure connectors (which override ``apply``), which run one after the other; its
    state is ``{name: connector state}``.

    `ConnectorPipelineV2.pure_part` makes it. Members that are added to that pipeline later, or removed, and spaces that
    are set later, do not show here; the connectors are the same objects.

    Attributes:
        label: Name of the pipeline's class, for messages.
        members: ``(name, connector)`` in order; of a pipeline inside, its pure part.
        input_observation_space: Space of the observations that come in; None if it is not known.
        input_action_space: Likewise for actions.
        observation_space: Space of the observations that come out; None if it is not known.
        action_space: Likewise for actions.
        mask_keys: Keys that the action mask may have in observations; empty for no mask. See `ConnectorV2`.
    """

    label: str
    members: tuple[tuple[str, ConnectorV2 | PurePipeline], ...]
    input_observation_space: gym.Space | None
    input_action_space: gym.Space | None
    observation_space: Any
    action_space: Any
    mask_keys: tuple[str, ...] = ()

    draws_from_pipeline_key = False
    sees_action_mask = True

    def __len__(self) -> int:
        return len(self.members)

    @property
    def names(self) -> list[str]:
        """Names of the connectors, in the order in which they run."""
        return [name for name, _ in self.members]

    @property
    def num_stacked_frames(self) -> int:
        """Number of frames that the last connector of the pipeline stacks in each observation; 1 if it stacks none.

        Also 1 if observations have an action mask, because such observations are not stored as one frame per step.
        """
        if not self.members or mask_key_in(self.observation_space, self.mask_keys):
            return 1
        return self.members[-1][1].num_stacked_frames

    @property
    def takes_frames(self) -> bool:
        """Whether all connectors accept frame-stacked observations that are stored as one frame per step (see
        `core.frames`).
        """
        return all(own.takes_frames for _, own in self.members)

    def earlier_frames(self, state: Any) -> Any:
        """Returns the n - 1 frames before the next observation, ``[B, ..., (n - 1) * C]``.

        These frames are the history in the state of the last connector, which stacks n frames of C channels. See
        `ConnectorV2.earlier_frames`.
        """
        name, connector = self.members[-1]
        return connector.earlier_frames(state[name])

    @staticmethod
    def make_context(**fields: Any) -> ConnectorContext:
        """Creates a `ConnectorContext` from its fields. Lower-level modules of this package call this function, because
        they cannot import the class.
        """
        return ConnectorContext(**fields)

    def init(self, num_envs: int) -> dict[str, Any]:
        """Returns the initial states of all connectors, ``{name: state}``, for ``num_envs`` environments."""
        state = {}
        for name, connector in self.members:
            with naming(name, self.names, self.label):
                state[name] = jax.tree.map(strong_array, connector.init(num_envs))
        return state

    def apply(self, state: dict[str, Any], batch: dict[str, Any], ctx: ConnectorContext):
        """Runs all connectors one after the other. An exception gets a note with the connector's name and position.

        Args:
            state: Returned by ``init`` or the last ``apply``.
            batch: ``{module_id: {column: pytree}}``; it is left as it is.
            ctx: Every connector gets it with a key of its own.

        Returns:
            ``(state, batch)``.

        Raises:
            ValueError: The state is for other connectors.
            TypeError: A connector returned something else than ``(state, batch)``, or a state of other structure,
                shapes or dtypes.
        """
        if set(state) != set(self.names):
            raise ValueError(
                f"The state is for the connectors {sorted(state)}, but this {self.label} has {sorted(self.names)}. "
                "After a connector is added or removed, create a new state: pipeline.init(num_envs)."
            )
        # Copies of the two dict levels: a connector that assigns a column in place does not reach the caller's
        # batch.
        batch = {module_id: dict(columns) for module_id, columns in batch.items()}
        new_state = {}
        for name, connector in self.members:
            with naming(name, self.names, self.label):
                own_ctx = context_of(name, connector, ctx)
                _check_draws(connector, self.mask_keys, state[name], batch, own_ctx)
                given = batch
                own_state, batch = applied(connector, state[name], given, own_ctx, self.mask_keys)
                _check_masks_are_kept(given, batch, self.mask_keys)
                new_state[name] = check_state(state[name], own_state)
                if ctx.layouts is not None:
                    ctx = dataclasses.replace(ctx, layouts=ctx.layouts.masked_as(batch))
        return new_state, batch

    def merge(self, state: dict[str, Any], axis_name: str | None) -> dict[str, Any]:
        """Returns the states of all connectors, with their statistics merged over a device axis."""
        return {name: connector.merge(state[name], axis_name) for name, connector in self.members}

    def where_rows(self, mask: jax.Array, yes: dict[str, Any], no: dict[str, Any]) -> dict[str, Any]:
        """Returns a connector state with per-environment values from `yes` where `mask`, bool ``[B]``, is True, and
        from `no` elsewhere; statistics come from `yes`.

        Args:
            mask: bool ``[B]``.
            yes: State with the histories of rows where the mask is True.
            no: State with the other ones.
        """
        return jax.tree.map(
            lambda is_history, a, b: jnp.where(expand(mask, a), a, b) if is_history else a, self._histories, yes, no
        )

    @functools.cached_property
    def _histories(self) -> dict[str, Any]:
        return per_env_leaves(self.init)

    def rebatch(self, state: dict[str, Any], num_envs: int) -> dict[str, Any]:
        """Returns the states of all connectors for a new set of ``num_envs`` environments. Statistics do not change,
        and per-environment values get their initial values.
        """
        return {name: jax.tree.map(strong_array, own.rebatch(state[name], num_envs)) for name, own in self.members}


@contextlib.contextmanager
def naming(name: str, names: Sequence[str], label: str) -> Iterator[None]:
    """Context manager that adds the names of a connector and its pipeline to exceptions, as a note."""
    try:
        yield
    except Exception as error:
        error.add_note(f"In connector {name!r}, number {names.index(name) + 1} of {len(names)} of {label}.")
        raise


def context_of(name: str, connector: ConnectorV2 | PurePipeline, ctx: ConnectorContext) -> ConnectorContext:
    """Returns the context for one connector, with a PRNG key derived from the pipeline's key and the connector's name.

    If the connector has ``draws_from_pipeline_key = True``, returns the context with the pipeline's key. Keys that no
    connector uses cost nothing, because the compiler removes them.
    """
    if ctx.key is None or connector.draws_from_pipeline_key:
        return ctx
    return dataclasses.replace(ctx, key=streams.named(ctx.key, name))


def applied(
    connector: ConnectorV2 | PurePipeline,
    state: Any,
    batch: dict[str, Any],
    ctx: ConnectorContext,
    mask_keys: Sequence[str] = (),
) -> tuple[Any, dict[str, Any]]:
    """Calls a connector's ``apply`` and checks the result.

    If the connector has ``sees_action_mask = False``, it receives observations without action masks, and the masks are
    added to its output observations.

    Args:
        connector: The connector.
        state: State of the connector.
        batch: ``{module_id: {column: pytree}}``.
        ctx: The connector's own context.
        mask_keys: Keys that an action mask may have in observations.
    """
    masks = {} if connector.sees_action_mask else _masks_in(batch, mask_keys)
    if masks:
        batch = _with_columns(batch, {where: batch[where[0]][where[1]][OBSERVATIONS] for where in masks})
    state, batch = checked_output(connector.apply(state, batch, ctx))
    kept = {where: own for where, own in masks.items() if where[1] in batch.get(where[0], ())}
    if kept:
        made = {(mid, name): {**mask, OBSERVATIONS: batch[mid][name]} for (mid, name), mask in kept.items()}
        batch = _with_columns(batch, made)
    return state, batch


def _masks_in(batch: Mapping[str, Any], mask_keys: Sequence[str]) -> dict[tuple[str, str], dict[str, Any]]:
    """Returns the action masks in the observations of a batch, ``{(module id, column): {key: mask}}``, where `key` is
    the key of the mask in the observation dict.
    """
    return {
        (mid, name): {key: columns[name][key]}
        for mid, columns in (batch.items() if mask_keys else ())
        for name in (Columns.OBS, Columns.FINAL_OBS, Columns.NEXT_OBS)
        if name in columns and (key := mask_key_in(columns[name], mask_keys)) is not None
    }


def _with_columns(batch: Mapping[str, Any], new: Mapping[tuple[str, str], Any]) -> dict[str, Any]:
    batch = {mid: dict(columns) for mid, columns in batch.items()}
    for (mid, name), column in new.items():
        batch[mid][name] = column
    return batch


def _check_masks_are_kept(given: Mapping[str, Any], made: Mapping[str, Any], mask_keys: Sequence[str]) -> None:
    """Raises a ValueError if a connector returned observations without their action mask."""
    kept = _masks_in(made, mask_keys)
    for (mid, name), mask in _masks_in(given, mask_keys).items():
        if name in made.get(mid, ()) and (mid, name) not in kept:
            (key,) = mask
            raise ValueError(
                f"A connector returned column {name!r} of module {mid!r} without the action mask {key!r}. Return "
                f"the column as {{{key!r}: mask, {OBSERVATIONS!r}: ...}}, or set sees_action_mask = False in the "
                f"connector's class: apply() then gets only the value of {OBSERVATIONS!r}, and the pipeline adds the "
                "mask to the returned observations."
            )


def checked_output(result: Any) -> tuple[Any, dict[str, Any]]:
    """Raises a TypeError unless the result of a connector's ``apply`` is a tuple
    ``(state, {module_id: {column: arrays}})``; returns the result unchanged.

    Raises:
        TypeError: The result has another form.
    """
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(
            f"A connector's `apply` must return the tuple (state, batch), got {type(result).__name__}. End it with "
            "`return state, batch`."
        )
    batch = result[1]
    if not isinstance(batch, dict) or not all(isinstance(columns, dict) for columns in batch.values()):
        raise TypeError(
            f"A connector must return a batch {{module_id: {{column: arrays}}}}, got {_outline(batch)}. Return the "
            "batch that it received, with new columns."
        )
    return result


def _outline(batch: Any) -> str:
    if isinstance(batch, dict):
        return "{" + ", ".join(f"{key!r}: {type(value).__name__}" for key, value in batch.items()) + "}"
    return type(batch).__name__


def _check_draws(connector: ConnectorV2 | PurePipeline, mask_keys: Sequence[str], *args: Any) -> None:
    """Traces a user-defined connector twice, to detect random numbers that were drawn without ``ctx.key``.

    Raises:
        TypeError: If the two traces differ.
    """
    if type(connector).__module__.startswith("jaxrl_stack."):
        return
    if not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(args)):
        return
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), jax.dtypes.result_type(x)), args)
    difference = impurity(
        lambda state, batch, ctx: applied(connector, state, batch, ctx, mask_keys), *shapes, thorough=True
    )
    if difference is not None:
        method = "apply" if isinstance(connector, PureConnector) else "__call__"
        raise TypeError(
            f"{type(connector).__name__}.{method} is not a pure function: if JAX traces it twice, the second trace "
            f"differs ({difference}). NumPy's and Python's random numbers are drawn only once, while JAX traces. Use "
            f"jax.random with `ctx.key`, which is new in every step:\n{PURE_SIGNATURE}"
        )
