"""Storage of incomplete agent steps until the agent's next observation, for agents that do not act in every env step.

A step of an agent is complete with the agent's next observation or its end. It contains the observation, action and
module outputs of the act, the sum of the rewards since the act, and the observation that completed it. Until then the
step is held, also across the end of a block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.ops.masks import where_rows


@struct.dataclass
class HeldSteps:
    """Incomplete steps of a module's ``B`` rows (one agent in one environment): observation, action and outputs, and
    the rewards since the action.

    Attributes:
        columns: Columns of the act, ``{column: pytree [B, ...]}``: the module's batch and its outputs.
        rewards: float32 ``[B]``, sums of the rewards since the act.
        is_held: bool ``[B]``, whether the row has an incomplete step.
    """

    columns: dict[str, Any]
    rewards: jax.Array
    is_held: jax.Array

    @classmethod
    def none(cls, columns: Mapping[str, Any], num_rows: int) -> HeldSteps:
        """Creates the storage for incomplete steps of ``B`` rows (one agent in one environment each); no row has one
        yet.

        Args:
            columns: Shapes of the columns of an act, for one row.
            num_rows: ``B``.
        """
        zeros = jax.tree.map(lambda x: jnp.zeros((num_rows, *x.shape), x.dtype), dict(columns))
        return cls(zeros, jnp.zeros((num_rows,), jnp.float32), jnp.zeros((num_rows,), bool))

    def begun(self, acts: jax.Array, columns: dict[str, Any]) -> HeldSteps:
        """Returns a copy of these `HeldSteps` with a new incomplete agent step for each agent that acts.

        A row is one agent in one environment.

        Args:
            acts: bool ``[B]``, rows that act; none of them has an incomplete step.
            columns: Columns of the act for all rows, ``[B, ...]``. Columns that are missing keep their values: actions
                that no module has chosen have no other columns.
        """
        left = {name: columns.get(name, own) for name, own in self.columns.items()}
        return dataclasses.replace(
            self, columns=where_rows(acts, left, self.columns), is_held=jnp.logical_or(self.is_held, acts)
        )

    def rewarded(self, rewards: jax.Array) -> HeldSteps:
        """Returns a copy of these `HeldSteps` in which the rewards of an env step are added to the incomplete agent
        steps.

        Rewards of rows (one agent in one environment each) without an incomplete step are ignored.

        Args:
            rewards: float32 ``[B]``.
        """
        return dataclasses.replace(self, rewards=self.rewards + jnp.where(self.is_held, rewards, 0.0))

    def without(self, complete: jax.Array) -> HeldSteps:
        """Returns a copy of these `HeldSteps` (incomplete agent steps) without the steps that are now complete and
        recorded.

        The mask `complete` is True for the rows (one agent in one environment each) of these steps.

        Args:
            complete: bool ``[B]``, rows whose step is complete.
        """
        return dataclasses.replace(
            self,
            rewards=jnp.where(complete, 0.0, self.rewards),
            is_held=jnp.logical_and(self.is_held, jnp.logical_not(complete)),
        )

    def recorded(self, complete: jax.Array, terminateds: jax.Array, truncateds: jax.Array) -> dict[str, Any]:
        """Returns the recorded columns of the agent steps that an env step completes. ``FINAL_OBS``, the observations
        after these steps, is not included: the caller adds this column.

        Args:
            complete: bool ``[B]``, rows whose step is complete. In other rows ``LOSS_MASK`` and the flags are False and
                the reward is 0.
            terminateds: bool ``[B]``, whether the agent terminated.
            truncateds: bool ``[B]``, whether the agent was truncated.

        Returns:
            ``{column: pytree [B, ...]}``.
        """
        return {
            **self.columns,
            Columns.REWARDS: jnp.where(complete, self.rewards, 0.0),
            Columns.TERMINATEDS: jnp.logical_and(complete, terminateds),
            Columns.TRUNCATEDS: jnp.logical_and(complete, truncateds),
            Columns.LOSS_MASK: complete,
        }
