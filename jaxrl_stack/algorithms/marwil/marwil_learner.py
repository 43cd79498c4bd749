"""MARWIL's loss: behaviour cloning that weights recorded actions by their advantages."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.distribution.jax_distribution import DiagGaussian
from jaxrl_stack.core.learner.learner import POLICY_LOSS_KEY, VF_LOSS_KEY, Learner
from jaxrl_stack.core.learner.learner_state import LearnerState
from jaxrl_stack.core.learner.post_update import UpdateResult
from jaxrl_stack.core.learner.traced_metrics import MetricKey, TracedMetrics
from jaxrl_stack.core.rl_module.apis import ValueFunctionAPI
from jaxrl_stack.ops import losses
from jaxrl_stack.ops.reductions import compensated_add
from jaxrl_stack.ops.running_statistics import RunningStatistics

if TYPE_CHECKING:
    from jaxrl_stack.utils.traced_config import TracedConfigView

LEARNER_RESULTS_MOVING_AVG_SQD_ADV_NORM_KEY = "moving_avg_sqd_adv_norm"
LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY = "vf_explained_variance"
"""Names of MARWIL's results of each module, ``result["learners"][module_id][name]``."""
_ERRORS = "moving_avg_sqd_adv_norm_error"
"""Name in the extra state: ``{module_id: float32}``, rounding errors of the moving averages; see `compensated_add`."""
ADVANTAGE_WEIGHT_MEAN_KEY = "advantage_weight_mean"
ADVANTAGE_WEIGHT_MAX_KEY = "advantage_weight_max"
ACTION_LOGP_MEAN_KEY = "action_logp_mean"


