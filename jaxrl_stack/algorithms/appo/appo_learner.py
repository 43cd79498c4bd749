"""APPO's loss: PPO's clipped surrogate on V-trace's advantages, with a target policy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp

from jaxrl_stack.algorithms.impala.impala_learner import ENTROPY_KEY, VTraceLearner
from jaxrl_stack.compat.renamed import absent_or_renamed
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.default_observations import rows_without_valid_action
from jaxrl_stack.core.learner.kl_coefficient import CURR_KL_COEFF_KEY, KL_KEY, AdaptiveKLCoefficient
from jaxrl_stack.core.learner.target_networks import TargetNetworkUpdates
from jaxrl_stack.core.learner.traced_metrics import TracedMetrics
from jaxrl_stack.core.rl_module.apis import TargetNetworkAPI, ValueFunctionAPI
from jaxrl_stack.core.rl_module.apis.target_network_api import TARGET_NETWORK_ACTION_DIST_INPUTS
from jaxrl_stack.ops import losses
from jaxrl_stack.ops.running_statistics import RunningStatistics

if TYPE_CHECKING:
    from jaxrl_stack.utils.traced_config import TracedConfigView

LEARNER_RESULTS_KL_KEY = KL_KEY
LEARNER_RESULTS_CURR_KL_COEFF_KEY = CURR_KL_COEFF_KEY
LEARNER_RESULTS_MEAN_IS_KEY = "mean_IS"
LEARNER_RESULTS_VAR_IS_KEY = "var_IS"
"""Names of APPO's results of each module, ``result["learners"][module_id][name]``."""
OLD_ACTION_DIST_KEY = "old_action_dist"

MAX_BEHAVIOUR_RATIO = 2.0
"""Upper bound of the ratio of the acting and the target policy; RLlib's."""


class APPOLearner(TargetNetworkUpdates, AdaptiveKLCoefficient, VTraceLearner):
    """Asynchronous PPO in the form of IMPACT (Luo et al., 2020, arXiv:1912.00167), as RLlib defines it.

    With the acting policy ``mu``, the target policy ``pi'`` and ``r = min(mu / pi', 2) * pi / mu``,

    ``loss = -min(r A, clip(r, 1 - eps, 1 + eps) A) + kl_coeff KL(pi' || pi) + vf_loss_coeff (V - v)^2 / 2
    - entropy_coeff H``, each term a mean over the valid rows;

    ``v`` and ``A`` are V-trace's for ``pi'`` on the steps of ``mu``.
    """

    loss_is_linear_in_means = True
    result_names = (
        "policy_loss",
        "vf_loss",
        LEARNER_RESULTS_KL_KEY,
        LEARNER_RESULTS_CURR_KL_COEFF_KEY,
        LEARNER_RESULTS_MEAN_IS_KEY,
        LEARNER_RESULTS_VAR_IS_KEY,
    )

    @classmethod
    def rl_module_required_apis(cls) -> list[type]:
        return [TargetNetworkAPI, ValueFunctionAPI]

    def env_steps_between_target_updates(self, module_id: str) -> int:
        freq = self.config_for(module_id).target_network_update_freq
        return self.config.env_steps_between_target_updates(freq)

    def compute_loss_for_module(
        self, *, module_id: str, config: TracedConfigView, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> Any:
        module, inputs = self.module[module_id], fwd_out[Columns.ACTION_DIST_INPUTS]
        kind = module.get_train_action_dist_cls()
        distribution = kind.from_logits(inputs)
        # build() accepts no other module.
        of_target = cast(TargetNetworkAPI, module).forward_target(self.columns_to_forward(module_id, batch))
        old = kind.from_logits(of_target[TARGET_NETWORK_ACTION_DIST_INPUTS].reshape(inputs.shape))
        logp, old_logp = (own.logp(batch[Columns.ACTIONS]) for own in (distribution, old))
        behaviour_logp = batch[Columns.ACTION_LOGP]
        values = self.compute_values(module_id, batch, fwd_out)
        state_out = fwd_out.get(Columns.STATE_OUT)
        traced = self.compute_vtrace(module_id, config, batch, values, old_logp - behaviour_logp, state_out)
        log_ratio = jnp.minimum(behaviour_logp - old_logp, math.log(MAX_BEHAVIOUR_RATIO))
        rows: dict[str, jax.Array] = {
            # r = exp(log_ratio + logp - behaviour_logp).
            "surrogate": losses.clipped_surrogate(
                logp, behaviour_logp - log_ratio, traced.advantages, config.clip_param
            ),
            "vf_loss": 0.5 * jnp.square(values - traced.targets),
            ENTROPY_KEY: distribution.entropy(),
        }
        rows |= rows_without_valid_action(module.action_space, batch)
        if config.use_kl_loss:
            rows[KL_KEY] = old.kl(distribution)
        means = self.masked_means(rows, batch)
        self._log_no_valid_action_share(module_id, means)
        policy_loss = -means.pop("surrogate")
        total = policy_loss + config.vf_loss_coeff * means["vf_loss"] - config.entropy_coeff * means[ENTROPY_KEY]
        if config.use_kl_loss:
            total = total + self.curr_kl_coeffs_per_module[module_id] * means[KL_KEY]
        # Every other mean is a metric by its own name.
        self.metrics.log_dict({"policy_loss": policy_loss, KL_KEY: 0.0, **means}, key=module_id, window=1)
        # A loss runs nowhere but in a trace.
        cast(TracedMetrics, self.metrics).log_statistics(
            module_id, _ratio_metrics, self.masked_statistics(jnp.exp(log_ratio)[..., None], batch)
        )
        return total


def _ratio_metrics(statistics: RunningStatistics) -> dict[str, jax.Array]:
    """Mean and variance of the clipped importance ratio ``min(mu / pi', 2)``.

    ``mu`` is the acting policy's probability of an action, and ``pi'`` is the target policy's probability.
    """
    return {LEARNER_RESULTS_MEAN_IS_KEY: statistics.mean[0], LEARNER_RESULTS_VAR_IS_KEY: statistics.variance[0]}


__getattr__ = absent_or_renamed(
    __name__, absent={"APPOTorchLearner": "`APPOLearner`"}, renamed={"AppoLearner": APPOLearner}
)
