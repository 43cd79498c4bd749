"""Learner with one loss over several modules: the team's value is the sum of the agents' values."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_stack.core import ALL_MODULES
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.examples.rl_modules.classes.q_values_rlm import Q_VALUES
from jaxrl_stack.ops.q_learning import select


class VDNLearner(Learner):
    """Learner of value decomposition networks (Sunehag et al. 2018, equations 1 to 4,
    https://arxiv.org/abs/1706.05296).

    With the agents' values ``Q_i`` of what they observe, the team's value is ``Q = sum_i Q_i(o_i, a_i)``, and the loss
    ``mean((Q - r - gamma * sum_i max_a Q_i(o_i', a))^2)``, where r is what all agents get together. Each agent has a
    module of its own, everybody acts in every step, and rows of the modules belong together, so that the whole batch is
    one minibatch.
    """

    def compute_losses(self, *, fwd_out: dict[str, Any], batch: dict[str, Any]) -> dict[str, Any]:
        """Computes the team's TD loss, divided equally among the modules.

        Args:
            fwd_out: ``{module_id: {"q_values": float32 [N, A]}}``.
            batch: ``{module_id: {column: [N, ...]}}``, row n of all modules from one step of one environment.
        """
        values = sum(select(fwd_out[mid][Q_VALUES], batch[mid][Columns.ACTIONS]) for mid in fwd_out)
        following = sum(_best(self.module[mid], batch[mid]) for mid in fwd_out)
        rewards = sum(batch[mid][Columns.REWARDS] for mid in fwd_out)
        first = batch[next(iter(fwd_out))]
        targets = rewards + self.config.gamma * jnp.where(first[Columns.TERMINATEDS], 0.0, following)
        loss = self.masked_mean(jnp.square(values - jax.lax.stop_gradient(targets)), first)
        self.metrics.log_value((ALL_MODULES, "team_q_loss"), loss, window=1)
        return dict.fromkeys(fwd_out, loss / len(fwd_out))


class IndependentQLearner(Learner):
    """Learner of independent Q-learning, for comparison with `VDNLearner`: each module learns from its own rewards, and
    treats the other modules as part of the environment.
    """

    def compute_loss_for_module(self, *, module_id: str, config: Any, batch: Any, fwd_out: Any) -> jax.Array:
        """Computes the TD loss of one module: the mean squared TD error.

        The loss of module i is ``mean((Q_i - r_i - gamma * max_a Q_i(o_i', a))^2)``: ``Q_i`` is the Q-value of the
        action, ``r_i`` the reward, ``o_i'`` the next observation. The maximum over actions a counts as 0 if the episode
        terminated.
        """
        following = jnp.where(batch[Columns.TERMINATEDS], 0.0, _best(self.module[module_id], batch))
        targets = jax.lax.stop_gradient(batch[Columns.REWARDS] + config.gamma * following)
        return self.masked_mean(jnp.square(select(fwd_out[Q_VALUES], batch[Columns.ACTIONS]) - targets), batch)


def _best(module: Any, columns: dict[str, Any]) -> jax.Array:
    """Returns the largest Q-value of each of the N next observations, float32 ``[N]``."""
    return jnp.max(module.q_values(columns[Columns.NEXT_OBS]), axis=-1)
