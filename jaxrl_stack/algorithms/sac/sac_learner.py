"""SAC's losses, and the optimizers of its policy, critics and temperature."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import gymnasium as gym
import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxrl_stack.algorithms.sac.default_sac_rl_module import (
    ACTION_DIST_INPUTS_NEXT,
    ACTION_LOG_PROBS,
    ACTION_LOG_PROBS_NEXT,
    ACTION_PROBS,
    ACTION_PROBS_NEXT,
    QF_PREDS,
    QF_TARGET_NEXT,
    QF_TWIN_PREDS,
)
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.default_observations import mask_of, rows_without_valid_action
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.learner.optimizer_losses import LossesByOptimizer
from jaxrl_stack.core.learner.target_networks import TargetNetworkUpdates
from jaxrl_stack.core.rl_module.apis import QNetAPI, TargetNetworkAPI
from jaxrl_stack.ops import q_learning, sequences, soft_actor_critic
from jaxrl_stack.ops.masks import expand
from jaxrl_stack.utils.metrics import TD_ERROR_KEY
from jaxrl_stack.utils.notices import notice_once

if TYPE_CHECKING:
    from jaxrl_stack.core.rl_module.rl_module import RLModule
    from jaxrl_stack.utils.traced_config import TracedConfigView

__all__ = [
    "ACTION_DIST_INPUTS_NEXT",
    "ACTION_LOG_PROBS",
    "ACTION_LOG_PROBS_NEXT",
    "ACTION_PROBS",
    "ACTION_PROBS_NEXT",
    "CRITIC_TARGET",
    "LOGPS_KEY",
    "QF_LOSS_KEY",
    "QF_MAX_KEY",
    "QF_MEAN_KEY",
    "QF_MIN_KEY",
    "QF_PREDS",
    "QF_TARGET_NEXT",
    "QF_TWIN_LOSS_KEY",
    "QF_TWIN_PREDS",
    "TD_ERROR_MEAN_KEY",
    "SACLearner",
]

LOGPS_KEY = "logps"
QF_LOSS_KEY = "qf_loss"
QF_TWIN_LOSS_KEY = "qf_twin_loss"
QF_MEAN_KEY = "qf_mean"
QF_MAX_KEY = "qf_max"
QF_MIN_KEY = "qf_min"
TD_ERROR_MEAN_KEY = "td_error_mean"
"""Names of SAC's results of each module, ``result["learners"][module_id][name]``."""
CRITIC_TARGET = "critic_target"
"""Name of the critics' target networks among several parts of a module."""

# Adam of PyTorch's SAC in RLlib; one object, so that an optimizer of all its parameters in one vector knows it.
adam = functools.partial(optax.adam, eps=1e-7)


def twin_critics(module: Any, config: Any) -> dict[str, list[Any]]:
    """Encoder and head that each critic optimizer trains, ``{optimizer: [encoder, head]}``. The optimizers are ``qf``
    and, with ``twin_q``, ``qf_twin``.
    """
    critics = {"qf": [module.qf_encoder, module.qf]}
    return critics | ({"qf_twin": [module.qf_twin_encoder, module.qf_twin]} if config.twin_q else {})


def register_adams(
    learner: Learner, module_id: str, trained: Mapping[str, Sequence[Any]], rates: Mapping[str, Any]
) -> None:
    """Registers one Adam optimizer per name in `trained`, ``{optimizer name: networks}``. Each optimizer trains the
    parameters of its networks.

    Args:
        learner: The learner.
        module_id: Id of the module.
        trained: ``{optimizer: networks that it trains}``.
        rates: ``{optimizer: learning rate or schedule}``.
    """
    for name, networks in trained.items():
        params = [parameter for network in networks for parameter in learner.get_parameters(network)]
        learner.register_optimizer(
            module_id=module_id, optimizer_name=name, optimizer=adam, params=params, lr_or_lr_schedule=rates[name]
        )


