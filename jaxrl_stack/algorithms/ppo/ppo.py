"""Proximal policy optimisation: config and algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
from jaxrl_stack.algorithms.ppo.ppo_catalog import PPOCatalog
from jaxrl_stack.algorithms.ppo.ppo_learner import (
    LEARNER_RESULTS_CURR_ENTROPY_COEFF_KEY,
    LEARNER_RESULTS_CURR_KL_COEFF_KEY,
    LEARNER_RESULTS_KL_KEY,
    LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY,
    LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY,
    PPOLearner,
)
from jaxrl_stack.algorithms.setting_checks import amount_or_schedule, boolean, number
from jaxrl_stack.algorithms.setting_values import DefaultNumber
from jaxrl_stack.algorithms.settings import Section, host, per_module, traced
from jaxrl_stack.connectors.learner.general_advantage_estimation import GeneralAdvantageEstimation

if TYPE_CHECKING:
    from jaxrl_stack.connectors.connector_v2 import ConnectorV2
    from jaxrl_stack.connectors.module_to_env import ActionNoise

__all__ = [
    "LEARNER_RESULTS_CURR_ENTROPY_COEFF_KEY",
    "LEARNER_RESULTS_CURR_KL_COEFF_KEY",
    "LEARNER_RESULTS_KL_KEY",
    "LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY",
    "LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY",
    "PPO",
    "PPOConfig",
]


class PPOConfig(AlgorithmConfig):
    """Settings of PPO (Schulman et al., 2017, arXiv:1707.06347).

    ::

        algo = PPOConfig().environment("gymnax/CartPole-v1").training(lr=0.0003).build_algo()
    """

    # fmt: off
    _sections = (
        Section("training", "Sets how the policy is trained.", (
            per_module("use_critic", True, boolean, "Train a value function."),
            host("use_gae", True, boolean, "Generalised advantage estimation, the only supported estimator."),
            traced("lambda_", 1.0, number(0, 1),
                "Trace decay of GAE: 1 gives returns with a bootstrap value, 0 one-step advantages."),
            per_module("use_kl_loss", True, boolean, "Add the KL divergence from the sampling policy to the loss."),
            traced("kl_coeff", 0.2, number(0, finite=True), "Initial weight of that divergence; it then adapts.",
                is_initial=True),
            traced("kl_target", 0.01, number(0), "Target of the KL divergence, to which kl_coeff adapts."),
            traced("vf_loss_coeff", 1.0, number(0, finite=True), "Weight of the value loss."),
            traced("entropy_coeff", 0.0, amount_or_schedule, "Weight of the entropy bonus.", check_when_set=False),
            traced("clip_param", 0.3, number(0), "Probability ratios are clipped to 1 ± this."),
            traced("vf_clip_param", 10.0, number(0),
                "Upper bound of the squared value error. Large rewards need a larger one."),
        )),
    )
    # fmt: on
    _defaults: Mapping[str, Any] = {
        "num_env_runners": DefaultNumber(2),
        "rollout_fragment_length": "auto",
        "lr": 5e-5,
        "train_batch_size": 4000,
        "num_epochs": 30,
        "minibatch_size": 128,
        "shuffle_batch_per_epoch": True,
    }

    _algorithm = "PPO"
    _default_learner_class = PPOLearner
    _default_module_class = DefaultPPORLModule
    _default_catalog_class = PPOCatalog

    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        return super()._model_config_auto_includes | {"vf_share_layers": False}

    def _default_learner_connectors(self) -> list[ConnectorV2]:
        return [GeneralAdvantageEstimation(gamma=self.static_value("gamma"), lambda_=self.static_value("lambda_"))]

    def _check_action_noise(self, name: str, connector: ActionNoise) -> None:
        raise ValueError(
            f"env_runners(module_to_env_connector=...): connector {name!r} changes actions after their "
            "log-probabilities are computed, so the probability ratios in PPO's loss would be wrong. Leave the "
            "connector out, and raise training(entropy_coeff=...) to explore more; or use SAC."
        )

    def validate(self) -> None:
        """Checks all settings, individually and in combination.

        Raises:
            ValueError: Names the setting, its value and the remedy.
            NotImplementedError: If a setting is not supported.
        """
        super().validate()
        self.validate_train_batch_size_vs_rollout_fragment_length()
        self._validate_minibatch_size()
        if not self.use_gae:
            self._value_error(
                "training(use_gae=False) is not implemented. Use lambda_=1.0: returns with a bootstrap value."
            )


class PPO(Algorithm):
    """Proximal policy optimisation; see the README of this folder."""

    _default_config_class = PPOConfig
