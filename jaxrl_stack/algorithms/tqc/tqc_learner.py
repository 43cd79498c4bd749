"""TQC's losses: SAC's losses with quantile critics."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_stack.algorithms.sac.sac_learner import (
    QF_LOSS_KEY,
    QF_MAX_KEY,
    QF_MEAN_KEY,
    QF_MIN_KEY,
    QF_PREDS,
    QF_TARGET_NEXT,
    QF_TWIN_LOSS_KEY,
    TD_ERROR_MEAN_KEY,
    SACLearner,
    policy_rows,
)
from jaxrl_stack.algorithms.tqc.quantiles import quantile_huber_rows, truncated
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.ops import q_learning, sequences, soft_actor_critic

__all__ = ["QF_LOSS_KEY", "QF_MAX_KEY", "QF_MEAN_KEY", "QF_MIN_KEY", "QUANTILES_KEY", "TD_ERROR_MEAN_KEY", "TQCLearner"]

QUANTILES_KEY = "quantiles"
"""A name of RLlib's, under which nothing is reported."""


class TQCLearner(SACLearner):
    """Truncated quantile critics (TQC; Kuznetsov et al., 2020, arXiv:2005.04269), the algorithm as RLlib defines it.

    All critics have one optimizer, ``qf``, and one target: the pooled quantiles of their target networks without the
    highest ones. The policy maximises the mean of all quantiles. Everything else is as in SAC.
    """

    optimizer_names = ("qf", "policy", "alpha")

    @classmethod
    def all_result_names(cls) -> tuple[str, ...]:
        """Names of the learner metrics: SAC's, except the second critic's loss."""
        return tuple(name for name in super().all_result_names() if name != QF_TWIN_LOSS_KEY)

    def _critics_of(self, module: Any, config: Any) -> dict[str, list[Any]]:
        return {"qf": [*module.qf_encoders, *module.qf_heads]}

    def _loss_rows(
        self,
        module: Any,
        config: Any,
        batch: dict[str, Any],
        fwd_out: dict[str, Any],
        log_alpha: jax.Array,
        target_entropy: Any,
    ) -> tuple[dict[str, jax.Array], jax.Array]:
        quantiles = fwd_out[QF_PREDS]
        next_atoms = truncated(fwd_out[QF_TARGET_NEXT], config.top_quantiles_to_drop_per_net)
        weights, at_ends, _ = sequences.of_rows(batch)
        next_values = soft_actor_critic.soft_values(
            q=next_atoms, logp=fwd_out["logp_next_resampled"][..., None], log_alpha=log_alpha
        )
        targets = q_learning.n_step_targets(
            rewards=batch[Columns.REWARDS][..., None],
            next_values=at_ends(next_values),
            terminateds=batch[Columns.TERMINATEDS][..., None],
            **{name: jnp.expand_dims(x, -1) for name, x in self.discount_of_targets(config, batch).items()},
        )
        loss = weights * quantile_huber_rows(quantiles=quantiles, targets=targets)
        q = jax.lax.stop_gradient(jnp.mean(quantiles, axis=(-2, -1)))
        td_error = jnp.abs(q - jnp.mean(targets, axis=-1))
        rows = policy_rows(fwd_out, log_alpha, target_entropy)
        return rows | {QF_MEAN_KEY: q, "qf": loss, TD_ERROR_MEAN_KEY: td_error}, quantiles