class MARWILLearner(Learner):
    """Monotonic advantage re-weighted imitation learning (Wang et al., 2018), as RLlib defines it.

    ``loss = -w logp(a) + vf_coeff A^2 / 2`` with ``w = exp(beta A / sqrt(c2))`` and ``A = target - V``, means over the
    valid rows; no gradient flows through ``w``. ``c2`` is a moving average of ``A^2`` in the Learner's state. With
    ``beta=0`` it is behaviour cloning without values.
    """

    learns_from_sequences = True
    result_names = (
        POLICY_LOSS_KEY,
        ACTION_LOGP_MEAN_KEY,
        VF_LOSS_KEY,
        LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY,
        LEARNER_RESULTS_MOVING_AVG_SQD_ADV_NORM_KEY,
        ADVANTAGE_WEIGHT_MEAN_KEY,
        ADVANTAGE_WEIGHT_MAX_KEY,
    )
    columns_from_forward_train = (Columns.ACTION_DIST_INPUTS,)

    @classmethod
    def rl_module_required_apis(cls) -> list[type]:
        return [ValueFunctionAPI]

    def initial_extra_state(self) -> dict[str, Any]:
        """Extra learner state of each module with ``beta != 0``: the moving average of squared advantages, and its
        rounding error.

        The next update corrects the rounding error (see `compensated_add`).
        """
        ids = [mid for mid in self._ids_with_loss_of_algorithm if self._weighs(mid)]
        averages = {mid: jnp.float32(self.config_for(mid).moving_average_sqd_adv_norm_start) for mid in ids}
        state = {LEARNER_RESULTS_MOVING_AVG_SQD_ADV_NORM_KEY: averages, _ERRORS: dict.fromkeys(ids, jnp.float32(0.0))}
        return {**super().initial_extra_state(), **state}

    def set_state(self, state: dict[str, Any]) -> None:
        extra = state.get("extra")
        if extra is not None:
            # Checkpoints of earlier versions have no rounding errors.
            averages = extra.get(LEARNER_RESULTS_MOVING_AVG_SQD_ADV_NORM_KEY, {})
            state = {**state, "extra": {_ERRORS: dict.fromkeys(averages, np.float32(0.0)), **extra}}
        super().set_state(state)

    @property
    def moving_avg_sqd_adv_norms_per_module(self) -> dict[str, Any]:
        """``{module_id: moving average of squared advantages}``, float32 scalars."""
        return self.extra[LEARNER_RESULTS_MOVING_AVG_SQD_ADV_NORM_KEY]

    def _weighs(self, module_id: str) -> bool:
        return self.config_for(module_id).beta != 0

    def compute_loss_for_module(
        self, *, module_id: str, config: TracedConfigView, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> Any:
        distribution_class = self.module[module_id].get_train_action_dist_cls()
        distribution = distribution_class.from_logits(fwd_out[Columns.ACTION_DIST_INPUTS])
        logp = distribution.logp(batch[Columns.ACTIONS])
        cloned = logp
        coefficient = self.config_for(module_id).bc_logstd_coeff
        if coefficient != 0:
            cloned = logp + config.bc_logstd_coeff * _mean_log_std(distribution, coefficient)
        if not self._weighs(module_id):
            means = self.masked_means({"cloned": cloned, ACTION_LOGP_MEAN_KEY: logp}, batch)
            loss = -means.pop("cloned")
            self.metrics.log_dict({POLICY_LOSS_KEY: loss, **means}, key=module_id, window=1)
            return loss
        weights, vf_loss = self._weights_and_vf_loss(module_id, config, batch, fwd_out)
        rows = {"weighted": weights * cloned, ACTION_LOGP_MEAN_KEY: logp, ADVANTAGE_WEIGHT_MEAN_KEY: weights}
        means = self.masked_means(rows, batch)
        policy_loss = -means.pop("weighted")
        metrics = {POLICY_LOSS_KEY: policy_loss, VF_LOSS_KEY: vf_loss, **means}
        self.metrics.log_dict(metrics, key=module_id, window=1)
        return policy_loss + config.vf_coeff * vf_loss

    def _weights_and_vf_loss(
        self, module_id: str, config: TracedConfigView, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> tuple[jax.Array, jax.Array]:
        """Returns ``(weights, value loss)``: the weight of each batch row in the policy loss, and the value loss.

        The weights ``[N]`` have no gradients. The value loss is half the mean squared advantage, with gradients to the
        value function.
        """
        # build() accepts no other module.
        module = cast("ValueFunctionAPI", self.module[module_id])
        values = module.compute_values(batch, embeddings=fwd_out.get(Columns.EMBEDDINGS)).astype(jnp.float32)
        targets = batch[Columns.VALUE_TARGETS]
        advantages = targets - values
        squared = self.masked_mean(jnp.square(advantages), batch)
        before = self.moving_avg_sqd_adv_norms_per_module[module_id]
        rate = config.moving_average_sqd_adv_norm_update_rate
        # A rate of 1e-8 moves an average of 100 by less than the distance to the next float32.
        term = rate * (jax.lax.stop_gradient(squared) - before)
        average, error = compensated_add(before, self.extra[_ERRORS][module_id], term)
        weights = jax.lax.stop_gradient(jnp.exp(config.beta * advantages / (1e-8 + jnp.sqrt(average))))
        if config.max_advantage_weight is not None:
            weights = jnp.minimum(weights, config.max_advantage_weight)
        largest = jnp.max(jnp.where(batch[Columns.LOSS_MASK], weights, 0.0))
        self.metrics.log_value((module_id, ADVANTAGE_WEIGHT_MAX_KEY), largest, reduce="max")
        # `post_update` takes it from there.
        self.metrics.log_value((module_id, LEARNER_RESULTS_MOVING_AVG_SQD_ADV_NORM_KEY), average, window=1)
        self.metrics.log_value((module_id, _ERRORS), error, window=1)
        # A loss runs nowhere but in a trace.
        cast(TracedMetrics, self.metrics).log_statistics(
            module_id, _critic_metrics, self.masked_statistics(jnp.stack([targets, advantages], axis=-1), batch)
        )
        return weights, 0.5 * squared

    def post_update(
        self, state: LearnerState, *, metrics: dict[MetricKey, Any], settings: dict[str, dict[str, Any]]
    ) -> UpdateResult:
        """Stores new moving averages of squared advantages in the learner state. Pure; see `Learner.post_update`."""
        state, metrics = super().post_update(state, metrics=metrics, settings=settings)
        extra = dict(state.extra)
        for key in (LEARNER_RESULTS_MOVING_AVG_SQD_ADV_NORM_KEY, _ERRORS):
            extra[key] = dict(extra[key])
            for mid, before in extra[key].items():
                moved, has_rows = metrics.get((mid, key)), self.has_rows(mid)
                if moved is not None:
                    extra[key][mid] = moved if has_rows is True else jnp.where(has_rows, moved, before)
        # State, and no result.
        metrics = {path: value for path, value in metrics.items() if path[-1] != _ERRORS}
        return dataclasses.replace(state, extra=extra), metrics


def _mean_log_std(distribution: Any, coefficient: Any) -> jax.Array:
    """Log standard deviations of a Gaussian policy, averaged over the dimensions of an action: float32 ``[N]`` for N
    rows of the batch.

    Raises:
        ValueError: If the distribution is not a Gaussian.
    """
    if not isinstance(distribution, DiagGaussian):
        raise ValueError(
            f"training(bc_logstd_coeff={coefficient}) needs a Gaussian policy (Box actions), but this module's "
            f"distribution is a {type(distribution).__name__}. Set bc_logstd_coeff=0."
        )
    scale = jnp.broadcast_to(distribution.scale, distribution.loc.shape)
    return jnp.mean(jnp.log(scale), axis=-1)


def _critic_metrics(statistics: RunningStatistics) -> dict[str, jax.Array]:
    """Metrics of the value function (see `losses.critic_metrics`). The explained variance is named
    ``vf_explained_variance``, as in RLlib's MARWIL.
    """
    metrics = losses.critic_metrics(statistics)
    return {LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY: metrics.pop("vf_explained_var"), **metrics}
