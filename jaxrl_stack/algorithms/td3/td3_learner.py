"""Losses of TD3, with a delayed policy, and of TD3+BC."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxrl_stack.algorithms.sac.sac_learner import (
    QF_LOSS_KEY,
    QF_MAX_KEY,
    QF_MEAN_KEY,
    QF_MIN_KEY,
    QF_PREDS,
    QF_TWIN_LOSS_KEY,
    QF_TWIN_PREDS,
    TD_ERROR_MEAN_KEY,
    log_critics,
    register_adams,
    twin_critics,
)
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.learner import POLICY_LOSS_KEY, Learner
from jaxrl_stack.core.learner.optimizer_losses import LossesByOptimizer
from jaxrl_stack.core.learner.target_networks import TargetNetworkUpdates
from jaxrl_stack.core.learner.traced_metrics import GLOBAL_NORM
from jaxrl_stack.core.rl_module.apis import QNetAPI, TargetNetworkAPI
from jaxrl_stack.core.rl_module.functional import raw_value
from jaxrl_stack.core.rl_module.target_networks import TargetParam
from jaxrl_stack.ops import q_learning, sequences, soft_actor_critic

if TYPE_CHECKING:
    from jaxrl_stack.core.learner.learner_state import LearnerState
    from jaxrl_stack.core.learner.post_update import UpdateResult
    from jaxrl_stack.core.learner.traced_metrics import MetricKey
    from jaxrl_stack.utils.traced_config import TracedConfigView

BC_LOSS_KEY = "bc_loss"
BC_Q_WEIGHT_KEY = "bc_q_weight"
"""Names of TD3+BC's results of each module, besides TD3's."""
POLICY_METRICS = "policy_metrics"
"""Name in a learner's extra state: ``{module_id: {metric: float32}}``, metrics of the last update of the policy."""
SMALLEST_MEAN = 1e-8
"""Lower bound of the mean absolute value that TD3+BC divides by."""


