"""RLModules that act at random, as opponents and baselines."""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.default_observations import sample_valid, valid_actions
from jaxrl_stack.core.rl_module.rl_module import RLModule
from jaxrl_stack.utils import spaces


class RandomRLModule(RLModule):
    """Draws actions uniformly from the action space, or from the valid ones if observations have an action mask.

    It has no parameters: leave it out of ``policies_to_train``.
    """

    def setup(self) -> None:
        self.random_stream = self.rngs["actions"].fork()

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        mask = valid_actions(batch[Columns.OBS], self.action_space)
        if mask is not None:
            return {Columns.ACTIONS: sample_valid(self.random_stream(), cast(Any, self.action_space), mask)}
        return {Columns.ACTIONS: self._draw(_lead(self, batch))}

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        raise NotImplementedError(
            f"{type(self).__name__} has no parameters to train. Set multi_agent(policies_to_train=[...]) to a list "
            "without this policy."
        )

    def _draw(self, shape: tuple[int, ...]) -> Any:
        space: Any = self.action_space
        return spaces.sample(self.random_stream(), spaces.from_zero(space), shape)


class StatefulRandomRLModule(RandomRLModule):
    """`RandomRLModule` with a recurrent state, float32 ``[1]``, that counts the steps of the episode."""

    def get_initial_state(self) -> Any:
        return {"state": jnp.zeros(1, jnp.float32)}

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        outputs = super()._forward(batch, **kwargs)
        num_steps = _lead(self, batch)[1]
        return {**outputs, Columns.STATE_OUT: {"state": batch[Columns.STATE_IN]["state"] + num_steps}}


def _lead(module: RLModule, batch: dict[str, Any]) -> tuple[int, ...]:
    """Returns the batch shape of OBS: ``(N,)`` for N observations; if the module has a recurrent state, ``(N, T)`` for
    N sequences of T observations.
    """
    return jax.tree.leaves(batch[Columns.OBS])[0].shape[: 2 if module.is_stateful() else 1]
