"""CQL's losses: SAC's losses, and a term that lowers the Q-values of actions that are not in the data."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.algorithms.cql.default_cql_rl_module import LOGPS_REPEAT, Q_REPEAT, Q_TWIN_REPEAT, DefaultCQLRLModule
from jaxrl_stack.algorithms.sac.sac_learner import (
    QF_MEAN_KEY,
    QF_PREDS,
    QF_TARGET_NEXT,
    QF_TWIN_PREDS,
    TD_ERROR_MEAN_KEY,
    SACLearner,
    adam,
    policy_rows,
)
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.learner_state import LearnerState
from jaxrl_stack.core.learner.post_update import UpdateResult
from jaxrl_stack.core.learner.target_networks import TargetNetworkUpdates
from jaxrl_stack.core.learner.traced_metrics import MetricKey
from jaxrl_stack.ops import q_learning, soft_actor_critic

CQL_LOSS_KEY = "cql_loss"
CQL_ALPHA_PRIME_KEY = "alpha_prime_value"
"""Names of CQL's results of each module, in addition to SAC's results."""
NUM_CQL_UPDATES = "num_cql_updates"
"""Name in a learner's extra state: ``{module_id: uint32}``, updates so far, of which the first ``bc_iters`` clone."""
LARGEST_MULTIPLIER = 1e6


