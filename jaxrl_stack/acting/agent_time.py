"""Steps of agents that do not act in every step of their environment: held from the act to what completes it.

A step of an agent is complete with its next observation, or with its end. It has the observation, action and module
outputs of the act, the sum of the rewards since, and the observation that completed it. In between it is held, over the
end of a block, too.
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
    """Steps of the ``B`` rows of a module, an agent in an environment each, that have begun.

    Attributes:
        columns: What the act left, ``{column: pytree [B, ...]}``: the module's batch and its outputs.
        rewards: float32 ``[B]``, sums since then.
        is_held: bool ``[B]``, whether there is such a step.
    """

    columns: dict[str, Any]
    rewards: jax.Array
    is_held: jax.Array

    @classmethod
    def none(cls, columns: Mapping[str, Any], num_rows: int) -> HeldSteps:
        """No step.

        Args:
            columns: Shapes of what an act leaves of one row.
            num_rows: ``B``.
        """
        zeros = jax.tree.map(lambda x: jnp.zeros((num_rows, *x.shape), x.dtype), dict(columns))
        return cls(zeros, jnp.zeros((num_rows,), jnp.float32), jnp.zeros((num_rows,), bool))

    def begun(self, acts: jax.Array, columns: dict[str, Any]) -> HeldSteps:
        """With the steps of those that act now.

        Args:
            acts: bool ``[B]``; none of them has a step that is not complete.
            columns: What the act left of all rows, ``[B, ...]``. Actions that no module has chosen come alone: other
                columns stay as they are.
        """
        left = {name: columns.get(name, own) for name, own in self.columns.items()}
        return dataclasses.replace(
            self, columns=where_rows(acts, left, self.columns), is_held=jnp.logical_or(self.is_held, acts)
        )

    def rewarded(self, rewards: jax.Array) -> HeldSteps:
        """With the rewards of a step of the environments; those of agents without a step of their own belong nowhere.

        Args:
            rewards: float32 ``[B]``.
        """
        return dataclasses.replace(self, rewards=self.rewards + jnp.where(self.is_held, rewards, 0.0))

    def without(self, complete: jax.Array) -> HeldSteps:
        """Without those that are complete, bool ``[B]``."""
        return dataclasses.replace(
            self,
            rewards=jnp.where(complete, 0.0, self.rewards),
            is_held=jnp.logical_and(self.is_held, jnp.logical_not(complete)),
        )

    def recorded(self, complete: jax.Array, terminateds: jax.Array, truncateds: jax.Array) -> dict[str, Any]:
        """The rows of a step of the environments, but for ``FINAL_OBS``.

        Args:
            complete: bool ``[B]``, which of the steps are complete; ``LOSS_MASK`` is False in other rows, whose reward
                is 0 and whose flags are not set.
            terminateds: bool ``[B]``, whether the agent ended.
            truncateds: bool ``[B]``, whether it was cut off.
        """
        return {
            **self.columns,
            Columns.REWARDS: jnp.where(complete, self.rewards, 0.0),
            Columns.TERMINATEDS: jnp.logical_and(complete, terminateds),
            Columns.TRUNCATEDS: jnp.logical_and(complete, truncateds),
            Columns.LOSS_MASK: complete,
        }
