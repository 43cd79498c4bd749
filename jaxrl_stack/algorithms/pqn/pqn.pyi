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
from jaxrl_stack.algorithms.dqn.dqn_catalog import num_discrete_actions
from jaxrl_stack.algorithms.pqn.default_pqn_rl_module import DefaultPQNRLModule
from jaxrl_stack.algorithms.pqn.pqn_catalog import PQN_MODEL_CONFIG, PQNCatalog
from jaxrl_stack.algorithms.pqn.pqn_learner import PQNLearner
from jaxrl_stack.algorithms.setting_checks import boolean, check_of, number
from jaxrl_stack.algorithms.settings import RUNNER, Section, per_module, static, traced
from jaxrl_stack.connectors.learner.general_advantage_estimation import GeneralAdvantageEstimation
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
@check_of('list[float] | tuple[float, ...]')
def _rates(value: Any) -> str | None:
    ...
class PQNConfig(AlgorithmConfig):
    lambda_: float
    epsilon: float | list[list[float]] | list[tuple[int, float]]
    epsilon_per_env: list[float] | tuple[float, ...] | None
    layer_norm: bool
    adam_epsilon: float
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
        lambda_: float | type[NotProvided] = ...,
        epsilon: float | list[list[float]] | list[tuple[int, float]] | type[NotProvided] = ...,
        epsilon_per_env: list[float] | tuple[float, ...] | None | type[NotProvided] = ...,
        layer_norm: bool | type[NotProvided] = ...,
        adam_epsilon: float | type[NotProvided] = ...,
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
    def validate(self) -> None:
        ...
    def _validate_epsilon_per_env(self) -> None:
        ...
class PQN(Algorithm):
    @classmethod
    def get_default_config(cls) -> PQNConfig: ...
    _default_config_class: Any