class CQLLearner(SACLearner):
    """Conservative Q-learning (Kumar et al., 2020, arXiv:2006.04779, variant H, equation 4) as RLlib defines it.

    The loss of each critic is the squared error of one-step targets plus ``min_q_weight`` times ``temperature *
    logsumexp((Q - log density) / temperature) - Q(recorded action)``. With ``lagrangian`` the multiplier
    ``exp(log_alpha_prime)``, clipped to at most 1e6, weighs the part of that term above ``lagrangian_thresh``, and has
    a separate optimizer. In the first ``bc_iters`` updates the actor clones recorded actions. Everything else is as in
    SAC.
    """

    learns_from_sequences = False
    result_names = (CQL_LOSS_KEY,)
    loss_names = (*SACLearner.loss_names, "alpha_prime")
    shared_extra = (*TargetNetworkUpdates.shared_extra, NUM_CQL_UPDATES)

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        """Registers SAC's optimizers and, if ``lagrangian`` is set, the optimizer "alpha_prime" for the Lagrange
        multiplier.

        "alpha_prime" is Adam with learning rate ``critic_lr`` for the logarithm of the Lagrange multiplier of the
        conservative term.
        """
        super().configure_optimizers_for_module(module_id, config)
        config = config or self.config_for(module_id)
        if self._is_lagrangian(module_id):
            self.register_optimizer(
                module_id=module_id,
                optimizer_name="alpha_prime",
                optimizer=adam,
                params=[cast(DefaultCQLRLModule, self.template[module_id]).log_alpha_prime],
                lr_or_lr_schedule=config.critic_lr,
            )

    def _is_lagrangian(self, module_id: str) -> bool:
        module = self.template[module_id]
        return self._has_loss_of_algorithm(module) and hasattr(module, "log_alpha_prime")

    def initial_extra_state(self) -> dict[str, Any]:
        """Extra learner state: SAC's extra state, and an update counter for each module that trains with CQL's loss."""
        counts = {mid: np.uint32(0) for mid in self._ids_with_loss_of_algorithm}
        return {**super().initial_extra_state(), NUM_CQL_UPDATES: counts}

    def post_update(
        self, state: LearnerState, *, metrics: dict[MetricKey, Any], settings: dict[str, dict[str, Any]]
    ) -> UpdateResult:
        """Increments the CQL update counter of each module that has valid rows in the batch. Pure; see
        `Learner.post_update`.
        """
        state, metrics = super().post_update(state, metrics=metrics, settings=settings)
        counts = state.extra[NUM_CQL_UPDATES]
        counted = {mid: own + jnp.asarray(self.has_rows(mid)).astype(jnp.uint32) for mid, own in counts.items()}
        return dataclasses.replace(state, extra={**state.extra, NUM_CQL_UPDATES: counted}), metrics

    # ---------------------------------------------------------------------------------------------------------- losses

    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> Any:
        # The policy maximises the likelihood of what was recorded in the place of values.
        distribution = (
            self.module[module_id].get_train_action_dist_cls().from_logits(fwd_out[Columns.ACTION_DIST_INPUTS])
        )
        is_cloning = self.extra[NUM_CQL_UPDATES][module_id] < config.bc_iters
        maximised = jnp.where(is_cloning, distribution.logp(batch[Columns.ACTIONS]), fwd_out["q_curr"])
        if self._is_lagrangian(module_id):
            value = _multiplier(cast(DefaultCQLRLModule, self.module[module_id]).log_alpha_prime[...])
            self.metrics.log_value((module_id, CQL_ALPHA_PRIME_KEY), value, reduce="max")
        fwd_out = {**fwd_out, "q_curr": maximised}
        return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)

    def _loss_rows(
        self,
        module: Any,
        config: Any,
        batch: dict[str, Any],
        fwd_out: dict[str, Any],
        log_alpha: jax.Array,
        target_entropy: Any,
    ) -> tuple[dict[str, jax.Array], jax.Array]:
        next_values = fwd_out[QF_TARGET_NEXT]
        if not config.deterministic_backup:
            logp = fwd_out["logp_next_resampled"]
            next_values = soft_actor_critic.soft_values(q=next_values, logp=logp, log_alpha=log_alpha)
        targets = q_learning.n_step_targets(
            rewards=batch[Columns.REWARDS].astype(jnp.float32),
            next_values=next_values,
            terminateds=batch[Columns.TERMINATEDS],
            n_step=1,
            gamma=config.gamma,
        )
        q_values = {"qf": (fwd_out[QF_PREDS], fwd_out[Q_REPEAT])}
        if config.twin_q:
            q_values["qf_twin"] = (fwd_out[QF_TWIN_PREDS], fwd_out[Q_TWIN_REPEAT])
        critics = soft_actor_critic.critic_rows(
            q=fwd_out[QF_PREDS],
            q_twin=fwd_out[QF_TWIN_PREDS] if config.twin_q else None,
            targets=targets,
            td_error_loss_fn=config.td_error_loss_fn,
        )
        gaps = {
            name: config.min_q_weight
            * q_learning.conservative_rows(
                q=q, q_repeat=q_repeat, logps=fwd_out[LOGPS_REPEAT], temperature=config.temperature
            )
            for name, (q, q_repeat) in q_values.items()
        }
        rows = policy_rows(fwd_out, log_alpha, target_entropy)
        if hasattr(module, "log_alpha_prime"):
            multiplier = _multiplier(module.log_alpha_prime[...])
            above = {name: own - config.lagrangian_thresh for name, own in gaps.items()}
            rows["alpha_prime"] = -multiplier * jax.lax.stop_gradient(sum(above.values()) / len(above))
            gaps = {name: jax.lax.stop_gradient(multiplier) * own for name, own in above.items()}
        losses = {"qf": critics.loss, "qf_twin": critics.twin_loss}
        rows |= {name: losses[name] + gap for name, gap in gaps.items()}
        # The last third of the actions is the policy's at these observations.
        shown = fwd_out[Q_REPEAT][:, -module.num_actions :]
        rows |= {CQL_LOSS_KEY: gaps["qf"], QF_MEAN_KEY: jnp.mean(shown, axis=-1), TD_ERROR_MEAN_KEY: critics.td_error}
        return rows, shown


def _multiplier(log_alpha_prime: jax.Array) -> jax.Array:
    return jnp.minimum(jnp.exp(log_alpha_prime), LARGEST_MULTIPLIER)
