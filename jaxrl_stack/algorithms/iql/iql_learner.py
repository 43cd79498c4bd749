"""IQL's losses for state values, critics and policy.

The losses are expectile regression of state values on the Q-values of recorded actions, TD losses of the critics, and
behaviour cloning that weights recorded actions by their advantages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxrl_stack.algorithms.iql.default_iql_rl_module import QF_TARGET_PREDS, VF_PREDS_NEXT
from jaxrl_stack.algorithms.marwil.marwil_learner import (
    ACTION_LOGP_MEAN_KEY,
    ADVANTAGE_WEIGHT_MAX_KEY,
    ADVANTAGE_WEIGHT_MEAN_KEY,
)
from jaxrl_stack.algorithms.sac.sac_learner import (
    QF_LOSS_KEY,
    QF_MEAN_KEY,
    QF_PREDS,
    QF_TWIN_LOSS_KEY,
    QF_TWIN_PREDS,
    TD_ERROR_MEAN_KEY,
    register_adams,
    twin_critics,
)
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.learner import POLICY_LOSS_KEY, Learner
from jaxrl_stack.core.learner.optimizer_losses import LossesByOptimizer
from jaxrl_stack.core.learner.target_networks import TargetNetworkUpdates
from jaxrl_stack.core.rl_module.apis import QNetAPI, TargetNetworkAPI, ValueFunctionAPI
from jaxrl_stack.ops import q_learning, soft_actor_critic

if TYPE_CHECKING:
    from jaxrl_stack.utils.traced_config import TracedConfigView

__all__ = ["QF_TARGET_PREDS", "VF_LOSS", "VF_PREDS_NEXT", "IQLLearner"]

VF_LOSS = "value_loss"
VF_MEAN_KEY = "vf_mean"
"""Names of IQL's results of each module, ``result["learners"][module_id][name]``, beside those of SAC and MARWIL."""


class IQLLearner(TargetNetworkUpdates, Learner):
    """Implicit Q-learning (Kostrikov et al., 2021, arXiv:2110.06169) as RLlib defines it.

    The value function learns an expectile of the target networks' values of recorded actions. The critics learn the
    reward plus the discounted value of the next state. The policy clones with weights ``min(exp(beta * (Q - V)),
    max_advantage_weight)``. Each has an optimizer and a loss, computed with the parameters before the update.
    """

    loss_is_linear_in_means = True
    result_names = (
        POLICY_LOSS_KEY,
        QF_LOSS_KEY,
        QF_TWIN_LOSS_KEY,
        VF_LOSS,
        ACTION_LOGP_MEAN_KEY,
        ADVANTAGE_WEIGHT_MEAN_KEY,
        ADVANTAGE_WEIGHT_MAX_KEY,
        QF_MEAN_KEY,
        VF_MEAN_KEY,
        TD_ERROR_MEAN_KEY,
    )
    optimizer_names = ("qf", "qf_twin", "policy", "value")
    columns_from_forward_train = (QF_PREDS, QF_TARGET_PREDS)

    @classmethod
    def rl_module_required_apis(cls) -> list[type]:
        return [TargetNetworkAPI, QNetAPI, ValueFunctionAPI]

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        """Registers separate Adam optimizers for the critics, the policy and the state value function.

        The optimizers have eps 1e-7. Their names are ``qf`` (critic), ``qf_twin`` (second critic, only if `twin_q` is
        set), ``policy``, and ``value`` (state value function).
        """
        config = config or self.config_for(module_id)
        module: Any = self.template[module_id]
        if not self._has_loss_of_algorithm(module):
            super().configure_optimizers_for_module(module_id, config)
            return
        critics = twin_critics(module, config)
        others = {"policy": [module.pi_encoder, module.pi], "value": [module.vf_encoder, module.vf]}
        rates = dict.fromkeys(critics, config.critic_lr) | {"policy": config.actor_lr, "value": config.value_lr}
        register_adams(self, module_id, critics | others, rates)

    @property
    def expectile(self) -> dict[str, float]:
        """Returns the setting `expectile` of each module: ``{module_id: expectile}``."""
        return {mid: self.config_for(mid).expectile for mid in self._ids_with_loss_of_algorithm}

    @property
    def temperature(self) -> dict[str, float]:
        """Returns the setting `beta`, the temperature, of each module: ``{module_id: beta}``."""
        return {mid: self.config_for(mid).beta for mid in self._ids_with_loss_of_algorithm}

    def compute_loss_for_module(
        self, *, module_id: str, config: TracedConfigView, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> Any:
        distribution_class = self.module[module_id].get_train_action_dist_cls()
        logp = distribution_class.from_logits(fwd_out[Columns.ACTION_DIST_INPUTS]).logp(batch[Columns.ACTIONS])
        values = fwd_out[Columns.VF_PREDS]
        advantages = fwd_out[QF_TARGET_PREDS] - values
        weights = jax.lax.stop_gradient(jnp.exp(config.beta * advantages))
        if config.max_advantage_weight is not None:
            weights = jnp.minimum(weights, config.max_advantage_weight)
        critics = self._critic_rows(config, batch, fwd_out)
        means = self.masked_means(
            {
                "policy": -weights * logp,
                "qf": critics.loss,
                **({} if critics.twin_loss is None else {"qf_twin": critics.twin_loss}),
                "value": q_learning.expectile_rows(advantages, config.expectile),
                ACTION_LOGP_MEAN_KEY: logp,
                ADVANTAGE_WEIGHT_MEAN_KEY: weights,
                QF_MEAN_KEY: fwd_out[QF_TARGET_PREDS],
                VF_MEAN_KEY: values,
                TD_ERROR_MEAN_KEY: critics.td_error,
            },
            batch,
        )
        losses = LossesByOptimizer({name: means.pop(name) for name in self.optimizer_names if name in means})
        self.metrics.log_dict({f"{name}_loss": own for name, own in losses.items()} | means, key=module_id, window=1)
        largest = jnp.max(jnp.where(batch[Columns.LOSS_MASK], weights, 0.0))
        self.metrics.log_value((module_id, ADVANTAGE_WEIGHT_MAX_KEY), largest, reduce="max")
        return losses

    @staticmethod
    def _critic_rows(
        config: TracedConfigView, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> soft_actor_critic.CriticRows:
        """Losses and TD error of the critics for each row of the batch.

        Each critic's loss is its squared TD error, times 1/2 if there are two critics.
        """
        targets = q_learning.n_step_targets(
            rewards=batch[Columns.REWARDS].astype(jnp.float32),
            next_values=fwd_out[VF_PREDS_NEXT],
            terminateds=batch[Columns.TERMINATEDS],
            n_step=1,
            gamma=config.gamma,
        )
        return soft_actor_critic.critic_rows(
            q=fwd_out[QF_PREDS],
            q_twin=fwd_out[QF_TWIN_PREDS] if config.twin_q else None,
            targets=targets,
            weights=jnp.full_like(targets, 0.5 if config.twin_q else 1.0),
            td_error_loss_fn="mse",
        )
