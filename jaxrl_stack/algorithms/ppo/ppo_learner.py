"""PPO's loss and its adaptive KL coefficient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.default_observations import rows_without_valid_action
from jaxrl_stack.core.distribution.jax_distribution import DiagGaussian
from jaxrl_stack.core.learner.kl_coefficient import CURR_KL_COEFF_KEY, KL_KEY, AdaptiveKLCoefficient
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.learner.learner_state import LearnerState
from jaxrl_stack.core.learner.post_update import UpdateResult
from jaxrl_stack.core.learner.traced_metrics import MetricKey, TracedMetrics
from jaxrl_stack.core.rl_module.apis import ValueFunctionAPI
from jaxrl_stack.ops import losses

if TYPE_CHECKING:
    from jaxrl_stack.utils.traced_config import TracedConfigView


LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY = "vf_loss_unclipped"
LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY = "vf_explained_var"
LEARNER_RESULTS_KL_KEY = KL_KEY
LEARNER_RESULTS_CURR_KL_COEFF_KEY = CURR_KL_COEFF_KEY
LEARNER_RESULTS_CURR_ENTROPY_COEFF_KEY = "curr_entropy_coeff"
"""Names of PPO's results of each module, ``result["learners"][module_id][name]``."""


class PPOLearner(AdaptiveKLCoefficient, Learner):
    """Proximal policy optimisation (Schulman et al., 2017, arXiv:1707.06347), as RLlib defines it.

    ``loss = -min(r A, clip(r, 1 - eps, 1 + eps) A) + kl_coeff KL(old || new) + vf_loss_coeff min((V - R)^2, vf_clip)
    - entropy_coeff H``, each term a mean over the valid rows.
    """

    loss_is_linear_in_means = True
    learns_from_sequences = True
    result_names = (
        "policy_loss",
        "vf_loss",
        LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY,
        LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY,
        "value_target_mean",
        "value_target_std",
        "advantage_mean",
        "advantage_std",
        "entropy",
        LEARNER_RESULTS_KL_KEY,
        "clip_fraction",
        LEARNER_RESULTS_CURR_KL_COEFF_KEY,
        LEARNER_RESULTS_CURR_ENTROPY_COEFF_KEY,
    )
    columns_from_forward_train = (Columns.ACTION_DIST_INPUTS,)

    @property
    def columns_from_acting(self) -> tuple[str, ...]:
        return (Columns.ACTION_LOGP, *([Columns.ACTION_DIST_INPUTS] if self.config.use_kl_loss else []))

    @classmethod
    def rl_module_required_apis(cls) -> list[type]:
        return [ValueFunctionAPI]

    def compute_loss_for_module(
        self, *, module_id: str, config: TracedConfigView, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> Any:
        module = self.module[module_id]
        distribution = module.get_train_action_dist_cls().from_logits(fwd_out[Columns.ACTION_DIST_INPUTS])
        logp = distribution.logp(batch[Columns.ACTIONS])
        rows: dict[str, jax.Array] = {
            "surrogate": losses.clipped_surrogate(
                logp, batch[Columns.ACTION_LOGP], batch[Columns.ADVANTAGES], config.clip_param
            ),
            "entropy": distribution.entropy(),
            "clip_fraction": jax.lax.stop_gradient(
                losses.is_clipped(logp, batch[Columns.ACTION_LOGP], config.clip_param)
            ),
        }
        rows |= rows_without_valid_action(module.action_space, batch)
        if isinstance(distribution, DiagGaussian):
            scale = jnp.broadcast_to(jax.lax.stop_gradient(distribution.scale), distribution.loc.shape)
            rows["policy_std"] = jnp.mean(scale.reshape(*logp.shape, -1), axis=-1)
        if config.use_kl_loss:
            behaviour = module.get_exploration_action_dist_cls().from_logits(batch[Columns.ACTION_DIST_INPUTS])
            rows["kl"] = behaviour.kl(distribution)
        else:
            # The old distribution is a column that nothing else reads: its cost would be seen in every step.
            rows["kl"] = jax.lax.stop_gradient(losses.sampled_kl(logp, batch[Columns.ACTION_LOGP]))
        if config.use_critic:
            # build() accepts no other module.
            values = cast(ValueFunctionAPI, module).compute_values(batch, embeddings=fwd_out.get(Columns.EMBEDDINGS))
            targets = batch[Columns.VALUE_TARGETS]
            error, rows["vf_loss"] = losses.clamped_squared_error(values, targets, config.vf_clip_param)
            rows[LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY] = error
            # A loss runs nowhere but in a trace.
            cast(TracedMetrics, self.metrics).log_statistics(
                module_id,
                losses.critic_metrics,
                self.masked_statistics(jnp.stack([targets, targets - values], axis=-1), batch),
            )
        means = self.masked_means(rows, batch)
        self._log_no_valid_action_share(module_id, means)

        total = -means["surrogate"] - config.entropy_coeff * means["entropy"]
        if config.use_critic:
            total = total + config.vf_loss_coeff * means["vf_loss"]
        if config.use_kl_loss:
            coefficient = self.curr_kl_coeffs_per_module[module_id]
            total = total + coefficient * means["kl"]
        # Every other mean is a metric by its own name.
        metrics = {"policy_loss": -means.pop("surrogate"), LEARNER_RESULTS_KL_KEY: means.pop("kl"), **means}
        self.metrics.log_dict(metrics, key=module_id, window=1)
        return total

    def post_update(
        self, state: LearnerState, *, metrics: dict[MetricKey, Any], settings: dict[str, dict[str, Any]]
    ) -> UpdateResult:
        """Updates the KL coefficients. Adds to the metrics the current entropy coefficient of each module that uses
        this learner's loss.
        """
        state, metrics = super().post_update(state, metrics=metrics, settings=settings)
        name, ids = LEARNER_RESULTS_CURR_ENTROPY_COEFF_KEY, self._ids_with_loss_of_algorithm
        return state, {**metrics, **{(mid, name): settings[mid]["entropy_coeff"] for mid in ids}}
