"""Monotonic advantage re-weighted imitation learning: config and algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
from jaxrl_stack.algorithms.marwil.marwil_learner import (
    LEARNER_RESULTS_MOVING_AVG_SQD_ADV_NORM_KEY,
    LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY,
    MARWILLearner,
)
from jaxrl_stack.algorithms.marwil.marwil_step import MARWILStep
from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
from jaxrl_stack.algorithms.ppo.ppo_catalog import PPOCatalog
from jaxrl_stack.algorithms.setting_checks import integer, number
from jaxrl_stack.algorithms.settings import Section, per_module, traced
from jaxrl_stack.utils.notices import notice_once

__all__ = [
    "LEARNER_RESULTS_MOVING_AVG_SQD_ADV_NORM_KEY",
    "LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY",
    "MARWIL",
    "MARWILConfig",
]


class MARWILConfig(AlgorithmConfig):
    """Settings of MARWIL (Wang et al., 2018, "Exponentially weighted imitation learning for batched historical data").

    ::

        config = MARWILConfig().environment("CartPole-v1").offline_data(input_=["data/cartpole"])
        algo = config.training(beta=1.0, train_batch_size_per_learner=1024).build_algo()
    """

    # fmt: off
    _sections = (
        Section("training", "Sets how the policy is trained.", (
            traced("beta", 1.0, number(0, 1),
                "Factor of advantages in the exponent of actions' weights; 0 is behaviour cloning.", off=(0,)),
            traced("bc_logstd_coeff", 0.0, number(0, finite=True),
                "Weight of the mean log standard deviation of Gaussian policies, which keeps them wide.", off=(0,)),
            traced("moving_average_sqd_adv_norm_update_rate", 1e-8, number(0, 1),
                "Update rate of the moving average of squared advantages, per update."),
            traced("moving_average_sqd_adv_norm_start", 100.0, number(0, finite=True),
                "Initial value of that average; advantages are divided by its root.", is_initial=True),
            traced("vf_coeff", 1.0, number(0, finite=True), "Weight of the value loss."),
            per_module("burnin_len", 0, integer(0),
                "Maximum number of steps at the start of a sequence that only update a recurrent state and are not "
                "learned from; max_seq_len includes them."),
            traced("lambda_", 1.0, number(0, 1),
                "Trace decay of the value targets: 1 gives returns of whole episodes, 0 one-step targets."),
            traced("max_advantage_weight", None, number(above=0),
                "Upper bound of the weights of actions; None for no bound."),
        )),
    )
    # fmt: on
    _defaults: Mapping[str, Any] = {
        "lr": 1e-4,
        "train_batch_size": 2000,
        "materialize_data": True,
        "materialize_mapped_data": False,
    }

    _algorithm = "MARWIL"
    _default_learner_class = MARWILLearner
    _default_module_class = DefaultPPORLModule
    _default_catalog_class = PPOCatalog

    def __init__(self, algo_class: type | str | None = None):
        super().__init__(algo_class=algo_class)
        self._is_online = False

    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        return super()._model_config_auto_includes | {"vf_share_layers": False}

    def validate(self) -> None:
        """Checks all settings, individually and in combination.

        Raises:
            ValueError: Names the setting, its value and the remedy.
            NotImplementedError: If a setting is not supported.
        """
        super().validate()
        length = self.model_config.get("max_seq_len")
        if self.burnin_len and length is not None and self.burnin_len >= length:
            self._value_error(
                f"training(burnin_len={self.burnin_len}) must be below the sequence length, "
                f"rl_module(model_config={{'max_seq_len': {length}}}): otherwise no step remains for the loss. Lower "
                f"burnin_len, or raise max_seq_len."
            )
        if self.minibatch_size is not None or self.num_epochs != 1:
            notice_once(
                f"training(minibatch_size={self.minibatch_size}, num_epochs={self.num_epochs}) have no effect on "
                "recorded data. Set train_batch_size_per_learner for the rows of an update, and "
                "offline_data(dataset_num_iters_per_learner=...) for the updates of an iteration."
            )


class MARWIL(Algorithm):
    """Monotonic advantage re-weighted imitation learning; see the README of this folder."""

    training_step_class = MARWILStep

    _default_config_class = MARWILConfig
