"""DQN's loss."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import optax

from jaxrl_stack.algorithms.dqn.default_dqn_rl_module import (
    ATOMS,
    QF_LOGITS,
    QF_NEXT_PREDS,
    QF_PREDS,
    QF_PROBS,
    QF_TARGET_NEXT_PREDS,
    QF_TARGET_NEXT_PROBS,
)
from jaxrl_stack.compat.renamed import absent_or_renamed
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.default_observations import mask_of, rows_without_valid_action
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.learner.target_networks import TargetNetworkUpdates
from jaxrl_stack.core.rl_module.apis import QNetAPI, TargetNetworkAPI
from jaxrl_stack.ops import q_learning, sequences
from jaxrl_stack.utils.metrics import TD_ERROR_KEY

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.utils.traced_config import TracedConfigView

__all__ = [
    "ATOMS",
    "QF_LOGITS",
    "QF_LOSS_KEY",
    "QF_MAX_KEY",
    "QF_MEAN_KEY",
    "QF_MIN_KEY",
    "QF_NEXT_PREDS",
    "QF_PREDS",
    "QF_PROBS",
    "QF_TARGET_NEXT_PREDS",
    "QF_TARGET_NEXT_PROBS",
    "TD_ERROR_MEAN_KEY",
    "DQNLearner",
]

QF_LOSS_KEY = "qf_loss"
QF_MEAN_KEY = "qf_mean"
QF_MAX_KEY = "qf_max"
QF_MIN_KEY = "qf_min"
TD_ERROR_MEAN_KEY = "td_error_mean"
"""Names of DQN's results of each module, ``result["learners"][module_id][name]``."""


class DQNLearner(TargetNetworkUpdates, Learner):
    """Deep Q-learning (Mnih et al., 2015) and its extensions in Rainbow (Hessel et al., 2018, arXiv:1710.02298).

    ``loss = w l(Q(s, a), R + gamma^n (1 - terminated) Q'(s', argmax Q(s', .)))``, a mean over the valid rows; with
    atoms the cross-entropy between the projected target distribution and the predicted one.
    """

    loss_is_linear_in_means = True
    learns_from_sequences = True
    result_names = (QF_LOSS_KEY, QF_MEAN_KEY, QF_MAX_KEY, QF_MIN_KEY, TD_ERROR_MEAN_KEY)
    columns_from_forward_train = (QF_PREDS, QF_TARGET_NEXT_PREDS)

    @classmethod
    def rl_module_required_apis(cls) -> list[type]:
        return [QNetAPI, TargetNetworkAPI]

    def configure_optimizers_for_module(self, module_id: str, config: AlgorithmConfig | None = None) -> None:
        """Registers one Adam with ``config.adam_epsilon`` for all parameters except the target networks."""
        settings: Any = config or self.config_for(module_id)
        self.register_optimizer(
            module_id=module_id,
            optimizer=functools.partial(optax.adam, eps=settings.adam_epsilon),
            params=self.get_parameters(self.template[module_id]),
            lr_or_lr_schedule=settings.lr,
        )

    def compute_loss_for_module(
        self, *, module_id: str, config: TracedConfigView, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> Any:
        q_target_next = fwd_out[QF_TARGET_NEXT_PREDS]
        next_mask = mask_of(batch[Columns.NEXT_OBS])
        best = q_learning.next_actions(q_target_next, fwd_out[QF_NEXT_PREDS] if config.double_q else None, next_mask)
        # Of sequences, weights and priorities are one each, and windows bootstrap where they end.
        weights, at_ends, priorities = sequences.of_rows(batch)
        transition = {"rewards": batch[Columns.REWARDS], "terminateds": batch[Columns.TERMINATEDS]}
        transition |= self.discount_of_targets(config, batch)
        if config.num_atoms > 1:
            rows = q_learning.categorical_q_rows(
                logits=fwd_out[QF_LOGITS],
                actions=batch[Columns.ACTIONS],
                target_probs=q_learning.categorical_targets(
                    next_probs=at_ends(q_learning.select_atoms(fwd_out[QF_TARGET_NEXT_PROBS], best)),
                    atoms=fwd_out[ATOMS],
                    **transition,
                ),
                atoms=fwd_out[ATOMS],
                weights=weights,
            )
        else:
            rows = q_learning.q_rows(
                q_values=fwd_out[QF_PREDS],
                actions=batch[Columns.ACTIONS],
                targets=q_learning.n_step_targets(
                    next_values=at_ends(q_learning.select(q_target_next, best)), **transition
                ),
                weights=weights,
                td_error_loss_fn=config.td_error_loss_fn,
            )
        without_action = rows_without_valid_action(self.module[module_id].action_space, batch)
        shown = {QF_LOSS_KEY: rows.loss, QF_MEAN_KEY: rows.q_selected, TD_ERROR_MEAN_KEY: rows.td_error}
        means = self.masked_means(shown | without_action, batch)
        valid = batch[Columns.LOSS_MASK]
        log = self.metrics.log_value
        log((module_id, TD_ERROR_KEY), priorities(rows.td_error), reduce="item_series")
        log((module_id, QF_MAX_KEY), jnp.max(jnp.where(valid, rows.q_selected, -jnp.inf)), reduce="max")
        log((module_id, QF_MIN_KEY), jnp.min(jnp.where(valid, rows.q_selected, jnp.inf)), reduce="min")
        self.metrics.log_dict(means, key=module_id, window=1)
        return means[QF_LOSS_KEY]


__getattr__ = absent_or_renamed(
    __name__,
    absent={"DQNRainbowTorchLearner": "`DQNLearner`", "DQNTorchLearner": "`DQNLearner`"},
    renamed={"DQNRainbowLearner": DQNLearner},
)