class TD3Learner(TargetNetworkUpdates, Learner):
    """Twin delayed deep deterministic policy gradients (Fujimoto et al., 2018, arXiv:1802.09477, algorithm 1).

    Each critic learns ``R + gamma^n min_i target_Q_i(s', a')`` with the squared error; ``a'`` is the target policy's
    action with clipped noise. The policy maximises ``Q_1(s, pi(s))``. Every ``policy_delay``-th update also updates the
    policy and all target networks; the others do not compute the policy's loss.
    """

    loss_is_linear_in_means = True
    learns_from_sequences = True
    result_names = (
        QF_LOSS_KEY,
        QF_TWIN_LOSS_KEY,
        POLICY_LOSS_KEY,
        QF_MEAN_KEY,
        QF_MAX_KEY,
        QF_MIN_KEY,
        TD_ERROR_MEAN_KEY,
    )
    optimizer_names = ("qf", "qf_twin", "policy")
    columns_from_forward_train = (QF_PREDS,)
    policy_metrics: tuple[str, ...] = (POLICY_LOSS_KEY, f"gradients_policy_{GLOBAL_NORM}")
    """Metrics that only updates of the policy compute; results of other updates repeat them."""

    @classmethod
    def rl_module_required_apis(cls) -> list[type]:
        return [TargetNetworkAPI, QNetAPI]

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        """Registers one Adam with eps 1e-7 per optimizer name: ``qf`` for the first critic, ``qf_twin`` for the second
        critic (only with ``twin_q=True``), and ``policy``.
        """
        config = config or self.config_for(module_id)
        module: Any = self.template[module_id]
        if not self._has_loss_of_algorithm(module):
            super().configure_optimizers_for_module(module_id, config)
            return
        critics = twin_critics(module, config)
        rates = dict.fromkeys(critics, config.critic_lr) | {"policy": config.actor_lr}
        register_adams(self, module_id, critics | {"policy": [module.pi_encoder, module.pi]}, rates)

    # ----------------------------------------------------------------------------------------------------------- delay

    def _policy_is_due(self, num_updates: Any) -> Any:
        """Whether update number `num_updates` changes the policy and the target networks: every `policy_delay`-th
        update does.
        """
        delay = self.config.policy_delay
        return True if delay == 1 else num_updates % jnp.uint32(delay) == 0

    @property
    def _policy_is_due_now(self) -> Any:
        """Whether the gradient update that JAX is tracing changes the policy.

        True if every update changes the policy, else a traced bool scalar. Always True if losses are only evaluated,
        without an update.
        """
        before = self.updates_so_far
        return True if before is None else self._policy_is_due(before + jnp.uint32(1))

    def optimizer_is_due(self, module_id: str, optimizer_name: str) -> Any:
        if optimizer_name == "policy" and module_id in self._ids_with_loss_of_algorithm:
            return self._policy_is_due_now
        return super().optimizer_is_due(module_id, optimizer_name)

    def target_update_is_due(self, state: LearnerState, module_id: str) -> jax.Array:
        return super().target_update_is_due(state, module_id) & self._policy_is_due(state.num_updates)

    def initial_extra_state(self) -> dict[str, Any]:
        """Extra learner state: metrics of each policy's last update, and the state of the target networks.

        Before the first update of a policy, losses are NaN, and norms of gradients are 0, because a norm that is not
        finite means divergence.
        """
        first = {name: np.float32(0.0 if name.endswith(GLOBAL_NORM) else np.nan) for name in self.policy_metrics}
        kept = {mid: dict(first) for mid in self._ids_with_loss_of_algorithm}
        return {**super().initial_extra_state(), POLICY_METRICS: kept}

    def post_update(
        self, state: LearnerState, *, metrics: dict[MetricKey, Any], settings: dict[str, dict[str, Any]]
    ) -> UpdateResult:
        """Updates the target networks, and reports the metrics of the last policy update.

        If this update changes a policy, stores the policy's metrics in the learner state. Otherwise, reports the stored
        metrics of the last update that changed the policy. Pure; see `Learner.post_update`.
        """
        state, metrics = super().post_update(state, metrics=metrics, settings=settings)
        due, kept = self._policy_is_due(state.num_updates), dict(state.extra[POLICY_METRICS])
        for mid, own in kept.items():
            is_new = jnp.logical_and(due, self.has_rows(mid))
            kept[mid] = {
                name: jnp.where(is_new, metrics.get((mid, name), old), old).astype(jnp.float32)
                for name, old in own.items()
            }
            metrics |= {(mid, name): value for name, value in kept[mid].items() if (mid, name) in metrics}
        return dataclasses.replace(state, extra={**state.extra, POLICY_METRICS: kept}), metrics

    # ---------------------------------------------------------------------------------------------------------- losses

    def compute_loss_for_module(
        self, *, module_id: str, config: TracedConfigView, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> Any:
        module: Any = self.module[module_id]
        critics = self._critic_rows(module, config, batch, fwd_out)
        q_values = fwd_out[QF_PREDS]
        rows = {"qf": critics.loss, QF_MEAN_KEY: q_values, TD_ERROR_MEAN_KEY: critics.td_error}
        if critics.twin_loss is not None:
            rows["qf_twin"] = critics.twin_loss
        means = self.masked_means(rows | self._policy_rows_if_due(module, batch), batch)
        policy_loss = self._policy_loss(config, means)

        log_critics(self, module_id, batch, critics.td_error, q_values)
        losses = {name: means.pop(name) for name in ("qf", "qf_twin") if name in means} | {"policy": policy_loss}
        metrics = {f"{name}_loss": loss for name, loss in losses.items()} | means
        self.metrics.log_dict(metrics, key=module_id, window=1)
        return LossesByOptimizer(losses)

    def _critic_rows(
        self, module: Any, config: Any, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> soft_actor_critic.CriticRows:
        noise = (config.target_noise, config.target_noise_clip) if config.smooth_target_policy else ()
        next_values, weights = module.compute_target_values(batch, *noise), None
        if "weights" in batch:
            weights, at_ends, _ = sequences.of_rows(batch)
            next_values = at_ends(next_values)
        targets = q_learning.n_step_targets(
            rewards=batch[Columns.REWARDS].astype(jnp.float32),
            next_values=next_values,
            terminateds=batch[Columns.TERMINATEDS],
            **self.discount_of_targets(config, batch),
        )
        q_twin = fwd_out[QF_TWIN_PREDS] if config.twin_q else None
        return soft_actor_critic.critic_rows(
            q=fwd_out[QF_PREDS], q_twin=q_twin, targets=targets, weights=weights, td_error_loss_fn="mse"
        )

    def _policy_rows_if_due(self, module: Any, batch: dict[str, Any]) -> dict[str, jax.Array]:
        """Results of `_policy_rows` if this update changes the policy; otherwise zeros of the same shapes, without a
        forward pass.
        """
        due = self._policy_is_due_now
        if due is True:
            return self._policy_rows(module, batch)
        # The branch works on a copy, and returns the copy's state: it may not change Variables of the outer trace.
        graphdef, state = nnx.split(module)
        kept = _layer_state(module)

        def rows() -> tuple[dict[str, jax.Array], Any]:
            copied = nnx.merge(graphdef, jax.tree.map(lambda leaf: leaf, state))
            return self._policy_rows(copied, batch), _layer_state(copied)

        shapes, _ = jax.eval_shape(rows)
        no_rows = jax.tree.map(lambda own: jnp.zeros(own.shape, own.dtype), shapes)
        found, changed = jax.lax.cond(due, rows, lambda: (no_rows, kept))
        nnx.update(module, nnx.from_flat_state(list(changed.items())))
        return found

    def _policy_rows(self, module: Any, batch: dict[str, Any]) -> dict[str, jax.Array]:
        """Terms of the policy loss for each row, ``{name: float32 [N]}``; `_policy_loss` receives the mean of each term
        over valid rows.
        """
        return {"policy": -module.compute_policy_values(batch)[1]}

    def _policy_loss(self, config: Any, means: dict[str, jax.Array]) -> jax.Array:
        """Computes the policy loss from the mean loss terms in `means`.

        `means` is ``{name of a loss term or metric: mean over valid rows}``. The caller logs the entries of `means` as
        metrics; this method therefore removes loss terms that are not metrics.
        """
        return means.pop("policy")


class TD3BCLearner(TD3Learner):
    """TD3 with behaviour cloning on recorded data (Fujimoto & Gu, 2021, arXiv:2106.06860, equations 4 and 5).

    The policy's loss is ``mean((pi(s) - a)^2) - lambda mean(Q_1(s, pi(s)))`` with ``lambda = bc_alpha / mean |Q_1(s,
    pi(s))|``, which has no gradient. The mean of the squares is over rows and components of actions in [-1, 1].
    """

    loss_is_linear_in_means = False  # lambda divides by a mean
    learns_from_sequences = False
    result_names = (BC_LOSS_KEY, BC_Q_WEIGHT_KEY)
    policy_metrics = (*TD3Learner.policy_metrics, BC_LOSS_KEY, BC_Q_WEIGHT_KEY)

    def _policy_rows(self, module: Any, batch: dict[str, Any]) -> dict[str, jax.Array]:
        actions, values = module.compute_policy_values(batch)
        squares = jnp.mean(jnp.square(actions - batch[Columns.ACTIONS]), axis=-1)
        return {"policy": -values, "absolute": jax.lax.stop_gradient(jnp.abs(values)), BC_LOSS_KEY: squares}

    def _policy_loss(self, config: Any, means: dict[str, jax.Array]) -> jax.Array:
        weight = config.bc_alpha / jnp.maximum(means.pop("absolute"), SMALLEST_MEAN)
        means[BC_Q_WEIGHT_KEY] = weight
        return weight * means.pop("policy") + means[BC_LOSS_KEY]


def _layer_state(module: Any) -> dict[Any, jax.Array]:
    """Module state that forward passes change, such as running means and random streams: ``{path: array}``."""
    return {
        path: raw_value(leaf)
        for path, leaf in nnx.to_flat_state(nnx.state(module))
        if not isinstance(leaf, (nnx.Param, TargetParam, nnx.Intermediate, np.ndarray))
    }
