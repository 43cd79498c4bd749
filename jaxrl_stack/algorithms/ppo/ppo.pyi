# Made by `python -m jaxrl_stack.algorithms._stubs`; do not edit.
# ruff: noqa
import os
from collections.abc import Callable, Collection
from typing import Any, Literal, Never, TypeVar
import gymnasium as gym
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.core.rl_module.rl_module import MultiRLModuleSpec, RLModuleSpec
from jaxrl_stack.offline.estimators.off_policy_estimator import OffPolicyEstimator
from jaxrl_stack.offline.offline_evaluation_runner import OfflineEvaluationRunner
from jaxrl_stack.utils.from_config import NotProvided
from jaxrl_stack.utils.metrics.stats import StatsBase
from jaxrl_stack.utils.policy_spec import PolicySpec
_Config = TypeVar("_Config")

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
from jaxrl_stack.algorithms.ppo.ppo_catalog import PPOCatalog
from jaxrl_stack.algorithms.ppo.ppo_learner import LEARNER_RESULTS_CURR_ENTROPY_COEFF_KEY, LEARNER_RESULTS_CURR_KL_COEFF_KEY, LEARNER_RESULTS_KL_KEY, LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY, LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY, PPOLearner
from jaxrl_stack.algorithms.setting_checks import amount_or_schedule, boolean, number
from jaxrl_stack.algorithms.setting_values import DefaultNumber
from jaxrl_stack.algorithms.settings import Section, host, per_module, traced
from jaxrl_stack.connectors.learner.general_advantage_estimation import GeneralAdvantageEstimation
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.module_to_env import ActionNoise
__all__ = ['LEARNER_RESULTS_CURR_ENTROPY_COEFF_KEY', 'LEARNER_RESULTS_CURR_KL_COEFF_KEY', 'LEARNER_RESULTS_KL_KEY', 'LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY', 'LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY', 'PPO', 'PPOConfig']
class PPOConfig(AlgorithmConfig):
    use_critic: bool
    use_gae: bool
    lambda_: float
    use_kl_loss: bool
    kl_coeff: float
    kl_target: float
    vf_loss_coeff: float
    entropy_coeff: float | list[list[float]] | list[tuple[int, float]]
    clip_param: float
    vf_clip_param: float
    def training(
        self: _Config,
        *,
        gamma: float | type[NotProvided] = ...,
        lr: float | list[list[float]] | list[tuple[int, float]] | None | type[NotProvided] = ...,
        grad_clip: float | None | type[NotProvided] = ...,
        grad_clip_by: str | type[NotProvided] = ...,
        train_batch_size: int | type[NotProvided] = ...,
        train_batch_size_per_learner: int | None | type[NotProvided] = ...,
        num_epochs: int | type[NotProvided] = ...,
        minibatch_size: int | None | type[NotProvided] = ...,
        shuffle_batch_per_epoch: bool | type[NotProvided] = ...,
        use_critic: bool | type[NotProvided] = ...,
        use_gae: bool | type[NotProvided] = ...,
        lambda_: float | type[NotProvided] = ...,
        use_kl_loss: bool | type[NotProvided] = ...,
        kl_coeff: float | type[NotProvided] = ...,
        kl_target: float | type[NotProvided] = ...,
        vf_loss_coeff: float | type[NotProvided] = ...,
        entropy_coeff: float | list[list[float]] | list[tuple[int, float]] | type[NotProvided] = ...,
        clip_param: float | type[NotProvided] = ...,
        vf_clip_param: float | type[NotProvided] = ...,
    ) -> _Config: ...
    def __getattr__(self, name: Never) -> Never: ...  # type: ignore
    def __setattr__(self, name: Never, value: Never) -> None: ...  # type: ignore
    def get_default_rl_module_spec(self) -> RLModuleSpec: ...
    _sections: Any
    _defaults: Mapping[str, Any]
    _algorithm: Any
    _default_learner_class: Any
    _default_module_class: Any
    _default_catalog_class: Any
    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        ...
    def _default_learner_connectors(self) -> list[ConnectorV2]:
        ...
    def _check_action_noise(self, name: str, connector: ActionNoise) -> None:
        ...
    def validate(self) -> None:
        ...
class PPO(Algorithm):
    @classmethod
    def get_default_config(cls) -> PPOConfig: ...
    _default_config_class: Any