def log_critics(
    learner: Learner, module_id: str, batch: Mapping[str, Any], td_error: jax.Array, values: jax.Array
) -> None:
    """Logs the highest and lowest Q-value of a batch as metrics and, for a replayed batch, TD errors.

    A replayed batch comes from a replay buffer. A prioritized buffer computes new priorities from the TD errors: one
    per transition, or one number per sequence.

    Args:
        learner: The learner, whose loss is traced.
        module_id: Id of the module.
        batch: Columns of the module.
        td_error: float32 ``[N]`` or ``[N, L]``, temporal-difference errors.
        values: float32 ``[N, ...]``, values of recorded actions.
    """
    if "weights" in batch:  # Only a replay memory asks for priorities.
        priorities = sequences.of_rows(batch)[2]
        learner.metrics.log_value((module_id, TD_ERROR_KEY), priorities(td_error), reduce="item_series")
    mask = expand(batch[Columns.LOSS_MASK], values)
    for name, reduce, worst in ((QF_MAX_KEY, "max", -jnp.inf), (QF_MIN_KEY, "min", jnp.inf)):
        over_rows = getattr(jnp, reduce)(jnp.where(mask, values, worst))
        learner.metrics.log_value((module_id, name), over_rows, reduce=reduce)


class SACLearner(TargetNetworkUpdates, Learner):
    """Soft actor-critic (Haarnoja et al., 2018, arXiv:1812.05905) as RLlib defines it, and its discrete variant
    (Christodoulou, 2019, arXiv:1910.07207).

    Critics, policy and temperature each have an optimizer and a loss, computed with the parameters before the update.
    The target networks are updated afterwards.
    """

    loss_is_linear_in_means = True
    learns_from_sequences = True
    result_names = (
        "qf_loss",
        "qf_twin_loss",
        "policy_loss",
        "alpha_loss",
        "alpha_value",
        "log_alpha_value",
        "target_entropy",
        LOGPS_KEY,
        QF_MEAN_KEY,
        QF_MAX_KEY,
        QF_MIN_KEY,
        TD_ERROR_MEAN_KEY,
    )
    optimizer_names = ("qf", "qf_twin", "policy", "alpha")
    loss_names: tuple[str, ...] = optimizer_names
    """Optimizers that can have a loss, including optimizers that only some settings use."""
    columns_from_forward_train = (QF_PREDS, QF_TARGET_NEXT)

    @classmethod
    def rl_module_required_apis(cls) -> list[type]:
        return [TargetNetworkAPI, QNetAPI]

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        """Registers separate Adam optimizers for the critics, the policy and the temperature.

        The optimizers have eps 1e-7. Their names are ``qf`` (first critic), ``qf_twin`` (second critic, only with
        ``twin_q=True``), ``policy``, and ``alpha`` (temperature).
        """
        config = config or self.config_for(module_id)
        module: Any = self.template[module_id]
        if not self._has_loss_of_algorithm(module):
            super().configure_optimizers_for_module(module_id, config)
            return
        self._check_temperature(module_id, module)
        critics = self._critics_of(module, config)
        rates = dict.fromkeys(critics, config.critic_lr) | {"policy": config.actor_lr}
        register_adams(self, module_id, critics | {"policy": [module.pi_encoder, module.pi]}, rates)
        self.register_optimizer(
            module_id=module_id,
            optimizer_name="alpha",
            optimizer=adam,
            params=[module.log_alpha],
            lr_or_lr_schedule=config.alpha_lr,
        )

    def _critics_of(self, module: Any, config: Any) -> dict[str, list[Any]]:
        """Networks that each critic optimizer trains, ``{optimizer: networks}``."""
        return twin_critics(module, config)

    @staticmethod
    def _check_temperature(module_id: str, module: RLModule) -> None:
        if not isinstance(vars(module).get("log_alpha"), nnx.Param):
            raise ValueError(
                f"Module {module_id!r}, a {type(module).__name__}, has no temperature for SACLearner to train. Derive "
                "its class from DefaultSACRLModule, or set self.log_alpha = nnx.Param(jnp.float32(0.0)) in its setup()."
            )

    @property
    def curr_log_alpha(self) -> dict[str, Any]:
        """Logarithm of each module's temperature, ``{module_id: float32 scalar}``; inside a loss, the scalars are
        tracers.
        """
        modules = self.module
        return {mid: cast(Any, modules[mid]).log_alpha[...] for mid in self._ids_with_loss_of_algorithm}

    @property
    def target_entropy(self) -> dict[str, Any]:
        """``{module_id: target entropy of the policy}``, in nats."""
        return {mid: self._target_entropy(mid, self.config_for(mid)) for mid in self._ids_with_loss_of_algorithm}

    def _target_entropy(self, module_id: str, config: Any) -> Any:
        given = config.target_entropy
        if given is not None and not isinstance(given, str):
            return given
        space = self.template[module_id].action_space
        if isinstance(space, gym.spaces.Discrete):
            num_actions = int(space.n)
            higher = soft_actor_critic.discrete_target_entropy(num_actions, 0.98)
            notice_once(
                "training(target_entropy='auto') is -1 for discrete actions, as in RLlib, below every policy's "
                "entropy, so the temperature only falls. To keep exploring, set a number, up to "
                f"target_entropy={higher:.2f} (0.98 * log({num_actions}))."
            )
            return soft_actor_critic.discrete_target_entropy(num_actions)
        assert space is not None and space.shape is not None
        return soft_actor_critic.box_target_entropy(space.shape)

    # ---------------------------------------------------------------------------------------------------------- losses

    def compute_loss_for_module(
        self, *, module_id: str, config: TracedConfigView, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> Any:
        module = self.module[module_id]
        log_alpha = cast(Any, module).log_alpha[...]
        target_entropy = self._target_entropy(module_id, config)
        rows, shown = self._loss_rows(module, config, batch, fwd_out, log_alpha, target_entropy)
        without_action = rows_without_valid_action(module.action_space, batch)
        means = self.masked_means(rows | without_action, batch)

        log_critics(self, module_id, batch, rows[TD_ERROR_MEAN_KEY], shown)
        losses = LossesByOptimizer({name: means.pop(name) for name in self.loss_names if name in means})
        metrics = {f"{name}_loss": loss for name, loss in losses.items()} | means
        self.metrics.log_dict(metrics, key=module_id, window=1)
        for name, value in (
            ("alpha_value", jnp.exp(log_alpha)),
            ("log_alpha_value", log_alpha),
            ("target_entropy", target_entropy),
        ):
            # No means over rows: they are the same in all parts of a batch.
            self.metrics.log_value((module_id, name), value, reduce="max")
        return losses

    def _loss_rows(
        self,
        module: Any,
        config: Any,
        batch: dict[str, Any],
        fwd_out: dict[str, Any],
        log_alpha: jax.Array,
        target_entropy: Any,
    ) -> tuple[dict[str, jax.Array], jax.Array]:
        """Computes the terms of SAC's losses and metrics for each row of the batch. Each loss is the mean of its terms.

        Returns:
            ``({optimizer name or metric: float32 [N]}, values [N, ...] whose extremes are reported)``.
        """
        is_discrete = isinstance(module.action_space, gym.spaces.Discrete)
        terms = _discrete_terms if is_discrete else _continuous_terms
        q, q_twin, next_values, rows, shown = terms(config, batch, fwd_out, log_alpha, target_entropy)
        weights, at_ends, _ = sequences.of_rows(batch)
        targets = q_learning.n_step_targets(
            rewards=batch[Columns.REWARDS],
            next_values=at_ends(next_values),
            terminateds=batch[Columns.TERMINATEDS],
            **self.discount_of_targets(config, batch),
        )
        critics = soft_actor_critic.critic_rows(
            q=q, q_twin=q_twin, targets=targets, weights=weights, td_error_loss_fn=config.td_error_loss_fn
        )
        rows |= {"qf": critics.loss, TD_ERROR_MEAN_KEY: critics.td_error}
        if critics.twin_loss is not None:
            rows["qf_twin"] = critics.twin_loss
        return rows, shown


def policy_rows(fwd_out: dict[str, Any], log_alpha: jax.Array, target_entropy: Any) -> dict[str, jax.Array]:
    """Computes the policy loss, the temperature loss and the new action's log-probability of each row, for continuous
    actions.

    Returns three arrays with one value per row, float32 `[N]`: the policy loss (``"policy"``), the temperature loss
    (``"alpha"``), and the log-probability of the new action (`LOGPS_KEY`). The current policy has sampled the new
    action for the row's observation.
    """
    logp = fwd_out["logp_resampled"]
    return {
        "policy": soft_actor_critic.actor_rows(q=fwd_out["q_curr"], logp=logp, log_alpha=log_alpha),
        "alpha": soft_actor_critic.temperature_rows(log_alpha=log_alpha, logp=logp, target_entropy=target_entropy),
        LOGPS_KEY: logp,
    }


def _continuous_terms(
    config: Any, batch: dict[str, Any], fwd_out: dict[str, Any], log_alpha: jax.Array, target_entropy: Any
) -> tuple[Any, ...]:
    """Computes the terms of SAC's losses for continuous actions.

    The terms are Q-values of the taken actions, soft values of the next states, and policy and temperature losses of
    each row.

    Returns:
        ``(values of the taken actions, the second critic's values or None, soft values of the next states, rows of the
        other losses and metrics, values for metrics)``.
    """
    q_curr = fwd_out["q_curr"]
    next_values = soft_actor_critic.soft_values(
        q=fwd_out[QF_TARGET_NEXT], logp=fwd_out["logp_next_resampled"], log_alpha=log_alpha
    )
    rows = policy_rows(fwd_out, log_alpha, target_entropy) | {QF_MEAN_KEY: q_curr}
    q_twin = fwd_out[QF_TWIN_PREDS] if config.twin_q else None
    return fwd_out[QF_PREDS], q_twin, next_values, rows, q_curr


def _discrete_terms(
    config: Any, batch: dict[str, Any], fwd_out: dict[str, Any], log_alpha: jax.Array, target_entropy: Any
) -> tuple[Any, ...]:
    """Computes the terms of SAC's losses for discrete actions.

    The terms are Q-values of the taken actions, soft values of the next states, and policy and temperature losses of
    each row. Soft values and both losses are expectations over all actions. Returns a tuple with the same entries as
    `_continuous_terms`.
    """
    q_all, log_probs = fwd_out[QF_PREDS], fwd_out[ACTION_LOG_PROBS]
    q_twin_all = fwd_out[QF_TWIN_PREDS] if config.twin_q else None
    next_values = soft_actor_critic.soft_values_discrete(
        q=fwd_out[QF_TARGET_NEXT], log_probs=fwd_out[ACTION_LOG_PROBS_NEXT], log_alpha=log_alpha
    )
    rows = {
        "policy": soft_actor_critic.actor_rows_discrete(
            q=q_all, q_twin=q_twin_all, log_probs=log_probs, log_alpha=log_alpha
        ),
        "alpha": soft_actor_critic.temperature_rows_discrete(
            log_alpha=log_alpha, log_probs=log_probs, target_entropy=target_entropy
        ),
        LOGPS_KEY: jnp.mean(log_probs, axis=-1, where=mask_of(batch[Columns.OBS])),
        QF_MEAN_KEY: jnp.mean(q_all, axis=-1),
    }
    actions = batch[Columns.ACTIONS]
    q_twin = None if q_twin_all is None else q_learning.select(q_twin_all, actions)
    return q_learning.select(q_all, actions), q_twin, next_values, rows, q_all
