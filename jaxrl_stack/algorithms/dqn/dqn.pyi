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
from typing import Any
from jaxrl_stack.algorithms.dqn.default_dqn_rl_module import DefaultDQNRLModule
from jaxrl_stack.algorithms.dqn.dqn_catalog import DQN_MODEL_CONFIG, DQNCatalog, num_discrete_actions
from jaxrl_stack.algorithms.dqn.dqn_learner import DQNLearner
from jaxrl_stack.algorithms.off_policy import TD_ERROR_LOSS_FN, OffPolicyAlgorithm, OffPolicyConfig
from jaxrl_stack.algorithms.setting_checks import anything, boolean, integer, number
from jaxrl_stack.algorithms.settings import RUNNER, Section, inert, per_module, traced
from jaxrl_stack.utils.notices import notice_once
class DQNConfig(OffPolicyConfig):
    epsilon: float | list[list[float]] | list[tuple[int, float]]
    double_q: bool
    dueling: bool
    num_atoms: int
    v_min: float
    v_max: float
    noisy: bool
    sigma0: float
    td_error_loss_fn: Literal["huber", "mse"]
    adam_epsilon: float
    hiddens: list[int]
    categorical_distribution_temperature: float
    before_learn_on_batch: Callable[..., Any] | None
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
        replay_buffer_config: dict[str, Any] | type[NotProvided] = ...,
        num_steps_sampled_before_learning_starts: int | type[NotProvided] = ...,
        burn_in_len: int | type[NotProvided] = ...,
        n_step: int | tuple[int, int] | type[NotProvided] = ...,
        training_intensity: float | None | type[NotProvided] = ...,
        recorded_share: float | None | type[NotProvided] = ...,
        target_network_update_freq: int | type[NotProvided] = ...,
        tau: float | type[NotProvided] = ...,
        store_buffer_in_checkpoints: bool | type[NotProvided] = ...,
        epsilon: float | list[list[float]] | list[tuple[int, float]] | type[NotProvided] = ...,
        double_q: bool | type[NotProvided] = ...,
        dueling: bool | type[NotProvided] = ...,
        num_atoms: int | type[NotProvided] = ...,
        v_min: float | type[NotProvided] = ...,
        v_max: float | type[NotProvided] = ...,
        noisy: bool | type[NotProvided] = ...,
        sigma0: float | type[NotProvided] = ...,
        td_error_loss_fn: Literal["huber", "mse"] | type[NotProvided] = ...,
        adam_epsilon: float | type[NotProvided] = ...,
        hiddens: list[int] | type[NotProvided] = ...,
        categorical_distribution_temperature: float | type[NotProvided] = ...,
        before_learn_on_batch: Callable[..., Any] | None | type[NotProvided] = ...,
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
    def validate(self) -> None:
        ...
    def _validate_that_settings_have_an_effect(self) -> None:
        ...
class DQN(OffPolicyAlgorithm):
    @classmethod
    def get_default_config(cls) -> DQNConfig: ...
    _default_config_class: Any
