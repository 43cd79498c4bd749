"""PQN's loss."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import optax

from jaxrl_stack.algorithms.dqn.default_dqn_rl_module import QF_PREDS
from jaxrl_stack.algorithms.dqn.dqn_learner import QF_LOSS_KEY, QF_MEAN_KEY, TD_ERROR_MEAN_KEY
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.default_observations import rows_without_valid_action
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.rl_module.apis import QNetAPI, ValueFunctionAPI
from jaxrl_stack.ops import q_learning

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.utils.traced_config import TracedConfigView

VALUE_TARGET_MEAN_KEY = "value_target_mean"
"""Name of the mean lambda return in the results of each module, ``result["learners"][module_id][name]``."""


class PQNLearner(Learner):
    """Parallelised Q-network (Gallici et al., 2024, arXiv:2407.04811, algorithm 1).

    ``loss = (Q(s, a) - G)^2 / 2``, a mean over the valid rows. The lambda returns ``G`` are the value targets of
    `GeneralAdvantageEstimation` with ``V(s) = max_a Q(s, a)``, computed once per update with the parameters from before
    it.
    """

    loss_is_linear_in_means = True
    learns_from_sequences = True
    result_names = (QF_LOSS_KEY, QF_MEAN_KEY, TD_ERROR_MEAN_KEY, VALUE_TARGET_MEAN_KEY)
    columns_from_forward_train = (QF_PREDS,)

    @classmethod
    def rl_module_required_apis(cls) -> list[type]:
        return [QNetAPI, ValueFunctionAPI]

    def configure_optimizers_for_module(self, module_id: str, config: AlgorithmConfig | None = None) -> None:
        """Registers one rectified Adam (Liu et al., 2020, arXiv:1908.03265) for all parameters, with
        ``config.adam_epsilon``.
        """
        settings: Any = config or self.config_for(module_id)
        self.register_optimizer(
            module_id=module_id,
            optimizer=functools.partial(optax.radam, eps=settings.adam_epsilon),
            params=self.get_parameters(self.template[module_id]),
            lr_or_lr_schedule=settings.lr,
        )

    def compute_loss_for_module(
        self, *, module_id: str, config: TracedConfigView, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> Any:
        targets = batch[Columns.VALUE_TARGETS]
        q_selected = q_learning.select(fwd_out[QF_PREDS], batch[Columns.ACTIONS])
        rows: dict[str, jax.Array] = {
            QF_LOSS_KEY: optax.l2_loss(q_selected, targets),
            QF_MEAN_KEY: jax.lax.stop_gradient(q_selected),
            TD_ERROR_MEAN_KEY: jax.lax.stop_gradient(abs(q_selected - targets)),
            VALUE_TARGET_MEAN_KEY: targets,
        }
        rows |= rows_without_valid_action(self.module[module_id].action_space, batch)
        means = self.masked_means(rows, batch)
        self._log_no_valid_action_share(module_id, means)
        self.metrics.log_dict(means, key=module_id, window=1)
        return means[QF_LOSS_KEY]
